"""An environment's observations and actions, as values; actions in [-1, 1] to its own bounds and back, and limited."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from t3d.files import Refused, to_count, to_fields, to_list, to_number

Floats = NDArray[np.float32]
Path = tuple[str | int, ...]  # keys and indices that lead to a part of an observation; empty when it is one array
LEAST_CHOICE = -(2**62)
MOST_BYTES = 2**26  # of an observation with images, in a description that is not refused; chosen


class Part(NamedTuple):
    """One array of an observation and its place in the flat vector."""

    path: Path
    shape: tuple[int, ...]
    start: int
    stop: int
    first_choice: int | tuple[int, ...] | None = None  # of Discrete and MultiDiscrete, which become one-hot vectors
    counts: tuple[int, ...] = ()  # of MultiDiscrete: how many choices each of its numbers has

    @property
    def name(self) -> str:
        return _name(self.path)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Part:
        shape, first = tuple(map(to_count, to_list(fields["shape"]))), fields["first_choice"]
        part = cls(_path(fields), shape, to_count(fields["start"]), to_count(fields["stop"]))
        size = part.stop - part.start
        counts = tuple(to_count(count, least=1) for count in to_list(fields.get("counts", [])))
        if counts:
            first = tuple(to_count(choice, least=LEAST_CHOICE) for choice in to_list(first))
            is_sized = len(first) == len(counts) == prod(shape) and sum(counts) == size
        else:
            first = None if first is None else to_count(first, least=LEAST_CHOICE)
            is_sized = first is not None or prod(shape) == size
        if not is_sized:
            raise ValueError(f"a part of its observations is {fields}")
        return part._replace(first_choice=first, counts=counts)

    def to_dict(self) -> dict[str, Any]:
        fields = self._asdict()
        return fields if self.counts else {name: value for name, value in fields.items() if name != "counts"}


class Image(NamedTuple):
    """One image of an observation and its place in a frame, which holds the images of one step as uint8."""

    path: Path
    shape: tuple[int, int, int]  # channels, height, width, as in a frame
    start: int
    stop: int
    channels_last: bool = True  # as the environment returns it
    is_float: bool = False  # the environment returns floats from 0 to 1

    @property
    def name(self) -> str:
        return _name(self.path)

    @property
    def own_shape(self) -> tuple[int, int, int]:
        channels, height, width = self.shape
        return (height, width, channels) if self.channels_last else self.shape

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Image:
        channels, height, width = (to_count(size, least=1) for size in to_list(fields["shape"]))
        shape, flags = (channels, height, width), (fields["channels_last"], fields["is_float"])
        image = cls(_path(fields), shape, to_count(fields["start"]), to_count(fields["stop"]), *flags)
        if not all(isinstance(flag, bool) for flag in flags) or prod(shape) != image.stop - image.start:
            raise ValueError(f"an image of its observations is {fields}")
        return image


class Spec(NamedTuple):
    """An environment's observations and actions. Inside T3D observations are flat and actions are in [-1, 1].

    Without images an observation is a vector, float32 (observation_size,). With images it is uint8
    (observation_width,): the bytes of that vector, which may be empty, then the newest frames, oldest first. If changes
    of actions are limited, the vector ends with the previous action, scaled to [-1, 1].
    """

    observation: tuple[Part, ...]  # without images
    action_shape: tuple[int, ...]
    action_low: NDArray[np.float64]  # (action_size,), the environment's own bounds
    action_high: NDArray[np.float64]  # (action_size,)
    action_dtype: str = "float32"
    images: tuple[Image, ...] = ()
    # Frames in an observation; before the first step of an episode its first frame stands for older ones.
    stack: int = 1
    max_action_change: float = 0.0  # per step, as a fraction of the range of each action; 0: no limit

    @property
    def own_size(self) -> int:
        """Values of the vector that the environment returns itself."""
        return self.observation[-1].stop if self.observation else 0

    @property
    def observation_size(self) -> int:
        return self.own_size + self.action_size if self.max_action_change else self.own_size

    @property
    def frame_size(self) -> int:
        return self.images[-1].stop if self.images else 0

    @property
    def newest_width(self) -> int:
        """Elements of an observation, floats or bytes, with only the newest of its frames."""
        return 4 * self.observation_size + self.frame_size if self.images else self.observation_size

    @property
    def observation_width(self) -> int:
        return self.newest_width + (self.stack - 1) * self.frame_size

    @property
    def observation_dtype(self) -> type[np.float32 | np.uint8]:
        return np.uint8 if self.images else np.float32

    @property
    def action_size(self) -> int:
        return prod(self.action_shape)

    @property
    def has_integer_actions(self) -> bool:
        return np.dtype(self.action_dtype).kind in "iu"

    def to_dict(self) -> dict[str, Any]:
        """Returns it as plain values, which from_dict reads: what most specs do not have is left out."""
        images = {"images": [image._asdict() for image in self.images], "stack": self.stack}
        return {
            "observation": [part.to_dict() for part in self.observation],
            **(images if self.images else {}),
            "action_shape": self.action_shape,
            "action_low": self.action_low.tolist(),
            "action_high": self.action_high.tolist(),
            "action_dtype": self.action_dtype,
            **({"max_action_change": self.max_action_change} if self.max_action_change else {}),
        }

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Spec:
        """Reads a spec among other fields, which may say anything; raises an error for values that describe none."""
        spec = cls(
            tuple(Part.from_dict(to_fields(part)) for part in to_list(fields["observation"])),
            tuple(map(to_count, to_list(fields["action_shape"]))),
            np.array([*map(to_number, to_list(fields["action_low"]))], np.float64),
            np.array([*map(to_number, to_list(fields["action_high"]))], np.float64),
            str(fields["action_dtype"]),
            tuple(Image.from_dict(to_fields(image)) for image in to_list(fields.get("images", []))),
            to_count(fields.get("stack", 1), least=1),
            fields.get("max_action_change", 0.0),
        )
        for parts in (spec.observation, spec.images):
            if [part.start for part in parts] != [0, *(part.stop for part in parts)][: len(parts)]:
                raise Refused("the parts of its observations are not contiguous")
        if not (spec.observation or spec.images) or (spec.images and spec.observation_width > MOST_BYTES):
            raise Refused("its observations are empty, or larger than any that T3D takes")
        low, high, limit = spec.action_low, spec.action_high, spec.max_action_change
        is_sized = low.shape == high.shape == (spec.action_size,)
        if not is_sized or not np.isfinite([low, high]).all() or (low >= high).any():
            raise Refused("its action bounds are not finite numbers, low below high")
        try:
            kind = np.dtype(spec.action_dtype).kind
        except TypeError:  # there is no such type
            kind = "V"
        if kind not in ("f", "i", "u"):
            raise Refused(f"its actions are of type {spec.action_dtype!r:.60}, which are not numbers")
        if not isinstance(limit, float) or not 0 <= limit <= 1 or (limit and kind != "f"):
            raise Refused(f"its max_action_change is {limit!r:.60}, with actions of type {spec.action_dtype}")
        return spec


def _name(path: Path) -> str:
    return "observation" + "".join(f"[{key!r}]" for key in path)


def _path(fields: dict[str, Any]) -> Path:
    path = tuple(to_list(fields["path"]))
    if not all(isinstance(key, str | int) for key in path):
        raise ValueError(f"a part of its observations is {fields}")
    return path


def floats_in(columns: NDArray[Any]) -> Floats:
    """The floats (T, n) in columns of rows, which are floats or their bytes."""
    return columns if columns.dtype == np.float32 else np.ascontiguousarray(columns).view(np.float32)


def to_bounds(action: Floats, spec: Spec) -> NDArray[Any]:
    """Scales actions (..., action_size) from [-1, 1] to the environment's own bounds, shape and dtype."""
    return _scaled(action, spec).astype(spec.action_dtype).reshape(action.shape[:-1] + spec.action_shape)


def _scaled(action: Floats, spec: Spec) -> NDArray[np.float64]:
    low, high = spec.action_low, spec.action_high
    scaled = np.add(action, 1, dtype=np.float64)  # changed in place from here on: temporaries would take twice as long
    scaled *= (high - low) / 2
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
    return np.asarray(np.minimum(np.maximum(action, previous - change), previous + change), spec.action_dtype)


def put_previous(flat: NDArray[Any], previous: NDArray[Any], spec: Spec) -> None:
    """Writes the previous actions (..., *action_shape), scaled to [-1, 1], into flat observations (..., width)."""
    scaled = from_bounds(previous.reshape(*flat.shape[:-1], spec.action_size), spec)
    if spec.images:
        flat[..., 4 * spec.own_size : 4 * spec.observation_size] = scaled.view(np.uint8)
    else:
        flat[..., spec.own_size :] = scaled
