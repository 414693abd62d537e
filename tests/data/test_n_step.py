"""n-step returns against brute force over a list of everything that ever happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

import helpers
from run_folders import assert_equal, run, weights
from t3d.config import ReplayConfig, TD3Config
from t3d.data.replay import Replay
from t3d.data.samplers import UniformSampler, n_step_batch
from t3d.events import Saved
from t3d.run.live import resume, train
from t3d.types import GOES_ON, TERMINATED, TRUNCATED, Rollout

SPEC = helpers.make_spec(2, 1)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"))]


def filled(seed: int, capacity: int, envs: int, steps: int, device: str) -> tuple[Replay, list[list[dict[str, Any]]]]:
    """A replay of two members and everything that was put into it."""
    rng = np.random.default_rng(seed)
    replay, histories = Replay(SPEC, capacity, 2, device), [[], []]  # type: ignore[var-annotated]
    playing = [[(0, 0)] * envs for _ in range(2)]
    while min(map(len, histories)) < steps:
        for member, history in enumerate(histories):
            new = list[dict[str, Any]]()
            for _ in range(int(rng.integers(1, 9))):
                env = int(rng.integers(envs))
                (episode, step), chance = playing[member][env], rng.random()
                if chance < 0.05:  # lost: the next episode begins
                    playing[member][env] = episode + 1, 0
                    continue
                ending = TERMINATED if chance < 0.15 else TRUNCATED if chance < 0.25 else GOES_ON
                playing[member][env] = (episode, step + 1) if ending == GOES_ON else (episode + 1, 0)
                row = rng.normal(size=7).astype(np.float32)
                row[4] = ending == TERMINATED  # s 2, a 1, r 1, terminated 1, s2 2
                new.append({"row": row, "origin": (env, episode, step, ending)})
            history.extend(new)
            if new:
                rows = np.stack([one["row"] for one in new])
                origins = np.array([one["origin"] for one in new], np.int32)
                replay.add(Rollout(member, rows, origins, 2, [], []))
    return replay, histories


def by_hand(history: list[dict[str, Any]], number: int, n: int, gamma: float) -> tuple[float, float, float, Any]:
    """Walks through the episode: return, discount, terminated, and the state after the last step."""
    at = {one["origin"][:3]: one for one in history}
    one = history[number]
    total, discount = float(one["row"][3]), gamma
    for _ in range(n - 1):
        env, episode, step, ending = one["origin"]
        following = at.get((env, episode, step + 1))
        if ending != GOES_ON or following is None:
            break
        one = following
        total, discount = total + discount * float(one["row"][3]), discount * gamma
    return total, discount, float(one["row"][4]), one["row"][5:7]


@pytest.mark.parametrize("device", DEVICES)
@given(
    seed=some.integers(0, 2**32),
    n=some.integers(1, 7),
    capacity=some.sampled_from([5, 30, 500]),
    envs=some.integers(1, 4),
    gamma=some.floats(0, 1),
)
def test_n_step_returns_are_those_of_history(
    device: str, seed: int, n: int, capacity: int, envs: int, gamma: float
) -> None:
    replay, histories = filled(seed, capacity, envs, 120, device)
    kept = [range(*replay.kept(member)) for member in range(2)]
    width = min(map(len, kept))
    numbers = [list(one)[:width] for one in kept]
    index = torch.tensor([[number % capacity for number in one] for one in numbers], device=device)
    gammas = torch.full(index.shape, gamma, dtype=torch.float32, device=device)
    batch = n_step_batch(replay, index, gammas, torch.ones_like(gammas), n)
    for member, history in enumerate(histories):
        for place, number in enumerate(numbers[member]):
            total, discount, terminated, s2 = by_hand(history, number, n, float(gammas[0, 0]))
            assert float(batch.r[member, place]) == pytest.approx(total, abs=1e-4)
            assert float(batch.discount[member, place]) == pytest.approx(discount, rel=1e-5, abs=1e-30)
            assert float(batch.terminated[member, place]) == terminated
            assert np.array_equal(batch.s2[member, place].cpu().numpy(), s2)
            row = history[number]["row"]
            assert np.array_equal(batch.s[member, place].cpu().numpy(), row[:2])
            assert float(batch.a[member, place]) == row[2]


def test_a_terminal_reward_is_neither_dropped_nor_counted_twice() -> None:
    replay = Replay(SPEC, 10, 1)
    rows = np.zeros((3, 7), np.float32)
    rows[:, 3], rows[2, 4] = (1, 10, 100), 1
    origins = np.array([(0, 0, step, TERMINATED if step == 2 else GOES_ON) for step in range(3)], np.int32)
    replay.add(Rollout(0, rows, origins, 2, [], []))
    half = torch.full((1, 3), 0.5)
    for n, returns, discounts in ((1, [1, 10, 100], [0.5, 0.5, 0.5]), (3, [31, 60, 100], [0.125, 0.25, 0.5])):
        batch = n_step_batch(replay, torch.arange(3).unsqueeze(0), half, half, n)
        assert batch.r[0].tolist() == returns and batch.discount[0].tolist() == discounts
    assert batch.terminated[0].tolist() == [1, 1, 1], "nothing bootstraps beyond the end"


def test_one_step_is_the_plain_batch_to_the_last_bit() -> None:
    replay, _ = filled(0, 300, 2, 400, "cpu")
    cfg = TD3Config(batch_size=64)
    batch = UniformSampler(replay, cfg, (0, 1)).sample()
    s, a, r, terminated, s2 = replay.gather(batch.index)
    for ours, theirs in zip(batch[:5], (s, a, r, s2, terminated), strict=True):
        assert torch.equal(ours, theirs)
    assert (batch.discount == cfg.gamma).all()
    assert torch.equal(
        UniformSampler(replay, cfg, (0, 1), replay_cfg=ReplayConfig(n_step=4)).sample().index, batch.index
    )


def test_three_steps_learn_something_else_and_resume_to_the_last_bit(tmp_path: Path) -> None:
    """Episodes of Pendulum have 200 steps, so that the run is saved in the middle of one."""
    three = {"replay": {"n_step": 3, "capacity": 150}, "env": {"num_envs": 2}, "checkpoint": {"every_steps": 110}}
    one = {**three, "replay": {"capacity": 150}}
    first, second = (weights(run(helpers.small_config(threads=1, **changes), tmp_path)) for changes in (three, one))
    assert not np.array_equal(first, second)
    for name in ("straight", "resumed"):
        for event in train(helpers.small_config(threads=1, **three, run={"root": str(tmp_path), "name": name})):
            if name == "resumed" and isinstance(event, Saved) and event.step == 220:
                break
    list(resume(tmp_path / "resumed"))
    assert_equal(tmp_path / "straight", tmp_path / "resumed")
