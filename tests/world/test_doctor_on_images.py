"""What the doctor says about observations with images."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from image_worlds import SIDE, ChannelsFirst, Dot, FloatDot, Grey, TwoCameras, WithVector
from t3d.config import EnvConfig
from t3d.world.doctor import examine
from t3d.world.make import env_factory
from worlds import Sound

Box = gym.spaces.Box


@pytest.mark.parametrize(
    ("world", "stack", "words"),
    [
        (Dot, 3, "Dot: observation 32 x 32 x 3 is encoded as an image, 3 frames stacked"),
        (
            Dot,
            1,
            "Dot: observation 32 x 32 x 3 is encoded as an image; one frame cannot show motion: if that matters, "
            "use --env.frame-stack 3",
        ),
        (
            WithVector,
            2,
            "WithVector: observation['camera'] 32 x 32 x 3 is encoded as an image, 2 frames stacked; "
            "the vector of 2 values beside it as it is",
        ),
        (
            TwoCameras,
            2,
            "TwoCameras: observation['colour'] 32 x 32 x 3 and observation['rest'][0] 40 x 33 x 1 are encoded as "
            "images, 2 frames stacked; the vector of 1 values beside them as it is",
        ),
    ],
)
def test_the_doctor_says_what_is_done_with_images(world: type[Dot], stack: int, words: str) -> None:
    assert examine(world, EnvConfig(frame_stack=stack)) == [words]


@pytest.mark.parametrize("world", [ChannelsFirst, Grey, FloatDot])
def test_the_doctor_finds_nothing_else_wrong_with_images(world: type[Dot]) -> None:
    (only,) = examine(world, EnvConfig(frame_stack=3, bad_values="skip"))
    assert "is encoded as an image" in only


def test_the_doctor_sees_rendered_images_and_cameras_that_see_nothing() -> None:
    (only,) = examine(env_factory(EnvConfig("image_worlds:Dot")), EnvConfig(pixels=48, frame_stack=3, action_repeat=4))
    assert only == "Dot: observation 48 x 48 x 3 is encoded as an image, 3 frames stacked"
    still = type("Still", (Dot,), {"picture": lambda self: np.zeros((SIDE, SIDE, 3), np.uint8), "limit": 50})
    still.step = lambda self, action: (*Dot.step(self, action)[:3], False, {})  # type: ignore[attr-defined]
    texts = examine(lambda: gym.wrappers.TimeLimit(still(), 50), EnvConfig(frame_stack=2))
    assert any("observation never changed in 150 steps; check what the camera sees" in text for text in texts)


def test_the_doctor_times_every_rendered_step() -> None:
    class Slow(Dot):
        def render(self) -> Any:
            time.sleep(0.01)
            return super().render()

    texts = examine(Slow, EnvConfig(pixels=32, frame_stack=2, action_repeat=4))
    assert any("ms: a million steps take" in text for text in texts), texts


def test_an_array_that_may_have_been_meant_as_an_image_is_mentioned() -> None:
    world = type("Small", (Sound,), {"observe": lambda self: np.full((20, 20, 3), self.t / 100, np.float32)})
    small = world()
    small.observation_space = Box(0, 1, (20, 20, 3), np.float32)
    assert any(
        "observation of 20 x 20 x 3 is not recognised as an image and is flattened to 1,200 values" in text
        for text in examine(lambda: small)
    )
