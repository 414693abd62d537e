"""The numbers that an update reads: floats, or where they move or differ between members tensors, which CUDA graphs do
not freeze; with floats the operations, and so the bits, are those of the plain text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from t3d.types import Coefficient


def for_members(each: Sequence[Any], device: torch.device | str = "cpu") -> Any:
    """Joins the coefficients of members, NamedTuples of floats: those that differ become tensors (M,), in float64."""
    columns = zip(each[0]._fields, zip(*each, strict=True), strict=True)
    different = {name: values for name, values in columns if len(set(values)) > 1}
    return each[0]._replace(
        **{name: torch.tensor(values, dtype=torch.float64, device=device) for name, values in different.items()}
    )


def is_zero(coefficient: Coefficient) -> bool:
    """Whether a coefficient is zero for all members and never moves, so that what it multiplies can be left out."""
    return not isinstance(coefficient, Tensor) and coefficient == 0


def rowwise(coefficient: Coefficient, rows: Tensor) -> Any:
    """Shapes a coefficient to multiply rows (K, ...); rounds it, as torch rounds floats, only here."""
    if not isinstance(coefficient, Tensor) or not coefficient.ndim:
        return coefficient
    each = coefficient.repeat_interleave(rows.shape[0] // coefficient.shape[0])
    return each.view(-1, *[1] * (rows.ndim - 1)).to(rows.dtype)
