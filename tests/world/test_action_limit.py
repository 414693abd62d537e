"""`env.max_action_change`: what reaches the environment, and what is observed of it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from image_worlds import TwoCameras
from t3d.config import EnvConfig
from t3d.errors import UserError
from t3d.policy.observations import flatten
from t3d.policy.spec import limited, middle, to_bounds
from t3d.world.batch import open_batch
from t3d.world.doctor import examine
from t3d.world.fingerprint import difference, outline
from t3d.world.guard import Environment
from t3d.world.spec import spec_of
from worlds import Toy

ASKED = st.lists(st.tuples(*[st.floats(-1, 1, width=32)] * 2), min_size=1, max_size=15)
LOW, HIGH = np.array([-1.0, 2.0], np.float32), np.array([3.0, 2.5], np.float32)


def two() -> Toy:
    """Two actions with bounds of their own."""
    return Toy(LOW, HIGH, (2,))


def by_hand(asked: float, before: float, low: float, high: float, limit: float) -> float:
    """The rule for one number."""
    wanted = low + (asked + 1) / 2 * (high - low)
    return min(max(wanted, before - limit * (high - low)), before + limit * (high - low))


@given(asked=ASKED, limit=st.floats(0.01, 1))
def test_actions_are_those_computed_by_hand_and_never_change_by_more(
    asked: list[tuple[float, float]], limit: float
) -> None:
    world = two()
    env = Environment(world, "toy", EnvConfig(max_action_change=limit))
    before, span = (LOW + HIGH) / 2, HIGH - LOW
    seen = env.reset(0, 0)
    assert np.array_equal(seen, [0, 0, 0, 0, 0]), "an episode starts from the middle of the range"
    for action in asked:
        seen = env.step(np.array(action, np.float32)).observation
        applied = world.actions[-1]
        wanted = [
            by_hand(*one, limit) for one in zip(action, before.tolist(), LOW.tolist(), HIGH.tolist(), strict=True)
        ]
        np.testing.assert_allclose(applied, wanted, atol=1e-6)
        assert (
            (np.abs(applied - before) <= limit * span + 1e-6).all()
            and (applied >= LOW).all()
            and (applied <= HIGH).all()
        )
        np.testing.assert_allclose(seen[3:], 2 * (applied - LOW) / span - 1, atol=1e-6)
        before = applied


def test_an_action_that_is_far_away_is_reached_in_several_steps() -> None:
    world = two()
    env = Environment(world, "toy", EnvConfig(max_action_change=0.25))
    env.reset(0, 0)
    for action, wanted in ((0, [1, 2.25]), (1, [2, 2.375]), (1, [3, 2.5]), (-1, [2, 2.375]), (0.4, [1.8, 2.35])):
        env.step(np.full(2, action, np.float32))
        np.testing.assert_allclose(world.actions[-1], wanted)


def test_a_limit_of_the_whole_range_is_no_limit() -> None:
    free, spec = spec_of(two()), spec_of(two(), EnvConfig(max_action_change=1))
    rng = np.random.default_rng(0)
    asked, before = (to_bounds(rng.uniform(-1, 1, (50, 2)).astype(np.float32), free) for _ in range(2))
    np.testing.assert_allclose(limited(asked, before, spec), asked, atol=1e-6)


def test_without_a_limit_nothing_is_added() -> None:
    world = two()
    env = Environment(world, "toy")
    assert env.guard.spec.observation_size == env.guard.spec.own_size == len(env.reset(0, 0)) == 3
    action = np.array([1.0, -1.0], np.float32)
    env.step(action)
    assert np.array_equal(world.actions[-1], to_bounds(action, env.guard.spec))


def test_every_episode_starts_from_the_middle_again() -> None:
    env = Environment(two(), "toy", EnvConfig(max_action_change=0.1))
    for episode in range(2):
        assert np.array_equal(env.reset(0, episode)[3:], [0, 0])
        np.testing.assert_allclose(env.step(np.ones(2, np.float32)).observation[3:], [0.2, 0.2], atol=1e-6)


def test_repeats_are_one_change() -> None:
    world = two()
    env = Environment(world, "toy", EnvConfig(max_action_change=0.1, action_repeat=3))
    env.reset(0, 0)
    env.step(np.ones(2, np.float32))
    assert len(world.actions) == 3 and all(np.array_equal(one, world.actions[0]) for one in world.actions)


class Vandal(Toy):
    """Overwrites the action it is given."""

    def step(self, action: Any) -> Any:
        action[:] = 99
        return super().step(action)


@pytest.mark.parametrize("doctored", [False, True])
def test_an_environment_cannot_change_the_previous_action(doctored: bool) -> None:
    cfg = EnvConfig(max_action_change=0.1)
    if doctored:  # it plays by itself
        assert not [text for text in examine(Vandal, cfg) if "99" in text or "reaches" in text]
    env = Environment(Vandal(), "vandal", cfg)
    env.reset(0, 0)
    assert env.step(np.ones(1, np.float32)).observation[3] == np.float32(0.2)


@pytest.mark.parametrize("bad_values", ["clip", "skip"])
def test_bad_values_do_not_touch_the_previous_action(bad_values: Any) -> None:
    world = two()
    env = Environment(world, "toy", EnvConfig(max_action_change=0.1, bad_values=bad_values))
    env.reset(0, 0)
    env.step(np.ones(2, np.float32))
    world.observation = np.full(3, np.nan)
    result = env.step(np.ones(2, np.float32))
    assert result.valid == (bad_values == "clip")
    np.testing.assert_allclose(result.observation[3:], 0.4 if bad_values == "clip" else 0.2, atol=1e-6)


def test_the_environments_of_a_vector_have_previous_actions_of_their_own() -> None:
    def make() -> Any:
        return SyncVectorEnv([two] * 3, autoreset_mode=AutoresetMode.DISABLED)

    cfg = EnvConfig(num_envs=3, max_action_change=0.1)
    batch = open_batch(make, cfg, "vector")
    alone = [Environment(two(), "alone", cfg) for _ in range(3)]
    rng = np.random.default_rng(0)
    for position in range(3):
        batch.reset(position, 0, 0), alone[position].reset(0, 0)
    for step in range(4):
        asked = rng.uniform(-1, 1, (3, 2)).astype(np.float32)
        for env, action, result in zip(alone, asked, batch.step(asked), strict=True):
            assert np.array_equal(env.step(action).observation, result.observation)
        if step == 1:  # one of them starts over
            assert np.array_equal(batch.reset(1, 0, 1), alone[1].reset(0, 1))
    batch.close()


@pytest.mark.parametrize("stack", [1, 3])
def test_with_images_the_previous_action_is_beside_them(stack: int) -> None:
    env, free = (
        Environment(TwoCameras(), "cameras", EnvConfig(frame_stack=stack, max_action_change=limit))
        for limit in (0.1, 0)
    )
    spec, size = env.guard.spec, env.guard.spec.action_size
    assert spec.own_size == free.guard.spec.observation_size and spec.observation_size == spec.own_size + size

    def parts(seen: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
        own, all_of_it = 4 * spec.own_size, 4 * spec.observation_size
        return np.concatenate([seen[:own], seen[all_of_it:]]), seen[own:all_of_it].view(np.float32)

    seen = env.reset(3, 0)
    rest, previous = parts(seen)
    assert np.array_equal(rest, free.reset(3, 0)) and np.array_equal(previous, np.zeros(size))
    for step in range(3):
        seen = env.step(np.ones(size, np.float32)).observation
        free.step(np.full(size, 0.2 * (step + 1), np.float32))  # the same action
        np.testing.assert_allclose(parts(seen)[1], 0.2 * (step + 1), atol=1e-6)


def test_other_spaces_of_actions() -> None:
    table = Toy(-1.0, 1.0, (2, 3))
    env = Environment(table, "table", EnvConfig(max_action_change=0.1))
    env.reset(0, 0)
    env.step(np.ones(6, np.float32))
    assert table.actions[-1].shape == (2, 3)
    np.testing.assert_allclose(table.actions[-1], 0.2, atol=1e-6)
    assert middle(env.guard.spec).shape == (2, 3) and len(flatten(np.zeros(3), env.guard.spec)) == 9


def test_whole_numbers_are_refused_in_a_sentence() -> None:
    whole = Toy()
    whole.action_space = gym.spaces.Box(0, 9, (1,), np.int64)
    with pytest.raises(
        UserError, match=r"env.max_action_change=0.1 limits continuous actions, and those of Toy are whole"
    ):
        examine(lambda: whole, EnvConfig(max_action_change=0.1))


@pytest.mark.parametrize("limit", [-0.1, 1.5, float("nan")])
def test_a_limit_is_a_fraction(limit: float) -> None:
    with pytest.raises(UserError, match=r"env\.max_action_change"):
        EnvConfig(max_action_change=limit)


def test_the_doctor_finds_nothing_wrong_with_it() -> None:
    assert examine(lambda: gym.make("Pendulum-v1"), EnvConfig(max_action_change=0.1)) == examine(
        lambda: gym.make("Pendulum-v1")
    )


def test_another_limit_is_another_task() -> None:
    free, tight, tighter = (outline(spec_of(two(), EnvConfig(max_action_change=limit))) for limit in (0, 0.2, 0.1))
    assert difference(tight, tight) == difference(free, free) == ""
    assert difference(free, tight) == (
        "its actions changed freely then, by at most 0.2 of their range per step now (env.max_action_change)"
    )
    assert "at most 0.2 of their range per step then, by at most 0.1" in difference(tight, tighter)
