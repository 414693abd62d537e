"""How the newest policy gets from the learner to the collector."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from t3d.algo.learner import Learner
from t3d.data.memory import Memory
from t3d.snapshots import PolicySnapshot


class PolicyReceiver(Protocol):
    """Whoever acts with the policies."""

    def publish(self, snapshot: PolicySnapshot, made: int, /) -> None: ...


class DirectPublisher:
    """Every policy at once: the learner waits for the copy."""

    def __init__(self, learner: Learner, memory: Memory, collector: PolicyReceiver) -> None:
        self.learner, self.memory, self.collector = learner, memory, collector

    def publish(self) -> None:
        """Hands the newest policy on."""
        self.collector.publish(self.memory.scaled(self.learner.snapshot()), self.learner.updates)

    def finish(self) -> None:
        """Hands on what is still on its way, which is nothing."""


class Copy(NamedTuple):
    """Actors on their way from the GPU."""

    updates: int
    flat: Tensor  # pinned
    arrived: torch.cuda.Event


class PipelinedPublisher:
    """From a GPU to asynchronous actors: each call begins a copy and hands on the one begun before.

    So the GPU always has the next updates to make while this process copies, and is never more than two calls ahead.
    """

    def __init__(self, learner: Learner, memory: Memory, collector: PolicyReceiver) -> None:
        self.learner, self.memory, self.collector = learner, memory, collector
        new = partial(torch.empty_like, learner.actor_weights, device="cpu", pin_memory=True)
        self._pinned = [new(), new()]
        self._on_its_way: Copy | None = None

    def publish(self) -> None:
        """Hands on the policy of the call before this one."""
        before, self._pinned = self._on_its_way, self._pinned[::-1]
        copy = Copy(self.learner.updates, self._pinned[0], torch.cuda.Event())  # type: ignore[no-untyped-call]
        copy.flat.copy_(self.learner.actor_weights, non_blocking=True)
        copy.arrived.record()
        self._on_its_way = copy
        self._hand_on(before)

    def finish(self) -> None:
        """Hands on what is still on its way."""
        before, self._on_its_way = self._on_its_way, None
        self._hand_on(before)

    def _hand_on(self, copy: Copy | None) -> None:
        if copy is not None:
            copy.arrived.synchronize()
            snapshot = PolicySnapshot(copy.updates, self.learner.actor_sizes, copy.flat.numpy())
            self.collector.publish(self.memory.scaled(snapshot), self.learner.updates)
