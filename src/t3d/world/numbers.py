"""Observations to flat vectors, actions to the environment's own bounds: arrays only, no simulator.

Only plain, finite, sane numbers get through: everything else is refused in words that name the part it was found in.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3d.types import Floats, Part, Spec

ABSURD = (
    1e10  # chosen: one observation of 1e14 makes squared gradients overflow float32, which freezes weights for good
)


class Unfit(ValueError):
    """A value that must not reach the replay; the message says what is wrong with it."""


def flatten(observation: Any, spec: Spec) -> Floats:
    """The observation as a vector of its own (environments may reuse their buffers); Unfit says why it is none."""
    if len(spec.observation) == 1:
        return _part(observation, spec.observation[0]).astype(np.float32)
    flat = np.empty(spec.observation_size, np.float32)
    for part in spec.observation:
        flat[part.start : part.stop] = _part(observation, part)
    return flat


def number(name: str, value: Any) -> float:
    """The value as one finite, sane number."""
    return float(_sane(name, _numbers(name, value, ()).reshape(1))[0])


def to_bounds(action: Floats, spec: Spec) -> NDArray[Any]:
    """From [-1, 1] to the environment's own bounds, shape and dtype: the one place where actions are rescaled."""
    share = (action.astype(np.float64) + 1) / 2
    scaled = spec.action_low + share * (spec.action_high - spec.action_low)
    if np.issubdtype(spec.action_dtype, np.integer):
        scaled = np.rint(scaled)
    typed: NDArray[Any] = np.clip(scaled, spec.action_low, spec.action_high).astype(spec.action_dtype)
    return typed.reshape(spec.action_shape)


def _numbers(name: str, value: Any, shape: tuple[int, ...]) -> NDArray[np.float64]:
    try:
        array = np.asarray(value)
    except ValueError:  # ragged lists
        raise Unfit(f"{name} is {type(value).__name__} {value!r:.60}, not numbers of one shape") from None
    if array.dtype.kind not in "fiub":
        raise Unfit(f"{name} is {type(value).__name__} {value!r:.60}, not numbers")
    if array.shape != shape:
        raise Unfit(f"{name} has shape {array.shape} instead of {shape}")
    return array.astype(np.float64)


def _part(observation: Any, part: Part) -> NDArray[np.float64]:
    value = observation
    for key in part.path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            raise Unfit(f"{part.name} is missing from {observation!r:.60}") from None
    plain = _numbers(part.name, value, part.shape)
    if part.first_choice is None:
        return _sane(part.name, plain.reshape(-1))
    return _one_hot(part, plain - part.first_choice)


def _one_hot(part: Part, choice: NDArray[np.float64]) -> NDArray[np.float64]:
    choices = np.arange(part.stop - part.start)
    if choice not in choices:
        raise Unfit(f"{part.name} is outside its {len(choices)} choices")
    return np.equal(choices, choice).astype(np.float64)


def _sane(name: str, flat: NDArray[np.float64]) -> NDArray[np.float64]:
    sound = np.abs(flat) <= ABSURD  # False for NaN too
    if not sound.all():
        worst = int(np.argmin(sound))
        place = f"{name}[{worst}]" if len(flat) > 1 else name
        raise Unfit(f"{place} is {flat[worst]}; every number must be finite and below {ABSURD:g}")
    return flat
