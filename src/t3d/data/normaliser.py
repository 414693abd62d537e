"""Running mean and standard deviation of each member's observations.

Statistics are updated when data is added, never when it is sampled: a row sampled often must not weigh more.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from t3d.data.moments import RunningMoments
from t3d.policy.snapshots import SCALED_LIMIT, PolicySnapshot, Scaling
from t3d.tensors import sendable
from t3d.types import Batch, Rollout, State

EPSILON = 1e-8  # keeps the standard deviation of a constant observation above zero


class Normaliser:
    """Scales observations by each member's running moments."""

    def __init__(self, members: int, observation_size: int, device: torch.device | str = "cpu") -> None:
        self.moments = RunningMoments(members, observation_size)
        one_each = (members, 1, observation_size)  # what batches are scaled with
        self._mean = torch.zeros(one_each, device=device, dtype=torch.float32)
        self._std = torch.ones(one_each, device=device, dtype=torch.float32)

    def add(self, rollout: Rollout) -> None:
        """Updates the statistics with a block of one member's observations."""
        self.moments.add(rollout.member, rollout.s.astype(np.float64))
        self._update_scaling(rollout.member)

    @property
    def std(self) -> NDArray[np.float64]:
        """(M, observation_size); one before the second observation."""
        return np.where(self.moments.count < 2, 1.0, np.sqrt(self.moments.variance + EPSILON))

    def normalised(self, batch: Batch) -> Batch:
        """Scales the observations of a batch for the networks."""
        s, a, r, s2, *rest = batch  # Dynamo of torch 2.11 cannot compile _replace
        return Batch(self._scaled(s), a, r, self._scaled(s2), *rest)

    def put_into(self, snapshot: PolicySnapshot) -> PolicySnapshot:
        """Adds the current statistics to a snapshot, so that acting scales as learning does."""
        return snapshot._replace(scaling=Scaling(self.moments.mean.astype(np.float32), self.std.astype(np.float32)))

    def state(self) -> State:
        """The statistics."""
        return self.moments.state()

    def restore(self, state: State) -> None:
        """Restores what state() returned."""
        self.moments.restore(state)
        for member in range(len(self.moments.count)):
            self._update_scaling(member)

    def _update_scaling(self, member: int) -> None:
        for target, values in ((self._mean, self.moments.mean), (self._std, self.std)):
            target[member, 0].copy_(sendable(values[member].astype(np.float32), target.device), non_blocking=True)

    def _scaled(self, s: torch.Tensor) -> torch.Tensor:
        return ((s - self._mean) / self._std).clamp(-SCALED_LIMIT, SCALED_LIMIT)
