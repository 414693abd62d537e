"""Actor and critics as stacks: every weight has a leading axis, so M members with C critics are one batched product.

A stack keeps all its parameters in one flat tensor (K, P), and its layers are views of it. So Adam and Polyak are a few
operations on one tensor, and a snapshot is a copy of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from t3d.snapshots import layers_of, parameter_count

Layers = list[tuple[Tensor, Tensor]]


class Stack:
    """K independent ReLU MLPs of one shape."""

    def __init__(self, sizes: tuple[int, ...], flat: Tensor) -> None:
        self.sizes = sizes
        self.flat = flat  # (K, P)
        self.layers: Layers = [
            (weight.detach().requires_grad_(), bias.detach().requires_grad_())
            for weight, bias in layers_of(flat, sizes)
        ]

    def gradient(self, loss: Tensor) -> Tensor:
        """d loss / d flat, (K, P); no other network's gradient is touched."""
        leaves = [parameter for layer in self.layers for parameter in layer]
        gradients = torch.autograd.grad(loss, inputs=leaves)
        return torch.cat([gradient.flatten(1) for gradient in gradients], dim=1)


class Actor(Stack):
    """s (M, B, observation) -> a (M, B, action) in [-1, 1]; world/guard.py scales to the environment's own bounds."""

    def __call__(self, s: Tensor) -> Tensor:
        return perceptron(self.layers, s).tanh()

    def copy(self) -> Actor:
        """Returns a second object with the same parameters, as a target starts."""
        return Actor(self.sizes, self.flat.clone())


class Critic(Stack):
    """C critics for each of M members; flat is (M * C, P), member by member."""

    def __init__(self, sizes: tuple[int, ...], flat: Tensor, members: int) -> None:
        super().__init__(sizes, flat)
        self.members = members

    def __call__(self, s: Tensor, a: Tensor) -> Tensor:
        """Returns the Q-values of all critics, (M, C, B)."""
        x = torch.cat([s, a], dim=-1)
        each = x.unsqueeze(1).expand(-1, self._critics, -1, -1)
        q = perceptron(self.layers, each.flatten(0, 1))  # (M * C, B, 1)
        return q.view(self.members, self._critics, -1)

    def q1(self, s: Tensor, a: Tensor) -> Tensor:
        """Returns the first critic's values, (M, B): what the actor maximises."""
        first = [(weight[:: self._critics], bias[:: self._critics]) for weight, bias in self.layers]
        return perceptron(first, torch.cat([s, a], dim=-1)).squeeze(-1)

    def copy(self) -> Critic:
        return Critic(self.sizes, self.flat.clone(), self.members)

    @property
    def _critics(self) -> int:
        return self.flat.shape[0] // self.members


class Networks(NamedTuple):
    """The online and the target networks of all members."""

    actor: Actor
    actor_target: Actor
    critic: Critic
    critic_target: Critic


def perceptron(layers: Layers, x: Tensor) -> Tensor:
    """Passes x (K, B, in) through K MLPs: ReLU between layers, nothing after the last."""
    *hidden, (weight, bias) = layers
    for hidden_weight, hidden_bias in hidden:
        x = torch.baddbmm(hidden_bias, x, hidden_weight).relu()
    return torch.baddbmm(bias, x, weight)


def linear_init(sizes: tuple[int, ...], seeds: Sequence[int], dtype: torch.dtype) -> Tensor:
    """PyTorch's default Linear initialisation, one network per seed: flat (K, P). On the CPU, so that devices agree."""
    flat = torch.empty(len(seeds), parameter_count(sizes), dtype=dtype)
    for row, seed in zip(flat, seeds, strict=True):
        generator = torch.Generator().manual_seed(seed)
        for weight, bias in layers_of(row.unsqueeze(0), sizes):
            bound = weight.shape[1] ** -0.5
            weight.uniform_(-bound, bound, generator=generator)
            bias.uniform_(-bound, bound, generator=generator)
    return flat
