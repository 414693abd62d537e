"""Statistics of acting and learning: how old the acting policy is, how full the rings are, and who waits for whom."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from t3d.types import Acting

OLDEST = 100_000  # updates; older policies count as this old


class Traffic(NamedTuple):
    """What has crossed the network between a learner and its actors, since the start of a process."""

    steps: int = 0
    step_bytes: int = 0  # of the arrays in all answers
    versions: int = 0  # policies that orders have carried
    version_bytes: int = 0  # of their arrays, each counted once: a node fetches a policy once for all its actors


class ActingTotals(NamedTuple):
    """Totals since the start of a process; the difference of two says how a span went."""

    at: float  # seconds, on the clock of time.monotonic
    ages: NDArray[np.int64]  # transitions by the age of the policy that acted, in updates
    fills: float  # how full the rings were, from 0 to 1: the sum over `looks` samples
    looks: int
    learner_waited: float  # seconds
    actors_waited: float  # seconds, summed over all actors, ended ones too
    actors_lived: float
    actors: int  # running now
    restarts: int
    traffic: Traffic | None = None  # None: all actors are on this machine, and nothing crosses a network

    def since(self, before: ActingTotals) -> Acting:
        """Describes the span from the earlier totals to these."""
        ages = self.ages.copy()
        ages[: len(before.ages)] -= before.ages
        looks, lived = self.looks - before.looks, self.actors_lived - before.actors_lived
        return Acting(
            age_median=_age(ages, 0.5),
            age_p99=_age(ages, 0.99),
            ring_fill=None if self.traffic else (self.fills - before.fills) / max(looks, 1),
            actors_waited=min(1.0, (self.actors_waited - before.actors_waited) / max(lived, 1e-9)),
            learner_waited=min(1.0, (self.learner_waited - before.learner_waited) / max(self.at - before.at, 1e-9)),
            actors=self.actors,
            restarts=self.restarts,
            **_per_unit(self.traffic, before.traffic),
        )


class ActingStatistics:
    """What the learner's side adds up."""

    def __init__(self) -> None:
        self._ages = np.zeros(1, np.int64)
        self._fills, self._looks, self.learner_waited = 0.0, 0, 0.0
        self._traffic: Traffic | None = None

    def add_ages(self, ages: NDArray[np.int64]) -> None:
        """Adds the ages of the policies that acted, in updates."""
        new = np.bincount(np.minimum(ages, OLDEST), minlength=len(self._ages))
        new[: len(self._ages)] += self._ages
        self._ages = new

    def add_fill(self, fill: float) -> None:
        """Adds how full the rings were, from 0 to 1."""
        self._fills += fill
        self._looks += 1

    def add_traffic(self, *, steps: int = 0, versions: int = 0, size: int) -> None:
        """Adds bytes that crossed the network: of so many steps from actors, or of so many policies to them."""
        new = Traffic(steps, size if steps else 0, versions, size if versions else 0)
        self._traffic = Traffic(*map(sum, zip(new, self._traffic or Traffic(), strict=True)))

    def totals(self, waited: float, lived: float, actors: int, restarts: int) -> ActingTotals:
        """Returns all of it; waited and lived are seconds summed over all actors, ended ones too."""
        mine = self._ages, self._fills, self._looks, self.learner_waited
        return ActingTotals(time.monotonic(), *mine, waited, lived, actors, restarts, self._traffic)


def _per_unit(now: Traffic | None, before: Traffic | None) -> dict[str, float | None]:
    """The bytes of a step and of a version in a span; None where there were none."""
    new = [] if now is None else [one - other for one, other in zip(now, before or Traffic(), strict=True)]
    steps, step_bytes, versions, version_bytes = new or [0] * 4
    return {
        "bytes_per_step": step_bytes / steps if steps else None,
        "bytes_per_version": version_bytes / versions if versions else None,
    }


def _age(ages: NDArray[np.int64], share: float) -> int:
    below = np.cumsum(ages)
    return int(np.searchsorted(below, share * below[-1])) if below[-1] else 0
