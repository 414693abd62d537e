"""Adam on one flat tensor, in which each row may have its own learning rate, and what the settings may add to it."""

from __future__ import annotations

from collections.abc import Callable
from math import pi
from typing import NamedTuple

import torch
from torch import Tensor

from t3d.algo.coefficients import is_zero, rowwise
from t3d.config import TD3Config
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
    # Taken so far, float64: () of all members, or (M,) if some may rest. A tensor, so that a CUDA graph can advance it.
    steps: Tensor


def adam_init(flat: Tensor, counts: tuple[int, ...] = ()) -> AdamState:
    """Creates the state of Adam before its first step, with counts (M,) with a count for each member."""
    steps = torch.zeros(counts, dtype=torch.float64, device=flat.device)
    return AdamState(torch.zeros_like(flat), torch.zeros_like(flat), steps)


@torch.no_grad()
def adam_step(state: AdamState, flat: Tensor, gradient: Tensor, rate: Coefficient) -> None:
    """Moves flat (K, P) against the gradient."""
    state.steps.add_(1)
    state.mean.lerp_(gradient, 1 - BETA1)
    state.square.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
    step_size = rowwise(rate / (1 - BETA1**state.steps), flat)  # divided in float64
    scale = (1 - BETA2**state.steps).sqrt()
    denominator = state.square.sqrt().div_(rowwise(scale, flat)).add_(EPSILON)
    flat.sub_((state.mean / denominator).mul_(step_size))


def scheduled(rate: Coefficient, steps: Tensor, cfg: TD3Config, every: int = 1) -> Coefficient:
    """The learning rate after these steps of Adam, of which each takes `every` updates: constant, or falling."""
    if cfg.lr_schedule == "constant":
        return rate
    progress = (steps / (cfg.lr_updates / every)).clamp(max=1)
    return rate * (cfg.lr_final + (1 - cfg.lr_final) * SCHEDULES[cfg.lr_schedule](progress))


def clipped(gradient: Tensor, members: int, limit: Coefficient) -> Tensor:
    """Scales a gradient (K, P) so that the norm of each member's rows is at most `limit`; zero means no limit."""
    if is_zero(limit):
        return gradient
    each = gradient.view(members, -1)
    norm = torch.linalg.vector_norm(each, dim=1, dtype=torch.float64)  # (M,); else it would depend on M by a bit
    scale = (limit / (norm + NORM_EPSILON)).clamp(max=1)
    if isinstance(limit, Tensor):
        scale = torch.where(limit > 0, scale, 1)
    scaled: Tensor = gradient * rowwise(scale, gradient)
    return scaled


@torch.no_grad()
def decay(flat: Tensor, rate: Coefficient, strength: Coefficient) -> None:
    """Shrinks flat (K, P) towards zero, apart from Adam's step (Loshchilov and Hutter, 2019, AdamW)."""
    if not is_zero(strength):
        flat.mul_(rowwise(1 - rate * strength, flat))
