"""Small environments that observe images; none of them needs graphics."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

SIDE, LIMIT, DOT = 32, 20, 4
FASTEST = 3.0  # pixels in a step
STILL = np.zeros(1, np.float32)  # the action that moves nothing


class Dot(gym.Env[Any, Any]):
    """A dot that is to be moved to the middle, left or right by the action; the reward is minus its distance."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    limit = LIMIT

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space: gym.Space[Any] = gym.spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8)
        self.action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
        self.place, self.row, self.t = 0.0, 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = float(self.np_random.uniform(0, SIDE - DOT))
        self.row = int(self.np_random.integers(0, SIDE - DOT))
        self.t = 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        self.place = float(np.clip(self.place + FASTEST * float(action[0]), 0, SIDE - DOT))
        return self.observe(), -self.distance, False, self.t >= self.limit, {}

    @property
    def distance(self) -> float:
        """From the middle: 0 to 1."""
        middle = (SIDE - DOT) / 2
        return abs(self.place - middle) / middle

    def picture(self) -> NDArray[np.uint8]:
        """(SIDE, SIDE, 3): a dot in one colour on a background in another."""
        image = np.full((SIDE, SIDE, 3), (20, 40, 60), np.uint8)
        column = round(self.place)
        image[self.row : self.row + DOT, column : column + DOT] = (250, 200, 10)
        return image

    def observe(self) -> Any:
        return self.picture()

    def render(self) -> Any:
        return self.picture().repeat(5, 0).repeat(5, 1)


class Brief(Dot):
    """Its episodes have two steps, and so three frames."""

    limit = 2


class ChannelsFirst(Dot):
    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.observation_space = gym.spaces.Box(0, 255, (3, SIDE, SIDE), np.uint8)

    def observe(self) -> Any:
        return self.picture().transpose(2, 0, 1)


class Grey(Dot):
    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.observation_space = gym.spaces.Box(0, 255, (SIDE, SIDE), np.uint8)

    def observe(self) -> Any:
        return self.picture()[:, :, 0]


class FloatDot(Dot):
    """Floats from 0 to 1."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.observation_space = gym.spaces.Box(0, 1, (SIDE, SIDE, 3), np.float32)

    def observe(self) -> Any:
        return self.picture().astype(np.float32) / 255


class WithVector(Dot):
    """The place of the dot is in a vector beside the image."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        camera, place = gym.spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8), gym.spaces.Box(-1, 1, (2,), np.float32)
        self.observation_space = gym.spaces.Dict(camera=camera, place=place)

    def observe(self) -> Any:
        place = np.array([self.place, self.row], np.float32) / SIDE
        return {"camera": self.picture(), "place": place}


class TwoCameras(Dot):
    """One camera sees the whole scene, the other, of another shape, only brightness; a vector beside them."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        colour = gym.spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8)
        brightness = gym.spaces.Box(0, 1, (1, 40, 33), np.float64)
        place = gym.spaces.Box(-1, 1, (1,), np.float32)
        self.observation_space = gym.spaces.Dict(colour=colour, rest=gym.spaces.Tuple([brightness, place]))

    def observe(self) -> Any:
        brightness = np.zeros((1, 40, 33))
        brightness[0, self.row, round(self.place)] = 1.0
        return {"colour": self.picture(), "rest": (brightness, np.array([self.place / SIDE], np.float32))}


class Brightening(Dot):
    """The whole picture gets brighter with every step."""

    def picture(self) -> NDArray[np.uint8]:
        return np.full((SIDE, SIDE, 3), 10 + 60 * min(self.t, 4), np.uint8)


WORLDS = [Dot, ChannelsFirst, Grey, FloatDot, WithVector, TwoCameras]
