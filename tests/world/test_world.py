"""Environments: bounds, bad values, bookkeeping of transitions, noise, evaluation."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import helpers
from helpers import snapshot_for
from t3d.actors.inline import InlineCollector
from t3d.config import Config, EnvConfig, merge
from t3d.data.replay import Replay
from t3d.errors import EnvironmentFailed, UserError
from t3d.policy.acting import MemberPolicy, PolicySnapshot
from t3d.policy.spec import to_bounds
from t3d.seeds import derive
from t3d.types import Requests
from t3d.world.guard import BadValue, Environment
from t3d.world.make import env_factory
from t3d.world.spec import spec_of
from worlds import BAD, Toy, one_bad


def test_actions_reach_asymmetric_bounds_per_dimension() -> None:
    toy = Toy(low=[-3, 0], high=[1, 10], action_shape=(2,))
    env = Environment(toy, "toy")
    env.reset(0, 0)
    for action in ([-1, -1], [1, 1], [0, 0], [-1, 1]):
        env.step(np.array(action, np.float32))
    np.testing.assert_allclose(toy.actions, [[-3, 0], [1, 10], [-1, 5], [-3, 10]])
    assert all(toy.action_space.contains(action) for action in toy.actions)


def test_action_spaces_of_any_shape() -> None:
    toy = Toy(low=-2, high=2, action_shape=(2, 3))
    env = Environment(toy, "toy")
    env.reset(0, 0)
    env.step(np.linspace(-1, 1, 6, dtype=np.float32))
    assert toy.actions[0].shape == (2, 3) and toy.action_space.contains(toy.actions[0])
    np.testing.assert_allclose(toy.actions[0].reshape(-1), np.linspace(-2, 2, 6), atol=1e-6)


def test_rescaling_never_leaves_the_bounds() -> None:
    rng = np.random.default_rng(0)
    for _ in range(1000):
        low = rng.normal(size=4) * 10.0 ** rng.integers(-3, 4)
        high = low + np.abs(rng.normal(size=4)) + 1e-3
        spec = helpers.make_spec(1, 4)._replace(action_low=low, action_high=high, action_dtype="float64")
        for action in (np.ones(4, np.float32), -np.ones(4, np.float32), rng.uniform(-1, 1, 4).astype(np.float32)):
            scaled = to_bounds(action, spec)
            assert np.all(scaled >= low) and np.all(scaled <= high)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_value_is_refused_and_named(name: str) -> None:
    toy = Toy()
    env = Environment(toy, "environment 2 of seed 7")
    env.reset(0, 0)
    env.step(np.zeros(1, np.float32))
    BAD[name](toy)
    with pytest.raises(BadValue, match=rf"environment 2 of seed 7, episode 0, step 2: {name.split(maxsplit=1)[0]}"):
        env.step(np.zeros(1, np.float32))


def test_reused_observation_and_reward_buffers_are_copied() -> None:
    toy = Toy()
    toy.observation, toy.reward = np.zeros(3, np.float32), np.zeros(())
    env = Environment(toy, "toy")
    env.reset(0, 0)
    first, reward, *_ = env.step(np.zeros(1, np.float32))
    toy.observation[:] = 9
    toy.reward[...] = 9
    second, *_ = env.step(np.zeros(1, np.float32))
    assert np.all(first == 0) and np.all(second == 9) and reward == 0


def test_a_bad_reset_is_refused_too() -> None:
    toy = Toy()
    toy.reset = lambda **_: (one_bad(np.nan), {})  # type: ignore[method-assign]
    with pytest.raises(BadValue, match=r"episode 0, step 0: observation\[1\] is nan"):
        Environment(toy, "toy").reset(0, 0)
    toy.reset = lambda **_: np.zeros(3)  # type: ignore[method-assign, assignment]
    with pytest.raises(BadValue, match="must return"):
        Environment(toy, "toy").reset(0, 0)


def test_an_exception_of_the_environment_says_where_it_happened() -> None:
    toy = Toy()
    env = Environment(toy, "environment 0 of seed 1")
    env.reset(0, 0)
    toy.step = lambda action: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    with pytest.raises(
        EnvironmentFailed, match=r"environment 0 of seed 1, episode 0, step 1: .*ZeroDivision"
    ) as caught:
        env.step(np.zeros(1, np.float32))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (gym.spaces.Discrete(2), "continuous"),
        (gym.spaces.Box(-np.inf, np.inf, (2,)), "finite bounds"),
        (gym.spaces.Box(0, 0, (2,)), "finite bounds"),
        (gym.spaces.MultiBinary(3), "continuous"),
    ],
)
def test_action_spaces_that_td3_cannot_use(space: gym.Space[Any], words: str) -> None:
    toy = Toy()
    toy.action_space = space
    with pytest.raises(UserError, match=words):
        spec_of(toy)


ALWAYS_ZERO = PolicySnapshot(0, helpers.mlp(3, 1), np.zeros((1, 4), np.float32))


def collect(cfg: Config, make_env: Callable[..., Any], polls: int) -> tuple[InlineCollector, list[list[Any]]]:
    collector = InlineCollector(cfg, make_env)
    collector.publish(snapshot_for(collector.spec, len(cfg.seeds)))
    return collector, [collector.poll().rollouts for _ in range(polls)]


def test_every_stored_transition_is_true() -> None:
    """R19: what the counting environment says about itself, checked row by row; a million rows in test-all."""
    check_transitions(20_000)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_stored_transition_is_true_a_million_times() -> None:
    check_transitions(1_000_000)


def test_truncation_taken_for_termination_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Environment.step

    def wrong(env: Environment, action: Any) -> Any:
        result = right(env, action)
        return result._replace(terminated=result.terminated or result.truncated)

    monkeypatch.setattr(Environment, "step", wrong)
    with pytest.raises(AssertionError, match="truncation is not it"):
        check_transitions(200)


def check_transitions(count: int) -> None:
    members, envs = 2, 3
    steps = -(-count // members)
    cfg = helpers.small_config(
        seeds=list(range(members)), total_steps=steps, env={"num_envs": envs}, random_steps=steps // 2
    )
    helpers.CountingEnv.made = 0
    collector = InlineCollector(cfg, helpers.CountingEnv)
    collector.publish(snapshot_for(collector.spec, members))
    replay = Replay(collector.spec, steps, members)
    while collector.member_actors[0].taken < steps:
        for rollout in collector.poll().rollouts:
            replay.add(rollout)
    assert replay.added == [steps] * members
    for member in range(members):
        s, a, r, terminated, s2 = np.split(replay.rows[member].numpy(), np.cumsum(replay.columns)[:-1], axis=1)
        env, episode, t = s.T
        length = 3 + episode % 5
        assert set(env.tolist()) == {member * envs + number for number in range(envs)}
        np.testing.assert_array_equal(s2, np.stack([env, episode, t + 1], 1), "the true next state, also at the end")
        np.testing.assert_array_equal(terminated[:, 0], (t + 1 == length) & (episode % 2 == 0), "truncation is not it")
        np.testing.assert_allclose(r[:, 0], env * 100 + episode + (t + 1) / 10, rtol=1e-6)
        assert np.all(np.abs(a) <= 1)
        for number in set(env.tolist()):
            own = s[env == number]
            order = np.lexsort((own[:, 2], own[:, 1]))
            assert np.array_equal(order, np.arange(len(own))), "in the order it happened, nothing twice, nothing lost"
            assert len(np.unique(own, axis=0)) == len(own)


def test_exploration_is_independent_between_environments() -> None:
    cfg = helpers.small_config(env={"num_envs": 4}, random_steps=0, seeds=[0, 1], total_steps=4000)
    collector = InlineCollector(cfg, helpers.CountingEnv)
    collector.publish(ALWAYS_ZERO._replace(flat=np.repeat(ALWAYS_ZERO.flat, 2, 0)))
    noise = np.array([np.concatenate([block.a[:, 0] for block in collector.poll().rollouts]) for _ in range(1000)])
    correlation = np.corrcoef(noise.T)  # of 2 members with 4 environments each
    assert np.abs(correlation - np.eye(8)).max() < 0.15, "five standard deviations of a correlation over 1000 steps"


def test_noise_has_the_scale_it_is_given_and_actions_stay_legal() -> None:
    cfg = helpers.small_config(random_steps=0, total_steps=4000, noise={"exploration_noise": 0.05})
    collector = InlineCollector(cfg, helpers.CountingEnv)
    collector.publish(ALWAYS_ZERO)
    actions = np.concatenate([collector.poll().rollouts[0].a[:, 0] for _ in range(4000)])
    assert actions.std() == pytest.approx(0.05, rel=0.05) and abs(actions.mean()) < 0.005
    loud = merge(cfg, {"noise": {"exploration_noise": 5.0}})
    collector = InlineCollector(loud, helpers.CountingEnv)
    collector.publish(ALWAYS_ZERO)
    actions = np.concatenate([collector.poll().rollouts[0].a[:, 0] for _ in range(500)])
    assert np.abs(actions).max() == 1


def test_warm_up_is_uniform_and_ends_on_the_step() -> None:
    cfg = helpers.small_config(
        random_steps=1000, total_steps=1005, env={"num_envs": 3}, noise={"exploration_noise": 0.0}
    )
    _, polls = collect(cfg, helpers.CountingEnv, 335)
    rows = np.concatenate([np.concatenate([b.s, b.a], 1) for blocks in polls for b in blocks])
    assert len(rows) == 1005
    policy = MemberPolicy(snapshot_for(helpers.make_spec(3, 1), 1), 0)
    follows = np.isclose(policy(rows[:, :3]), rows[:, 3:], atol=1e-6)[:, 0]
    assert follows[1000:].all() and follows[:1000].sum() < 5
    warm = rows[:1000, 3]
    histogram = np.histogram(warm, bins=10, range=(-1, 1))[0]
    assert histogram.min() > 60 and histogram.max() < 140


def test_environments_are_seeded_by_value_not_by_place() -> None:
    seen: list[int] = []

    class Seeded(Toy):
        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            assert seed is not None
            seen.append(seed)
            return super().reset(seed=seed, options=options)

    cfg = helpers.small_config(seeds=[8, 3], env={"num_envs": 2}, total_steps=200)
    collect(cfg, Seeded, 6)
    first = [derive(seed, "environment", env, 0) for seed in (8, 3) for env in (0, 1)]
    assert seen[:4] == first and len(set(seen)) == len(seen)
    assert derive(3, "environment", 1, 1) in seen


def test_a_seed_collects_the_same_alone_or_beside_others() -> None:
    def data(seeds: list[int], member: int) -> Any:
        cfg = helpers.small_config(seeds=seeds, random_steps=20, total_steps=300)
        collector = InlineCollector(cfg, env_factory(EnvConfig("Pendulum-v1")))
        one = snapshot_for(collector.spec, 1)
        collector.publish(one._replace(flat=np.repeat(one.flat, len(seeds), 0)))
        return np.concatenate([collector.poll().rollouts[member].s2 for _ in range(250)])

    assert np.array_equal(data([4], 0), data([9, 4], 1))


def test_environment_by_id_module_id_and_callable() -> None:
    assert env_factory(EnvConfig("Pendulum-v1"))().observation_space.shape == (3,)
    assert env_factory(EnvConfig("gymnasium:Pendulum-v1"))().observation_space.shape == (3,)
    assert isinstance(env_factory(EnvConfig("helpers:CountingEnv"))(), helpers.CountingEnv)


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("", "no environment given"),
        ("Pendulum-v9", "there is Pendulum-v1"),
        ("Pendulum", "there is Pendulum-v1"),
        ("HalfCheta-v5", "did you mean HalfCheetah-v5"),
        ("HalfCheetah", "there is HalfCheetah-v5"),
        ("HalfCheetah-v2", "there is HalfCheetah-v5"),
        ("no_such_module:make", "cannot import no_such_module"),
        ("helpers:no_such_thing", "helpers has no no_such_thing"),
        ("helpers:CountingEnf", "did you mean CountingEnv"),
        ("dm:cartpole-swingdown", "did you mean dm:cartpole-swingup"),
        ("helpers:length_of", "missing a required argument: 'episode'; give it with --env.args"),
    ],
)
def test_an_environment_that_cannot_be_found(env_id: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        env_factory(EnvConfig(env_id))()


def test_a_callable_must_make_an_environment() -> None:
    with pytest.raises(UserError, match="returned Spec, not a gymnasium"):
        cfg = helpers.small_config(env={"id": "helpers:make_spec"})
        InlineCollector(cfg, env_factory(cfg.env))


def test_evaluation_uses_the_same_seeds_each_time_and_no_noise() -> None:
    from t3d.actors.inline import InlineEvaluator  # noqa: PLC0415

    cfg = helpers.small_config(seeds=[0, 1], eval={"episodes": 3}, noise={"exploration_noise": 5.0})
    requests = Requests(threading.Event(), threading.Event())
    evaluator = InlineEvaluator(cfg, env_factory(EnvConfig("Pendulum-v1")), requests)
    snapshot = snapshot_for(evaluator.member_evaluators[0].env_batches[0].spec, 2)
    evaluator.submit(snapshot, 0)
    evaluator.submit(snapshot, 10)
    results = evaluator.poll().evaluations
    assert [(result.step, result.member) for result in results] == [(0, 0), (0, 1), (10, 0), (10, 1)]
    assert np.array_equal(results[0].returns, results[2].returns), "same seeds, no noise: same returns"
    assert not np.array_equal(results[0].returns, results[1].returns), "another seed has episodes of its own"
    assert evaluator.poll().evaluations == [], "each is handed out once"
    requests.stop.set()
    evaluator.submit(snapshot, 20)
    assert evaluator.poll().evaluations == [], "an interrupted evaluation is dropped"
