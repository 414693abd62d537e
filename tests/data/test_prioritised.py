"""Prioritised sampling: priorities, importance weights and new rows against closed forms; restored and recorded."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import helpers
from t3d.algo.learner import Learner
from t3d.config import Config
from t3d.data import samplers
from t3d.data.memory import Memory, bytes_needed
from t3d.data.samplers import PrioritisedSampler
from t3d.random_streams import Counted
from t3d.types import Batch, State

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
SPEC = helpers.make_spec(1, 1)


def memory_of(device: str = "cpu", capacity: int = 400, seeds: int = 1, batch: int = 16, **how: Any) -> Memory:
    return Memory(SPEC, config(capacity, seeds, batch, **{"sampling": "proportional", **how}), device)


def config(capacity: int, seeds: int, batch: int, **how: Any) -> Config:
    td3 = {"batch_size": batch, "critic_loss": "huber" if how["sampling"] == "lap" else "squared"}
    changes = {"total_steps": 10**5, "seeds": list(range(seeds)), "td3": td3, "replay": {"capacity": capacity, **how}}
    return helpers.small_config(**changes)


def add(memory: Memory, **counts: int) -> None:
    """Adds so many transitions; m0=3 adds three to member 0. Observations say their numbers."""
    blocks = []
    for name, count in counts.items():
        member = int(name[1:])
        s = np.arange(memory.added[member], memory.added[member] + count, dtype=np.float32)[:, None]
        blocks.append(helpers.rollout_of(member, s, s * 0, s[:, 0], s, np.zeros(count)))
    memory.add(*blocks)


def sampler_of(memory: Memory) -> PrioritisedSampler:
    assert isinstance(memory.sampler, PrioritisedSampler)
    return memory.sampler


@pytest.mark.parametrize(
    ("how", "right"),
    [
        ({"sampling": "proportional", "priority_exponent": 0.6}, lambda error: (error + 1e-6) ** 0.6),
        ({"sampling": "lap", "priority_exponent": 0.4}, lambda error: np.maximum(error, 1) ** 0.4),
    ],
)
@pytest.mark.parametrize("n_step", [1, 3])
def test_priorities_come_from_the_largest_error_of_any_critic(how: Any, right: Any, n_step: int) -> None:
    memory = memory_of(seeds=2, n_step=n_step, **how)
    add(memory, m0=300, m1=50)
    index = torch.tensor([[5, 9, 5, 7], [0, 1, 2, 3]])
    td = torch.tensor([[[1.0, -3, 0.2, 0.5], [-2, 1, -6, 0]], [[0.0, 4, 4, 4], [0, 4, 4, 5]]])
    memory.feedback(index, td)
    priorities = sampler_of(memory).tree.priorities
    expected = right(np.array([6.0, 3, 0.5]))  # the first row came twice, with errors of 2 and 6
    np.testing.assert_allclose(priorities[0, [5, 9, 7]].numpy(), expected, rtol=1e-6)
    np.testing.assert_allclose(priorities[1, :4].numpy(), right(np.array([0.0, 4, 4, 5])), rtol=1e-6)
    assert (priorities[0, 10:300] == 1).all() and (priorities[1, 50:] == 0).all()


@pytest.mark.parametrize("sampling", ["proportional", "lap"])
@pytest.mark.parametrize("exponent", [0.1, 10.0])
def test_extreme_errors_leave_every_row_a_chance(sampling: str, exponent: float) -> None:
    memory = memory_of(sampling=sampling, priority_exponent=exponent, capacity=100)
    add(memory, m0=100)
    td = torch.full((1, 1, 100), 1e-30)
    td[..., 50:] = 1e20
    memory.feedback(torch.arange(100).unsqueeze(0), td)
    tree = sampler_of(memory).tree
    assert (tree.priorities > 0).all() and all(bool(torch.isfinite(level).all()) for level in tree.levels)


@pytest.mark.parametrize("done", [0, 1, 50, 100, 1000])
def test_importance_weights_are_the_closed_form(done: int) -> None:
    memory = memory_of(batch=64, importance_exponent=0.4, importance_updates=100, priority_exponent=0.7)
    add(memory, m0=350)
    sampler = sampler_of(memory)
    memory.feedback(torch.arange(350).unsqueeze(0), torch.rand(1, 2, 350, generator=torch.Generator().manual_seed(0)))
    sampler.updates.fill_(done)
    batch = memory.sample()
    priorities = sampler.tree.priorities[0, :350].double()
    probability = (priorities / priorities.sum())[batch.index[0]]
    beta = 0.4 + 0.6 * min(1, done / 100)
    weight = (350 * probability) ** -beta
    torch.testing.assert_close(batch.weight[0], (weight / weight.max()).float(), rtol=1e-5, atol=0)
    assert float(batch.weight.max()) == 1 and float(batch.weight.min()) < 0.7


def test_the_importance_exponent_rises_with_updates_or_stays() -> None:
    rising, constant = memory_of(importance_updates=2), memory_of()
    for memory in (rising, constant):
        add(memory, m0=100)
        memory.feedback(torch.arange(100).unsqueeze(0), torch.arange(100.0).view(1, 1, 100))
        sampler = sampler_of(memory)
        state, weights = sampler._streams.state(), []
        for _ in range(4):
            batch = memory.sample()
            weights.append(batch.weight.clone())
            sampler.updates.add_(1)
            sampler._streams.restore(state)
        later = [not torch.equal(one, two) for one, two in pairwise(weights)]
        assert later == ([True, False, False] if memory is rising else [False] * 3)


def test_lap_weighs_all_the_same() -> None:
    memory = memory_of(sampling="lap")
    add(memory, m0=100)
    memory.feedback(torch.arange(100).unsqueeze(0), torch.arange(100.0).view(1, 1, 100))
    assert (memory.sample().weight == 1).all()


def test_new_transitions_get_the_highest_priority_also_where_the_ring_begins_again() -> None:
    memory = memory_of(capacity=100, seeds=2, priority_exponent=1.0)
    sampler = sampler_of(memory)
    add(memory, m0=60, m1=90)
    assert (sampler.tree.priorities[0, :60] == 1).all() and float(sampler.tree.priorities[0, 60:].sum()) == 0
    memory.feedback(torch.tensor([[3], [4]]), torch.tensor([[[8.0]], [[0.5]]]))
    add(memory, m0=45, m1=15)
    of_0, of_1 = sampler.tree.priorities
    torch.testing.assert_close(of_0[60:], torch.full((40,), 8.0))
    torch.testing.assert_close(of_0[:6], torch.tensor([8.0, 8, 8, 8, 8, 1]))
    assert (of_1 == torch.where(torch.arange(100) == 4, of_1[4], 1)).all(), "the other member's highest is its own"
    add(memory, m0=250)  # more than fits
    torch.testing.assert_close(sampler.tree.priorities[0], torch.full((100,), 8.0))
    totals = sampler.tree.levels[0].double().sum((1, 2))
    torch.testing.assert_close(totals, sampler.tree.priorities.double().sum(1))


def test_the_highest_is_found_anew_every_250_transitions() -> None:
    memory = memory_of(capacity=1000, priority_exponent=1.0, seeds=2)
    sampler = sampler_of(memory)
    add(memory, m0=240, m1=10)
    everything = torch.arange(16).repeat(2, 1)
    memory.feedback(everything, torch.full((2, 2, 16), 9.0))
    memory.feedback(everything, torch.full((2, 2, 16), 2.0))
    add(memory, m0=9, m1=1)
    assert sampler.highest.tolist() == pytest.approx([9, 9]), "the largest there has ever been"
    memory.feedback(torch.arange(240, 256).repeat(2, 1), torch.full((2, 2, 16), 3.0))
    add(memory, m0=1, m1=1)
    assert sampler.highest.tolist() == pytest.approx([3, 9]), "the largest there is"
    assert float(sampler.tree.priorities[0, 249]) == pytest.approx(3)


def test_members_draw_as_they_would_alone_and_each_from_its_own_priorities() -> None:
    together, alone = memory_of(seeds=2), memory_of(seeds=1)
    add(together, m0=100, m1=200)
    add(alone, m0=100)
    td = torch.rand(2, 2, 100, generator=torch.Generator().manual_seed(0)) * torch.tensor([1, 0.01]).view(2, 1, 1)
    rows = torch.arange(100).repeat(2, 1)
    together.feedback(rows, td)
    alone.feedback(rows[:1], td[:1])
    for _ in range(3):
        both, one = together.sample(), alone.sample()
        assert torch.equal(both.index[0], one.index[0]) and torch.equal(both.weight[0], one.weight[0])
        assert torch.equal(both.s[..., 0].long(), both.index), "these are the rows"


def test_a_diverged_member_leaves_the_others_alone() -> None:
    memory, healthy = memory_of(seeds=2), memory_of(seeds=2)
    for one, value in ((memory, torch.nan), (healthy, 1.0)):
        add(one, m0=300, m1=300)
        for _ in range(5):
            batch = one.sample()
            td = torch.ones(2, 2, 16)
            td[1] = value
            one.feedback(batch.index, td)
            assert (batch.index >= 0).all() and (batch.index < 400).all()
        add(one, m0=1, m1=1)
    assert torch.equal(memory.sample().index[0], healthy.sample().index[0])
    assert torch.equal(sampler_of(memory).tree.priorities[0], sampler_of(healthy).tree.priorities[0])


def played(memory: Memory, rounds: int) -> list[Tensor]:
    """Which transitions were drawn, with which weights, while more are added and errors fed back."""
    drawn, generator = [], torch.Generator().manual_seed(0)
    for _ in range(rounds):
        add(memory, m0=7, m1=9)
        batch = memory.sample()
        drawn.append(torch.stack([batch.s[..., 0], batch.weight]))
        memory.feedback(batch.index, torch.randn(2, 2, 16, generator=generator))
    return drawn


@pytest.mark.parametrize("how", [{"sampling": "proportional", "importance_updates": 40}, {"sampling": "lap"}])
@pytest.mark.parametrize("capacity", [100, 400, 20_000])
def test_a_restored_sampler_draws_what_it_would_have_drawn(how: Any, capacity: int) -> None:
    straight, resumed = (memory_of(seeds=2, capacity=capacity, **how) for _ in range(2))
    played(straight, 20)
    played(resumed, 60)  # what was there before is forgotten
    give(straight, resumed)
    for one, two in zip(sampler_of(straight).tree.levels, sampler_of(resumed).tree.levels, strict=True):
        assert torch.equal(one, two)
    for one, two in zip(played(straight, 30), played(resumed, 30), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("capacity", [50, 150, 1000])
def test_priorities_keep_to_their_transitions_in_a_replay_of_another_size(capacity: int) -> None:
    before, after = memory_of(seeds=2, capacity=200), memory_of(seeds=2, capacity=capacity)
    played(before, 20)  # 140 and 180 transitions: nothing is lost yet
    give(before, after)
    for member, count in enumerate((140, 180)):
        for number in range(max(0, count - capacity), count):
            old, new = (one.sampler.tree.priorities[member] for one in (before, after))  # type: ignore[attr-defined]
            assert old[number % 200] == new[number % capacity]
    assert int((sampler_of(after).tree.priorities[0] > 0).sum()) == min(140, capacity)


def give(before: Memory, after: Memory) -> None:
    """Restores one memory from another, rows too."""
    after.restore(before.state())
    for member in range(2):
        first, stop = after.replay.kept(member)
        after.replay.put(member, first, before.replay.contents(member, first, stop))


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros(99, np.float32),
        np.zeros((1, 100), np.float32),
        np.zeros(100, np.float64),
        np.full(100, -1, np.float32),
    ],
)
def test_priorities_that_do_not_fit_are_refused(wrong: Any) -> None:
    memory = memory_of()
    add(memory, m0=100)
    state = memory.state()
    state["sampler"]["priorities"]["0"] = wrong
    with pytest.raises(ValueError, match="priorities of member 0 do not fit its 100 transitions"):
        memory.restore(state)


def test_a_saved_state_does_not_move() -> None:
    memory = memory_of()
    add(memory, m0=100)
    state = memory.state()["sampler"]
    memory.feedback(torch.arange(100).unsqueeze(0), torch.full((1, 2, 100), 5.0))
    assert (state["priorities"]["0"] == 1).all() and state["highest"].tolist() == [1] and state["updates"] == 0


@pytest.mark.parametrize("capacity", [100, 20_000])
def test_memory_is_counted_with_priorities(capacity: int) -> None:
    memory = memory_of(capacity=capacity, seeds=2)
    uniform = config(capacity, 2, 16, sampling="uniform")
    taken = sum(level.nbytes for level in sampler_of(memory).tree.levels)
    assert bytes_needed(SPEC, config(capacity, 2, 16, sampling="lap")) == bytes_needed(SPEC, uniform) + taken


@pytest.mark.parametrize("sampling", ["proportional", "lap"])
def test_sampling_compiles_into_one_graph(sampling: str) -> None:
    """A CUDA graph records it compiled; here the compiler only reads it."""
    drawn = []
    for backend in ("", "aot_eager"):
        memory = memory_of(sampling=sampling, n_step=3)
        add(memory, m0=300)
        memory.feedback(torch.arange(300).unsqueeze(0), torch.arange(300.0).view(1, 1, 300))
        sampler = sampler_of(memory)
        sampler._streams = Counted([0], "sampling", torch.empty(1, 16, dtype=torch.float64))  # as on a GPU
        sample = torch.compile(sampler.sample, fullgraph=True, backend=backend) if backend else sampler.sample
        drawn.append([part.clone() for _ in range(3) for part in sample()])
    assert all(torch.equal(one, two) for one, two in zip(*drawn, strict=True))


class Logged(PrioritisedSampler):
    """Writes down which rows it has drawn, in a CUDA graph too."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        device = self.highest.device
        self.log = torch.zeros(100, *self._weight.shape, dtype=torch.int64, device=device)
        self.count = torch.zeros(1, dtype=torch.int64, device=device)

    def sample(self) -> Batch:
        batch = super().sample()
        self.log.index_copy_(0, self.count, batch.index.unsqueeze(0))
        self.count.add_(1)
        return batch

    def restore(self, state: State) -> None:
        super().restore(state)
        self.count.zero_()


def learned(monkeypatch: pytest.MonkeyPatch, sampling: str, device: str, replay_on: str, engine: str) -> Logged:
    """The sampler after some updates on errors of networks that learn."""
    monkeypatch.setitem(samplers.SAMPLERS, sampling, Logged)
    memory = memory_of(replay_on, seeds=2, sampling=sampling)
    add(memory, m0=300, m1=200)
    cfg = config(400, 2, 16, sampling=sampling).td3
    learner = Learner(SPEC, cfg, range(2), device, engine=engine, source=memory)
    if engine != "eager":
        learner.prepare()
    for n in (1, 2, 9, 20):
        learner.run(n)
        add(memory, m0=3, m1=5)
    assert isinstance(memory.sampler, Logged) and memory.sampler.count.tolist() == [32]
    assert int(memory.sampler.updates) == 32
    return memory.sampler


PLACES = [
    ("cpu", "cpu", "eager"),
    *(pytest.param("cuda", on, "capture", marks=GPU, id=f"captured, replay on {on}") for on in ("cuda", "cpu")),
]


@pytest.mark.parametrize("sampling", ["proportional", "lap"])
@pytest.mark.parametrize(("device", "replay_on", "engine"), PLACES)
def test_the_same_run_draws_the_same_rows_again_and_captured_equals_eager(
    monkeypatch: pytest.MonkeyPatch, sampling: str, device: str, replay_on: str, engine: str
) -> None:
    one, two = (learned(monkeypatch, sampling, device, replay_on, engine) for _ in range(2))
    assert torch.equal(one.log, two.log) and torch.equal(one.tree.priorities, two.tree.priorities)
    eager = learned(monkeypatch, sampling, device, replay_on, "eager")
    assert torch.equal(one.log[0], eager.log[0])
    same = float((one.log == eager.log).double().mean())
    assert same > 0.99, "networks round differently when captured, which may move a border between two rows"
    torch.testing.assert_close(one.tree.priorities, eager.tree.priorities, rtol=1e-2, atol=1e-2)


@GPU
@pytest.mark.parametrize("sampling", ["proportional", "lap"])
def test_sampling_and_feedback_in_a_cuda_graph_equal_those_outside_to_the_last_bit(sampling: str) -> None:
    drawn = []
    for recorded in (False, True):
        memory = memory_of("cuda", seeds=2, capacity=20_000, sampling=sampling)
        add(memory, m0=15_000, m1=200)

        def step(memory: Memory = memory) -> Batch:
            batch = memory.sample()
            memory.feedback(batch.index, torch.stack([batch.s[..., 0] % 13, -(batch.s[..., 0] % 7)], dim=1) / 3)
            return batch

        state = memory.state()
        step()
        memory.restore(state)
        if recorded:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                batch = step()
        rows = []
        for _ in range(20):
            if recorded:
                graph.replay()
            else:
                batch = step()
            rows.append(torch.stack([batch.index.double(), batch.weight.double()]))
            add(memory, m0=11, m1=300)
        drawn.append(torch.stack([*rows]).cpu())
    assert torch.equal(*drawn)
