"""Batches of observations, as vectors of environments return them: each array in them has a leading axis."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3d.policy.spaces import ABSURD, InvalidValue, flatten, inside, largest_of
from t3d.types import Image, Part, Spec


def batch_size(observation: Any, spec: Spec) -> int | None:
    """How many observations these are; None for a single one, and for what is neither."""
    first = spec.observation[0] if spec.observation else spec.images[0]
    try:
        shape = np.shape(inside(observation, first))
    except ValueError:  # it has no such part, or is a ragged list
        return None
    single = _shapes(first)
    return shape[0] if shape not in single and shape[1:] in single else None


def flatten_batch(observations: Any, count: int, spec: Spec) -> NDArray[Any]:
    """Flattens N observations to rows of what flatten returns."""
    usual = _usual(observations, spec)
    if usual is not None:
        return usual
    parts: list[Part | Image] = [*spec.observation, *spec.images]
    for part in parts:
        if np.shape(inside(observations, part))[:1] != (count,):
            raise InvalidValue(part.name, f"does not have {count} rows, as the rest of the batch has")
    rows = []
    for row in range(count):
        try:
            rows.append(flatten(_row(observations, row), spec))
        except InvalidValue as error:
            raise InvalidValue(f"{error.field} in row {row} of the batch", error.problem) from None
    width = 4 * spec.observation_size + spec.frame_size if spec.images else spec.observation_size
    return np.stack(rows) if rows else np.empty((0, width), spec.observation_dtype)


def _usual(observations: Any, spec: Spec) -> NDArray[Any] | None:
    """Copies a batch that is one sane array of floats; None for any other, whose bad rows are then found one by one."""
    only = spec.observation[0] if len(spec.observation) == 1 and not spec.images else None
    if only is None or only.path or only.first_choice is not None or not isinstance(observations, np.ndarray):
        return None
    if observations.dtype.kind != "f" or not largest_of(observations.reshape(-1)) <= ABSURD:
        return None
    flat = observations.reshape(len(observations), spec.own_size).astype(np.float32)
    return np.pad(flat, [(0, 0), (0, spec.action_size)]) if spec.max_action_change else flat


def _row(observations: Any, row: int) -> Any:
    if isinstance(observations, dict):
        return {key: _row(value, row) for key, value in observations.items()}
    if isinstance(observations, tuple):
        return tuple(_row(value, row) for value in observations)
    return observations[row]


def _shapes(part: Part | Image) -> list[tuple[int, ...]]:
    """The shapes that a single array of this part may have."""
    if isinstance(part, Part):
        return [part.shape]
    channels, height, width = part.shape
    shape = (height, width, channels) if part.channels_last else part.shape
    return [shape, (height, width)] if channels == 1 else [shape]
