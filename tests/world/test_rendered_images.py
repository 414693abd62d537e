"""Environments that are observed as rendered images: what is drawn, how often, and by which camera."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_worlds import LIMIT, STILL, Dot
from t3d.config import EnvConfig
from t3d.errors import UserError
from t3d.world.guard import Environment
from t3d.world.make import env_factory
from t3d.world.pixels import Pixels, averaged, open_env


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
    env = Environment(open_env(env_factory(EnvConfig(env_id)), cfg), env_id, cfg)
    again = Environment(open_env(env_factory(EnvConfig(env_id)), cfg), env_id, cfg)
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
    env = open_env(env_factory(EnvConfig("Pendulum-v1")), cfg)
    frame, _ = env.reset(seed=0)
    exact = env.render().reshape(100, 5, 100, 5, 3).mean((1, 3))
    assert frame.shape == (100, 100, 3) and env.observation_space.contains(frame)
    assert np.abs(frame - exact).max() <= 0.5 + 1e-9
    env.close()


def test_mujoco_draws_without_shadows_reflections_and_skybox() -> None:
    import mujoco  # noqa: PLC0415

    env = open_env(env_factory(EnvConfig("HalfCheetah-v5")), EnvConfig(pixels=32))
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
        env = open_env(env_factory(EnvConfig(env_id)), cfg)
        alone.append(frames([env]))
        env.close()
    both = [open_env(env_factory(EnvConfig(env_id)), cfg) for env_id in ids]
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
    another = open_env(env_factory(EnvConfig("InvertedPendulum-v5")), EnvConfig(pixels=32))
    beside_pixels = views(open_env(env_factory(EnvConfig("HalfCheetah-v5")), EnvConfig(pixels=32)), another)
    another.close()
    assert all(np.array_equal(one, other) for one, other in zip(plain, beside_pixels, strict=True))


def test_frames_do_not_depend_on_when_the_camera_was_first_used() -> None:
    cfg = EnvConfig(pixels=32)
    env, other = (open_env(env_factory(EnvConfig("InvertedPendulum-v5")), cfg) for _ in range(2))
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
        env = open_env(env_factory(EnvConfig(env_id)), EnvConfig(pixels=32, camera=camera))
        frames.append(env.reset(seed=0)[0].copy())
        env.close()
    assert np.array_equal(frames[0], frames[1]) and np.array_equal(frames[2], frames[3])
    assert np.array_equal(frames[0], frames[2]) is (named == "track")
    for unknown in ("nose", "9", "-1", "²"):
        with pytest.raises(UserError, match=rf"has no camera {unknown}.*; its cameras are 0 \("):
            open_env(env_factory(EnvConfig(env_id)), EnvConfig(pixels=32, camera=unknown))
    with pytest.raises(UserError, match=rf"has no camera {named}s, did you mean {named}\? Its cameras are 0 \("):
        open_env(env_factory(EnvConfig(env_id)), EnvConfig(pixels=32, camera=f"{named}s"))


def test_a_camera_where_there_is_none_is_refused() -> None:
    with pytest.raises(UserError, match=r"Pendulum-v1 has no cameras to choose from; leave out --env.camera side"):
        open_env(env_factory(EnvConfig("Pendulum-v1")), EnvConfig(pixels=32, camera="side"))


def test_a_factory_of_ones_own_need_not_take_a_render_mode() -> None:
    env = open_env(lambda: Dot("rgb_array"), EnvConfig(pixels=32))
    assert isinstance(env, Pixels)


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
