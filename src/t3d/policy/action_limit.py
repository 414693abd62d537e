"""`env.max_action_change`: limits how much actions change from one step to the next.

The action that is chosen is clipped to what is within reach of the previous one. That one is part of the observation,
without which the environment would no longer be Markov; so TD3 learns on it as on any other environment.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3d.policy.spaces import from_bounds, numbers, sane
from t3d.types import Spec


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


def valid_previous(value: Any, count: int | None, spec: Spec) -> NDArray[Any]:
    """Checks a previous action, or `count` of them; what is beyond the bounds counts as the bound."""
    shape = spec.action_shape if count is None else (count, *spec.action_shape)
    given = sane("previous_action", numbers("previous_action", value, shape).reshape(-1))
    rows = given if count is None else given.reshape(count, spec.action_size)
    inside: NDArray[Any] = np.minimum(np.maximum(rows, spec.action_low), spec.action_high)  # faster than clip
    return inside.astype(spec.action_dtype).reshape(shape)
