"""Step 1: the ring, sampling, and the normaliser, against plain lists and numpy."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import helpers
from t3d.config import Config, ReplayConfig, TD3Config
from t3d.data.memory import Memory
from t3d.data.replay import Replay, bytes_needed
from t3d.data.samplers import UniformSampler
from t3d.data.scaling import Normaliser
from t3d.types import Rollout

SPEC = helpers.make_spec(2, 1)


def rollout(member: int, numbers: list[int]) -> Rollout:
    """Transitions that can be told apart: number n has s = (n, n), a = n / 1000, r = -n, s2 = (n + 1, n + 1)."""
    n = np.array(numbers, np.float32)
    s = np.stack([n, n], 1)
    return helpers.rollout_of(member, s, n[:, None] / np.float32(1000), -n, s + 1, n % 3 == 0)


def contents(replay: Replay, member: int) -> list[int]:
    size = int(replay.size[member])
    index = torch.arange(size).expand(replay.rows.shape[0], -1)
    s, a, r, terminated, s2 = (column[member] for column in replay.gather(index))
    assert torch.equal(s2, s + 1)
    assert torch.equal(r, -s[:, 0])
    assert torch.equal(a[:, 0], s[:, 0] / 1000)
    assert torch.equal(terminated, (s[:, 0] % 3 == 0).float())
    return s[:, 0].long().tolist()


@given(capacity=st.integers(1, 12), blocks=st.lists(st.tuples(st.integers(0, 1), st.integers(1, 15)), max_size=12))
def test_the_ring_is_a_list_that_forgets_its_oldest(capacity: int, blocks: list[tuple[int, int]]) -> None:
    replay = Replay(SPEC, capacity, members=2)
    lists: list[list[int]] = [[], []]
    for number, (member, length) in enumerate(blocks):
        numbers = [number * 20 + i for i in range(length)]
        replay.add(rollout(member, numbers))
        lists[member] += numbers
    for member, everything in enumerate(lists):
        assert replay.added[member] == len(everything)
        assert sorted(contents(replay, member)) == sorted(everything[-capacity:])


def test_sampling_is_uniform_over_what_is_stored_and_nothing_else() -> None:
    replay = Replay(SPEC, capacity=100, members=1)
    replay.add(rollout(0, list(range(50))))
    sampler = UniformSampler(replay, TD3Config(batch_size=500, gamma=0.9), seeds=[7])
    counts = np.zeros(50)
    for _ in range(100):
        batch = sampler.sample()
        np.add.at(counts, batch.s[0, :, 0].long().numpy(), 1)
        assert torch.equal(batch.s2, batch.s + 1)
        assert torch.equal(batch.index, batch.s[..., 0].long())
    chi_square = ((counts - 1000) ** 2 / 1000).sum()
    assert chi_square < 98  # the 99.997th percentile of chi-square with 49 degrees of freedom
    assert torch.all(batch.discount == 0.9) and torch.all(batch.weight == 1)


def test_members_sample_independently_and_as_they_would_alone() -> None:
    together, alone = Replay(SPEC, 100, members=2), Replay(SPEC, 100, members=1)
    for member in (0, 1):
        together.add(rollout(member, list(range(100))))
    alone.add(rollout(0, list(range(100))))
    both = UniformSampler(together, TD3Config(batch_size=32), seeds=[5, 6]).sample()
    one = UniformSampler(alone, TD3Config(batch_size=32), seeds=[6]).sample()
    assert torch.equal(both.index[1], one.index[0])
    assert not torch.equal(both.index[0], both.index[1])


def test_members_never_see_each_others_transitions() -> None:
    replay = Replay(SPEC, capacity=50, members=2)
    replay.add(rollout(0, list(range(100, 150))))
    replay.add(rollout(1, list(range(200, 230))))
    batch = UniformSampler(replay, TD3Config(batch_size=1000), seeds=[0, 1]).sample()
    assert set(batch.s[0, :, 0].long().tolist()) <= set(range(100, 150))
    assert set(batch.s[1, :, 0].long().tolist()) <= set(range(200, 230))


def test_memory_is_counted_before_it_is_taken() -> None:
    replay = Replay(SPEC, capacity=1000, members=3)
    links = replay.links
    host = links.origins.nbytes + links.next.nbytes + links.previous.nbytes
    assert bytes_needed(SPEC, 1000, 3) == replay.rows.nbytes + host
    short = Config(total_steps=500, random_steps=0, replay=ReplayConfig(capacity=1000))
    assert Memory(SPEC, short, "cpu").replay.capacity == 500


@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=6),
    offset=st.floats(-1e4, 1e4),
    seed=st.integers(0, 2**31),
)
def test_the_normaliser_is_numpys_mean_and_deviation(lengths: list[int], offset: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    normaliser = Normaliser(members=2, observation_size=2)
    blocks = [(offset + rng.normal(size=(length, 2))).astype(np.float32) for length in lengths]
    for block in blocks:
        zeros = np.zeros(len(block), np.float32)
        normaliser.add(helpers.rollout_of(1, block, zeros[:, None], zeros, block, zeros > 0))
    everything = np.concatenate(blocks).astype(np.float64)
    np.testing.assert_allclose(normaliser.moments.mean[1], everything.mean(0), rtol=1e-9, atol=1e-9)
    if len(everything) > 1:
        np.testing.assert_allclose(normaliser.std[1], np.sqrt(everything.var(0) + 1e-8), rtol=1e-6)
    assert normaliser.moments.count[0] == 0 and np.all(normaliser.std[0] == 1)


def test_normaliser_statistics_move_on_insert_and_never_on_sampling() -> None:
    cfg = Config(total_steps=100, random_steps=0, normalise_observations=True, td3=TD3Config(batch_size=8))
    memory = Memory(SPEC, cfg, "cpu")
    memory.add(rollout(0, list(range(30))))
    assert memory.normaliser is not None
    before = copy.deepcopy(memory.normaliser.state())
    for _ in range(20):
        batch = memory.sample()
    after = memory.normaliser.state()
    assert before.keys() == after.keys() == {"count", "mean", "m2"}
    assert all(np.array_equal(before[name], after[name]) for name in before)
    raw = contents(memory.replay, 0)
    assert raw == list(range(30)), "replay keeps raw observations"
    expected = (batch.index[0].float() - float(np.mean(raw))) / float(np.std(raw))
    assert torch.allclose(batch.s[0, :, 0], expected, atol=1e-4)


@pytest.mark.parametrize("scaled", [False, True])
def test_acting_scales_observations_as_learning_does(scaled: bool) -> None:
    from t3d.algo.learner import Learner  # noqa: PLC0415
    from t3d.policy.acting import MemberPolicy  # noqa: PLC0415

    cfg = Config(
        total_steps=100,
        random_steps=0,
        normalise_observations=scaled,
        td3=TD3Config(batch_size=8, actor_hidden=(16,)),
        seeds=(0, 1),
    )
    memory, learner = Memory(SPEC, cfg, "cpu"), Learner(SPEC, cfg.td3, cfg.seeds)
    for member in (0, 1):
        memory.add(rollout(member, list(range(50 * member, 50 * member + 40))))
    snapshot = memory.scaled(learner.snapshot())
    batch = memory.sample()
    torch_actions = learner.agent.actor(batch.s).detach().numpy()
    for member in (0, 1):
        raw = memory.replay.gather(batch.index)[0][member].numpy()
        np.testing.assert_allclose(MemberPolicy(snapshot, member)(raw), torch_actions[member], atol=1e-5)
