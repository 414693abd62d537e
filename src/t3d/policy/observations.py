"""Observations to flat arrays; what is not a plain, finite, sane number is refused by the name of its part."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3d.errors import UserError
from t3d.policy.spec import Floats, Image, Part, Spec

ABSURD = 1e10  # chosen: one observation of 1e14 overflows squared gradients in float32, which freezes weights for good
FIXED_TO = 1e6  # chosen: what `clip` reduces infinities to; their squares fit into float32


class InvalidValue(UserError, ValueError):
    """A value that must not reach the replay; the message says what is wrong with it, field says where."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field} {problem}")
        self.field, self.problem = field, problem


def flatten(observation: Any, spec: Spec) -> NDArray[Any]:
    """Copies an observation, whose buffer may be reused, into a flat array; raises InvalidValue for bad values.

    Without images that is a vector; with images the bytes of the vector and one frame. There is room for
    the previous action if changes of actions are limited.
    """
    if len(spec.observation) == 1 and not spec.images and not spec.max_action_change:
        return _part(observation, spec.observation[0])
    flat = np.empty(spec.newest_width, spec.observation_dtype)
    vector, frame = split(flat, spec)
    for part in spec.observation:
        vector[part.start : part.stop] = _part(observation, part)
    for image in spec.images:
        pixels = _to_bytes(image, _channels_first(observation, image))
        frame[image.start : image.stop].reshape(image.shape)[:] = pixels
    return flat


def split(flat: NDArray[Any], spec: Spec) -> tuple[Floats, NDArray[np.uint8]]:
    """The vector in a flat observation and the bytes of its frames, which may be none; both are views."""
    if not spec.images:
        return flat, flat[:0]
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
    """Observations (..., width) with only the newest of their frames; without images, as they are."""
    if spec.stack == 1:
        return observation
    vector_bytes = 4 * spec.observation_size
    return np.concatenate([observation[..., :vector_bytes], observation[..., -spec.frame_size :]], axis=-1)


def number(name: str, value: Any) -> float:
    """Returns the value as one finite, sane float."""
    if isinstance(value, float | int) and abs(value) <= ABSURD:
        return float(value)  # the usual case, many times as fast
    return float(sane(name, numbers(name, value, ()).reshape(1))[0])


def fixed(observation: Any, spec: Spec, last: NDArray[Any]) -> NDArray[Any]:
    """Repairs an observation: clips values that are too large and takes the rest from the last valid observation."""
    flat = last.copy()
    vector, frame = split(flat, spec)
    for image in spec.images:
        pixels = frame[image.start : image.stop].reshape(image.shape)
        with suppress(InvalidValue):
            given = _channels_first(observation, image)
            valid = np.where(np.isnan(given), pixels / 255, given.clip(0, 1)) if image.is_float else given
            pixels[:] = _to_bytes(image, valid)
    for part in spec.observation:
        values = vector[part.start : part.stop]
        with suppress(InvalidValue):
            plain = numbers(part.name, inside(observation, part), part.shape)
            values[:] = _clipped(plain.reshape(-1), values) if part.first_choice is None else _one_hots(part, plain)
    return flat


def fixed_number(value: Any) -> float:
    """Clips the value to sane bounds; zero if it is not a number."""
    try:
        return float(_clipped(numbers("", value, ()).reshape(1), np.zeros(1, np.float32))[0])
    except InvalidValue:
        return 0.0


def largest_of(flat: NDArray[Any]) -> float:
    """The largest absolute value of a vector; NaN if it has one."""
    return float(np.maximum.reduce(np.abs(flat), initial=0))  # faster than comparing each


def numbers(name: str, value: Any, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Returns the value as an array of this shape."""
    try:
        array = np.asarray(value)
    except ValueError:  # ragged lists
        array = np.asarray(None)
    if array.dtype.kind not in "fiub":
        raise InvalidValue(name, f"is {type(value).__name__} {value!r:.60}, not numbers of one shape")
    if array.shape != shape:
        raise InvalidValue(name, f"has shape {array.shape} instead of {shape}")
    return array.astype(np.float64, copy=False)


def _part(observation: Any, part: Part) -> Floats:
    value = inside(observation, part)
    if type(value) is np.ndarray and value.dtype.kind == "f" and value.shape == part.shape:
        flat = value.reshape(-1)
        if part.first_choice is None and largest_of(flat) <= ABSURD:
            return flat.astype(np.float32)  # the usual case, and much faster
    plain = numbers(part.name, value, part.shape)
    values = sane(part.name, plain.reshape(-1)) if part.first_choice is None else _one_hots(part, plain)
    return values.astype(np.float32)


def inside(observation: Any, part: Part | Image) -> Any:
    """Finds a part in an observation."""
    value = observation
    for key in part.path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            raise InvalidValue(part.name, f"is missing from {observation!r:.60}") from None
    return value


def _one_hots(part: Part, value: NDArray[np.float64]) -> NDArray[np.float64]:
    first: Any = part.first_choice
    if not part.counts:
        return _one_hot(part.name, value - first, part.stop - part.start)
    choices = zip(value.reshape(-1) - first, part.counts, strict=True)
    return np.concatenate([_one_hot(f"{part.name}[{i}]", choice, count) for i, (choice, count) in enumerate(choices)])


def _one_hot(name: str, choice: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    choices = np.arange(count)
    if choice not in choices:
        raise InvalidValue(name, f"is outside its {count} choices")
    return np.equal(choices, choice).astype(np.float64)


def sane(name: str, flat: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns a vector of which every number is finite and below ABSURD."""
    if not largest_of(flat) <= ABSURD:  # or NaN
        bad = int(np.argmin(np.abs(flat) <= ABSURD))
        raise InvalidValue(
            f"{name}[{bad}]" if len(flat) > 1 else name,
            f"is {flat[bad]}; every number must be finite and below {ABSURD:g}",
        )
    return flat


def _clipped(flat: NDArray[np.float64], last: Floats) -> NDArray[np.float64]:
    clipped = np.where(np.abs(flat) <= ABSURD, flat, np.clip(flat, -FIXED_TO, FIXED_TO))
    return np.where(np.isnan(flat), last, clipped)


def _channels_first(observation: Any, image: Image) -> NDArray[Any]:
    value = inside(observation, image)
    if not isinstance(value, np.ndarray):
        raise InvalidValue(image.name, f"is {type(value).__name__} {value!r:.60}, not an array")
    if value.shape not in _shapes(image):
        raise InvalidValue(
            image.name, f"has shape {value.shape} instead of {image.own_shape}; images must keep their size"
        )
    if value.dtype.kind != "f" if image.is_float else value.dtype != np.uint8:
        raise InvalidValue(image.name, f"is of type {value.dtype} instead of {'float' if image.is_float else 'uint8'}")
    three = value.reshape(image.own_shape)
    return three.transpose(2, 0, 1) if image.channels_last else three


def _to_bytes(image: Image, pixels: NDArray[Any]) -> NDArray[Any]:
    if not image.is_float:
        return pixels
    valid = (pixels >= 0) & (pixels <= 1)  # False for NaN too
    if not valid.all():
        raise InvalidValue(image.name, f"holds {pixels[~valid][0]}; images of floats must lie between 0 and 1")
    return np.asarray(np.rint(pixels * 255))


def batch_size(observation: Any, spec: Spec) -> int | None:
    """How many observations these are; None for a single one, and for what is neither."""
    first = spec.observation[0] if spec.observation else spec.images[0]
    try:
        shape = np.shape(inside(observation, first))
    except ValueError:  # it has no such part, or is a ragged list
        return None
    return shape[0] if shape not in _shapes(first) and shape[1:] in _shapes(first) else None


def flatten_batch(observations: Any, count: int, spec: Spec) -> NDArray[Any]:
    """Flattens N observations to rows of what flatten returns."""
    parts: list[Part | Image] = [*spec.observation, *spec.images]
    only = parts[0] if len(parts) == 1 else None
    is_one_vector = isinstance(only, Part) and not only.path and only.first_choice is None
    are_floats = isinstance(observations, np.ndarray) and observations.dtype.kind == "f"
    if is_one_vector and are_floats and largest_of(observations.reshape(-1)) <= ABSURD:  # the usual case, much faster
        vectors = observations.reshape(count, spec.own_size).astype(np.float32)
        return np.pad(vectors, [(0, 0), (0, spec.action_size)]) if spec.max_action_change else vectors
    for part in parts:
        if np.shape(inside(observations, part))[:1] != (count,):
            raise InvalidValue(part.name, f"does not have {count} rows, as the rest of the batch has")
    rows = []
    for row in range(count):
        try:
            rows.append(flatten(_row(observations, row), spec))
        except InvalidValue as error:
            raise InvalidValue(f"{error.field} in row {row} of the batch", error.problem) from None
    return np.stack(rows) if rows else np.empty((0, spec.newest_width), spec.observation_dtype)


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
    return [part.own_shape, part.shape[1:]] if part.shape[0] == 1 else [part.own_shape]
