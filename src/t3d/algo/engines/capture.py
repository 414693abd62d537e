"""CUDA graphs of sampling, draws and updates, so that Python launches no kernels itself.

Why it exists: an update is some hundred kernels of a few microseconds, and Python needs longer than that to launch one.
Any update can be recorded that performs the same operations on the same tensors each time and never waits for the GPU:
the readable one with its autograd, or graph.py's. Every run checks what it has recorded when it starts (verify.py).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from t3d.algo.engines.launches import Block, Single, block_length

CYCLES_A_LAUNCH = 4  # through all phases; chosen: a launch then takes the GPU longer than Python
WARM_UP_CALLS = 2

Step = Callable[[Hashable], Any]  # samples, draws and performs the update of a phase; returns tensors to be kept


class Graphs:
    """Recorded updates: one of each phase, and a block of several cycles through all phases."""

    def __init__(self, step: Step, phases: Sequence[Hashable], *, blocks: bool) -> None:
        _warm_up(step, phases)
        self.block = block_length(phases, CYCLES_A_LAUNCH) if blocks else 0
        self._singles = {phase: Recorded(step, [phase]) for phase in dict.fromkeys(phases)}
        self._block = Recorded(step, list(phases) * CYCLES_A_LAUNCH) if self.block else None

    def launch(self, what: Block | Single) -> Any:
        """Performs one launch; returns what its last step returned, valid until the next launch."""
        recorded = self._singles[what.phase] if isinstance(what, Single) else self._block
        assert recorded is not None  # noqa: S101 (there are no launches of blocks that were not recorded)
        recorded.graph.replay()
        return recorded.result


class Recorded:
    """A CUDA graph of some updates, and what the last one returned."""

    def __init__(self, step: Step, phases: Sequence[Hashable]) -> None:
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for phase in phases:
                self.result = step(phase)


def _warm_up(step: Step, phases: Sequence[Hashable]) -> None:
    """Compiles and allocates what the first calls of a function need, on a stream of its own as autograd requires."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for phase in list(dict.fromkeys(phases)) * WARM_UP_CALLS:
            step(phase)
    torch.cuda.current_stream().wait_stream(stream)
