"""Whole-number actions: random ones are uniform over the numbers, and the replay keeps what was played."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import helpers
import t3d
from t3d.actors.inline import InlineCollector
from t3d.policy.acting import PolicySnapshot
from t3d.policy.spec import random_action, rounded, to_bounds
from t3d.world.doctor import examine
from t3d.world.spec import spec_of

LOW, HIGH = np.array([0, -3]), np.array([4, 6])


class WholeNumbers(gym.Env[Any, Any]):
    """Takes whole numbers and remembers them."""

    played: list[Any]

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
        self.action_space = gym.spaces.Box(LOW, HIGH, dtype=np.int64)
        WholeNumbers.played = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self.np_random.uniform(-1, 1, 1).astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        WholeNumbers.played.append(action)
        self.t += 1
        return self.np_random.uniform(-1, 1, 1).astype(np.float32), 1.0, False, self.t == 50, {}


def acted(random_steps: int, count: int) -> tuple[Any, Any]:
    """The actions that were kept, and those that the environment was given."""
    cfg = helpers.small_config(
        total_steps=count + 1, random_steps=random_steps, noise={"exploration_noise": 0.5, "kind": "pink"}
    )
    collector, network = InlineCollector(cfg, WholeNumbers), helpers.mlp(1, 2)
    collector.publish(PolicySnapshot(0, network, np.zeros((1, network.size), np.float32)))
    kept = np.concatenate([collector.poll().rollouts[0].a for _ in range(count)])
    return kept, np.array(WholeNumbers.played)


def test_random_actions_are_uniform_over_the_whole_numbers() -> None:
    """With 4,000 draws of five numbers a count is 800 ± 25; the ends used to have half of the others."""
    _, given = acted(random_steps=4000, count=4000)
    for dimension, (low, high) in enumerate(zip(LOW, HIGH, strict=True)):
        numbers, counts = np.unique(given[:, dimension], return_counts=True)
        expected = 4000 / (high - low + 1)
        assert numbers.tolist() == list(range(low, high + 1))
        assert np.abs(counts - expected).max() < 5 * np.sqrt(expected), counts


@pytest.mark.parametrize("random_steps", [0, 300])
def test_the_replay_keeps_the_action_that_was_played(random_steps: int) -> None:
    kept, given = acted(random_steps, 300)
    np.testing.assert_allclose(kept, 2 * (given - LOW) / (HIGH - LOW) - 1, atol=1e-7)


def test_what_was_played_is_played_again() -> None:
    rng = np.random.default_rng(0)
    for low, high in [(0, 1), (-5, 5), (0, 255), (-(10**6), 10**6), (-(10**9), 10**9)]:
        box = gym.spaces.Box(low, high, (3,), np.int64)
        spec = helpers.make_spec(1, 3)._replace(
            action_low=box.low.astype(float), action_high=box.high.astype(float), action_dtype="int64"
        )
        for _ in range(200):
            action = rng.uniform(-1, 1, 3).astype(np.float32)
            again = rounded(action, spec)
            assert again.dtype == np.float32 and np.array_equal(rounded(again, spec), again)
            assert box.contains(to_bounds(again, spec)) and box.contains(to_bounds(random_action(rng, spec), spec))
            if high - low < 2**22:  # beyond that, float32 cannot tell whole numbers apart
                assert np.array_equal(to_bounds(again, spec), to_bounds(action, spec))


def test_actions_of_floats_keep_their_bits() -> None:
    spec = spec_of(gym.make("Pendulum-v1"))
    action = np.random.default_rng(3).uniform(-1, 1, 1).astype(np.float32)
    assert np.array_equal(random_action(np.random.default_rng(3), spec), action)
    assert rounded(action, spec) is action


def test_a_run_on_whole_numbers_learns_and_its_policy_plays_them(tmp_path: Any) -> None:
    assert examine(WholeNumbers) == []
    assert all(one.dtype == np.int64 and ((one >= LOW) & (one <= HIGH)).all() for one in WholeNumbers.played)
    list(t3d.train(helpers.small_config(run={"root": str(tmp_path), "name": "a"}), make_env=WholeNumbers))
    action = t3d.load_policy(tmp_path / "a" / "last" / "seed-0")([0.5])
    assert gym.spaces.Box(LOW, HIGH, dtype=np.int64).contains(action)
