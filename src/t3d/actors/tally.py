"""How acting and learning get along: how old the acting policy is, how full the rings are, and who waits for whom."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from t3d.types import Acting

OLDEST = 100_000  # updates; older policies count as this old


class ActingStatistics:
    """What has been seen since it was made."""

    def __init__(self, waited: float = 0.0, lived: float = 0.0) -> None:
        self._begun, self._waited, self._lived = time.monotonic(), waited, lived
        self._ages = np.zeros(1, np.int64)  # transitions by the age of the policy that acted
        self._fills, self._looks, self.learner_waited = 0.0, 0, 0.0

    def see_ages(self, ages: NDArray[np.int64]) -> None:
        """Ages of the policies that acted, in updates."""
        self._ages = _sum(self._ages, np.bincount(np.minimum(ages, OLDEST)))

    def add(self, later: ActingStatistics) -> None:
        """Takes in what another has seen."""
        self._ages = _sum(self._ages, later._ages)
        self._fills, self._looks = self._fills + later._fills, self._looks + later._looks
        self.learner_waited += later.learner_waited

    def see_fill(self, fill: float) -> None:
        """Which part of the rings was full when the learner looked."""
        self._fills += fill
        self._looks += 1

    def figures(self, waited: float, lived: float, actors: int, restarts: int) -> Acting:
        """All of it; waited and lived are sums of the seconds of all actors, ever."""
        seconds = max(time.monotonic() - self._begun, 1e-9)
        return Acting(
            age_median=self._age(0.5),
            age_p99=self._age(0.99),
            ring_fill=self._fills / max(self._looks, 1),
            actors_waited=min(1.0, (waited - self._waited) / max(lived - self._lived, 1e-9)),
            learner_waited=min(1.0, self.learner_waited / seconds),
            actors=actors,
            restarts=restarts,
        )

    def _age(self, share: float) -> int:
        below = np.cumsum(self._ages)
        return int(np.searchsorted(below, share * below[-1])) if below[-1] else 0


def _sum(one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.int64]:
    """Counts of two, the shorter one filled up with zeros."""
    long, short = (one, other) if len(one) >= len(other) else (other, one)
    total = long.copy()
    total[: len(short)] += short
    return total
