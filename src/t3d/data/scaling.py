"""Running statistics of each member's observations and returns, by which batches are scaled for the networks. They are
updated when data is added, never when it is sampled: a row sampled often must not weigh more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from t3d.policy.acting import SCALED_LIMIT, PolicySnapshot, Scaling
from t3d.tensors import send
from t3d.types import UNKNOWN, Batch, Coefficient, Rollout, State

EPSILON = 1e-8  # keeps the standard deviation of a constant observation above zero
SMALLEST = 1e-8  # a deviation below this is that of constant returns, which are not scaled; chosen
NOTHING = UNKNOWN, UNKNOWN, 0.0  # before an environment's first transition


class RunningMoments:
    """Count, mean and sum of squared deviations (M2) per member, float64 (Chan, Golub and LeVeque's pairwise form)."""

    def __init__(self, members: int, size: int) -> None:
        self.count = np.zeros((members, 1))
        self.mean = np.zeros((members, size))
        self.m2 = np.zeros((members, size))

    def add(self, m: int, block: NDArray[np.float64]) -> None:  # (T, size), of one member
        total, mean = self.count[m] + len(block), block.mean(axis=0)
        shift = mean - self.mean[m]
        self.m2[m] += ((block - mean) ** 2).sum(axis=0) + shift**2 * self.count[m] * len(block) / total
        self.mean[m] += shift * len(block) / total
        self.count[m] = total

    @property
    def variance(self) -> NDArray[np.float64]:
        """(M, size); zero before the first value."""
        return self.m2 / np.maximum(self.count, 1)

    def state(self) -> State:
        return {"count": self.count, "mean": self.mean, "m2": self.m2}

    def restore(self, state: State) -> None:
        for name, values in self.state().items():
            saved = state[name]
            if np.shape(saved) != values.shape:
                raise ValueError(f"the running {name} has shape {np.shape(saved)} instead of {values.shape}")
            values[:] = saved


class Normaliser:
    """Scales observations by the running mean and standard deviation of each member's."""

    def __init__(self, members: int, observation_size: int, device: torch.device | str = "cpu") -> None:
        self.moments = RunningMoments(members, observation_size)
        shape = members, 1, observation_size  # to scale batches with
        self._mean = torch.zeros(shape, device=device, dtype=torch.float32)
        self._std = torch.ones(shape, device=device, dtype=torch.float32)

    def add(self, rollout: Rollout) -> None:
        self.moments.add(rollout.member, rollout.s.astype(np.float64))
        self._update_scaling(rollout.member)

    @property
    def std(self) -> NDArray[np.float64]:
        """(M, observation_size); one before the second observation."""
        return np.where(self.moments.count < 2, 1.0, np.sqrt(self.moments.variance + EPSILON))

    def normalised(self, batch: Batch) -> Batch:
        s, a, r, s2, *rest = batch  # Dynamo of torch 2.11 cannot compile _replace
        return Batch(self._scaled(s), a, r, self._scaled(s2), *rest)

    def put_into(self, snapshot: PolicySnapshot) -> PolicySnapshot:
        return snapshot._replace(scaling=Scaling(self.moments.mean.astype(np.float32), self.std.astype(np.float32)))

    def state(self) -> State:
        return self.moments.state()

    def restore(self, state: State) -> None:
        self.moments.restore(state)
        for member in range(len(self.moments.count)):
            self._update_scaling(member)

    def _update_scaling(self, member: int) -> None:
        for target, values in ((self._mean, self.moments.mean), (self._std, self.std)):
            send(target[member, 0], values[member].astype(np.float32))

    def _scaled(self, s: Tensor) -> Tensor:
        return ((s - self._mean) / self._std).clamp(-SCALED_LIMIT, SCALED_LIMIT)


class RewardScaler:
    """Divides rewards by the deviation of G_t = gamma G_(t-1) + r_t over all environments of a member.

    G starts again with each episode, and where the transition before is missing. A scale is 1 before the second return
    and while returns are constant. Rewards are stored unscaled: an old one is scaled as a new one is.
    """

    def __init__(
        self, members: int, gamma: Coefficient, device: torch.device | str = "cpu", on: Sequence[bool] = (True,)
    ) -> None:
        """on: whether the rewards of a member are scaled, or of all."""
        self._members, self._on = range(members), np.array(on)[:, None]
        self.moments = RunningMoments(members, 1)
        self._gamma = gamma.tolist() if isinstance(gamma, Tensor) else [gamma] * members
        self._newest: list[dict[int, tuple[int, int, float]]] = [{} for _ in range(members)]  # env: episode, step, G
        self._scale = torch.ones(members, 1, device=device, dtype=torch.float32)

    def add(self, *rollouts: Rollout) -> None:
        for rollout in rollouts:
            self.moments.add(rollout.member, np.array(self._returns(rollout))[:, None])
        send(self._scale, self.scale.astype(np.float32))

    def _returns(self, rollout: Rollout) -> list[float]:
        newest, gamma, returns = self._newest[rollout.member], self._gamma[rollout.member], []
        for (env, episode, step, _), r in zip(rollout.origins.tolist(), rollout.r.tolist(), strict=True):
            last_episode, last_step, last = newest.get(env, NOTHING)
            goes_on = (last_episode, last_step + 1) == (episode, step)
            returns.append(gamma * last + r if goes_on else r)
            newest[env] = episode, step, returns[-1]
        return returns

    @property
    def scale(self) -> NDArray[np.float64]:
        """(M, 1): what rewards are divided by."""
        std = np.sqrt(self.moments.variance)  # zero before the second return
        return np.where(self._on & ~(std < SMALLEST), std, 1.0)

    def scaled(self, batch: Batch) -> Batch:
        """Scales the rewards of a batch; a sum of several steps' rewards as each of them would be."""
        s, a, r, *rest = batch  # Dynamo of torch 2.11 cannot compile _replace
        return Batch(s, a, r / self._scale, *rest)

    def state(self) -> State:
        """The statistics, and where each environment is: rows of member, environment, episode, step and G."""
        rows = [(m, env, *last) for m, newest in enumerate(self._newest) for env, last in newest.items()]
        return {**self.moments.state(), "newest": np.array(rows, np.float64).reshape(-1, 5)}

    def restore(self, state: State) -> None:
        self.moments.restore(state)
        rows = state["newest"]
        if rows.shape[1:] != (5,) or not np.isfinite(rows).all() or not np.isin(rows[:, 0], self._members).all():
            raise ValueError("the returns of episodes in progress are not five finite numbers each, of known members")
        for newest in self._newest:
            newest.clear()
        for m, env, episode, step, g in rows.tolist():
            self._newest[int(m)][int(env)] = int(episode), int(step), g
        send(self._scale, self.scale.astype(np.float32))
