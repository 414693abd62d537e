"""An environment's observations and actions, as values."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def name_at(path: tuple[str | int, ...]) -> str:
    """What is at these keys and indices of an observation, for messages."""
    return "observation" + "".join(f"[{key!r}]" for key in path)


class Part(NamedTuple):
    """One array of an observation and its place in the flat vector."""

    path: tuple[str | int, ...]  # keys and indices that lead to it; empty when the observation is one array
    shape: tuple[int, ...]
    start: int
    stop: int
    first_choice: int | None = None  # set for a Discrete part, which becomes a one-hot vector

    @property
    def name(self) -> str:
        return name_at(self.path)


class Image(NamedTuple):
    """One image of an observation and its place in a frame, which holds the images of one step as uint8."""

    path: tuple[str | int, ...]  # keys and indices that lead to it; empty when the observation is one image
    shape: tuple[int, int, int]  # channels, height, width, as in a frame
    start: int
    stop: int
    channels_last: bool = True  # as the environment returns it
    is_float: bool = False  # the environment returns floats from 0 to 1

    @property
    def name(self) -> str:
        return name_at(self.path)


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


def floats_in(columns: NDArray[Any]) -> Floats:
    """The floats (T, n) in columns of rows, which are floats or their bytes."""
    return columns if columns.dtype == np.float32 else np.ascontiguousarray(columns).view(np.float32)
