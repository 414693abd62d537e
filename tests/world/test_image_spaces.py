"""Which observations are images, how they become frames, and which are refused."""

from __future__ import annotations

from math import prod
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.typing import NDArray

from image_worlds import SIDE, WORLDS, ChannelsFirst, Dot, FloatDot, Grey, TwoCameras, WithVector
from t3d.config import EnvConfig
from t3d.errors import UserError
from t3d.policy.observations import flatten
from t3d.world.fingerprint import difference, outline
from t3d.world.guard import Environment
from t3d.world.spec import layout_of, spec_of
from worlds import Sound

Box = gym.spaces.Box


def channels_first(image: Any) -> NDArray[np.uint8]:
    """Pixel by pixel, as slow as it is plain."""
    height, width, channels = image.shape
    flat = [image[y, x, c] for c in range(channels) for y in range(height) for x in range(width)]
    return np.array(flat, np.uint8)


def expected(env: Dot) -> bytes:
    """The flat observation with one frame."""
    picture = env.picture()
    if isinstance(env, Grey):
        picture = picture[:, :, :1]
    frame = channels_first(picture).tobytes()
    if isinstance(env, WithVector):
        return np.array([env.place / SIDE, env.row / SIDE], np.float32).tobytes() + frame
    if isinstance(env, TwoCameras):
        brightness = np.zeros((40, 33), np.uint8)
        brightness[env.row, round(env.place)] = 255
        return np.array([env.place / SIDE], np.float32).tobytes() + frame + brightness.tobytes()
    return frame


@pytest.mark.parametrize("world", WORLDS)
def test_every_layout_becomes_vector_bytes_and_a_frame_with_channels_first(world: type[Dot]) -> None:
    dot = world()
    env = Environment(dot, "dot")
    observation = env.reset(3, 0)
    for step in range(4):
        assert observation.dtype == np.uint8 and observation.shape == (env.guard.spec.observation_width,)
        assert observation.tobytes() == expected(dot), step
        observation = env.step(np.full(1, 0.7, np.float32)).observation


def test_every_level_of_brightness_survives_as_a_float() -> None:
    image = np.arange(SIDE * SIDE * 3).reshape(SIDE, SIDE, 3) % 256
    for offset in (-0.4, 0.0, 0.4):  # what lies between two levels becomes the nearer one
        between = np.clip((image + offset) / 255, 0, 1).astype(np.float32)
        assert np.array_equal(flatten(between, spec_of(FloatDot())), channels_first(image)), offset


@pytest.mark.parametrize(
    ("space", "shape", "channels_last"),
    [
        (Box(0, 255, (84, 100, 3), np.uint8), (3, 84, 100), True),
        (Box(0, 255, (3, 84, 100), np.uint8), (3, 84, 100), False),
        (Box(0, 255, (12, 32, 128), np.uint8), (12, 32, 128), False),
        (Box(0, 255, (128, 32, 9), np.uint8), (9, 128, 32), True),
        (Box(0, 255, (64, 32), np.uint8), (1, 64, 32), True),
        (Box(0, 255, (64, 32, 1), np.uint8), (1, 64, 32), True),
        (Box(0, 255, (1, 64, 32), np.uint8), (1, 64, 32), False),
        (Box(0, 1, (40, 40, 4), np.float64), (4, 40, 40), True),
    ],
)
def test_images_are_recognised(space: Any, shape: tuple[int, int, int], channels_last: bool) -> None:
    for path, whole in {(): space, ("a", 1): gym.spaces.Dict(a=gym.spaces.Tuple([Box(-1, 1, (2,)), space]))}.items():
        parts, (image,) = layout_of(whole)
        assert (image.path, image.shape, image.channels_last) == (path, shape, channels_last)
        assert (image.start, image.stop) == (0, prod(shape)) and image.is_float is bool(space.dtype != np.uint8)
        assert [part.shape for part in parts] == ([(2,)] if path else [])


@pytest.mark.parametrize(
    "space",
    [
        Box(0, 1, (20, 20, 3), np.float32),
        Box(-1, 1, (8, 8, 3), np.float32),
        Box(0, 1, (8, 8, 1), np.uint8),
        Box(0, 1, (30, 30), np.uint8),
        Box(0, 255, (8, 8), np.uint8),
        Box(0, 255, (5, 5, 3), np.uint8),
        Box(0, 255, (8, 500), np.uint8),
        Box(0, 255, (40, 40, 17), np.uint8),
        Box(-1, 1, (100, 100), np.float32),
        Box(0, 255, (8, 8, 3, 2), np.uint8),
        Box(0, 255, (0, 40, 3), np.uint8),
    ],
)
def test_other_arrays_are_flattened_as_ever(space: Any) -> None:
    (part,), images = layout_of(space)
    assert (images, part.shape, part.stop) == ((), space.shape, np.prod(space.shape))


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (Box(0, 1, (200, 200, 3), np.float32), "200 x 200 x 3, .* 32 to 128 pixels each way"),
        (Box(0, 255, (200, 200, 6), np.uint8), "200 x 200 x 6, .* 32 to 128 pixels each way"),
        (Box(0, 255, (84, 84, 16), np.uint8), "84 x 84 x 16, .* at most 12 channels"),
        (Box(0, 255, (13, 40, 40), np.uint8), "13 x 40 x 40, .* at most 12 channels"),
        (Box(0, 2, (40, 40, 3), np.float32), "float32 with bounds 0 and 2, .* floats with bounds 0 and 1"),
        (Box(-1, 1, (40, 40, 3), np.float32), "float32 with bounds -1 and 1, .* floats with bounds 0 and 1"),
        (Box(-np.inf, np.inf, (3, 40, 40), np.float64), "3 x 40 x 40, float64 with bounds -inf and inf"),
        (Box(0, 255, (84, 84, 3), np.float32), "float32 with bounds 0 and 255"),
        (Box(0, 255, (40, 40, 3), np.int32), "int32 with bounds 0 and 255, and images are uint8"),
        (Box(0, 1, (40, 40, 3), np.int64), "int64 with bounds 0 and 1, and images are uint8"),
        (Box(0, 255, (4, 84, 84, 3), np.uint8), "4 x 84 x 84 x 3, .* two or three axes, .* --env.frame-stack"),
        (Box(0, 255, (40, 40, 3, 2), np.uint8), "40 x 40 x 3 x 2, .* two or three axes"),
        (Box(0, 1, (36, 36, 1), np.uint8), "36 x 36 x 1, uint8 with bounds 0 and 1, .* up to 255"),
        (Box(0, 1, (36, 36), np.uint8), "36 x 36, uint8 with bounds 0 and 1, .* up to 255"),
    ],
)
def test_what_is_clearly_an_image_and_cannot_be_encoded_is_refused_with_the_reason(space: Any, words: str) -> None:
    for name, whole in ((r"observation", space), (r"observation\['eye'\]", gym.spaces.Dict(eye=space))):
        with pytest.raises(UserError, match=f"^{name} is an image of .*{words}.*; if it is not an image, flatten it"):
            layout_of(whole)


def test_what_is_refused_can_be_flattened_by_a_wrapper() -> None:
    env = Sound()
    env.observation_space = Box(-1, 1, (40, 40, 3), np.float32)
    with pytest.raises(UserError, match=r"gymnasium.wrappers.FlattenObservation$"):
        spec_of(env)
    assert spec_of(gym.wrappers.FlattenObservation(env)).observation_size == 4800


@pytest.mark.parametrize("shape", [(210, 160, 3), (3, 84, 129), (31, 31, 3), (16, 64, 1), (1, 8, 8), (300, 200)])
def test_images_too_small_or_too_large_are_refused_with_a_remedy(shape: tuple[int, ...]) -> None:
    space = gym.spaces.Dict(eye=Box(0, 255, shape, np.uint8))
    with pytest.raises(UserError, match=r"observation\['eye'\] is an image of .* 32 to 128 pixels .* --env.pixels 84"):
        layout_of(space)


def test_other_images_or_stacks_do_not_fit() -> None:
    def outlined(world: type[Dot], stack: int = 1) -> dict[str, Any]:
        return outline(spec_of(world(), EnvConfig(frame_stack=stack)))

    assert difference(outlined(Dot), outlined(Dot)) == ""
    assert difference(outlined(Dot), outlined(ChannelsFirst)) == "", "a frame is the same"
    assert difference(outlined(Dot), outlined(Dot, 3)) == (
        "its observations had 1 frames then, 3 now (env.frame_stack)"
    )
    assert difference(outlined(Dot), outlined(Grey)) == (
        "it observed the image observation of 32 x 32 x 3 then, the image observation of 32 x 32 x 1 now"
    )
    gears, swapped = Sound(), Sound()
    gears.observation_space, swapped.observation_space = map(gym.spaces.MultiDiscrete, ([2, 3], [3, 2]))
    assert difference(outline(spec_of(gears)), outline(spec_of(swapped))) == (
        "its observation was observation of (2, 3) choices [2] then, now observation of (3, 2) choices [2]"
    )
    sound = outline(spec_of(Sound()))
    assert "images" not in sound and "stack" not in sound, "as in older checkpoints"
    assert difference(sound, outlined(Dot)) == "it observed no image then, the image observation of 32 x 32 x 3 now"
