"""Batches of a source that a CUDA graph cannot sample from itself: on another device, or drawn by the host."""

from __future__ import annotations

import torch

from t3d.types import Batch, Source


class Staged:
    """One batch on the learner's device, refilled in place.

    From host memory through pinned memory: two pinned copies alternate, so that the host gathers the next batch while
    the last one is still being copied.
    """

    def __init__(self, source: Source, device: torch.device | str) -> None:
        self._source = source
        state, first = source.state(), source.sample()
        source.restore(state)
        self.batch = Batch(*(part.to(device, copy=True) for part in first))
        self._turn = 0
        self._pinned: list[Batch] = []
        if source.device.type == "cpu" and torch.device(device).type == "cuda":
            self._pinned = [Batch(*(torch.empty_like(part, pin_memory=True) for part in first)) for _ in range(2)]
            self._copied = [torch.cuda.Event() for _ in range(2)]  # type: ignore[no-untyped-call]

    def refill(self) -> Batch:
        """Copies the next batch to the device, asynchronously from host memory to a GPU; returns it."""
        sampled = self._source.sample()
        if not self._pinned:
            for target, part in zip(self.batch, sampled, strict=True):
                target.copy_(part)
            return self.batch
        self._turn = 1 - self._turn
        pinned, copied = self._pinned[self._turn], self._copied[self._turn]
        copied.synchronize()  # of two batches ago, so it has finished long before
        for target, waiting, part in zip(self.batch, pinned, sampled, strict=True):
            waiting.copy_(part)
            target.copy_(waiting, non_blocking=True)
        copied.record()
        return self.batch
