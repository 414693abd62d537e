"""Calling a policy: one observation or many, from several threads, and as Stable-Baselines3 does."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_worlds import Dot
from shipped_policies import made, of_images, of_vectors, picture_spec, vector_spec
from t3d.config import EnvConfig, TD3Config
from t3d.config.networks import actor_architecture, architecture
from t3d.errors import UserError
from t3d.policy.acting import SavedPolicy
from t3d.policy.observations import ABSURD
from t3d.policy.spec import Part
from t3d.world.spec import spec_of

DICT = vector_spec(13)._replace(
    observation=(
        Part(("place",), (2,), 0, 2),
        Part(("inner", "choice"), (), 2, 5, first_choice=1),
        Part(("inner", "height"), (), 5, 6),
        Part(("gears",), (2,), 6, 13, first_choice=(0, -1), counts=(3, 4)),
    )
)


def of_dicts() -> SavedPolicy:
    return made(architecture("mlp", (13, 8, 3), "relu"), DICT)


def seen(rng: np.random.Generator) -> dict[str, Any]:
    inner = {"choice": int(rng.integers(1, 4)), "height": rng.normal()}
    return {"place": rng.normal(size=2), "inner": inner, "gears": rng.integers([0, -1], [3, 3])}


def many(ones: list[dict[str, Any]]) -> dict[str, Any]:
    """As a vector of environments returns them."""
    inner = {name: np.array([one["inner"][name] for one in ones]) for name in ("choice", "height")}
    return {"inner": inner, **{name: np.stack([one[name] for one in ones]) for name in ("place", "gears")}}


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16, np.int64, np.uint8, bool, list])
def test_a_batch_acts_as_its_rows(kind: Any) -> None:
    policy, rows = of_vectors(), np.random.default_rng(0).normal(0, 3, (7, 5))
    batch: Any = rows.tolist() if kind is list else np.abs(rows).astype(kind)
    actions = policy(batch)
    assert actions.shape == (7, 3) and actions.dtype == np.float32
    for row, action in zip(batch, actions, strict=True):
        np.testing.assert_allclose(policy(row), action, atol=1e-6)
    assert policy(np.zeros((0, 5))).shape == (0, 3) and policy(np.zeros((1, 5))).shape == (1, 3)


def test_a_batch_of_dictionaries_acts_as_its_rows() -> None:
    policy, rng = of_dicts(), np.random.default_rng(0)
    ones = [seen(rng) for _ in range(5)]
    actions = policy(many(ones))
    assert actions.shape == (5, 3)
    np.testing.assert_allclose(actions, [policy(one) for one in ones], atol=1e-6)


def test_a_batch_of_images_acts_as_its_rows() -> None:
    policy, rng = of_images(stack=1), np.random.default_rng(0)
    batch = pictures(rng, 3)
    rows = [{name: values[row] for name, values in batch.items()} for row in range(3)]
    np.testing.assert_allclose(policy(batch), [policy(row) for row in rows], atol=1e-6)
    grey = picture_spec(1)._replace(observation=(), images=picture_spec().images[1:])
    grey = grey._replace(images=(grey.images[0]._replace(path=(), start=0, stop=32 * 33),))
    network = actor_architecture(grey, TD3Config(actor_hidden=(8,), encoder_channels=2, encoder_features=4))
    flat, image = made(network, grey), rng.integers(0, 256, (4, 32, 33), dtype=np.uint8)
    np.testing.assert_allclose(flat(image), [flat(one) for one in image], atol=1e-6)
    assert flat(image[:, None]).shape == (4, 2), "with its one channel"


def pictures(rng: np.random.Generator, count: int) -> dict[str, Any]:
    return {
        "wide": rng.integers(0, 256, (count, 34, 32, 3), dtype=np.uint8),
        "near": rng.integers(0, 256, (count, 1, 32, 33), dtype=np.uint8),
        "speed": rng.normal(size=(count, 2)),
    }


BAD = [np.nan, np.inf, -np.inf, 1.01 * ABSURD, -1e30, 1e300]


@pytest.mark.parametrize("kind", [np.float64, np.float32])
@pytest.mark.parametrize("bad", BAD)
def test_bad_numbers_are_refused_by_name_and_row(bad: float, kind: Any) -> None:
    policy, rows = of_vectors(), np.zeros((4, 5))
    rows[2, 3] = bad
    with np.errstate(over="ignore"):
        rows = rows.astype(kind)
    with pytest.raises(UserError, match=r"^observation\[3\] is .*finite and below"):
        policy(rows[2])
    with pytest.raises(UserError, match=r"observation\[3\] in row 2 of the batch is .*finite and below"):
        policy(rows)
    assert policy(np.full(5, ABSURD, kind)).shape == (3,), "as large as it may be"


@pytest.mark.parametrize(
    "wrong", [np.zeros(4), np.zeros((2, 4)), np.zeros((2, 2, 5)), None, "five", [[1.0], [1.0, 2.0]], {}]
)
def test_wrong_shapes_and_types_are_refused_in_a_sentence(wrong: Any) -> None:
    with pytest.raises(UserError, match=r"^observation (has shape|is) "):
        of_vectors()(wrong)


def test_arrays_of_a_batch_must_have_the_same_number_of_rows() -> None:
    batch = many([seen(np.random.default_rng(0)) for _ in range(3)])
    batch["inner"]["height"] = batch["inner"]["height"][:2]
    with pytest.raises(UserError, match=r"observation\['inner'\]\['height'\] does not have 3 rows"):
        of_dicts()(batch)
    with pytest.raises(UserError, match=r"observation\['place'\] is missing"):
        of_dicts()({"inner": batch["inner"]})


def test_an_action_that_is_not_finite_is_refused() -> None:
    policy = of_vectors()
    huge = np.where(np.arange(policy.snapshot.flat.size) % 3, 1e30, -1e30).astype(np.float32)[None]
    diverged = SavedPolicy(policy.snapshot._replace(flat=huge), policy.spec, policy.about, "")
    with pytest.raises(UserError, match="action for this observation is not finite"):
        diverged(np.array([1, -1, 1, -1, 1e10]))


@given(st.lists(st.floats(-1e10, 1e10), min_size=5, max_size=5))
def test_every_action_is_within_the_bounds(observation: list[float]) -> None:
    policy = of_vectors()
    action = policy(np.array(observation))
    assert (policy.spec.action_low <= action).all() and (action <= policy.spec.action_high).all()


def test_many_threads_share_a_policy() -> None:
    policy, rows = of_vectors(), np.random.default_rng(0).normal(size=(400, 5))
    wanted = [policy(row).tobytes() for row in rows]
    with ThreadPoolExecutor(8) as pool:
        assert [one.tobytes() for one in pool.map(policy, rows)] == wanted


def test_copies_keep_frames_of_their_own() -> None:
    policy, rng = of_images(), np.random.default_rng(0)
    episodes = [[{name: value[0] for name, value in pictures(rng, 1).items()} for _ in range(4)] for _ in range(6)]

    def play(episode: list[dict[str, Any]]) -> list[bytes]:
        own = copy.copy(policy)
        return [own(one).tobytes() for one in episode]

    wanted = [play(episode) for episode in episodes]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(play, episodes)) == wanted
    assert copy.copy(policy).snapshot is policy.snapshot, "the network is shared"


def test_a_batch_of_stacked_images_starts_each_episode_by_itself() -> None:
    together, alone, rng = of_images(), [of_images(), of_images()], np.random.default_rng(0)
    for starts in ([True, True], [False, False], [False, True], [False, False]):
        batch = pictures(rng, 2)
        actions, state = together.predict(batch, episode_start=np.array(starts))
        assert state is None
        for row, policy in enumerate(alone):
            if starts[row]:
                policy.reset()
            action = policy({name: values[row] for name, values in batch.items()})
            np.testing.assert_allclose(actions[row], action, atol=1e-6)
    with pytest.raises(UserError, match="keeps the frames of 2 episodes, and was given 3 observations; call reset"):
        together(pictures(rng, 3))
    together.reset()
    assert together(pictures(rng, 3)).shape == (3, 2)


def test_predict_is_call() -> None:
    policy, row = of_vectors(), np.linspace(-1, 1, 5)
    for deterministic in (True, False):
        action, state = policy.predict(row, deterministic=deterministic)
        assert state is None and np.array_equal(action, policy(row))


def test_a_policy_says_what_it_is() -> None:
    assert repr(of_vectors()) == "<best policy of Toy-v0, seed 3, step 12,000: 5 values -> mlp -> 3 actions>"
    assert repr(of_images()) == (
        "<best policy of Toy-v0, seed 3, step 12,000: 2 values, 3x34x32 pixels, 1x32x33 pixels, 2 frames -> mlp -> "
        "2 actions>"
    )


@pytest.mark.parametrize("world", ["Pendulum-v1", "Dot"])
def test_stable_baselines3_evaluates_it(world: str) -> None:
    evaluation = pytest.importorskip("stable_baselines3.common.evaluation")
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env")

    def make() -> gym.Env[Any, Any]:
        return Dot() if world == "Dot" else gym.make(world)

    spec = spec_of(make(), EnvConfig(frame_stack=2 if world == "Dot" else 1))
    cfg = TD3Config(actor_hidden=(8,), encoder_channels=2, encoder_features=4)
    policy = made(actor_architecture(spec, cfg), spec)
    envs = vec_env.DummyVecEnv([make, make])
    envs.seed(3)
    rewards, lengths = evaluation.evaluate_policy(policy, envs, 4, return_episode_rewards=True, warn=False)
    by_hand = sorted(played(policy, make(), 3 + place) for place in (0, 1))
    assert len(rewards) == 4 and set(lengths) == {20 if world == "Dot" else 200}
    assert sorted(rewards[:2]) == pytest.approx(by_hand, rel=1e-4)


def played(policy: SavedPolicy, env: gym.Env[Any, Any], seed: int) -> float:
    """The return of one episode."""
    policy.reset()
    observation, total, over = env.reset(seed=seed)[0], 0.0, False
    while not over:
        observation, reward, terminated, truncated, _ = env.step(policy(observation))
        total, over = total + float(reward), terminated or truncated
    return total
