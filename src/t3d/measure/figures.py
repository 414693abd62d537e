"""Figures of one batch. M members, C critics each, B transitions; a figure has a value for each member."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
    return [torch.nonzero(one).flatten().tolist() for one in same]


def quantiles(values: Tensor, shares: Sequence[float]) -> list[list[float]]:
    """For each member the quantiles of its values (M, ...)."""
    each = torch.quantile(values.flatten(1).double(), torch.tensor(shares, dtype=torch.float64), dim=1)
    found: list[list[float]] = each.T.tolist()
    return found


def ages(index: Tensor, added: Sequence[int], capacity: int) -> Tensor:
    """How many transitions of a member were added after those in rows index (M, B) of its ring: (M, B)."""
    newest = torch.tensor(added).unsqueeze(1) - 1
    return (newest - index) % capacity


def histogram(values: NDArray[np.floating], low: float, high: float) -> list[int]:
    """Counts values in BINS bins of equal width from low to high."""
    counts: list[int] = np.histogram(values.astype(np.float64), BINS, (low, high))[0].tolist()
    return counts
