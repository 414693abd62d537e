"""Best policies: each member's so far, part of every checkpoint; and how they did on fresh episodes (fresh.json)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from t3d.config.metrics import Criterion
from t3d.config.networks import own_network
from t3d.errors import UserError
from t3d.files import CORRUPT_ERRORS, Refused, read, refuse_link, replace, sealed, to_count, to_fields, unsealed
from t3d.policy.acting import PolicySnapshot
from t3d.policy.architectures import Architecture
from t3d.policy.files import MOST_JSON_BYTES, read_description, read_policy
from t3d.store.folder import RunFolder
from t3d.store.lock import one_at_a_time
from t3d.store.log import LARGEST
from t3d.types import Evaluation, State


class BestPolicies:
    """The best evaluations, with the policies that reached them."""

    def __init__(self, members: int, criterion: Criterion | None = None) -> None:
        self.criterion = criterion or Criterion()
        self.ranks = [(-math.inf, -math.inf)] * members
        self._kept: dict[int, tuple[int, PolicySnapshot]] = {}  # by member: step, and a snapshot of that member alone

    @property
    def returns(self) -> list[float]:
        return [mean_return for _, mean_return in self.ranks]

    def offer(self, evaluation: Evaluation) -> bool:
        """Keeps a policy that is better than all before it; returns whether it is."""
        member = evaluation.member
        rank = self.criterion.rank(float(evaluation.returns.mean()), evaluation.metrics)
        if not (evaluation.chooses and rank > self.ranks[member]):  # only evaluations in one set are compared
            return False
        self.ranks[member] = rank
        self._kept[member] = (evaluation.step, evaluation.snapshot.of_member(member))
        return True

    def write(self, member: int, folder: RunFolder) -> None:
        if member in self._kept:
            step, snapshot = self._kept[member]
            score, mean_return = self.ranks[member]
            about = {"step": step, "mean_return": mean_return}
            about |= {} if self.criterion == Criterion() or math.isinf(score) else {"score": score}
            folder.save_policy("best", snapshot, 0, folder.cfg.members[member], about)

    def rewrite(self, folder: RunFolder) -> list[str]:
        """Writes best/ again, whatever a kill or an accident has left there; says what was damaged."""
        notes, network = [], own_network(folder.cfg.actor_network)
        for member in self._kept:
            try:
                read_policy(folder.path / "best" / folder.cfg.members[member].name, network)
            except UserError as error:
                notes.append(f"{error}; it is restored from the checkpoint")
            self.write(member, folder)
        return notes

    def state(self) -> State:
        kept = self._kept.items()
        policies = {f"member-{member}": {"step": step, **snapshot.to_dict()} for member, (step, snapshot) in kept}
        scores = {"scores": np.array([score for score, _ in self.ranks])} if self.criterion != Criterion() else {}
        return {"returns": np.array(self.returns), **scores, **policies}

    def restore(self, state: State, architecture: Architecture) -> None:
        """Restores what state() returned; every value is checked, because a file may hold anything."""
        scores: Any = state.get("scores", state["returns"])
        ranks = np.stack([scores, state["returns"]], axis=1)
        if ranks.shape != (len(self.ranks), 2):
            raise ValueError(f"best.returns has shape {state['returns'].shape}")
        self.ranks = [(float(score), float(mean_return)) for score, mean_return in ranks]
        for member in range(len(self.ranks)):
            if f"member-{member}" in state:
                saved = to_fields(state[f"member-{member}"])
                snapshot = PolicySnapshot.from_dict(saved, 1, architecture).checked()
                self._kept[member] = (to_count(saved["step"]), snapshot)


FILE, MOST_BYTES = "fresh.json", 2**24


@dataclass(frozen=True)
class Fresh:
    """A policy's returns on episodes that took no part in training, without noise."""

    policy: str  # SHA-256 of its tensors
    episodes: int
    mean: float
    std: float
    low: float | None  # of the 95 % interval of the mean, over these episodes; None: a single one has no interval
    high: float | None
    lowest: float
    highest: float
    mean_length: float
    of: int = 1  # policies that played these very episodes, so that the best could be chosen
    seen: dict[str, Any] | None = None  # the ranges of what it observed and did
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)  # what info said, on average

    @property
    def fields(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("policy", "seen")}

    def __post_init__(self) -> None:
        to_count(self.episodes, least=1)
        to_count(self.of, least=1)
        numbers = (self.mean, self.std, self.lowest, self.highest, self.mean_length, *self.metrics.values())
        limits = () if self.low is None and self.high is None else (self.low, self.high)
        if not all(type(value) in (int, float) and abs(value) < LARGEST for value in (*numbers, *limits)):
            raise Refused("its values are not what they should be")


class FreshResults(NamedTuple):
    """What was played with the best policies that a run has now."""

    chosen: str = ""  # the name of the member whose policy did best
    by_member: Mapping[str, Fresh] = MappingProxyType({})
    choice: Mapping[str, Any] = MappingProxyType({})  # what each member returned when one was chosen, and on what basis


def read_fresh(path: Path) -> FreshResults:
    """Reads what is known of the policies in best/; nothing if that cannot be used."""
    results = FreshResults()
    with suppress(TypeError, AttributeError, *CORRUPT_ERRORS):  # a file may hold any JSON
        fields = unsealed("fresh", read(path / "best" / FILE, MOST_BYTES))
        known = {str(name): Fresh(**result) for name, result in fields["results"].items()}
        current = {name: fresh for name, fresh in known.items() if fresh.policy == _hash_in(path, name)}
        results = FreshResults(str(fields["chosen"]), current, to_fields(fields.get("choice", {})))
    return results


def write_fresh(
    path: Path, results: Mapping[str, Fresh], chosen: str = "", choice: Mapping[str, Any] | None = None
) -> None:
    """Adds results of the policies in best/; of two for the same policy the one with more episodes stays."""
    with suppress(*CORRUPT_ERRORS), one_at_a_time(path):  # otherwise it is played again
        before = read_fresh(path)
        kept = dict(before.by_member)
        for name, fresh in results.items():
            if fresh.policy == _hash_in(path, name) and (name not in kept or kept[name].episodes <= fresh.episodes):
                kept[name] = fresh
        fields = {name: dataclasses.asdict(fresh) for name, fresh in kept.items()}
        refuse_link(path / "best")
        content = {"chosen": chosen or before.chosen, "choice": dict(choice or before.choice), "results": fields}
        replace(path / "best" / FILE, sealed("fresh", content))


def _hash_in(path: Path, name: str) -> str:
    """Returns the hash of the tensors of a member's best policy, as the file beside it says."""
    if Path(name).name != name:
        raise Refused(f"{name!r:.60} is not the name of a member")
    return str(read_description(read(path / "best" / f"{name}.json", MOST_JSON_BYTES)).get("tensors_sha256"))
