"""Updates one after the other, each sampled, drawn, performed and fed back: what engines do unless they know better."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

from t3d.types import Batch, Source


class Update(Protocol):
    """Changes an agent in place."""

    coefficients: Any  # of the rule, which may be replaced between updates

    def __call__(self, batch: Batch, draws: Any, phase: Any, /) -> Any: ...  # -> trace


Draw = Callable[[], Any]  # -> a rule's draws, overwritten by the next call


class InTurn:
    """Performs updates one after the other."""

    inputs: tuple[Batch, Any]  # batch and draws of the newest update of run, valid until the next one

    def __init__(self, update: Update) -> None:
        self.update = update

    def use(self, coefficients: Any) -> None:
        """Updates with these numbers from now on; those that are tensors are the same tensors as before."""
        self.update.coefficients = coefficients

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
