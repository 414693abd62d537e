"""Running mean and standard deviation of each member's observations.

Statistics are updated when data is added, never when it is sampled: a row sampled often must not weigh more.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from t3d.snapshots import SCALED_LIMIT, PolicySnapshot, Scaling
from t3d.tensors import sendable
from t3d.types import Batch, Rollout, State

EPSILON = 1e-8  # keeps the standard deviation of a constant observation above zero


class Normaliser:
    """Count, mean and sum of squared deviations (M2) per member, float64 (Chan, Golub and LeVeque's pairwise form)."""

    def __init__(self, members: int, observation_size: int, device: torch.device | str = "cpu") -> None:
        self.count = np.zeros((members, 1))
        self.mean = np.zeros((members, observation_size))
        self.m2 = np.zeros((members, observation_size))
        one_each = (members, 1, observation_size)  # what batches are scaled with
        self._mean = torch.zeros(one_each, device=device, dtype=torch.float32)
        self._std = torch.ones(one_each, device=device, dtype=torch.float32)

    def add(self, rollout: Rollout) -> None:
        """Updates the statistics with a block of one member's observations."""
        m, block = rollout.member, rollout.s.astype(np.float64)
        total = self.count[m] + len(block)
        shift = block.mean(axis=0) - self.mean[m]
        self.m2[m] += ((block - block.mean(axis=0)) ** 2).sum(axis=0) + shift**2 * self.count[m] * len(block) / total
        self.mean[m] += shift * len(block) / total
        self.count[m] = total
        self._update_scaling(m)

    @property
    def std(self) -> NDArray[np.float64]:
        """(M, observation_size); one before the second observation."""
        std = np.sqrt(self.m2 / np.maximum(self.count, 1) + EPSILON)
        return np.where(self.count < 2, 1.0, std)

    def normalised(self, batch: Batch) -> Batch:
        """Scales the observations of a batch for the networks."""
        return batch._replace(s=self._scaled(batch.s), s2=self._scaled(batch.s2))

    def put_into(self, snapshot: PolicySnapshot) -> PolicySnapshot:
        """Adds the current statistics to a snapshot, so that acting scales as learning does."""
        return snapshot._replace(scaling=Scaling(self.mean.astype(np.float32), self.std.astype(np.float32)))

    def state(self) -> State:
        """The statistics."""
        return {"count": self.count, "mean": self.mean, "m2": self.m2}

    def restore(self, state: State) -> None:
        """Restores what state() returned."""
        for name, mine in self.state().items():
            if mine.shape != state[name].shape:
                raise ValueError(f"the normaliser's {name} has shape {state[name].shape} instead of {mine.shape}")
            mine[:] = state[name]
        for member in range(len(self.count)):
            self._update_scaling(member)

    def _update_scaling(self, member: int) -> None:
        for target, values in ((self._mean, self.mean), (self._std, self.std)):
            target[member, 0].copy_(sendable(values[member].astype(np.float32), target.device), non_blocking=True)

    def _scaled(self, s: torch.Tensor) -> torch.Tensor:
        return ((s - self._mean) / self._std).clamp(-SCALED_LIMIT, SCALED_LIMIT)
