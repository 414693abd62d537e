"""Selects the transitions that an update learns from (step 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from t3d.config import ReplayConfig, TD3Config
from t3d.data.replay import Replay
from t3d.random_streams import open_streams, restore_streams
from t3d.types import Batch, Coefficient, State


class Sampler(Protocol):
    """Chooses rows of a replay; priorities follow what is added and fed back."""

    capture_safe: bool  # whether CUDA graphs may record sample and feedback

    def sample(self) -> Batch: ...
    def added(self, *blocks: tuple[int, int, int]) -> None: ...  # member, and its transitions first to stop of the run
    def feedback(self, index: Tensor, td: Tensor, /) -> None: ...
    def state(self) -> State: ...
    def restore(self, state: State, /) -> None: ...


class UniformSampler:
    """Samples stored transitions uniformly; each member draws from its own random stream."""

    capture_safe = True

    def __init__(
        self,
        replay: Replay,
        cfg: TD3Config,
        seeds: Sequence[int],
        gamma: Coefficient | None = None,
        how: ReplayConfig | None = None,
    ) -> None:
        self.replay, self.n_step = replay, (how or ReplayConfig()).n_step
        shape, device = (len(seeds), cfg.batch_size), replay.rows.device
        self._streams = open_streams(seeds, "sampling", torch.empty(shape, device=device, dtype=torch.float64))
        self._gamma = gamma_for_each(cfg.gamma if gamma is None else gamma, shape, device)
        self._weight = torch.ones(shape, device=device, dtype=torch.float32)

    def sample(self) -> Batch:
        """Draws rows, and from each as many steps as its episode has, at most n_step."""
        index = self.replay.pick(self._streams.uniform())  # (M, B)
        return n_step_batch(self.replay, index, self._gamma, self._weight, self.n_step)

    def added(self, *blocks: tuple[int, int, int]) -> None:
        """Ignored: sampling is uniform."""

    def feedback(self, index: Tensor, td: Tensor) -> None:
        """Ignored: sampling is uniform."""

    def state(self) -> State:
        """The state of the random streams."""
        return {"streams": self._streams.state()}

    def restore(self, state: State) -> None:
        """Restores what state() returned."""
        restore_streams(self._streams, state["streams"])


def gamma_for_each(gamma: Coefficient, shape: tuple[int, int], device: torch.device) -> Tensor:
    """Returns gamma for every row of a batch (M, B)."""
    if isinstance(gamma, Tensor):
        return gamma.to(device, torch.float32).unsqueeze(1).expand(shape)
    return torch.full(shape, gamma, device=device, dtype=torch.float32)


def n_step_batch(replay: Replay, index: Tensor, gamma: Tensor, weight: Tensor, n: int) -> Batch:
    """Gathers rows index (M, B) with the rewards of up to n steps: r + gamma r' + ..., and the state after the last.

    A row whose episode ends, was cut or has not gone further yet uses the steps there are; its discount is gamma to
    the power of their number.
    """
    if n == 1:
        s, a, r, terminated, s2 = replay.gather(index)
        return Batch(s, a, r, s2, terminated, gamma, weight, index)
    discount, last, r = gamma, index, replay.rewards(index)
    for _ in range(n - 1):
        following = replay.links.next.gather(1, last)
        goes_on = following >= 0
        last = torch.where(goes_on, following.long(), last)
        r = r + torch.where(goes_on, discount * replay.rewards(last), 0)
        discount = torch.where(goes_on, discount * gamma, discount)
    s, a, _, terminated, s2 = replay.gather(index, last)
    return Batch(s, a, r, s2, terminated, discount, weight, index)
