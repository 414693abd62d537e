"""Images that an environment did not announce: named, kept out, or repaired."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from image_worlds import SIDE, STILL, Dot, FloatDot, WithVector
from t3d.config import EnvConfig
from t3d.world.guard import BadValue, Environment


class Fails(Dot):
    """Returns one bad image in its third step."""

    bad: Any = None

    def observe(self) -> Any:
        good = super().observe()
        return self.spoilt(good) if self.t == 3 else good

    def spoilt(self, good: Any) -> Any:
        return type(self).bad(good)


class FailsInFloats(Fails, FloatDot):
    pass


def with_pixel(value: float) -> Any:
    def spoil(image: Any) -> Any:
        image = image.copy()
        image[2, 5, 1] = value
        return image

    return spoil


BAD: dict[str, tuple[type[Fails], Any, str]] = {
    "floats above 1": (FailsInFloats, with_pixel(1.5), "holds 1.5; images of floats must lie between 0 and 1"),
    "floats below 0": (FailsInFloats, with_pixel(-0.25), "holds -0.25; images of floats must lie between 0 and 1"),
    "NaN": (FailsInFloats, with_pixel(np.nan), "holds nan; images of floats must lie between 0 and 1"),
    "infinity": (FailsInFloats, with_pixel(np.inf), "holds inf; images of floats must lie between 0 and 1"),
    "another size": (Fails, lambda image: image[:-1], r"has shape \(31, 32, 3\) instead of \(32, 32, 3\); images must"),
    "channels first": (Fails, lambda image: image.transpose(2, 0, 1), r"has shape \(3, 32, 32\) instead"),
    "floats for bytes": (Fails, lambda image: image / 255, "is of type float64 instead of uint8"),
    "whole numbers": (Fails, lambda image: image.astype(np.int64), "is of type int64 instead of uint8"),
    "bytes for floats": (
        FailsInFloats,
        lambda image: (image * 255).astype(np.uint8),
        "is of type uint8 instead of float",
    ),
    "nothing": (Fails, lambda image: None, "is NoneType None, not an array"),
    "a list": (Fails, lambda image: image.tolist(), "is list .*, not an array"),
}


def failing(name: str, policy: str) -> tuple[Fails, Environment]:
    world, bad, _ = BAD[name]
    dot = type("Failing", (world,), {"bad": staticmethod(bad)})()
    env = Environment(dot, "dot", EnvConfig(bad_values=policy, frame_stack=2))  # type: ignore[arg-type]
    env.reset(0, 0)
    env.step(np.ones(1, np.float32))
    return dot, env


@pytest.mark.parametrize("name", BAD)
def test_a_bad_image_is_named(name: str) -> None:
    _, env = failing(name, "raise")
    env.step(STILL)
    with pytest.raises(BadValue, match=f"dot, episode 0, step 3: observation {BAD[name][2]}"):
        env.step(STILL)


@pytest.mark.parametrize("name", BAD)
def test_skip_keeps_a_bad_image_out(name: str) -> None:
    _, env = failing(name, "skip")
    before = env.step(STILL).observation
    result = env.step(STILL)
    assert result.truncated and not result.valid and np.array_equal(result.observation, before)
    assert [fault.episode_step for fault in env.guard.take_faults()] == [3]
    frame = env.reset(1, 1).reshape(2, -1)
    assert np.array_equal(frame[0], frame[1]), "a new episode has none of the old frames"


@pytest.mark.parametrize("name", BAD)
def test_clip_repairs_a_bad_image(name: str) -> None:
    dot, env = failing(name, "clip")
    before = env.step(np.full(1, -1, np.float32)).observation.reshape(2, 3, SIDE, SIDE)
    result = env.step(np.ones(1, np.float32))
    assert result.valid and not result.truncated
    older, newest = result.observation.reshape(2, 3, SIDE, SIDE)
    good = dot.picture().transpose(2, 0, 1)
    assert np.array_equal(older, before[1]) and not np.array_equal(good, before[1])
    wanted = before[1].copy()
    if name in ("floats above 1", "floats below 0", "NaN", "infinity"):
        pixel = {"floats above 1": 255, "infinity": 255, "floats below 0": 0, "NaN": before[1][1, 2, 5]}[name]
        wanted = good.copy()
        wanted[1, 2, 5] = pixel
    assert np.array_equal(newest, wanted)


def test_a_missing_camera_is_named() -> None:
    dot = WithVector()
    dot.observe = lambda: {"place": np.zeros(2, np.float32)}  # type: ignore[method-assign]
    with pytest.raises(BadValue, match=r"observation\['camera'\] is missing"):
        Environment(dot, "dot").reset(0, 0)
