"""Reward scaling by the running standard deviation of each member's discounted return.

Critics then see values of the same size on every task. Statistics are updated when data is added, never when it is
sampled, and rewards are stored unscaled: an old transition is scaled as a new one is.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from t3d.data.moments import RunningMoments
from t3d.tensors import sendable
from t3d.types import UNKNOWN, Batch, Coefficient, Rollout, State

SMALLEST = 1e-8  # a deviation below this is that of constant returns, which are not scaled; chosen
NOTHING = UNKNOWN, UNKNOWN, 0.0  # before an environment's first transition


class RewardScaler:
    """Divides rewards by the deviation of G_t = gamma G_(t-1) + r_t over all environments of a member.

    G starts again with each episode, and where the transition before is missing. One scale for each member: 1 before
    the second return and while returns are constant. A gamma that differs between members is read once.
    """

    def __init__(self, members: int, gamma: Coefficient, device: torch.device | str = "cpu") -> None:
        self._members = range(members)
        self.moments = RunningMoments(members, 1)
        self._gamma = gamma.tolist() if isinstance(gamma, Tensor) else [gamma] * members
        self._newest: list[dict[int, tuple[int, int, float]]] = [{} for _ in range(members)]  # env: episode, step, G
        self._scale = torch.ones(members, 1, device=device, dtype=torch.float32)

    def add(self, *rollouts: Rollout) -> None:
        """Updates the statistics with the returns of blocks of transitions, at most one per member."""
        for one in rollouts:
            self.moments.add(one.member, np.array(self._returns(one))[:, None])
        self._update_scale()

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
        return np.where(std < SMALLEST, 1.0, std)

    def scaled(self, batch: Batch) -> Batch:
        """Scales the rewards of a batch; a sum of several steps' rewards as each of them would be."""
        s, a, r, *rest = batch  # Dynamo of torch 2.11 cannot compile _replace
        return Batch(s, a, r / self._scale, *rest)

    def state(self) -> State:
        """The statistics, and where each environment is: rows of member, environment, episode, step and G."""
        rows = [(m, env, *last) for m, newest in enumerate(self._newest) for env, last in newest.items()]
        return {**self.moments.state(), "newest": np.array(rows, np.float64).reshape(-1, 5)}

    def restore(self, state: State) -> None:
        """Restores what state() returned."""
        self.moments.restore(state)
        rows = state["newest"]
        if rows.shape[1:] != (5,) or not np.isfinite(rows).all() or not np.isin(rows[:, 0], self._members).all():
            raise ValueError("the returns of episodes in progress are not five finite numbers each, of known members")
        for newest in self._newest:
            newest.clear()
        for m, env, episode, step, g in rows.tolist():
            self._newest[int(m)][int(env)] = int(episode), int(step), g
        self._update_scale()

    def _update_scale(self) -> None:
        self._scale.copy_(sendable(self.scale.astype(np.float32), self._scale.device), non_blocking=True)
