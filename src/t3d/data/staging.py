"""Batches from a replay in host memory, for a GPU whose own memory is too small for it."""

from __future__ import annotations

import torch

from t3d.data.samplers import UniformSampler
from t3d.types import Batch


class Staged:
    """One batch on the GPU, refilled in place through pinned memory.

    Two pinned copies alternate, so that the host gathers the next batch while the last one is still being copied.
    """

    def __init__(self, sampler: UniformSampler, device: str) -> None:
        self._sample = sampler
        state, first = sampler.state(), sampler()
        sampler.restore(state)
        self.batch = Batch(*(part.to(device) for part in first))
        self._pinned = [Batch(*(torch.empty_like(part, pin_memory=True) for part in first)) for _ in range(2)]
        self._copied = [torch.cuda.Event() for _ in range(2)]  # type: ignore[no-untyped-call]
        self._turn = 0

    def refill(self) -> None:
        """Copies the next batch to the GPU asynchronously, on the current CUDA stream."""
        self._turn = 1 - self._turn
        pinned, copied = self._pinned[self._turn], self._copied[self._turn]
        copied.synchronize()  # of two batches ago, so it has finished long before
        for target, waiting, part in zip(self.batch, pinned, self._sample(), strict=True):
            waiting.copy_(part)
            target.copy_(waiting, non_blocking=True)
        copied.record()
