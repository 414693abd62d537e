"""The numbers that an update reads: each is a float, the same for all members, or a tensor (M,), one for each member.

A CUDA graph freezes the floats it was recorded with. So a number that moves, or differs between members, is a tensor;
with floats the operations, and so the bits, are those of the plain text.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from t3d.types import Coefficient


def is_zero(coefficient: Coefficient) -> bool:
    """Whether a coefficient is zero for all members and never moves, so that what it multiplies can be left out."""
    return not isinstance(coefficient, Tensor) and coefficient == 0


def rowwise(coefficient: Coefficient, rows: Tensor) -> Any:
    """Shapes a coefficient to multiply rows (K, ...), of which every member has K / M; a float stays a float."""
    if not isinstance(coefficient, Tensor) or not coefficient.ndim:
        return coefficient
    each = coefficient.to(rows.dtype).repeat_interleave(rows.shape[0] // coefficient.shape[0])
    return each.view(-1, *[1] * (rows.ndim - 1))
