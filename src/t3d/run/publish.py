"""How the newest policy gets from the learner to the collector."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from t3d.actors.protocols import Collector
from t3d.algo.learner import Learner
from t3d.data.memory import Memory
from t3d.policy.acting import PolicySnapshot


class DirectPublisher:
    """Publishes every policy at once: the learner waits for the copy."""

    def __init__(self, learner: Learner, memory: Memory, collector: Collector) -> None:
        self.learner, self.memory, self.collector = learner, memory, collector

    def publish(self) -> None:
        self._pass_on(self.learner.snapshot(self.learner.acting))

    def finish(self) -> None:
        """Does nothing: no policy is on its way."""

    def _pass_on(self, snapshot: PolicySnapshot) -> None:
        self.collector.publish(self.memory.scaled(snapshot), self.learner.updates)


class Copy(NamedTuple):
    """The actors' weights on their way from the GPU."""

    updates: int
    flat: Tensor  # pinned
    arrived: torch.cuda.Event


class PipelinedPublisher(DirectPublisher):
    """From a GPU to asynchronous actors: each call starts a copy and passes on the one before.

    So the GPU always has the next updates to make while this process copies, and is never more than two calls ahead.
    """

    def __init__(self, learner: Learner, memory: Memory, collector: Collector) -> None:
        super().__init__(learner, memory, collector)
        new = partial(torch.empty_like, learner.acting.flat, device="cpu", pin_memory=True)
        self._pinned = [new(), new()]
        self._on_its_way: Copy | None = None

    def publish(self) -> None:
        before, self._pinned = self._on_its_way, self._pinned[::-1]
        copy = Copy(self.learner.updates, self._pinned[0], torch.cuda.Event())  # type: ignore[no-untyped-call]
        copy.flat.copy_(self.learner.acting.flat, non_blocking=True)
        copy.arrived.record()
        self._on_its_way = copy
        self._arrive(before)

    def finish(self) -> None:
        before, self._on_its_way = self._on_its_way, None
        self._arrive(before)

    def _arrive(self, copy: Copy | None) -> None:
        if copy is not None:
            copy.arrived.synchronize()
            self._pass_on(PolicySnapshot(copy.updates, self.learner.acting.architecture, copy.flat.numpy()))
