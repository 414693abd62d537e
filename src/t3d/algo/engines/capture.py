"""CUDA graphs of sampling, draws and updates: Python needs longer to launch a kernel than most of an update's take.

Any update can be recorded that performs the same operations on the same tensors each time and never waits for the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from t3d.types import Batch, Source

CYCLES_PER_BLOCK = 4  # through all phases; chosen: a launch then takes the GPU longer than Python
LONGEST_BLOCK = 64  # updates; chosen: a longer graph takes long to record and saves nothing
WARM_UP_CALLS = 2

Step = Callable[[Hashable], Any]  # samples, draws and performs the update of a phase; returns tensors to be kept


class Graphs:
    """Recorded updates: one of each phase, and a block of several cycles through all phases."""

    def __init__(self, step: Step, phases: Sequence[Hashable], *, blocks: bool) -> None:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # as autograd requires for what is recorded later
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for phase in list(dict.fromkeys(phases)) * WARM_UP_CALLS:  # which compile, and allocate memory
                step(phase)
        torch.cuda.current_stream().wait_stream(stream)
        self.block = block_length(phases) if blocks else 0
        self._singles = {phase: _recorded(step, [phase]) for phase in dict.fromkeys(phases)}
        self._block = _recorded(step, list(phases) * CYCLES_PER_BLOCK) if self.block else None

    def launch(self, length: int, phase: Hashable) -> Any:
        """Performs a block, or one update of a phase; what the last step returned is valid until the next launch."""
        graph, result = self._block if self._block is not None and length == self.block else self._singles[phase]
        graph.replay()
        return result


def _recorded(step: Step, phases: Sequence[Hashable]) -> tuple[torch.cuda.CUDAGraph, Any]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for phase in phases:
            result = step(phase)
    return graph, result


def block_length(phases: Sequence[Hashable]) -> int:
    """Updates in a block; 0, for none, if they were too many."""
    length = CYCLES_PER_BLOCK * len(phases)
    return length if length <= LONGEST_BLOCK else 0


def launch_length(updates: int, most: int, cycle: int, periods: Sequence[int], block: int) -> int:
    """How many updates to launch at once after so many: a block where it fits, otherwise one.

    A block begins a cycle of phases, and ends before `most` and before a periodic operation would come too late.
    """
    until_operation = min((period - updates % period for period in periods), default=most)
    fits = 0 < block <= min(most, until_operation) and updates % cycle == 0
    return block if fits else 1


class Staged:
    """Batches of a source that a graph cannot sample from itself, on another device or drawn by the host.

    From host memory two pinned copies alternate: the next batch is gathered while the last is still being copied.
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
