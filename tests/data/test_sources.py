"""A source that listens: which transitions are new, and how well they were predicted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import helpers
import t3d
from t3d.algo.learner import Learner
from t3d.data import memory as memories
from t3d.data import samplers
from t3d.data.samplers import UniformSampler, n_step_batch
from t3d.events import End, Saved
from t3d.types import Batch, State

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")


class WorstFirst(UniformSampler):
    """Takes the transitions with the largest errors; new ones count as infinitely bad. Draws nothing, so tests know."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        rows = self.replay.rows
        self.error = torch.full(rows.shape[:2], -1.0, device=rows.device)  # (M, capacity); -1: nothing is there
        self.heard: list[tuple[int, int, int]] = []

    def sample(self) -> Batch:
        self.sampled = index = self.error.topk(self._gamma.shape[1], dim=1).indices
        return n_step_batch(self.replay, index, self._gamma, self._weight, self.n_step)

    def added(self, *blocks: tuple[int, int, int]) -> None:
        self.heard += blocks
        for member, first, stop in blocks:
            rows = torch.arange(first, stop, device=self.error.device) % self.replay.capacity
            self.error[member, rows] = torch.inf

    def feedback(self, index: Tensor, td: Tensor) -> None:
        self.error.scatter_(1, index.to(self.error.device), td.abs().amax(dim=1).float().to(self.error.device))

    def state(self) -> State:
        return {"error": self.error.cpu().numpy().copy()}

    def restore(self, state: State) -> None:
        self.error.copy_(torch.from_numpy(state["error"]))


class OnTheHost(WorstFirst):
    """The same, but not to be recorded in a CUDA graph."""

    capture_safe = False


def filled(device: str, sampler: type[UniformSampler], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(samplers.SAMPLERS, "uniform", sampler)
    cfg = helpers.small_config(total_steps=1000, seeds=[0, 1], td3={"batch_size": 16})
    memory, rng = memories.Memory(helpers.make_spec(), cfg, device), np.random.default_rng(0)
    for member in (0, 1):
        s, a = rng.normal(size=(64, 5)).astype(np.float32), rng.uniform(-1, 1, (64, 3)).astype(np.float32)
        memory.add(helpers.rollout_of(member, s, a, s[:, 0], s + 1, s[:, 1] > 1))
    return memory, cfg


def test_a_source_hears_what_is_added_and_how_it_was_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, cfg = filled("cpu", WorstFirst, monkeypatch)
    sampler = memory.sampler
    assert isinstance(sampler, WorstFirst) and sampler.heard == [(0, 0, 64), (1, 0, 64)]
    learner = Learner(helpers.make_spec(), cfg.td3, cfg.seeds, source=memory)
    for number in range(1, 5):  # 64 new transitions, 16 at a time: each comes once before any comes again
        trace = learner.run(1)
        index = sampler.sampled
        assert torch.equal(sampler.error.gather(1, index), trace.td.abs().amax(dim=1)), "just these errors were told"
        assert (sampler.error[:, :64] == torch.inf).sum(dim=1).tolist() == [64 - 16 * number] * 2
    assert (sampler.error[:, 64:] == -1).all()


@GPU
@pytest.mark.parametrize(("device", "sampler"), [("cuda", WorstFirst), ("cuda", OnTheHost), ("cpu", OnTheHost)])
def test_feedback_works_inside_and_outside_of_a_cuda_graph(
    monkeypatch: pytest.MonkeyPatch, device: str, sampler: type[UniformSampler]
) -> None:
    learned = []
    for one in ("eager", "capture"):
        memory, cfg = filled(device, sampler, monkeypatch)
        learner = Learner(helpers.make_spec(), cfg.td3, cfg.seeds, "cuda", engine=one, source=memory)
        if one != "eager":
            learner.prepare()
        for n in (1, 2, 9, 8):
            learner.run(n)
        learned.append((learner.agent.critic.flat.clone(), memory.sampler.error.clone()))
    for ours, theirs in zip(*learned, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_a_run_with_a_source_that_listens_resumes_to_the_last_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(samplers.SAMPLERS, "uniform", WorstFirst)
    found = []
    for name in ("straight", "resumed"):
        place = {"root": str(tmp_path), "name": name}
        cfg = helpers.small_config(threads=1, run=place, checkpoint={"every_steps": 130})
        for event in t3d.train(cfg):
            if name == "resumed" and isinstance(event, Saved) and event.step == 260:
                break
        if name == "resumed":
            events = list(t3d.resume(tmp_path / name))
            assert isinstance(events[-1], End) and events[-1].updates == 200
        found.append((tmp_path / name / "last" / "seed-0.safetensors").read_bytes())
    assert found[0] == found[1]


def test_uniform_sampling_ignores_it() -> None:
    cfg = helpers.small_config(total_steps=1000)
    memory = memories.Memory(helpers.make_spec(3, 1), cfg, "cpu")
    before = memory.state()
    memory.sampler.added((0, 0, 16))
    memory.feedback(torch.zeros(1, 16).long(), torch.ones(1, 2, 16))
    after = memory.state()
    assert np.array_equal(*(one["sampler"]["streams"]["generators"] for one in (before, after)))
    assert memory.capture_safe is False, "on the CPU nothing is captured"
