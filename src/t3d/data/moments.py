"""Running mean and variance, per member."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from t3d.types import State


class RunningMoments:
    """Count, mean and sum of squared deviations (M2) per member, float64 (Chan, Golub and LeVeque's pairwise form)."""

    def __init__(self, members: int, size: int) -> None:
        self.count = np.zeros((members, 1))
        self.mean = np.zeros((members, size))
        self.m2 = np.zeros((members, size))

    def add(self, m: int, block: NDArray[np.float64]) -> None:
        """Adds a block (T, size) of one member's values."""
        total = self.count[m] + len(block)
        shift = block.mean(axis=0) - self.mean[m]
        self.m2[m] += ((block - block.mean(axis=0)) ** 2).sum(axis=0) + shift**2 * self.count[m] * len(block) / total
        self.mean[m] += shift * len(block) / total
        self.count[m] = total

    @property
    def variance(self) -> NDArray[np.float64]:
        """(M, size); zero before the first value."""
        return self.m2 / np.maximum(self.count, 1)

    def state(self) -> State:
        """The statistics."""
        return {"count": self.count, "mean": self.mean, "m2": self.m2}

    def restore(self, state: State) -> None:
        """Restores what state() returned."""
        for name, mine in self.state().items():
            saved = state[name]
            if np.shape(saved) != mine.shape:
                raise ValueError(f"the running {name} has shape {np.shape(saved)} instead of {mine.shape}")
            mine[:] = saved
