"""Reward scaling against everything that ever happened, and scaling with every engine."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

import helpers
import t3d
from run_folders import run, weights
from t3d.algo.engines import ENGINES
from t3d.algo.learner import Learner
from t3d.algo.networks import named_tensors
from t3d.config import Config, ReplayConfig, TD3Config
from t3d.data.memory import Memory
from t3d.data.scaling import RewardScaler
from t3d.events import End, Note, Start
from t3d.types import GOES_ON, TERMINATED, TRUNCATED, UNKNOWN, Coefficient, Rollout

SPEC = helpers.make_spec(2, 1)
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
HERE = [(name, device) for name, engine in ENGINES.items() for device in DEVICES if device in engine.devices]
RECORDED = [name for name, engine in ENGINES.items() if engine.records]
SCALED: dict[str, Any] = {"normalise_observations": True, "scale_rewards": True}

Transition = tuple[int, int, int, int, float]  # origin, reward


class Player:
    """One member's environments, which play random episodes; some are cut short, and what comes next is another one."""

    def __init__(self, rng: np.random.Generator, envs: int) -> None:
        self.rng, self.playing = rng, [(0, 0)] * envs
        self.episodes: dict[tuple[int, int], list[float]] = {}  # rewards by environment and episode, in order

    def play(self, count: int) -> list[Transition]:
        return [self._step() for _ in range(count)]

    def _step(self) -> Transition:
        env = int(self.rng.integers(len(self.playing)))
        episode, step = self.playing[env]
        if self.rng.random() < 0.05:  # a lost actor or a bad value
            episode, step = episode + int(self.rng.integers(1, 3)), 0
        ending = int(self.rng.choice([GOES_ON, TERMINATED, TRUNCATED], p=[0.8, 0.1, 0.1]))
        self.playing[env] = (episode, step + 1) if ending == GOES_ON else (episode + 1, 0)
        r = float(np.float32(self.rng.normal(3, 10)))
        self.episodes.setdefault((env, episode), []).append(r)
        return env, episode, step, ending, r

    def scale(self, gamma: float) -> float:
        """The deviation of the discounted rewards so far at each step of each episode, summed up one by one."""
        returns = [
            sum(gamma ** (t - earlier) * rewards[earlier] for earlier in range(t + 1))
            for rewards in self.episodes.values()
            for t in range(len(rewards))
        ]
        return float(np.std(returns)) if len(returns) > 1 else 1.0


def rollout(member: int, transitions: list[Transition]) -> Rollout:
    s = np.zeros((len(transitions), 2), np.float32)
    r = np.array([one[4] for one in transitions], np.float32)
    rows = helpers.rollout_of(member, s, s[:, :1], r, s, s[:, 0])
    return rows._replace(origins=np.array([one[:4] for one in transitions], np.int32).reshape(-1, 4))


@given(
    seed=some.integers(0, 2**32),
    envs=some.integers(1, 4),
    blocks=some.lists(some.integers(0, 30), max_size=8),
    gammas=some.tuples(some.sampled_from([0.0, 0.9, 0.99, 1.0]), some.sampled_from([0.5, 0.99])),
    resumed=some.booleans(),
)
def test_the_scale_is_the_deviation_of_all_returns_however_blocks_are_cut(
    seed: int, envs: int, blocks: list[int], gammas: tuple[float, float], resumed: bool
) -> None:
    rng = np.random.default_rng(seed)
    players = [Player(rng, envs) for _ in gammas]
    gamma: Coefficient = torch.tensor(gammas, dtype=torch.float64)
    cfg = Config(total_steps=40, random_steps=0, seeds=(0, 1), scale_rewards=True, td3=TD3Config(batch_size=8))
    memory = Memory(SPEC, cfg, "cpu", gamma)  # a ring of 40 transitions: most are overwritten, none is forgotten
    for length in blocks:
        memory.add(*(rollout(member, player.play(length)) for member, player in enumerate(players)))
        if resumed:
            state, memory = copy.deepcopy(memory.state()), Memory(SPEC, cfg, "cpu", gamma)
            memory.restore(state)
    assert memory.reward_scaler is not None
    expected = [[player.scale(gamma)] for player, gamma in zip(players, gammas, strict=True)]
    np.testing.assert_allclose(memory.reward_scaler.scale, expected, rtol=1e-9)


@pytest.mark.parametrize("n_step", [1, 3])
def test_sampled_rewards_are_divided_and_stored_ones_are_not(n_step: int) -> None:
    rng, batches = np.random.default_rng(0), []
    blocks = [rollout(member, Player(rng, 2).play(50)) for member in (0, 1)]
    for scaled in (True, False):
        replay, td3 = ReplayConfig(capacity=100, n_step=n_step), TD3Config(batch_size=64)
        cfg = Config(total_steps=100, random_steps=0, seeds=(0, 1), scale_rewards=scaled, replay=replay, td3=td3)
        memory = Memory(SPEC, cfg, "cpu")
        memory.add(*blocks)
        before = copy.deepcopy(memory.state()["reward_scaler"])
        batches.append(memory.sample())
        after = memory.state()["reward_scaler"]
        assert all(np.array_equal(before[name], after[name]) for name in before), "sampling changes nothing"
        assert np.array_equal(memory.replay.contents(1, 0, 50)["rows"], blocks[1].rows)
        if memory.reward_scaler is not None:
            scale = torch.from_numpy(memory.reward_scaler.scale)
    assert scale.shape == (2, 1) and (scale > 5).all() and scale[0] != scale[1]
    assert torch.allclose(batches[0].r, (batches[1].r / scale).float(), rtol=1e-6)
    for name, value in batches[1]._asdict().items():
        assert name == "r" or torch.equal(getattr(batches[0], name), value), name


@pytest.mark.parametrize("scaled", [False, True])
def test_the_largest_reward_is_that_of_all_time_in_the_scale_of_now_and_survives_a_resume(scaled: bool) -> None:
    replay = ReplayConfig(capacity=300)
    cfg = Config(total_steps=1000, random_steps=0, seeds=(0, 1), scale_rewards=scaled, replay=replay)
    memory = Memory(SPEC, cfg, "cpu")
    firsts, seconds = ([-50.0, 3.0], [4.0]), ([1.0, 2.0] * 200, [5.0])  # the first one's largest is overwritten
    for number, blocks in enumerate((firsts, seconds)):
        transitions = [[(0, 1000 * number + n, 0, TERMINATED, r) for n, r in enumerate(block)] for block in blocks]
        memory.add(*(rollout(member, each) for member, each in enumerate(transitions)))
        state, memory = copy.deepcopy(memory.state()), Memory(SPEC, cfg, "cpu")
        memory.restore(state)
    scales = [np.std([*firsts[member], *seconds[member]]) if scaled else 1.0 for member in (0, 1)]
    assert memory.largest_rewards == pytest.approx([50 / scales[0], 5 / scales[1]])
    del state["largest_rewards"]  # as before it was kept
    memory.restore(state)
    assert memory.largest_rewards == [0, 0]


def test_one_return_or_constant_returns_are_not_scaled() -> None:
    scaler = RewardScaler(1, 0.99)
    scaler.add(rollout(0, [(0, 0, 0, TERMINATED, 7.0)]))
    assert scaler.scale.tolist() == [[1.0]]
    scaler.add(rollout(0, [(0, episode, 0, TERMINATED, 7.0) for episode in range(1, 50)]))
    assert scaler.scale.tolist() == [[1.0]]
    scaler.add(rollout(0, [(0, 50, 0, TERMINATED, 57.0)]))
    assert scaler.scale.tolist() == [[pytest.approx(np.std([7.0] * 50 + [57.0]))]]


def test_a_transition_of_which_nothing_is_known_is_a_return_of_its_own() -> None:
    scaler = RewardScaler(1, 0.99)
    scaler.add(rollout(0, [(UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, r) for r in (1.0, 2.0, 6.0)]))
    assert scaler.scale.tolist() == [[pytest.approx(np.std([1.0, 2.0, 6.0]))]]


def test_a_state_of_another_shape_is_refused() -> None:
    scaler = RewardScaler(2, 0.99)
    for wrong in (RewardScaler(1, 0.99).state(), {**scaler.state(), "newest": np.zeros((1, 4))}):
        with pytest.raises(ValueError, match=r"instead of|five finite numbers"):
            scaler.restore(wrong)


@pytest.mark.parametrize(("engine", "device"), HERE)
def test_scaled_observations_and_rewards_train_with_every_engine(tmp_path: Path, engine: str, device: str) -> None:
    cfg = helpers.small_config(engine=engine, device=device, **SCALED, run={"root": str(tmp_path)})
    start, *events, end = t3d.train(cfg)
    assert isinstance(start, Start) and start.config["engine"] == engine
    assert isinstance(end, End) and (end.updates, end.reason) == (200, "finished")
    assert not any(isinstance(event, Note) for event in events), "the engine was compared with eager and is used"


@pytest.mark.parametrize(("engine", "device"), HERE)
def test_every_engine_learns_the_same_from_scaled_batches(tmp_path: Path, engine: str, device: str) -> None:
    """Whole runs drift apart with rounding; twenty updates do not."""
    ours, eagers, unscaled = (
        weights(run(helpers.small_config(total_steps=120, device=device, engine=name, **scaling), tmp_path))
        for name, scaling in ((engine, SCALED), ("eager", SCALED), ("eager", {}))
    )
    np.testing.assert_allclose(ours, eagers, atol=1e-5)
    assert np.abs(unscaled - eagers).max() > 1e-3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("engine", RECORDED)
def test_graphs_follow_the_scales_as_they_move(engine: str) -> None:
    cfg = helpers.small_config(device="cuda", seeds=[0, 1], total_steps=1000, **SCALED)
    learned = []
    for one in ("eager", engine):
        rng, memory = np.random.default_rng(0), Memory(SPEC, cfg, "cuda")
        players = [Player(rng, 2), Player(rng, 2)]
        memory.add(*(rollout(member, player.play(40)) for member, player in enumerate(players)))
        learner = Learner(SPEC, cfg.td3, cfg.seeds, "cuda", engine=one, source=memory)
        if one != "eager":
            learner.prepare()
        for n in (1, 9, 8):
            learner.run(n)
            louder = [[(*rest, 20 * r) for *rest, r in player.play(40)] for player in players]
            memory.add(*(rollout(member, block) for member, block in enumerate(louder)))  # type: ignore[arg-type]
        learned.append(dict(named_tensors(learner.agent)))
    for name, tensor in learned[0].items():
        torch.testing.assert_close(learned[1][name], tensor, rtol=1e-3, atol=1e-4)
