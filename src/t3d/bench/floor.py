"""Only the matrix products of an update, in their textbook layouts."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch

from t3d.config import TD3Config
from t3d.config.networks import actor_architecture, critic_architecture
from t3d.policy.spec import Spec

Sizes = tuple[int, ...]
Product = Callable[[], object]


class Floor:
    """The bmm(out=) calls of the algorithm in its order, each on its own buffers."""

    def __init__(self, spec: Spec, cfg: TD3Config, members: int, device: str) -> None:
        self.batch, self.device, self.policy_delay, self.updates = cfg.batch_size, device, cfg.policy_delay, 0
        actor, critic = actor_architecture(spec, cfg).sizes, critic_architecture(spec, cfg).sizes
        critics = members * cfg.critics
        self.every = self._forward(members, actor) + self._forward(critics, critic) + self._forward(critics, critic)
        self.every += self._weights(critics, critic) + self._inputs(critics, critic[1:])
        from_action = (spec.action_size, *critic[1:-1])  # only the action part of Q1's input has a gradient
        self.delayed = self._forward(members, actor) + self._forward(members, critic[:-1])
        self.delayed += self._inputs(members, from_action) + self._weights(members, actor)
        self.delayed += self._inputs(members, actor[1:])

    def __call__(self) -> None:
        """Computes the products of one update."""
        self.updates += 1
        for multiply in self.every if self.updates % self.policy_delay else self.every + self.delayed:
            multiply()

    def _forward(self, count: int, sizes: Sizes) -> list[Product]:
        return [self._product(self._new(count, self.batch, i), self._new(count, i, o)) for i, o in pairwise(sizes)]

    def _weights(self, count: int, sizes: Sizes) -> list[Product]:
        layers = pairwise(sizes)
        return [self._product(self._new(count, self.batch, i).mT, self._new(count, self.batch, o)) for i, o in layers]

    def _inputs(self, count: int, sizes: Sizes) -> list[Product]:
        return [self._product(self._new(count, self.batch, o), self._new(count, i, o).mT) for i, o in pairwise(sizes)]

    def _new(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, device=self.device)

    def _product(self, left: torch.Tensor, right: torch.Tensor) -> Product:
        out = torch.empty(left.shape[0], left.shape[1], right.shape[2], device=self.device)
        return lambda: torch.bmm(left, right, out=out)
