"""The CUDA engine in runs on a GPU: recorded, staged, published."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import helpers
import t3d
from t3d.algo.critics import OBJECTIVES
from t3d.algo.engines import ENGINES, capture
from t3d.algo.engines.verify import mismatch
from t3d.algo.learner import Learner
from t3d.algo.networks import named_tensors
from t3d.config import Config, ReplayConfig, TD3Config
from t3d.config.presets import PRESETS
from t3d.data.memory import Memory
from t3d.data.replay import Replay
from t3d.events import ActingEvent, End, Resumed
from t3d.policy.acting import PolicySnapshot
from t3d.run.build import PipelinedPublisher

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")


def numbers_of(learner: Learner) -> dict[str, torch.Tensor]:
    return dict(named_tensors(learner.agent))


def on_gpu(engine: str, seeds: range, cfg: TD3Config, n_step: int = 1) -> tuple[Learner, Memory]:
    """A learner and a full memory, the same for every engine."""
    spec = helpers.make_spec()
    whole = Config(total_steps=1000, random_steps=0, seeds=tuple(seeds), td3=cfg, replay=ReplayConfig(n_step=n_step))
    memory = Memory(spec, whole, "cuda")
    replay = memory.replay
    replay.rows.copy_(torch.randn(replay.rows.shape, generator=torch.Generator().manual_seed(1)))
    replay.rows[..., spec.observation_size : -spec.observation_size].clamp_(0, 1)  # a, r and terminated
    origins = np.array([(0, number // 7, number % 7, 1 if number % 7 == 6 else 0) for number in range(1000)], np.int32)
    replay.set_added([1000] * len(seeds))
    replay.links.add(*((member, origins, 1000) for member in range(len(seeds))))
    learner = Learner(spec, cfg, seeds, "cuda", engine=engine, source=memory)
    if ENGINES[engine].records:
        learner.prepare()
    return learner, memory


@GPU
@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("policy_delay", [1, 2, 3])
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("preset", ["default", "plus"])
def test_graphs_make_the_same_updates_in_any_number_and_phase(
    preset: str, n_step: int, members: int, policy_delay: int
) -> None:
    small: dict[str, Any] = {"batch_size": 32, "actor_hidden": (32, 32), "critic_hidden": (32, 32)}
    cfg = replace(t3d.preset(preset).td3, policy_delay=policy_delay, **small)
    (eager, memory), (graph_learner, graph_memory) = (
        on_gpu(name, range(members), cfg, n_step) for name in ("eager", "capture")
    )
    assert graph_learner.updates == 0
    for name, value in numbers_of(eager).items():
        assert torch.equal(numbers_of(graph_learner)[name], value), f"recording has touched {name}"
    for n in (1, 2, 5, 3, 17, 1, 26):
        expected, given = eager.run(n), graph_learner.run(n)
        for name, value in expected._asdict().items():
            other = getattr(given, name)
            assert (value is None) == (other is None), name
            if value is not None:
                torch.testing.assert_close(other, value, rtol=1e-3, atol=1e-3, msg=partial("{}: {}".format, name))
    assert eager.updates == graph_learner.updates == 55
    for name, value in numbers_of(eager).items():
        torch.testing.assert_close(numbers_of(graph_learner)[name], value, rtol=1e-3, atol=1e-4)
    drawn = [int(one.sampler._streams.drawn[0]) for one in (memory, graph_memory)]  # type: ignore[union-attr]
    assert drawn == [55 * 32] * 2


@GPU
@pytest.mark.parametrize("preset", ["default", "plus"])
def test_the_proof_passes_and_sees_what_is_compiled_wrongly(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, cfg = helpers.make_spec(17, 6), t3d.preset(preset).td3
    assert mismatch("capture", spec, cfg, range(2), "cuda") == ""
    wrong = {torch.ops.aten.baddbmm.default: lambda bias, x, weight: torch.bmm(x, weight) + 1.5 * bias}
    monkeypatch.setattr(capture, "FUSED_WITH_NEIGHBOURS", wrong)
    assert "from eager's" in mismatch("capture", spec, replace(cfg, batch_size=64), (0,), "cuda")


@GPU
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize(("actor", "critic"), [("mlp", "layer_norm"), ("layer_norm", "mlp"), ("residual", "residual")])
def test_the_proof_passes_for_networks_and_objectives(actor: str, critic: str, objective: Any) -> None:
    cfg = TD3Config(actor_network=actor, critic_network=critic, actor_objective=objective, critics=3, batch_size=64)
    assert mismatch("capture", helpers.make_spec(17, 6), cfg, range(2), "cuda") == ""


@GPU
@pytest.mark.parametrize("preset", ["default", "plus"])
def test_a_run_on_the_gpu_picks_capture_and_goes_on_after_a_stop(tmp_path: Path, preset: str) -> None:
    changes = PRESETS[preset].changes.get("td3", {})
    cfg = helpers.small_config(device="cuda", seeds=[0, 1], td3=changes, run={"root": str(tmp_path), "name": "gpu"})
    for event in t3d.train(cfg):
        if event.step >= 200:
            break
    events = list(t3d.resume(tmp_path / "gpu"))
    assert isinstance(events[0], Resumed) and events[0].config["engine"] == "capture" and events[0].notes == []
    assert isinstance(events[-1], End) and (events[-1].updates, events[-1].reason) == (200, "finished")


@GPU
def test_no_synchronisation_in_steady_state() -> None:
    cfg = TD3Config()
    learner, _ = on_gpu("capture", range(2), cfg)
    learner.run(16)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")  # whatever waits for the GPU raises
    try:
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
            learner.run(64)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    calls = {event.key: event.count for event in seen.key_averages()}
    assert calls.get("cudaGraphLaunch") == 64 // 8
    waiting = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpy", "cudaMemcpyAsync")
    assert not [name for name in waiting if name in calls], calls  # the profiler itself waits for the device at its end


@GPU
def test_a_replay_in_host_memory_gives_the_same_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same batches, staged: what the GPU learns from them is the same to the last bit."""
    cfg = helpers.small_config(device="cuda", seeds=[0, 1], td3={"batch_size": 64}, total_steps=1000)
    spec, rng, learned = helpers.make_spec(), np.random.default_rng(0), []
    s, a = rng.normal(size=(500, 5)).astype(np.float32), rng.uniform(-1, 1, (500, 3)).astype(np.float32)
    for engine in ("eager", "capture"):
        memory = Memory(spec, cfg, "cpu")
        for member in (0, 1):
            memory.add(helpers.rollout_of(member, s, a, s[:, 0], s + 1, s[:, 1] > 1))
        learner = Learner(spec, cfg.td3, cfg.seeds, "cuda", engine=engine, source=memory)
        if engine == "capture":
            learner.prepare()
        for n in (1, 6, 13):
            steps = learner.run(n)
        assert memory.device.type == "cpu" and steps.q.device.type == "cuda" and learner.updates == 20
        learned.append(numbers_of(learner))
    for name, value in learned[0].items():
        torch.testing.assert_close(learned[1][name], value, rtol=1e-3, atol=1e-5)


class Listener:
    """A collector that only remembers what is published."""

    def __init__(self) -> None:
        self.heard: list[PolicySnapshot] = []

    def publish(self, snapshot: PolicySnapshot, updates: int) -> None:
        assert updates >= snapshot.updates
        self.heard.append(snapshot._replace(flat=snapshot.flat.copy()))


@GPU
def test_policies_leave_the_gpu_whole_and_one_call_late() -> None:
    cfg = helpers.small_config(device="cuda", seeds=[0, 1], total_steps=1000)
    learner, _ = on_gpu("capture", range(2), cfg.td3)
    listener = Listener()
    memory = Memory(helpers.make_spec(), cfg, "cuda")
    publisher = PipelinedPublisher(learner, memory, listener)  # type: ignore[arg-type]  # only what it needs
    expected: list[PolicySnapshot] = []
    for calls in range(20):
        learner.run(8)
        expected.append(learner.snapshot())
        publisher.publish()
        assert len(listener.heard) == calls
    publisher.finish()
    publisher.finish()
    assert [one.updates for one in listener.heard] == [8 * call for call in range(1, 21)]
    for ours, theirs in zip(listener.heard, expected, strict=True):
        assert np.array_equal(ours.flat, theirs.flat)


@GPU
def test_rows_that_are_sent_without_waiting_arrive() -> None:
    spec, rng = helpers.make_spec(), np.random.default_rng(0)
    on_cpu, on_cuda = Replay(spec, 700, 2), Replay(spec, 700, 2, "cuda")
    for number in range(300):
        s = rng.normal(size=(int(rng.integers(1, 20)), 5)).astype(np.float32)
        rollout = helpers.rollout_of(number % 2, s, s[:, :3], s[:, 0], s + 1, s[:, 1] > 0)
        on_cpu.add(rollout)
        on_cuda.add(rollout)
    assert torch.equal(on_cuda.rows.cpu(), on_cpu.rows) and torch.equal(on_cuda.size.cpu(), on_cpu.size)


@GPU
@pytest.mark.parametrize("network", ["mlp", "layer_norm"])
def test_actors_and_graphs_together(tmp_path: Path, network: str) -> None:
    cfg = helpers.small_config(
        device="cuda",
        td3={"actor_network": network},
        seeds=[0, 1, 2],
        actors="local:3",
        total_steps=3000,
        run={"root": str(tmp_path), "name": "gpu"},
    )
    events = list(t3d.train(cfg))
    end = events[-1]
    assert isinstance(end, End) and (end.reason, end.step, end.updates) == ("finished", 3000, 2900)
    acting = [event for event in events if isinstance(event, ActingEvent)]
    assert acting[-1].ratio == 1.0 and 0 < acting[-1].age_p99 < 96 + 2 * 32 + 3
