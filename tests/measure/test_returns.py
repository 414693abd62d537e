"""Discounted returns: closed forms, and every row of a replay against a list of everything that ever happened."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

import helpers
from image_rollouts import image_spec
from t3d.data.frames import FrameReplay
from t3d.data.replay import Replay
from t3d.measure import MOST_OWN, NO_RETURNS, as_batch, discounted, newest_returns
from t3d.types import GOES_ON, TERMINATED, TRUNCATED, Origins, Rollout, rows_of

SPEC = helpers.make_spec(2, 1)


@given(gamma=some.floats(0, 1), length=some.integers(0, 50))
def test_rewards_of_one_add_up_to_a_geometric_series(gamma: float, length: int) -> None:
    expected = [sum(gamma**power for power in range(steps)) for steps in range(1, length + 1)]
    assert discounted([1.0] * length, gamma) == pytest.approx(expected)


def test_a_reward_counts_less_the_later_it_comes() -> None:
    assert discounted([100, 10, 1], 0.5) == [100, 10 + 50, 1 + 5 + 25], "the last reward comes first"


def played(seed: int, envs: int, steps: int) -> tuple[Origins, Any]:
    """The origins and the rewards of random episodes, some of which are cut."""
    rng, playing, origins = np.random.default_rng(seed), [(0, 0)] * envs, list[tuple[int, int, int, int]]()
    while len(origins) < steps:
        env, chance = int(rng.integers(envs)), rng.random()
        episode, step = playing[env]
        if chance < 0.02:
            playing[env] = episode + 1, 0
            continue
        ending = TERMINATED if chance < 0.1 else TRUNCATED if chance < 0.2 else GOES_ON
        playing[env] = (episode, step + 1) if ending == GOES_ON else (episode + 1, 0)
        origins.append((env, episode, step, ending))
    return np.array(origins, np.int32), rng.normal(size=steps).astype(np.float32)


def by_hand(origins: Origins, rewards: Any, first: int, gamma: float) -> list[tuple[int, int, float, float]]:
    """Number, last number, return and discount of all that is to be compared, newest episode first."""
    at = {tuple(origin[:3].tolist()): number for number, origin in enumerate(origins)}
    found = []
    for number in range(first, len(origins)):
        env, episode, step, _ = origins[number].tolist()
        later = [number]
        while (following := at.get((env, episode, step + len(later)))) is not None:
            later.append(following)
        ending, discount = origins[later[-1], 3], gamma ** len(later)
        if ending == TERMINATED or (ending == TRUNCATED and discount <= MOST_OWN):
            total = sum(gamma**power * float(rewards[one]) for power, one in enumerate(later))
            found.append((number, later[-1], total, discount))
    return sorted(found, key=lambda one: (one[1], one[0]), reverse=True)


@given(
    seed=some.integers(0, 2**32),
    envs=some.integers(1, 4),
    capacity=some.sampled_from([7, 60, 500]),
    gamma=some.sampled_from([0.0, 0.3, 0.7, 0.9, 1.0]),
    most=some.sampled_from([3, 20, 1000]),
)
def test_returns_are_those_of_history(seed: int, envs: int, capacity: int, gamma: float, most: int) -> None:
    origins, rewards = played(seed, envs, 200)
    replay, rows = Replay(SPEC, capacity, 2), np.zeros((200, 7), np.float32)
    rows[:, 0], rows[:, 3], rows[:, 4], rows[:, 5] = range(200), rewards, origins[:, 3] == TERMINATED, range(1, 201)
    for start in range(0, 200, 5):
        part = slice(start, start + 5)
        replay.add(Rollout(1, rows[part], origins[part], 2, [], []))
    found = newest_returns(replay, 1, gamma, most)
    expected = by_hand(origins, rewards, replay.kept(1)[0], gamma)[:most]
    assert found.rows.tolist() == [number % capacity for number, *_ in expected]
    assert found.last.tolist() == [last % capacity for _, last, *_ in expected]
    assert found.r.tolist() == pytest.approx([total for *_, total, _ in expected], abs=1e-5)
    assert found.discount.tolist() == pytest.approx([discount for *_, discount in expected])

    batch = as_batch(replay, [NO_RETURNS, found], most)
    assert batch.weight.sum(1).tolist() == [0, len(expected)] and batch.r.shape == (2, most)
    for place, (number, last, total, discount) in enumerate(expected):
        assert (float(batch.s[1, place, 0]), float(batch.s2[1, place, 0])) == (number, last + 1)
        assert float(batch.terminated[1, place]) == (origins[last, 3] == TERMINATED)
        assert float(batch.r[1, place]) == pytest.approx(total, abs=1e-5)
        assert float(batch.discount[1, place]) == pytest.approx(discount)


def test_an_episode_that_goes_on_or_never_ended_has_no_return() -> None:
    replay = Replay(SPEC, 50, 1)
    origins = np.array([(0, 0, step, GOES_ON) for step in range(9)] + [(0, 1, 0, GOES_ON)], np.int32)
    replay.add(Rollout(0, np.zeros((10, 7), np.float32), origins, 2, [], []))
    assert len(newest_returns(replay, 0, 0.5, 10).rows) == 0


def test_transitions_whose_images_are_gone_are_left_out() -> None:
    """Many episodes of one step need more frames than there is room for."""
    spec = image_spec()
    replay = FrameReplay(spec, 40, 1)
    width = spec.observation_width
    for episode in range(60):
        s = np.full((1, width), episode, np.uint8)
        rows = rows_of(spec, s, np.zeros((1, spec.action_size), np.float32), np.array([[episode, 1]], np.float32), s)
        origins = np.array([(0, episode, 0, TERMINATED)], np.int32)
        replay.add(Rollout(0, rows, origins, spec.frame_size, [], []))
    first, stop = replay.kept(0)
    assert stop - first < 40, "there is something to leave out"
    assert newest_returns(replay, 0, 0.9, 100).r.tolist() == list(range(stop - 1, first - 1, -1))
