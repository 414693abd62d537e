"""What a new run starts from: all that another has learned, or the actor in a policy file with new critics.

Both are data: nothing that they name is imported, and a resumed run never looks at them again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from t3d.algo.adam import AdamState
from t3d.algo.networks import named_tensors
from t3d.config import Config, flat, merge, plain
from t3d.config.fields import settings_where
from t3d.config.networks import own_network
from t3d.config.settings import POLICY_FILE
from t3d.config.sweeps import noun
from t3d.data.scaling import EPSILON
from t3d.errors import UserError
from t3d.files import CORRUPT_ERRORS, to_fields
from t3d.modules import is_own
from t3d.policy.files import read_policy
from t3d.run.parts import Parts
from t3d.store.checkpoint import Checkpoint, newest, open_checkpoint
from t3d.store.contents import refuse_unlike
from t3d.store.reader import locate
from t3d.types import State
from t3d.world.fingerprint import difference, differences, outline

MUST_FIT = settings_where(Config, lambda about: about.get("must_fit", False))


class Origin(NamedTuple):
    """What a run starts from; its settings fit."""

    path: Path
    step: int
    checkpoint: Checkpoint | None  # None: a policy file
    state: State  # of the checkpoint, or as much of one as a policy file holds
    names: list[str]  # of the members there
    members: list[int]  # which of them each of ours starts from

    def begin(self, parts: Parts) -> str:
        """Gives a new run what it starts with; returns a note on it."""
        names = [self.names[member] for member in self.members]
        try:
            changes = self._changes(parts)
            self._give(parts, names)
        except CORRUPT_ERRORS as error:
            raise UserError(f"{self.path} does not fit this run ({type(error).__name__}: {error})") from error
        if broken := parts.learner.non_finite():
            raise UserError(f"{self.path} has diverged: its {broken[0][0]} is not finite; start from another")
        _refuse_ended_schedule(parts)
        path, name, replay = str(self.path), self.checkpoint.name if self.checkpoint else "", parts.cfg.start_replay
        parts.origin = {"path": path, "checkpoint": name, "step": self.step, "members": names, "replay": replay}
        learned = f"what {', '.join(dict.fromkeys(names))} had learned{' and collected' if replay else ''}"
        rests = f"; the actor rests for {parts.cfg.actor_rests:,} updates" if parts.cfg.actor_rests else ""
        return f"it starts from {self.path}, {learned if name else 'its actor'} at step {self.step:,}{rests}{changes}"

    def _give(self, parts: Parts, names: list[str]) -> None:
        learner, memory, theirs = parts.learner, parts.memory, to_fields(self.state["learner"])
        tensors = [name for name, _ in named_tensors(learner.agent)]
        if unknown := theirs.keys() - tensors if self.checkpoint is None else ():
            raise UserError(f"a policy file is for TD3 without images, and this rule has no {', '.join(unknown)}")
        agent = {name: self._of_ours(theirs[name]) for name in (tensors if self.checkpoint else theirs)}
        learner.restore({**learner.state(), **agent})
        learner.forget()
        if self.checkpoint and parts.cfg.start_replay:
            read, replay = self.checkpoint.rollouts, memory.replay
            memory.carry(block for index, name in enumerate(names) for block in read(name, index, replay))
        statistics, ours = to_fields(self.state["memory"]), memory.state()
        refuse_unlike(statistics, {name: ours[name] for name in ("normaliser", "reward_scaler")})
        memory.take_over(statistics, self.members)

    def _of_ours(self, array: Any) -> Any:
        """Picks our members' rows; Adam's count of steps is the same for all."""
        if not isinstance(array, np.ndarray) or not array.ndim:
            return array
        return array.reshape(len(self.names), -1, *array.shape[1:])[self.members].reshape(-1, *array.shape[1:])

    def _changes(self, parts: Parts) -> str:
        """Says how the environment differs, as far as that is known; raises UserError if its spaces do not fit."""
        then, now = to_fields(self.state["spec"]), outline(parts.collector.spec)
        if unlike := difference({**then, "bounds": []}, {**now, "bounds": []}):
            raise UserError(f"{parts.cfg.env.title} does not fit {self.path}: {unlike}")
        environment = {"class": parts.environment["class"], **to_fields(self.state.get("environment", {}))}
        texts = [*differences(environment, parts.environment), *filter(None, [difference(then, now)])]
        return f"; its environment was another: {'; '.join(texts)}" if texts else ""


def with_full_origin(cfg: Config) -> Config:
    """Finds what a run is to start from: a policy file, perhaps without its ending, a checkpoint, or a run."""
    given = cfg.start_from
    if not given:
        return cfg
    file = f"{given.removesuffix(POLICY_FILE)}{POLICY_FILE}"
    exact = file if os.path.lexists(file) else given if os.path.lexists(Path(given) / "manifest.json") else ""
    path = Path(exact) if exact else locate(given, Path(cfg.run.root))
    return replace(cfg, start_from=str(path.absolute()))


def open_origin(cfg: Config) -> Origin:
    """Opens what a run starts from, and refuses what its settings do not fit."""
    path = Path(cfg.start_from)
    try:
        return _of_policy(cfg, path) if cfg.starts_from_policy else _of_run(cfg, path)
    except CORRUPT_ERRORS as error:
        raise UserError(f"{path} is not a checkpoint that T3D wrote ({error})") from None


def _of_policy(cfg: Config, path: Path) -> Origin:
    if given := [name for name in ("start_replay", "start_seed") if getattr(cfg, name)]:
        raise UserError(f"{path} is one policy, and {given[0]} is for runs and checkpoints; leave it out")
    policy = read_policy(path, own_network(cfg.actor_network))
    (_, network, actor, scaling), about, statistics = policy.snapshot, policy.about, {}
    if cfg.algo == "td7" or network.name == "embedding":
        raise UserError(f"{path} is one actor, and TD7 starts with its encoders and critics, too; name a run of TD7")
    known = {"network": network.name, "hidden": network.sizes[1:-1], "activation": network.activation}
    known = {f"td3.actor_{name}": value for name, value in known.items()}
    _refuse_unlike(path, {**known, "normalise_observations": scaling is not None}, cfg)
    if scaling is not None:
        count, variance = np.full((1, 1), max(2.0, float(about["step"]))), scaling.std.astype(np.float64) ** 2 - EPSILON
        statistics = {"count": count, "mean": scaling.mean.astype(np.float64), "m2": count * variance.clip(min=0)}
    state = {
        "spec": outline(policy.spec),
        "environment": {"args": about.get("env_args", {})},
        "learner": {"actor": actor, "actor_target": actor},
        "memory": {"normaliser": statistics},
    }
    return Origin(path, about["step"], None, state, [f"seed-{about['seed']}"], [0] * len(cfg.members))


def _of_run(cfg: Config, path: Path) -> Origin:
    is_checkpoint = os.path.lexists(path / "manifest.json")
    checkpoint, notes = (open_checkpoint(path), []) if is_checkpoint else newest(path / "checkpoints")
    if checkpoint is None:
        why = f" ({'; '.join(notes)})" if notes else ""
        raise UserError(f"{path} has no checkpoint to start from{why}; a policy of it will do: {path}/best/seed-N")
    state = checkpoint.state()
    then = merge(Config(), to_fields(state["config"]))
    members, names = _members(cfg, then, path), then.member_names
    for member, its_origin in zip(cfg.members, members, strict=True):
        before = flat(then.of(then.members[its_origin]))
        _refuse_unlike(path, {name: before[name] for name in MUST_FIT}, cfg.of(member))
    if diverged := {names[member] for member in members} & {*to_fields(state.get("stopped", {}))}:
        raise UserError(f"{min(diverged)} of {path} has diverged; start from another with --start-seed")
    return Origin(path, checkpoint.step, checkpoint, state, names, members)


def _refuse_unlike(path: Path, then: Mapping[str, Any], cfg: Config) -> None:
    now = flat(cfg)
    for name, before in then.items():
        both_own = is_own(str(before)) and is_own(str(now[name]))  # the same file may be in another folder
        if before != now[name] and not (both_own and before.rpartition(":")[2] == now[name].rpartition(":")[2]):
            raise UserError(
                f"{path} has {name}={plain(before)}, and this run {plain(now[name])}; they must be the same"
            )


def _members(cfg: Config, then: Config, path: Path) -> list[int]:
    """Chooses the member that each of ours starts from: the one named, the only one, or the one of the same name."""
    known, wanted = then.member_names, cfg.start_seed
    named = [index for index, them in enumerate(then.members) if wanted in (them.name, str(them.seed))]
    if len(named) == 1 or (len(known) == 1 and not wanted):
        return (named or [0]) * len(cfg.members)
    alike = [next((name for name in (us.name, f"seed-{us.seed}") if name in known), "") for us in cfg.members]
    if wanted or not all(alike):
        has = f"{path} has the {noun(then.members)}s {', '.join(known[:5])}{' ...' if len(known) > 5 else ''}"
        lacks = f"start_seed={wanted} is not one of them" if wanted else "this run has others"
        raise UserError(f"{has}, and {lacks}; choose one for all, e.g. --start-seed {known[0]}")
    return [known.index(name) for name in alike]


def _refuse_ended_schedule(parts: Parts) -> None:
    td3 = parts.cfg.td3
    steps = [int(value.steps.max()) for value in parts.learner.agent if isinstance(value, AdamState)]
    if td3.lr_schedule != "constant" and max(steps, default=0) >= td3.lr_updates:
        problem = f"td3.lr_updates={td3.lr_updates} counts all updates, and {max(steps):,} were made before this run"
        raise UserError(f"{problem}; give more, or leave lr_schedule")
