"""Figures of an agent's networks, by name, each with a value for each of M members."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from t3d.algo.adam import BETA1, AdamState
from t3d.algo.learner import named_fields
from t3d.algo.networks import ImageActor, Stack
from t3d.policy.architectures import Operations

Forward = list[Tensor]  # what each activation passes on in one forward pass, (K, B, size)


def networks(agent: Any) -> dict[str, Stack]:
    """The networks of an agent without targets; an actor with an encoder is two."""
    found: dict[str, Stack] = {}
    for name, value in named_fields(agent):
        if not isinstance(value, Stack) or name.endswith("_target"):
            continue
        if isinstance(value, ImageActor):
            found |= {"encoder": value.encoder, "actor": value.actor}
        else:
            found[name] = value
    return found


def norms(values: Tensor, members: int) -> list[float]:
    """The norm of each member's values (M, ...) or (M * C, ...), over all its rows."""
    found: list[float] = torch.linalg.vector_norm(values.view(members, -1), dim=1, dtype=torch.float64).tolist()
    return found


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


def watch(stack: Stack) -> list[Forward]:
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
    found: list[float] = dead.view(members, -1).float().mean(dim=1).tolist()
    return found
