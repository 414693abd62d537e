"""Opens run folders: live, finished, killed or copied from another machine, all the same."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from t3d.config import Config, EnvConfig, Member
from t3d.config.networks import own_network
from t3d.config.sweeps import noun, swept
from t3d.errors import UserError, did_you_mean
from t3d.events import Eval, SeedStopped
from t3d.policy.acting import SavedPolicy
from t3d.policy.files import UnknownNetwork, read_policy
from t3d.store.columns import read_columns
from t3d.store.log import LOG, Unreadable, damage_in_words
from t3d.store.metrics import Evals, StoredEvaluation, best_of, highest, last_means

MARKS = ("events.jsonl", "config.toml", "checkpoints")  # a folder that holds one of them is a run
NO_ARGS: Mapping[str, Any] = MappingProxyType({})
MOST_NAMED = 3  # members that a message lists


class Run(NamedTuple):
    """A run, as read from its folder."""

    path: Path
    cfg: Config
    evals: Evals
    stopped: Mapping[Member, SeedStopped] = MappingProxyType({})  # those that have diverged
    task_began: float = -math.inf  # when the task has last changed, in seconds since 1970
    other_sets: Mapping[str, Evals] = MappingProxyType({})  # evaluations of sets that do not choose the best
    make_env: Callable[..., Any] | None = None  # of an environment made in Python, if this is known here

    @property
    def contenders(self) -> list[Member]:
        """The members that the best one is chosen from: in a sweep the seeds of the highest combination."""
        if not swept(self.cfg.members):
            return [*self.evals]
        living = [member for member in self.evals if member not in self.stopped] or [*self.evals]
        chosen = highest(last_means(self.cfg.members, self.evals, self.stopped, lambda last: self.rank(last)[0]))
        return [member for member in living if member.values == chosen] or living

    def compared_evals(self, member: Member) -> int:
        """Returns how many evaluations a member's best one was chosen from: those since the task last changed."""
        return sum(evaluation.time >= self.task_began for evaluation in self.evals.get(member, []))

    def best_member(self) -> Member:
        """Returns the contender with the best evaluation; insight/best_member.py compares on fresh episodes."""
        if not self.evals:
            raise UserError(f"{self.path} has no evaluation (t3d runs show {self.path} says how it ended)")
        return max(self.contenders, key=lambda member: self.rank(best_of(self.evals[member])))

    def rank(self, evaluation: StoredEvaluation) -> tuple[float, float]:
        return self.cfg.criterion.rank(evaluation.mean_return, evaluation.metrics)

    def member(self, name: int | str) -> Member:
        """Returns the member asked for, by its name or, where that is enough, its seed, if it was evaluated."""
        matching = [member for member in self.cfg.members if str(name) in (member.name, str(member.seed))]
        if not matching:
            kind = noun(self.cfg.members)
            raise UserError(f"{self.path} has no {kind} {name}; its {kind}s: {self._named(self.cfg.members)}")
        if len(matching) > 1:
            raise UserError(f"several members have seed {name}: {self._named(matching)}; choose one by name")
        if matching[0] not in self.evals:
            known = self._named([*self.evals]) or "none yet"
            raise UserError(f"{self.path} has no evaluation of {matching[0].title}; it has: {known}")
        return matching[0]

    def _named(self, members: Sequence[Member]) -> str:
        names = [member.name if member.values else str(member.seed) for member in members]
        more = f" and {len(names) - MOST_NAMED} more (t3d runs show {self.path} lists them)"
        return ", ".join(names[:MOST_NAMED]) + (more if len(names) > MOST_NAMED else "")

    def env(self, given: str | None, member: Member | None = None, args: Mapping[str, Any] = NO_ARGS) -> EnvConfig:
        """Returns the environment of the id asked for, or the one in which the best policies were chosen.

        Of the one that a member was trained on it has the arguments, and those given on top.
        """
        member = member or self.cfg.members[0]
        if given and given != self.cfg.env.id:
            return replace(self.cfg.env, id=given, args={**args})
        if not (self.cfg.env.id or self.cfg.eval.env or self.make_env):
            raise UserError(
                f"{self.path} was trained on an environment made in Python; name one with --env module:callable"
            )
        env = self.cfg.env_of(member) if given else self.cfg.eval_env(member)
        return replace(env, args={**env.args, **args})

    def load(self, stem: Path) -> SavedPolicy:
        try:
            return read_policy(stem)
        except UnknownNetwork:  # the run's own, imported only if it is needed
            return read_policy(stem, own_network(self.cfg.actor_network))

    def policy(self, member: Member, which: str = "best") -> SavedPolicy:
        """Returns the best or the last policy of a member; refuses a file that says it is another's."""
        stem = self.path / which / member.name
        policy = self.load(stem)
        about = policy.about
        kind, of, values = about.get("kind", which), about["seed"], about.get("values", {})
        if (kind, of, values) != (which, member.seed, dict(member.values)):
            whose = f"seed {of} with {values!s:.60}" if values else f"seed {of}"
            raise UserError(f"{stem} holds the {kind!s:.60} policy of {whose}; files of this run were swapped")
        return policy


def open_run(text: str | Path, root: str | Path = "runs") -> Run:
    """Reads the run at a path, or of a name under root."""
    path = locate(text, Path(root))
    columns = read_columns(path, [Eval])
    if columns.damaged:
        LOG.warning("%s", damage_in_words(columns.damaged, path / "events.jsonl"))
    evals, others = columns.evaluations(), columns.other_sets
    return Run(path, columns.cfg, evals, columns.stopped, columns.task_began, others)


def locate(text: str | Path, root: Path) -> Path:
    """Finds the folder of the run at a path, or of a name under root."""
    paths = (Path(text), root / text)
    if marked := [path for mark in MARKS for path in paths if os.path.lexists(path / mark)]:
        return marked[0]
    for path in paths:
        if os.path.isdir(path):  # noqa: PTH112 (Path.is_dir raises where this says no)
            raise Unreadable(path, "it has no events.jsonl")
    known = [file.parent.name for file in root.glob("*/events.jsonl")]
    is_name = Path(text).name == str(text)
    where, others = (f"named {text} in {root}", "them") if is_name else (f"at {text}", f"those in {root}")
    raise UserError(f"there is no run {where}{did_you_mean(Path(text).name, known) or f'; t3d runs lists {others}'}")
