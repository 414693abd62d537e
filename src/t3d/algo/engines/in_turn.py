"""Updates one after the other, each sampled, drawn, performed and fed back: what engines do unless they know better."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from t3d.types import Batch, Source

Draw = Callable[[], Any]  # -> a rule's draws, overwritten by the next call


class InTurn:
    """Performs updates one after the other."""

    inputs: tuple[Batch, Any]  # batch and draws of the newest update of run, valid until the next one

    def __init__(self, update: Any) -> None:
        self.update = update  # (batch, draws, phase) -> trace, with coefficients that may be replaced between updates

    def use(self, coefficients: Any) -> Any:
        """Updates with these numbers once it is prepared again; returns them as it reads them."""
        self.update.coefficients = coefficients
        return coefficients

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
