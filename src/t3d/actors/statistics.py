"""Statistics of acting and learning: how old the acting policy is, how full the rings are, and who waits for whom."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from t3d.types import Acting

OLDEST = 100_000  # updates; older policies count as this old


class ActingStatistics:
    """Statistics since it was created."""

    def __init__(self, waited: float = 0.0, lived: float = 0.0) -> None:
        self._started, self._waited, self._lived = time.monotonic(), waited, lived
        self._ages = np.zeros(1, np.int64)  # transitions by the age of the policy that acted
        self._fills, self._samples, self.learner_waited = 0.0, 0, 0.0

    def add_ages(self, ages: NDArray[np.int64]) -> None:
        """Adds the ages of the policies that acted, in updates."""
        self._ages = _sum(self._ages, np.bincount(np.minimum(ages, OLDEST)))

    def add(self, later: ActingStatistics) -> None:
        """Adds the statistics of a later span."""
        self._ages = _sum(self._ages, later._ages)
        self._fills, self._samples = self._fills + later._fills, self._samples + later._samples
        self.learner_waited += later.learner_waited

    def add_fill(self, fill: float) -> None:
        """Adds how full the rings were, from 0 to 1."""
        self._fills += fill
        self._samples += 1

    def figures(self, waited: float, lived: float, actors: int, restarts: int) -> Acting:
        """Returns all of it; waited and lived are seconds summed over all actors, ended ones too."""
        seconds = max(time.monotonic() - self._started, 1e-9)
        return Acting(
            age_median=self._age(0.5),
            age_p99=self._age(0.99),
            ring_fill=self._fills / max(self._samples, 1),
            actors_waited=min(1.0, (waited - self._waited) / max(lived - self._lived, 1e-9)),
            learner_waited=min(1.0, self.learner_waited / seconds),
            actors=actors,
            restarts=restarts,
        )

    def _age(self, share: float) -> int:
        below = np.cumsum(self._ages)
        return int(np.searchsorted(below, share * below[-1])) if below[-1] else 0


def _sum(one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.int64]:
    """Adds two arrays of counts, the shorter one padded with zeros."""
    long, short = (one, other) if len(one) >= len(other) else (other, one)
    total = long.copy()
    total[: len(short)] += short
    return total
