"""Metrics of a batch and of an agent's networks, each with a value for each of M members; C critics, B transitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from t3d.algo.adam import BETA1, AdamState
from t3d.algo.learner import named_fields
from t3d.algo.networks import ImageActor, Stack
from t3d.policy.architectures import Operations

Forward = list[Tensor]  # what each activation passes on in one forward pass, (K, B, size)
SATURATED = 0.99  # of the range of an action; tanh has a fiftieth of its slope there
BINS = 20  # of histograms; chosen


def disagreement(q: Tensor) -> Tensor:
    """The standard deviation of q (M, C, B) over the critics, on average over the batch: (M,)."""
    return q.std(dim=1, correction=0).mean(dim=-1)


def saturated(pi: Tensor) -> Tensor:
    """The share of the components of actions pi (M, B, action_size) that are at the ends of their range: (M,)."""
    return (pi.abs() > SATURATED).float().mean(dim=(1, 2))


def stuck_actions(pi: Tensor) -> Tensor:
    """The share of the components of actions pi (M, B, action_size) that are at the same end in all states: (M,)."""
    return ((pi > SATURATED).all(dim=1) | (pi < -SATURATED).all(dim=1)).float().mean(dim=-1)


def constant_observations(s: Tensor) -> list[list[int]]:
    """For each member the components of s (M, B, observation_size) that are the same in all observations."""
    same = (s.amax(dim=1) == s.amin(dim=1)).cpu()
    return [torch.nonzero(components).flatten().tolist() for components in same]


def quantiles(values: Tensor, shares: Sequence[float]) -> list[list[float]]:
    """For each member the quantiles of its values (M, ...)."""
    each = torch.quantile(values.flatten(1).double(), torch.tensor(shares, dtype=torch.float64), dim=1)
    by_member: list[list[float]] = each.T.tolist()
    return by_member


def ages(index: Tensor, added: Sequence[int], capacity: int) -> Tensor:
    """How many transitions of a member were added after those in rows index (M, B) of its ring: (M, B)."""
    newest = torch.tensor(added).unsqueeze(1) - 1
    return (newest - index) % capacity


def histogram(values: NDArray[np.floating], low: float, high: float) -> list[int]:
    """Counts values in BINS bins of equal width from low to high."""
    counts: list[int] = np.histogram(values.astype(np.float64), BINS, (low, high))[0].tolist()
    return counts


def networks(agent: Any) -> dict[str, Stack]:
    """The networks of an agent without targets; an actor with an encoder is two."""
    stacks: dict[str, Stack] = {}
    for name, value in named_fields(agent):
        if not isinstance(value, Stack) or name.endswith("_target"):
            continue
        if isinstance(value, ImageActor):
            stacks |= {"encoder": value.encoder, "actor": value.actor}
        else:
            stacks[name] = value
    return stacks


def norms(values: Tensor, members: int) -> list[float]:
    """The norm of each member's values (M, ...) or (M * C, ...), over all its rows."""
    norm_of_each: list[float] = torch.linalg.vector_norm(values.view(members, -1), dim=1, dtype=torch.float64).tolist()
    return norm_of_each


def first_moments(agent: Any) -> dict[str, Tensor]:
    """A copy of Adam's first moments, by the name of the network that it moves."""
    return {
        name.removesuffix("_adam"): value.mean.to(torch.float64, copy=True)
        for name, value in named_fields(agent)
        if isinstance(value, AdamState)
    }


def gradient(before: Tensor, after: Tensor) -> Tensor:
    """The gradient that changed Adam's first moment: after = BETA1 * before + (1 - BETA1) * gradient."""
    return (after - BETA1 * before) / (1 - BETA1)


def record_activations(stack: Stack) -> list[Forward]:
    """Returns a list to which every forward pass of this object adds what its activations pass on."""
    network, forwards = stack.architecture, list[Forward]()

    def forward(parameters: Sequence[Any], x: Any, ops: Operations) -> Any:
        passed: Forward = []
        forwards.append(passed)

        def activate(value: Any) -> Any:
            y = ops.activate(value)
            passed.append(y.detach())
            return y

        return network.kind.forward(parameters, x, ops._replace(activate=activate))

    stack.architecture = network._replace(kind=network.kind._replace(forward=forward))
    return forwards


def dead_units(passed: Forward, members: int) -> list[float]:
    """The share of the units after a ReLU that are zero for the whole batch."""
    dead = torch.cat([(layer <= 0).all(dim=1) for layer in passed], dim=-1)  # (K, units)
    shares: list[float] = dead.view(members, -1).float().mean(dim=1).tolist()
    return shares
