"""Observations to flat arrays, actions to the environment's own bounds: arrays only, no simulator.

Only plain, finite, sane numbers are accepted; for anything else the error names the part it was found in.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3d.types import Floats, Image, Part, Spec

ABSURD = 1e10  # chosen: one observation of 1e14 overflows squared gradients in float32, which freezes weights for good
FIXED_TO = 1e6  # chosen: what `clip` reduces infinities to; their squares fit into float32


class InvalidValue(ValueError):
    """A value that must not reach the replay; the message says what is wrong with it, field says where."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field} {problem}")
        self.field, self.problem = field, problem


def flatten(observation: Any, spec: Spec) -> NDArray[Any]:
    """Copies an observation, whose buffer may be reused, into a flat array; raises InvalidValue for bad values.

    Without images that is a vector; with images the bytes of the vector and one frame. There is room for
    the previous action if changes of actions are limited (action_limit.py).
    """
    if spec.images:
        flat = np.empty(4 * spec.observation_size + spec.frame_size, np.uint8)
        vector, frames = split(flat, spec)
        for part in spec.observation:
            vector[part.start : part.stop] = _part(observation, part)
        for image in spec.images:
            _pixels(frames, image)[:] = _to_bytes(image, _valid(image, _channels_first(observation, image)))
        return flat
    if len(spec.observation) == 1 and not spec.max_action_change:
        return _part(observation, spec.observation[0])
    vector = np.empty(spec.observation_size, np.float32)
    for part in spec.observation:
        vector[part.start : part.stop] = _part(observation, part)
    return vector


def split(flat: NDArray[Any], spec: Spec) -> tuple[Floats, NDArray[np.uint8]]:
    """The vector in a flat observation with images and the bytes of its frames; both are views."""
    return flat[: 4 * spec.observation_size].view(np.float32), flat[4 * spec.observation_size :]


def stacked(flat: NDArray[Any], before: NDArray[Any] | None, spec: Spec) -> NDArray[np.uint8]:
    """Puts the frames of the observation before, without the oldest, in front of the frame of the one that follows.

    At the start of an episode there is none before: its first frame stands for the older ones.
    """
    vector_bytes = 4 * spec.observation_size
    if before is None:
        return np.concatenate([flat, *[flat[vector_bytes:]] * (spec.stack - 1)])
    older = before[vector_bytes + spec.frame_size :]
    return np.concatenate([flat[:vector_bytes], older, flat[vector_bytes:]])


def newest(observation: NDArray[Any], spec: Spec) -> NDArray[Any]:
    """An observation with only the newest of its frames; without images, as it is."""
    if spec.stack == 1:
        return observation
    return np.concatenate([observation[: 4 * spec.observation_size], observation[-spec.frame_size :]])


def number(name: str, value: Any) -> float:
    """Returns the value as one finite, sane float."""
    if isinstance(value, float) and abs(value) <= ABSURD:
        return float(value)  # the usual case, many times as fast
    return float(sane(name, numbers(name, value, ()).reshape(1))[0])


def fixed(observation: Any, spec: Spec, last: NDArray[Any]) -> NDArray[Any]:
    """Repairs an observation: clips values that are too large and takes the rest from the last valid observation."""
    flat = last.copy()
    vector, frame = split(flat, spec) if spec.images else (flat, flat[:0])
    for image in spec.images:
        pixels = _pixels(frame, image)
        with suppress(InvalidValue):
            pixels[:] = _to_bytes(image, _clipped_image(_channels_first(observation, image), pixels))
    for part in spec.observation:
        values = vector[part.start : part.stop]
        with suppress(InvalidValue):
            plain = _plain(observation, part)
            values[:] = _clipped(plain.reshape(-1), values) if part.first_choice is None else _one_hot(part, plain)
    return flat


def fixed_number(value: Any) -> float:
    """Clips the value to sane bounds; zero if it is not a number."""
    try:
        return float(_clipped(numbers("", value, ()).reshape(1), np.zeros(1, np.float32))[0])
    except InvalidValue:
        return 0.0


def to_bounds(action: Floats, spec: Spec) -> NDArray[Any]:
    """Scales actions (..., action_size) from [-1, 1] to the environment's own bounds, shape and dtype."""
    return _scaled(action, spec).astype(spec.action_dtype).reshape(action.shape[:-1] + spec.action_shape)


def played(actions: Floats, spec: Spec) -> Floats:
    """Rounds actions (..., action_size) in [-1, 1] to those that the environment is actually given."""
    return from_bounds(_scaled(actions, spec), spec) if spec.has_integer_actions else actions


def random_action(rng: np.random.Generator, spec: Spec) -> Floats:
    """Draws an action in [-1, 1], uniformly over those that the environment can be given."""
    if spec.has_integer_actions:
        low, high = spec.action_low.astype(int), spec.action_high.astype(int)
        return from_bounds(rng.integers(low, high, endpoint=True), spec)
    return rng.uniform(-1, 1, spec.action_size).astype(np.float32)


def from_bounds(action: NDArray[Any], spec: Spec) -> Floats:
    """Scales actions (..., action_size) from the environment's own bounds to [-1, 1]."""
    scaled = action - spec.action_low  # changed in place from here on, as in _scaled
    scaled /= spec.action_high - spec.action_low
    scaled *= 2
    scaled -= 1
    return scaled.astype(np.float32)


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


def largest_of(flat: NDArray[Any]) -> float:
    """The largest absolute value of a vector; NaN if it has one."""
    return float(np.maximum.reduce(np.abs(flat), initial=0))  # faster than comparing each


def numbers(name: str, value: Any, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Returns the value as an array of this shape."""
    try:
        array = np.asarray(value)
    except ValueError:  # ragged lists
        raise InvalidValue(name, f"is {type(value).__name__} {value!r:.60}, not numbers of one shape") from None
    if array.dtype.kind not in "fiub":
        raise InvalidValue(name, f"is {type(value).__name__} {value!r:.60}, not numbers")
    if array.shape != shape:
        raise InvalidValue(name, f"has shape {array.shape} instead of {shape}")
    return array.astype(np.float64, copy=False)


def _part(observation: Any, part: Part) -> Floats:
    """Copies a part, whose numbers must be sane, into a vector."""
    value = inside(observation, part)
    if type(value) is np.ndarray and value.dtype.kind == "f" and value.shape == part.shape:
        flat = value.reshape(-1)
        if part.first_choice is None and largest_of(flat) <= ABSURD:
            return flat.astype(np.float32)  # the usual case, and much faster
    plain = numbers(part.name, value, part.shape)
    values = sane(part.name, plain.reshape(-1)) if part.first_choice is None else _one_hot(part, plain)
    return values.astype(np.float32)


def _plain(observation: Any, part: Part) -> NDArray[np.float64]:
    return numbers(part.name, inside(observation, part), part.shape)


def inside(observation: Any, part: Part | Image) -> Any:
    """Finds a part in an observation."""
    value = observation
    for key in part.path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            raise InvalidValue(part.name, f"is missing from {observation!r:.60}") from None
    return value


def _one_hot(part: Part, value: NDArray[np.float64]) -> NDArray[np.float64]:
    choice = value - (part.first_choice or 0)
    choices = np.arange(part.stop - part.start)
    if choice not in choices:
        raise InvalidValue(part.name, f"is outside its {len(choices)} choices")
    return np.equal(choices, choice).astype(np.float64)


def sane(name: str, flat: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns a vector of which every number is finite and below ABSURD."""
    if not largest_of(flat) <= ABSURD:  # or NaN
        bad = int(np.argmin(np.abs(flat) <= ABSURD))
        place = f"{name}[{bad}]" if len(flat) > 1 else name
        raise InvalidValue(place, f"is {flat[bad]}; every number must be finite and below {ABSURD:g}")
    return flat


def _clipped(flat: NDArray[np.float64], last: Floats) -> NDArray[np.float64]:
    clipped = np.where(np.abs(flat) <= ABSURD, flat, np.clip(flat, -FIXED_TO, FIXED_TO))
    return np.where(np.isnan(flat), last, clipped)


def _pixels(frame: NDArray[np.uint8], image: Image) -> NDArray[np.uint8]:
    """A view of an image in a frame."""
    return frame[image.start : image.stop].reshape(image.shape)


def _channels_first(observation: Any, image: Image) -> NDArray[Any]:
    """Finds an image in an observation and returns it as (channels, height, width); it must be of the right type."""
    value = inside(observation, image)
    if not isinstance(value, np.ndarray):
        raise InvalidValue(image.name, f"is {type(value).__name__} {value!r:.60}, not an array")
    channels, height, width = image.shape
    shape = (height, width, channels) if image.channels_last else image.shape
    if value.shape != shape and not (channels == 1 and value.shape == (height, width)):
        raise InvalidValue(image.name, f"has shape {value.shape} instead of {shape}; images must keep their size")
    if value.dtype.kind != "f" if image.is_float else value.dtype != np.uint8:
        raise InvalidValue(image.name, f"is of type {value.dtype} instead of {'float' if image.is_float else 'uint8'}")
    three = value.reshape(shape)
    return three.transpose(2, 0, 1) if image.channels_last else three


def _valid(image: Image, pixels: NDArray[Any]) -> NDArray[Any]:
    if image.is_float:
        valid = (pixels >= 0) & (pixels <= 1)  # False for NaN too
        if not valid.all():
            raise InvalidValue(image.name, f"holds {pixels[~valid][0]}; images of floats must lie between 0 and 1")
    return pixels


def _clipped_image(pixels: NDArray[Any], last: NDArray[np.uint8]) -> NDArray[Any]:
    return np.where(np.isnan(pixels), last / 255, pixels.clip(0, 1)) if pixels.dtype.kind == "f" else pixels


def _to_bytes(image: Image, pixels: NDArray[Any]) -> NDArray[Any]:
    return np.rint(pixels * 255) if image.is_float else pixels
