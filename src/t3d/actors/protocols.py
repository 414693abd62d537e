"""What the loop knows of those that act and evaluate, wherever they run.

tests/actors/test_contract.py lists the implementations and holds each to this.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from t3d.config import Config
from t3d.policy.acting import PolicySnapshot
from t3d.policy.architectures import Architecture
from t3d.policy.spec import Spec
from t3d.types import ActorNews, Evaluation, Rollout, State

OLDEST = 100_000  # updates; older policies count as this old


class Collected(NamedTuple):
    """What has happened since the last poll."""

    rollouts: list[Rollout]  # at most one for each member
    news: list[ActorNews]  # of actor processes
    diverged: list[tuple[int, str]]  # members whose policy gave an action that is not finite, and which
    steps: Sequence[int] = ()  # of each member, without rows: where nobody acts, the steps that the run counts by


class Evaluated(NamedTuple):
    """What has been evaluated since the last poll."""

    evaluations: list[Evaluation]  # in the order of submission, all living members of one before the next
    notes: list[str]  # what is worth knowing
    diverged: list[tuple[int, str]]  # members whose policy gave an action that is not finite, and which


@dataclass
class ActingTotals:
    """Totals since the start of a process; the difference of two says how a span went."""

    at: float = 0.0  # seconds, on the clock of time.monotonic
    ages: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))  # transitions by age of the policy
    fills: float = 0.0  # how full the rings were, from 0 to 1: the sum over `looks` samples
    looks: int = 0
    learner_waited: float = 0.0  # seconds
    actors_waited: float = 0.0  # seconds, summed over all actors, ended ones too
    actors_lived: float = 0.0
    actors: int = 0  # running now
    restarts: int = 0
    # Steps that crossed a network and their bytes, policies that orders carried and theirs, each counted once: a node
    # fetches a policy once for all its actors.
    traffic: NDArray[np.int64] = field(default_factory=lambda: np.zeros(4, np.int64))

    def add_ages(self, ages: NDArray[np.int64]) -> None:
        new = np.bincount(np.minimum(ages, OLDEST), minlength=len(self.ages))
        new[: len(self.ages)] += self.ages
        self.ages = new

    def since(self, before: ActingTotals) -> dict[str, Any]:
        """Fields of the ActingEvent about the span from the earlier totals to these."""
        ages = self.ages.copy()
        ages[: len(before.ages)] -= before.ages
        looks, lived = self.looks - before.looks, self.actors_lived - before.actors_lived
        steps, step_bytes, versions, version_bytes = self.traffic - before.traffic
        return {
            "age_median": _age(ages, 0.5),
            "age_p99": _age(ages, 0.99),
            "ring_fill": None if self.traffic.any() else (self.fills - before.fills) / max(looks, 1),
            "actors_waited": min(1.0, (self.actors_waited - before.actors_waited) / max(lived, 1e-9)),
            "learner_waited": min(1.0, (self.learner_waited - before.learner_waited) / max(self.at - before.at, 1e-9)),
            "actors": self.actors,
            "restarts": self.restarts,
            "bytes_per_step": float(step_bytes / steps) if steps else None,
            "bytes_per_version": float(version_bytes / versions) if versions else None,
        }


def _age(ages: NDArray[np.int64], share: float) -> int:
    below = np.cumsum(ages)
    return int(np.searchsorted(below, share * below[-1])) if below[-1] else 0


class Collector(Protocol):
    """Acts with the newest policy. Only poll waits, and nothing is reset by being read."""

    spec: Spec
    keeps_episodes: bool  # whether restore goes on with the episodes that were in progress
    takes_turns: bool  # whether it acts in poll alone, so that policies may be memory which updates change

    # Acts with this policy from now on; the learner has made so many updates.
    def publish(self, snapshot: PolicySnapshot, updates: int, /) -> None: ...
    # What has happened, each thing once, after waiting for it a moment; never beyond total_steps. An error that ends
    # acting is raised by the call after the one that returned everything before it.
    def poll(self) -> Collected: ...
    # Acts by the noise and, from each environment's next episode on, with the env.args of these settings.
    def use(self, cfg: Config, /) -> None: ...
    def stop(self, member: int, /) -> None: ...  # it acts no more; some of its transitions may still come
    # These members act no more until it is called without them; from the first call on nothing else holds members back.
    def rest(self, members: Collection[int], /) -> None: ...
    def supervise(self) -> None: ...  # looks after what acts, if the loop has not polled for a while
    def totals(self) -> ActingTotals | None: ...  # None if acting and learning take turns
    def state(self) -> State: ...  # by seed: how many transitions were returned ("taken"), and what is needed to go on
    # Before the first publish; says what could not be restored.
    def restore(self, state: State, stop: threading.Event, /) -> list[str]: ...
    def close(self) -> None: ...


class Evaluator(Protocol):
    """Evaluates policies. Only poll waits, if it is asked to."""

    def has_room(self) -> bool: ...  # whether submit may be called
    # Starts evaluating all living members; False if it was interrupted and nothing will come of it.
    def submit(self, snapshot: PolicySnapshot, step: int, /) -> bool: ...
    def stop(self, member: int, /) -> None: ...  # neither in what is in progress nor in what is submitted later
    # What is complete, each evaluation once; with wait, after a moment if there is no room.
    def poll(self, *, wait: bool = False) -> Evaluated: ...
    def state(self) -> State: ...  # the evaluations in progress
    # Starts saved evaluations of such networks again and returns their steps.
    def restore(self, state: State, architecture: Architecture, /) -> list[int]: ...
    def close(self) -> None: ...
