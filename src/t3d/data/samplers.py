"""Selects the transitions that an update learns from (step 4)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from t3d.config import TD3Config
from t3d.data.replay import Replay
from t3d.random_streams import open_streams
from t3d.types import Batch, Coefficient, State


class UniformSampler:
    """Samples stored transitions uniformly; each member draws from its own random stream."""

    def __init__(self, replay: Replay, cfg: TD3Config, seeds: Sequence[int], gamma: Coefficient | None = None) -> None:
        device = replay.rows.device
        shape = (len(seeds), cfg.batch_size)
        self.replay = replay
        self._streams = open_streams(seeds, "sampling", torch.empty(shape, device=device, dtype=torch.float64))
        gamma = cfg.gamma if gamma is None else gamma
        self._discount = (
            gamma.unsqueeze(1).expand(shape)  # a view, which follows if it moves
            if isinstance(gamma, Tensor)
            else torch.full(shape, gamma, device=device, dtype=torch.float32)
        )
        self._weight = torch.ones(shape, device=device, dtype=torch.float32)

    def __call__(self) -> Batch:
        index = (self._streams.uniform() * self.replay.size.unsqueeze(1)).long()  # (M, B)
        s, a, r, terminated, s2 = self.replay.gather(index)
        return Batch(s, a, r, s2, terminated, self._discount, self._weight, index)

    def state(self) -> State:
        """The state of the random streams."""
        return {"streams": self._streams.state()}

    def restore(self, state: State) -> None:
        """Restores what state() returned."""
        self._streams.restore(state["streams"])
