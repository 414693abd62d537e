"""Adam on one flat tensor, and what the settings may add to it.

torch.optim.Adam has one learning rate per group; here each row may have its own.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi
from typing import NamedTuple

import torch
from torch import Tensor

from t3d.algo.coefficients import is_zero, rowwise
from t3d.types import Coefficient

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # the defaults of the Adam paper and of torch.optim.Adam
NORM_EPSILON = 1e-6  # of torch.nn.utils.clip_grad_norm_

SCHEDULES: dict[str, Callable[[Tensor], Tensor]] = {  # of the learning rates: progress from 0 to 1 -> what is left
    "linear": lambda progress: 1 - progress,
    "cosine": lambda progress: (1 + (pi * progress).cos()) / 2,
}


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


def scheduled(rate: Coefficient, made: Tensor, schedule: str, steps: float, final: float) -> Coefficient:
    """The learning rate after some steps of Adam: it falls from rate to final * rate, or stays as it is."""
    if schedule == "constant":
        return rate
    return rate * (final + (1 - final) * SCHEDULES[schedule]((made / steps).clamp(max=1)))


def clipped(gradient: Tensor, members: int, most: Coefficient) -> Tensor:
    """Scales a gradient (K, P) so that no member's norm, over all its rows, is above a limit; 0 is none."""
    if is_zero(most):
        return gradient
    each = gradient.view(members, -1)
    norm = torch.linalg.vector_norm(each, dim=1, dtype=torch.float64)  # (M,); else it would depend on M by a bit
    scale = (most / (norm + NORM_EPSILON)).clamp(max=1)
    if isinstance(most, Tensor):
        scale = torch.where(most > 0, scale, 1)
    small: Tensor = gradient * rowwise(scale, gradient)
    return small


@torch.no_grad()
def decay(flat: Tensor, rate: Coefficient, strength: Coefficient) -> None:
    """Shrinks flat (K, P) towards zero, apart from Adam's step (Loshchilov and Hutter, 2019, AdamW)."""
    if not is_zero(strength):
        flat.mul_(rowwise(1 - rate * strength, flat))
