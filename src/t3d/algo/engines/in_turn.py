"""Updates one after the other, each sampled, drawn, performed and fed back: what engines do unless they know better."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from t3d.types import Batch, Source

Update = Callable[[Batch, Any, Any], Any]  # batch, draws, phase -> trace; changes the agent in place
Draw = Callable[[], Any]  # -> a rule's draws, overwritten by the next call


class InTurn:
    """Performs updates one after the other."""

    inputs: tuple[Batch, Any]  # batch and draws of the newest update of run, valid until the next one

    def __init__(self, update: Update) -> None:
        self.update = update

    def prepare(self, cycle: Sequence[Hashable], source: Source, draw: Draw) -> None:
        """Gets ready for updates in these phases, which may change the agent, the source and the draws."""

    def run(self, phases: Sequence[Hashable], source: Source, draw: Draw) -> Any:
        """Performs an update in each of these phases, and returns the trace of the last one."""
        for phase in phases:
            batch = source.sample()
            self.inputs = batch, draw()
            trace = self.update(*self.inputs, phase)
            source.feedback(batch.index, trace.td)
        return trace
