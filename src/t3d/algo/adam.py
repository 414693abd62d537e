"""Adam on one flat tensor. torch.optim.Adam has one learning rate per group; here each row may have its own."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from t3d.algo.coefficients import rowwise
from t3d.types import Coefficient

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # the defaults of the Adam paper and of torch.optim.Adam


class AdamState(NamedTuple):
    """Adam's moments and step count; changed in place."""

    mean: Tensor  # (K, P)
    square: Tensor  # (K, P)
    made: Tensor  # () float64, steps taken: a tensor, so that a CUDA graph can advance it


def adam_init(flat: Tensor) -> AdamState:
    """Creates the state of Adam before its first step."""
    made = torch.zeros((), dtype=torch.float64, device=flat.device)
    return AdamState(torch.zeros_like(flat), torch.zeros_like(flat), made)


@torch.no_grad()
def adam_step(state: AdamState, flat: Tensor, gradient: Tensor, rate: Coefficient) -> None:
    """Moves flat (K, P) against the gradient."""
    state.made.add_(1)
    state.mean.lerp_(gradient, 1 - BETA1)
    state.square.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
    step_size = rowwise(rate / (1 - BETA1**state.made), flat)  # divided in float64
    scale = (1 - BETA2**state.made).sqrt()
    denominator = state.square.sqrt().div_(scale).add_(EPSILON)
    flat.sub_((state.mean / denominator).mul_(step_size))
