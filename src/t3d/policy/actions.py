"""Actions in [-1, 1] to the environment's own bounds and back, and the limit on how much they change."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3d.policy.observations import numbers, sane
from t3d.policy.spec import Floats, Spec


def to_bounds(action: Floats, spec: Spec) -> NDArray[Any]:
    """Scales actions (..., action_size) from [-1, 1] to the environment's own bounds, shape and dtype."""
    return _scaled(action, spec).astype(spec.action_dtype).reshape(action.shape[:-1] + spec.action_shape)


def _scaled(action: Floats, spec: Spec) -> NDArray[np.float64]:
    low, high = spec.action_low, spec.action_high
    scaled = action.astype(np.float64)  # a copy, changed in place from here on: temporaries would take twice as long
    scaled += 1
    scaled /= 2
    scaled *= high - low
    scaled += low
    if spec.has_integer_actions:
        np.rint(scaled, out=scaled)
    np.maximum(scaled, low, out=scaled)
    np.minimum(scaled, high, out=scaled)
    return scaled


def from_bounds(action: NDArray[Any], spec: Spec) -> Floats:
    """Scales actions (..., action_size) from the environment's own bounds to [-1, 1]."""
    scaled = action - spec.action_low  # changed in place from here on, as in _scaled
    scaled /= spec.action_high - spec.action_low
    scaled *= 2
    scaled -= 1
    return scaled.astype(np.float32)


def rounded(actions: Floats, spec: Spec) -> Floats:
    """Rounds actions (..., action_size) in [-1, 1] to those that the environment is actually given."""
    return from_bounds(_scaled(actions, spec), spec) if spec.has_integer_actions else actions


def random_action(rng: np.random.Generator, spec: Spec) -> Floats:
    """Draws an action in [-1, 1], uniformly over those that the environment can be given."""
    if spec.has_integer_actions:
        low, high = spec.action_low.astype(int), spec.action_high.astype(int)
        return from_bounds(rng.integers(low, high, endpoint=True), spec)
    return rng.uniform(-1, 1, spec.action_size).astype(np.float32)


def bounds_inside(spec: Spec) -> tuple[Floats, Floats]:
    """Low and high as float32, never outside of the environment's own."""
    low, high = spec.action_low.astype(np.float32), spec.action_high.astype(np.float32)
    low = np.where(low < spec.action_low, np.nextafter(low, np.float32(np.inf)), low)
    high = np.where(high > spec.action_high, np.nextafter(high, np.float32(-np.inf)), high)
    return low, high


def middle(spec: Spec) -> NDArray[Any]:
    """The middle of the range of actions, from which the first action of an episode departs."""
    return ((spec.action_low + spec.action_high) / 2).astype(spec.action_dtype).reshape(spec.action_shape)


def limited(action: NDArray[Any], previous: NDArray[Any], spec: Spec) -> NDArray[Any]:
    """Clips actions (..., *action_shape), which are within the bounds, to what is within reach of the previous ones."""
    change = (spec.max_action_change * (spec.action_high - spec.action_low)).reshape(spec.action_shape)
    inside: NDArray[Any] = np.minimum(np.maximum(action, previous - change), previous + change)
    return inside.astype(spec.action_dtype)


def put_previous(flat: NDArray[Any], previous: NDArray[Any], spec: Spec) -> None:
    """Writes the previous actions (..., *action_shape), scaled to [-1, 1], into flat observations (..., width)."""
    scaled = from_bounds(previous.reshape(*flat.shape[:-1], spec.action_size), spec)
    if spec.images:
        flat[..., 4 * spec.own_size : 4 * spec.observation_size] = scaled.view(np.uint8)
    else:
        flat[..., spec.own_size :] = scaled


def action_count(actions: Any, spec: Spec) -> int | None:
    """How many actions these are; None for a single one, and for what is neither."""
    try:
        shape = np.shape(actions)
    except ValueError:  # a ragged list
        return None
    return shape[0] if len(shape) == len(spec.action_shape) + 1 else None


def valid_previous(value: Any, count: int | None, spec: Spec) -> NDArray[Any]:
    """Checks a previous action, or `count` of them; what is beyond the bounds counts as the bound."""
    shape = spec.action_shape if count is None else (count, *spec.action_shape)
    given = sane("previous_action", numbers("previous_action", value, shape).reshape(-1))
    rows = given if count is None else given.reshape(count, spec.action_size)
    inside: NDArray[Any] = np.minimum(np.maximum(rows, spec.action_low), spec.action_high)  # faster than clip
    return inside.astype(spec.action_dtype).reshape(shape)
