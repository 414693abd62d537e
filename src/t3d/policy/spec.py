"""An environment's observations and actions, as values."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from t3d.files import Refused, to_count, to_fields, to_list, to_number

Floats = NDArray[np.float32]
Path = tuple[str | int, ...]  # keys and indices that lead to a part of an observation; empty when it is one array
MOST_BYTES = 2**26  # of an observation with images, in a description that is not refused; chosen


class Part(NamedTuple):
    """One array of an observation and its place in the flat vector."""

    path: Path
    shape: tuple[int, ...]
    start: int
    stop: int
    first_choice: int | None = None  # set for a Discrete part, which becomes a one-hot vector

    @property
    def name(self) -> str:
        """What messages call it."""
        return _name(self.path)

    def to_dict(self) -> dict[str, Any]:
        """Returns it as plain values, which from_dict reads."""
        return {**self._asdict(), "path": list(self.path), "shape": list(self.shape)}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Part:
        """Raises an error for values that describe none."""
        choice = None if fields["first_choice"] is None else to_count(fields["first_choice"], least=-(2**62))
        shape = tuple(to_count(size) for size in to_list(fields["shape"]))
        part = cls(_path(fields), shape, to_count(fields["start"]), to_count(fields["stop"]), choice)
        if choice is None and prod(shape) != part.stop - part.start:
            raise ValueError(f"a part of its observations is {fields}")
        return part


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
        """What messages call it."""
        return _name(self.path)

    @property
    def own_shape(self) -> tuple[int, int, int]:
        """The shape in which the environment returns it."""
        channels, height, width = self.shape
        return (height, width, channels) if self.channels_last else self.shape

    def to_dict(self) -> dict[str, Any]:
        """Returns it as plain values, which from_dict reads."""
        return {**self._asdict(), "path": list(self.path), "shape": list(self.shape)}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Image:
        """Raises an error for values that describe none."""
        channels, height, width = (to_count(size, least=1) for size in to_list(fields["shape"]))
        flags = fields["channels_last"], fields["is_float"]
        shape = (channels, height, width)
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
        """Values of the vector."""
        return self.own_size + self.action_size if self.max_action_change else self.own_size

    @property
    def frame_size(self) -> int:
        """Bytes of one frame."""
        return self.images[-1].stop if self.images else 0

    @property
    def observation_width(self) -> int:
        """Elements of an observation, floats or bytes."""
        return self.observation_size if not self.images else 4 * self.observation_size + self.stack * self.frame_size

    @property
    def observation_dtype(self) -> type[np.float32 | np.uint8]:
        return np.uint8 if self.images else np.float32

    @property
    def action_size(self) -> int:
        return prod(self.action_shape)

    @property
    def has_integer_actions(self) -> bool:
        """Whether the environment takes whole numbers only."""
        return np.dtype(self.action_dtype).kind in "iu"

    def to_dict(self) -> dict[str, Any]:
        """Returns it as plain values, which from_dict reads: what most specs do not have is left out."""
        images = {"images": [image.to_dict() for image in self.images], "stack": self.stack}
        return {
            "observation": [part.to_dict() for part in self.observation],
            **(images if self.images else {}),
            "action_shape": list(self.action_shape),
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
            tuple(to_count(size) for size in to_list(fields["action_shape"])),
            np.array([to_number(bound) for bound in to_list(fields["action_low"])], np.float64),
            np.array([to_number(bound) for bound in to_list(fields["action_high"])], np.float64),
            str(fields["action_dtype"]),
            tuple(Image.from_dict(to_fields(image)) for image in to_list(fields.get("images", []))),
            to_count(fields.get("stack", 1), least=1),
            fields.get("max_action_change", 0.0),
        )
        if not _is_contiguous(spec.observation) or not _is_contiguous(spec.images):
            raise Refused("the parts of its observations are not contiguous")
        if not (spec.observation or spec.images) or (spec.images and spec.observation_width > MOST_BYTES):
            raise Refused("its observations are empty, or larger than any that T3D takes")
        spec._refuse_impossible_actions()
        return spec

    def _refuse_impossible_actions(self) -> None:
        low, high, limit = self.action_low, self.action_high, self.max_action_change
        is_sized = low.shape == high.shape == (self.action_size,)
        if not is_sized or not np.isfinite([low, high]).all() or (low >= high).any():
            raise Refused("its action bounds are not finite numbers, low below high")
        try:
            kind: str = np.dtype(self.action_dtype).kind
        except TypeError:  # there is no such type
            kind = ""
        if kind not in ("f", "i", "u"):
            raise Refused(f"its actions are of type {self.action_dtype!r:.60}, which are not numbers")
        if not isinstance(limit, float) or not 0 <= limit <= 1 or (limit and kind != "f"):
            raise Refused(f"its max_action_change is {limit!r:.60}, with actions of type {self.action_dtype}")


def _name(path: Path) -> str:
    return "observation" + "".join(f"[{key!r}]" for key in path)


def _path(fields: dict[str, Any]) -> Path:
    path = tuple(to_list(fields["path"]))
    if not all(isinstance(key, str | int) for key in path):
        raise ValueError(f"a part of its observations is {fields}")
    return path


def _is_contiguous(parts: Sequence[Part | Image]) -> bool:
    return [part.start for part in parts] == [0, *(part.stop for part in parts)][: len(parts)]


def floats_in(columns: NDArray[Any]) -> Floats:
    """The floats (T, n) in columns of rows, which are floats or their bytes."""
    return columns if columns.dtype == np.float32 else np.ascontiguousarray(columns).view(np.float32)
