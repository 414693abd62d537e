"""Observations with images: recognised, checked, stacked, and rendered where an environment has none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from math import prod
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from image_worlds import LIMIT, SIDE, WORLDS, Brightening, ChannelsFirst, Dot, FloatDot, Grey, TwoCameras, WithVector
from t3d.app.cli import environment_traceback
from t3d.config import EnvConfig
from t3d.errors import EnvironmentFailed, UserError
from t3d.types import Spec
from t3d.world.batch import open_batch
from t3d.world.compatibility import difference, outline
from t3d.world.doctor import examine
from t3d.world.guard import BadValue, Environment
from t3d.world.make import env_factory
from t3d.world.pixels import Pixels, averaged, open_env
from t3d.world.spaces import flatten, stacked
from t3d.world.spec import layout_of, spec_of
from worlds import Sound

Box = gym.spaces.Box
STILL = np.zeros(1, np.float32)


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
        (Box(0, 1, (200, 200, 3), np.float32), "200 x 200 x 3, and images must have 32 to 128 pixels each way; resize"),
        (Box(0, 255, (200, 200, 6), np.uint8), "200 x 200 x 6, and images must have 32 to 128 pixels each way; resize"),
        (Box(0, 255, (84, 84, 16), np.uint8), "84 x 84 x 16, and images must have at most 12 channels"),
        (Box(0, 255, (13, 40, 40), np.uint8), "40 x 40 x 13, and images must have at most 12 channels"),
        (Box(0, 2, (40, 40, 3), np.float32), "this one is float32 with bounds 0 and 2"),
        (
            Box(-1, 1, (40, 40, 3), np.float32),
            "or floats with bounds 0 and 1: this one is float32 with bounds -1 and 1",
        ),
        (Box(-np.inf, np.inf, (3, 40, 40), np.float64), "40 x 40 x 3, .* this one is float64 with bounds -inf and inf"),
        (Box(0, 255, (84, 84, 3), np.float32), "this one is float32 with bounds 0 and 255"),
        (Box(0, 255, (40, 40, 3), np.int32), "this one is int32 with bounds 0 and 255"),
        (Box(0, 1, (40, 40, 3), np.int64), "this one is int64 with bounds 0 and 1"),
        (Box(0, 255, (4, 84, 84, 3), np.uint8), "4 x 84 x 84 x 3, .* return the newest one only, .* --env.frame-stack"),
        (Box(0, 255, (40, 40, 3, 2), np.uint8), "40 x 40 x 3 x 2, .* images have two or three axes"),
        (Box(0, 1, (36, 36, 1), np.uint8), "36 x 36 x 1, and the values of this one go up to 1: .* go up to 255"),
        (Box(0, 1, (36, 36), np.uint8), "36 x 36 x 1, and the values of this one go up to 1: .* go up to 255"),
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


class Numbered(gym.Env[Any, Any]):
    """Its k-th image since it was made is filled with the bytes of k, and the vector is k."""

    def __init__(self, lengths: list[int], with_vector: bool = False) -> None:
        image = Box(0, 255, (32, 32), np.uint8)
        vector = Box(0, 1e6, (1,), np.float32)
        self.with_vector = with_vector
        self.observation_space = gym.spaces.Dict(image=image, vector=vector) if with_vector else image
        self.action_space = Box(-1, 1, (1,), np.float32)
        self.lengths, self.shown, self.left = lengths, 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.left = self.lengths.pop(0)
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return self.observe(), 1.0, False, self.left == 0, {}

    def observe(self) -> Any:
        self.shown += 1
        image = np.full(512, self.shown, np.uint16).view(np.uint8).reshape(32, 32)
        return {"image": image, "vector": np.array([self.shown], np.float32)} if self.with_vector else image


def numbers(observation: NDArray[np.uint8], spec: Spec) -> list[int]:
    """Which images an observation holds, oldest first."""
    frames = observation[4 * spec.observation_size :].reshape(spec.stack, -1).view(np.uint16)
    return [int(frame[0]) for frame in frames if (frame == frame[0]).all()]


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=8),
    stack=st.integers(1, 4),
    repeat=st.integers(1, 3),
    with_vector=st.booleans(),
)
def test_stacks_equal_a_list_of_frames(lengths: list[int], stack: int, repeat: int, with_vector: bool) -> None:
    world = Numbered([*lengths], with_vector)
    env = Environment(world, "numbered", EnvConfig(frame_stack=stack, action_repeat=repeat))
    for episode, length in enumerate(lengths):
        observation = env.reset(0, episode)
        seen, before = [world.shown], None
        for step in range(-(-length // repeat) + 1):
            wanted = ([seen[0]] * stack + seen)[-stack:]
            assert numbers(observation, env.guard.spec) == wanted
            if with_vector:
                assert observation[:4].view(np.float32)[0] == seen[-1]
            image = np.ascontiguousarray(observation[-1024:]).reshape(32, 32)
            vector = np.array([seen[-1]], np.float32)
            flat = flatten({"image": image, "vector": vector} if with_vector else image, env.guard.spec)
            before = stacked(flat, before if step else None, env.guard.spec)
            assert np.array_equal(before, observation)
            if world.left == 0:
                break
            observation = env.step(STILL).observation
            seen.append(world.shown)
        assert world.left == 0


def test_the_environments_of_a_vector_have_stacks_of_their_own() -> None:
    def make() -> Any:
        return SyncVectorEnv(
            [lambda: Numbered([9, 9, 9]), lambda: Numbered([9, 9, 9])], autoreset_mode=AutoresetMode.DISABLED
        )

    batch = open_batch(make, EnvConfig(num_envs=2, frame_stack=3), "vector")
    assert [numbers(batch.reset(position, 0, 0), batch.spec) for position in (0, 1)] == [[1, 1, 1], [2, 2, 2]]
    batch.step(np.zeros((2, 1), np.float32))  # the first reset was one of both
    assert numbers(batch.reset(1, 0, 1), batch.spec) == [4, 4, 4]
    first, second = batch.step(np.zeros((2, 1), np.float32))
    assert numbers(first.observation, batch.spec) == [1, 2, 3]
    assert numbers(second.observation, batch.spec) == [4, 4, 5]


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
    assert [fault.step for fault in env.guard.take_faults()] == [3]
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


def test_an_image_whose_buffer_is_reused_is_copied() -> None:
    dot, buffer = Dot(), np.zeros((SIDE, SIDE, 3), np.uint8)
    dot.observe = lambda: buffer  # type: ignore[method-assign]
    env = Environment(dot, "dot", EnvConfig(frame_stack=2))
    first = env.reset(0, 0)
    buffer[:] = 7
    second = env.step(STILL).observation.reshape(2, -1)
    assert (first == 0).all() and (second[0] == 0).all() and (second[1] == 7).all()


def test_frames_can_only_be_stacked_where_there_are_images() -> None:
    with pytest.raises(
        UserError, match=r"env.frame_stack=3 stacks images, and Sound observes none; .* --env.pixels 84"
    ):
        Environment(Sound(), "sound", EnvConfig(frame_stack=3))


@settings(max_examples=40, deadline=None)
@given(height=st.integers(1, 90), width=st.integers(1, 90), pixels=st.integers(1, 40), seed=st.integers(0, 99))
def test_resizing_takes_the_mean_of_the_area(height: int, width: int, pixels: int, seed: int) -> None:
    image = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    fine = image.repeat(pixels, 0).repeat(pixels, 1)  # in which old and new pixels both are whole
    exact = fine.reshape(pixels, height, pixels, width, 3).mean((1, 3))
    assert np.abs(averaged(image, pixels) - exact).max() <= 0.5 + 1e-9


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "image_worlds:Dot", "HalfCheetah-v5", "dm:cartpole-swingup"])
def test_any_environment_that_renders_can_be_observed_as_images(env_id: str) -> None:
    if env_id.startswith("dm:"):
        pytest.importorskip("dm_control")
    cfg = EnvConfig(id=env_id, pixels=40, frame_stack=2)
    env = Environment(open_env(env_factory(env_id), cfg), env_id, cfg)
    again = Environment(open_env(env_factory(env_id), cfg), env_id, cfg)
    assert env.guard.spec.images[0].shape == (3, 40, 40) and env.guard.spec.observation == ()
    action = np.ones(env.guard.spec.action_size, np.float32)
    seen = [[one.reset(1, 0), *(one.step(action).observation for _ in range(5))] for one in (env, again)]
    assert all(np.array_equal(a, b) for a, b in zip(*seen, strict=True)), "the seed decides what is seen"
    assert np.std(seen[0][-1]) > 5 and not np.array_equal(seen[0][0], seen[0][-1]), "there is something, and it moves"
    for_people: Any = env.gym.render()
    assert min(for_people.shape[:2]) > 100, "people see more"
    again.close()
    before = env.step(action).observation
    assert np.std(before) > 5, "closing one does not disturb another"
    env.close()


def test_pixels_are_those_that_are_rendered() -> None:
    cfg = EnvConfig(id="Pendulum-v1", pixels=100)
    env = open_env(env_factory("Pendulum-v1"), cfg)
    frame, _ = env.reset(seed=0)
    exact = env.render().reshape(100, 5, 100, 5, 3).mean((1, 3))
    assert frame.shape == (100, 100, 3) and env.observation_space.contains(frame)
    assert np.abs(frame - exact).max() <= 0.5 + 1e-9
    env.close()


def test_mujoco_draws_without_shadows_reflections_and_skybox() -> None:
    import mujoco  # noqa: PLC0415

    env = open_env(env_factory("HalfCheetah-v5"), EnvConfig(pixels=32))
    env.reset(seed=0)
    flags = env._renderer.viewer.scn.flags
    for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION, mujoco.mjtRndFlag.mjRND_SKYBOX):
        assert flags[flag] == 0
    env.close()


def test_environments_that_render_in_turn_do_not_draw_into_each_other() -> None:
    cfg, ids = EnvConfig(pixels=32), ("HalfCheetah-v5", "InvertedPendulum-v5")

    def frames(envs: list[Any]) -> list[Any]:
        seen = [env.reset(seed=0)[0] for env in envs]
        for _ in range(3):
            seen += [env.step(np.ones(env.action_space.shape, np.float32))[0] for env in envs]
        return seen

    alone = []
    for env_id in ids:
        env = open_env(env_factory(env_id), cfg)
        alone.append(frames([env]))
        env.close()
    both = [open_env(env_factory(env_id), cfg) for env_id in ids]
    together = frames(both)
    for env in both:
        env.close()
    assert all(np.array_equal(together[index::2], alone[index]) for index in (0, 1))


def test_what_people_see_does_not_change() -> None:
    def views(env: Any, another: Any = None) -> list[Any]:
        env.reset(seed=0)
        seen = [env.render()]
        for _ in range(2):
            env.step(np.ones(env.action_space.shape, np.float32))
            if another is not None:
                another.reset(seed=0)
            seen.append(env.render())
        env.close()
        return seen

    plain = views(gym.make("HalfCheetah-v5", render_mode="rgb_array"))
    another = open_env(env_factory("InvertedPendulum-v5"), EnvConfig(pixels=32))
    beside_pixels = views(open_env(env_factory("HalfCheetah-v5"), EnvConfig(pixels=32)), another)
    another.close()
    assert all(np.array_equal(one, other) for one, other in zip(plain, beside_pixels, strict=True))


def test_frames_do_not_depend_on_when_the_camera_was_first_used() -> None:
    cfg = EnvConfig(pixels=32)
    env, other = (open_env(env_factory("InvertedPendulum-v5"), cfg) for _ in range(2))
    other.reset(seed=5)
    for _ in range(8):
        other.step(np.ones(1, np.float32))
    assert np.array_equal(env.reset(seed=1)[0], other.reset(seed=1)[0])
    env.close(), other.close()


@pytest.mark.parametrize("env_id", ["HalfCheetah-v5", "dm:cartpole-swingup"])
def test_cameras_by_name_and_number(env_id: str) -> None:
    if env_id.startswith("dm:"):
        pytest.importorskip("dm_control")
    named, last = ("track", "0") if env_id == "HalfCheetah-v5" else ("lookatcart", "1")
    frames = []
    for camera in ("", "0", named, last):
        env = open_env(env_factory(env_id), EnvConfig(pixels=32, camera=camera))
        frames.append(env.reset(seed=0)[0].copy())
        env.close()
    assert np.array_equal(frames[0], frames[1]) and np.array_equal(frames[2], frames[3])
    assert np.array_equal(frames[0], frames[2]) is (named == "track")
    for unknown in ("nose", "9", "-1", "²"):
        with pytest.raises(UserError, match=rf"has no camera {unknown}.*; its cameras are 0 \("):
            open_env(env_factory(env_id), EnvConfig(pixels=32, camera=unknown))
    with pytest.raises(UserError, match=rf"has no camera {named}s, did you mean {named}\? Its cameras are 0 \("):
        open_env(env_factory(env_id), EnvConfig(pixels=32, camera=f"{named}s"))


def test_a_camera_where_there_is_none_is_refused() -> None:
    with pytest.raises(UserError, match=r"Pendulum-v1 has no cameras to choose from; leave out --env.camera side"):
        open_env(env_factory("Pendulum-v1"), EnvConfig(pixels=32, camera="side"))


class Blind(Sound):
    """Renders whatever it was told to."""

    rendered: Any = None

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode

    def render(self) -> Any:
        if isinstance(self.rendered, Exception):
            raise self.rendered
        return self.rendered


NO_IMAGE = r"env.pixels needs a render\(\) that returns an image \(height, width, 3\) of uint8, and it returned"


@pytest.mark.parametrize(
    ("rendered", "words"),
    [
        (None, "nothing"),
        (np.zeros((40, 40), np.uint8), r"ndarray of shape \(40, 40\) and type uint8"),
        (np.zeros((40, 40, 3)), r"ndarray of shape \(40, 40, 3\) and type float64"),
        (np.zeros((0, 40, 3), np.uint8), r"ndarray of shape \(0, 40, 3\) and type uint8"),
        ("a picture", "str"),
    ],
)
def test_a_renderer_without_an_image_is_a_sentence(rendered: Any, words: str) -> None:
    world = type("Blind", (Blind,), {"rendered": rendered})
    with pytest.raises(BadValue, match=rf"^Blind, episode 0, step 0: {NO_IMAGE} {words}$"):
        examine(world, EnvConfig(pixels=32))


def test_what_a_renderer_raises_is_shown_with_its_own_traceback() -> None:
    broken = RuntimeError("the projector is broken")
    world = type("Blind", (Blind,), {"rendered": broken})
    words = "^Blind, episode 0, step 0: it cannot be rendered here: the projector is broken"
    with pytest.raises(EnvironmentFailed, match=words) as failed:
        examine(world, EnvConfig(pixels=32))
    assert failed.value.__cause__ is broken
    said = environment_traceback(failed.value).splitlines()
    assert said[-2:] == ["RuntimeError: the projector is broken", f"error: {failed.value}"]
    assert any("in render" in line for line in said) and not any("t3d" in line for line in said[:-1])


def test_what_cannot_be_rendered_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"Sound cannot be rendered, which env.pixels needs: make it accept render_mode"
    ):
        open_env(Sound, EnvConfig(pixels=32))
    with pytest.raises(UserError, match=r"env.pixels does not work on a VectorEnv"):
        open_batch(lambda: SyncVectorEnv([Dot]), EnvConfig(pixels=32), "vector")


def test_a_factory_of_ones_own_need_not_take_a_render_mode() -> None:
    env = open_env(lambda: Dot("rgb_array"), EnvConfig(pixels=32))
    assert isinstance(env, Pixels)


NO_GL = """
from t3d.config import EnvConfig
from t3d.errors import as_sentence
from t3d.world.doctor import examine
from t3d.world.make import env_factory
try:
    examine(env_factory("HalfCheetah-v5"), EnvConfig(pixels=32))
except Exception as error:
    print(as_sentence(error))
"""


@pytest.mark.parametrize("backend", ["egl", "osmesa"])
def test_a_machine_without_graphics_gets_a_sentence(backend: str) -> None:
    environment = {**os.environ, "MUJOCO_GL": backend, "__EGL_VENDOR_LIBRARY_DIRS": "/nowhere"}
    environment.pop("PYOPENGL_PLATFORM", None)  # MuJoCo sets it in this process
    finished = subprocess.run(
        [sys.executable, "-c", NO_GL], env=environment, capture_output=True, text=True, check=False
    )
    (said,) = finished.stdout.splitlines()
    assert said.count("HalfCheetah-v5") == 1 and "apt-get install libegl1 libgl1" in said


DRAWN = """
import os, signal
from t3d.config import EnvConfig
from t3d.world.make import env_factory
from t3d.world.pixels import open_env
open_env(env_factory("Pendulum-v1"), EnvConfig(pixels=32)).reset(seed=0)
print("drawn", flush=True)
os.kill(os.getpid(), signal.SIGTERM)
print("still here")
"""


def test_what_draws_without_a_screen_says_nothing_and_can_still_be_terminated() -> None:
    chosen = ("DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR", "SDL_VIDEODRIVER", "SDL_NO_SIGNAL_HANDLERS")
    environment = {name: value for name, value in os.environ.items() if name not in chosen}
    finished = subprocess.run(
        [sys.executable, "-c", DRAWN], env=environment, capture_output=True, text=True, check=False
    )
    assert (finished.stdout, finished.stderr, finished.returncode) == ("drawn\n", "", -signal.SIGTERM)


def test_repeated_actions_are_rendered_once() -> None:
    drawn = []

    class Counted(Dot):
        def render(self) -> Any:
            drawn.append(self.t)
            return super().render()

    cfg = EnvConfig(pixels=32, action_repeat=3)
    env = Environment(open_env(Counted, cfg), "dot", cfg)
    env.reset(0, 0)
    while not env.step(STILL).truncated:
        pass
    assert drawn == [*range(0, LIMIT, 3), LIMIT]


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
    (only,) = examine(env_factory("image_worlds:Dot"), EnvConfig(pixels=48, frame_stack=3, action_repeat=4))
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


def test_other_images_or_stacks_do_not_fit() -> None:
    def outlined(world: type[Dot], stack: int = 1) -> dict[str, Any]:
        return outline(spec_of(world(), stack))

    assert difference(outlined(Dot), outlined(Dot)) == ""
    assert difference(outlined(Dot), outlined(ChannelsFirst)) == "", "a frame is the same"
    assert difference(outlined(Dot), outlined(Dot, 3)) == (
        "its observations had 1 frames then, 3 now (env.frame_stack)"
    )
    assert difference(outlined(Dot), outlined(Grey)) == (
        "it observed the image observation of 32 x 32 x 3 then, the image observation of 32 x 32 x 1 now"
    )
    sound = outline(spec_of(Sound()))
    assert "images" not in sound and "stack" not in sound, "as in older checkpoints"
    assert difference(sound, outlined(Dot)) == "it observed no image then, the image observation of 32 x 32 x 3 now"


class Steady:
    """Stands for a saved policy of images."""

    def __init__(self, spec: Spec) -> None:
        self.spec, self.seen = spec, list[NDArray[np.uint8]]()

    def actor(self, observations: NDArray[np.uint8]) -> NDArray[np.float32]:
        self.seen.append(observations[0])
        return np.ones((1, 1), np.float32)


def test_videos_show_what_the_policy_sees_beside_what_people_see(tmp_path: Path) -> None:
    import imageio_ffmpeg  # noqa: PLC0415

    from t3d.insight.video import record  # noqa: PLC0415

    cfg = EnvConfig(id="image_worlds:TwoCameras", frame_stack=2)
    policy: Any = Steady(spec_of(TwoCameras(), 2))
    record(policy, cfg, tmp_path / "a.mp4", seed=0, episodes=1, steps=3)
    assert len(policy.seen) == 3 and all(one.shape == (policy.spec.observation_width,) for one in policy.seen)
    about, *frames = imageio_ffmpeg.read_frames(str(tmp_path / "a.mp4"))
    people, colour, brightness = 5 * 32, 5 * 32, 4 * 33
    assert about["size"] == (people + colour + brightness, 160) and len(frames) == 4
    last = np.frombuffer(frames[-1], np.uint8).reshape(160, -1, 3).astype(int)
    both = last[:, :people], last[:, people : people + colour]
    assert np.abs(both[0] - both[1]).mean() < 4, "the same scene, enlarged five times, but for the coding"
    grey = last[:, people + colour :]
    assert np.abs(grey - grey.mean(2, keepdims=True)).mean() < 4 and grey.max() > 150


def test_videos_show_the_newest_frame(tmp_path: Path) -> None:
    import imageio_ffmpeg  # noqa: PLC0415

    from t3d.insight.video import record  # noqa: PLC0415

    policy: Any = Steady(spec_of(Brightening(), 3))
    record(
        policy, EnvConfig(id="image_worlds:Brightening", frame_stack=3), tmp_path / "a.mp4", seed=0, episodes=1, steps=3
    )
    _, *frames = imageio_ffmpeg.read_frames(str(tmp_path / "a.mp4"))
    for step, frame in enumerate(frames):
        people, policys = np.split(np.frombuffer(frame, np.uint8).reshape(160, 320, 3), 2, axis=1)
        assert abs(people.mean() - policys.mean()) < 5 and abs(policys.mean() - 10 - 60 * step) < 10


@pytest.mark.parametrize(("env_id", "size"), [("Pendulum-v1", 500), ("HalfCheetah-v5", 480)])
def test_videos_of_rendered_images(env_id: str, size: int, tmp_path: Path) -> None:
    import imageio_ffmpeg  # noqa: PLC0415

    from t3d.insight.video import record  # noqa: PLC0415

    cfg = EnvConfig(id=env_id, pixels=40)
    env = open_env(env_factory(env_id), cfg)
    policy: Any = Steady(spec_of(env))
    policy.actor = lambda observations: np.ones((1, policy.spec.action_size), np.float32)
    record(policy, cfg, tmp_path / "a.mp4", seed=0, episodes=1, steps=2)
    about, *frames = imageio_ffmpeg.read_frames(str(tmp_path / "a.mp4"))
    assert about["size"] == (size + size // 40 * 40, size) and len(frames) == 3
    last = np.frombuffer(frames[-1], np.uint8).reshape(size, -1, 3)
    assert last[:, :size].std() > 10 and last[:, size:].std() > 10
