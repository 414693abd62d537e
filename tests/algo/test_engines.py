"""Engines: picked, proven at the start, recorded, and stepped back from when they are wrong."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import helpers
import t3d
from t3d.algo import engines
from t3d.algo.engines import fused
from t3d.algo.engines.fused import Fused
from t3d.algo.engines.verify import faster_threads, mismatch
from t3d.algo.learner import Learner
from t3d.config import Config, TD3Config, merge
from t3d.errors import UserError
from t3d.events import End, Note, Resumed, Start, Update
from t3d.random_streams import Counted
from t3d.run import live
from t3d.run.placement import resolve
from t3d.types import Draws, UpdateTrace

SPEC = helpers.make_spec()
CFG = TD3Config(batch_size=16, actor_hidden=(16, 16), critic_hidden=(16, 16))


@pytest.mark.parametrize(("asked", "used"), [("auto", "fused"), ("fused", "fused"), ("eager", "eager")])
def test_every_engine_trains_and_is_recorded(tmp_path: Path, asked: str, used: str) -> None:
    cfg = helpers.small_config(engine=asked, device="cpu", run={"root": str(tmp_path), "name": "run"})
    events = list(t3d.train(cfg))
    start, end = events[0], events[-1]
    assert isinstance(start, Start) and start.config["engine"] == used and start.config["threads"] >= 1
    assert isinstance(end, End) and end.updates == 200
    assert f'engine = "{asked}"' in (tmp_path / "run" / "config.toml").read_text(), "another machine may choose"
    assert not any(isinstance(event, Note) for event in events)


def test_a_resumed_run_keeps_its_engine(tmp_path: Path) -> None:
    cfg = helpers.small_config(engine="eager", run={"root": str(tmp_path), "name": "run"})
    for event in t3d.train(cfg):
        if isinstance(event, Update):
            break
    resumed = next(t3d.resume(tmp_path / "run", cfg=merge(cfg, {"engine": "auto"})))
    assert isinstance(resumed, Resumed) and resumed.config["engine"] == "eager"
    again = next(t3d.resume(tmp_path / "run", cfg=merge(cfg, {"engine": "fused"})))
    assert isinstance(again, Resumed) and again.config["engine"] == "eager", "bits depend on it"


def test_fused_and_eager_learn_the_same_first_steps(tmp_path: Path) -> None:
    """Whole runs drift apart with rounding; twenty updates do not."""
    actors = []
    for engine in ("eager", "fused"):
        cfg = helpers.small_config(
            total_steps=120, device="cpu", engine=engine, run={"root": str(tmp_path), "name": engine}
        )
        list(t3d.train(cfg))
        actors.append(load_file(tmp_path / engine / "last" / "seed-0.safetensors")["actor"])
    np.testing.assert_allclose(actors[0], actors[1], atol=1e-5)
    assert not np.array_equal(actors[0], Learner(helpers.make_spec(3, 1), cfg.td3, (0,)).snapshot().flat[0])


@pytest.mark.parametrize("members", [1, 3])
def test_a_right_engine_is_not_doubted(members: int) -> None:
    for cfg in (CFG, TD3Config(actor_hidden=(400, 300), critic_hidden=(400, 300), batch_size=100, actor_lr=1e-3)):
        assert mismatch("fused", SPEC, cfg, range(members), "cpu") == ""


class Wrong(Fused):
    """Forgets that the actor's target follows: the kind of error that trains, only worse."""

    def __call__(self, batch: Any, draws: Draws, update_actor: bool) -> UpdateTrace:
        before = self.agent.actor_target.flat.clone()
        steps = super().__call__(batch, draws, update_actor)
        self.agent.actor_target.flat.copy_(before)
        return steps


class Broken(Fused):
    def __call__(self, batch: Any, draws: Draws, update_actor: bool) -> UpdateTrace:
        raise RuntimeError("no such kernel\nand a long trace")


class NotANumber(Fused):
    def __call__(self, batch: Any, draws: Draws, update_actor: bool) -> UpdateTrace:
        steps = super().__call__(batch, draws, update_actor)
        self.agent.critic.flat.fill_(float("nan"))
        return steps


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        (Wrong, "of the actor target differ from eager's after 10"),
        (Broken, "RuntimeError: no such kernel"),
        (NotANumber, "differs from eager's in the first complete update"),
    ],
)
def test_a_wrong_engine_is_stepped_back_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: type[Fused], words: str
) -> None:
    monkeypatch.setattr(engines, "Fused", engine)
    events = list(t3d.train(helpers.small_config(device="cpu", run={"root": str(tmp_path)})))
    start, end = events[0], events[-1]
    assert isinstance(start, Start) and start.config["engine"] == "eager"
    assert isinstance(end, End) and end.updates == 200
    notes = [event.text for event in events if isinstance(event, Note)]
    assert len(notes) == 1 and "engine fused is not used: " in notes[0] and words in notes[0]


MUTATIONS = {
    "a2 = torch.add(self.pi2, eps, out=self.a2).clamp_(-1, 1)": "a2 = torch.add(self.pi2, eps, out=self.a2)",
    ".mul_(self.two_over_b)": ".mul_(self.two_over_b).mul_(0.5)",
    ".mul_(batch.discount)": ".mul_(self.cfg.gamma)",
    "torch.mul(td, batch.weight, out=": "torch.mul(td, self.one, out=",
    "pi=self.pi, q_pi=q_pi": "pi=torch.zeros_like(self.pi), q_pi=q_pi",
    "torch.sub(self.one, batch.terminated, out=self.y)": "torch.sub(self.one, self.y * 0, out=self.y)",
    "polyak(self.agent.critic_target, self.agent.critic, self.coefficients.tau)": "pass",
    "self.a[: self.maximised].copy_(self.pi)": "pass",
}


@pytest.mark.parametrize("right", MUTATIONS)
def test_the_proof_sees_errors_that_train_all_the_same(monkeypatch: pytest.MonkeyPatch, right: str) -> None:
    source = Path(fused.__file__).read_text()
    assert source.count(right) >= 1
    changed = types.ModuleType("changed_fused")
    exec(compile(source.replace(right, MUTATIONS[right]), "changed_fused.py", "exec"), changed.__dict__)
    monkeypatch.setattr(engines, "Fused", changed.Fused)
    assert mismatch("fused", helpers.make_spec(17, 6), TD3Config(), (0,), "cpu") != ""


def test_an_engine_that_does_not_fit_the_device_is_refused() -> None:
    with pytest.raises(UserError, match="engine=capture does not run on the cpu; choose one of auto, fused, eager"):
        resolve(Config(device="cpu", engine="capture"))


def test_tf32_is_a_choice(tmp_path: Path) -> None:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        for chosen in (True, False):
            cfg = helpers.small_config(tf32=chosen, run={"root": str(tmp_path), "name": str(chosen)})
            with live.train(cfg) as run:
                next(run)
                with run._working():
                    assert torch.backends.cuda.matmul.allow_tf32 == chosen
                    assert torch.backends.cudnn.allow_tf32 == chosen, "convolutions are not matrix products to torch"
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def test_threads_are_one_or_all() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert faster_threads("fused", SPEC, CFG, (0,)) in (1, 2) and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    torch.set_num_threads(1)
    assert faster_threads("fused", SPEC, CFG, (0,)) == 1


def split_mix(key: int, number: int) -> int:
    """SplitMix64 in whole numbers, as its authors give it."""
    z = (key + number * 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return z ^ z >> 31


def test_counted_streams_are_splitmix64_and_their_numbers_are_sound() -> None:
    streams = Counted((5, 8), "sampling", torch.empty(2, 50, 1000, dtype=torch.float64))
    first = streams.uniform()
    assert first.shape == (2, 50, 1000)
    for member in (0, 1):
        key = int(streams._keys[member, 0]) % 2**64
        assert [int(value * 2**53) for value in first[member].flatten()[:100]] == [
            split_mix(key, number) >> 11 for number in range(1, 101)
        ]
    assert first.min() >= 0 and first.max() < 1 and abs(float(first.mean()) - 0.5) < 0.005
    state = streams.state()
    again = streams.uniform()
    assert not torch.equal(first, again)
    streams.restore(state)
    assert torch.equal(streams.uniform(), again)
    normal = Counted((1,), "target noise", torch.empty(1, 200_000)).normal()
    assert abs(float(normal.mean())) < 0.01 and abs(float(normal.std()) - 1) < 0.01
    assert abs(float((normal**4).mean()) - 3) < 0.1 and bool(torch.isfinite(normal).all())


@pytest.mark.parametrize("bits", [0, 2**23 - 1])
def test_the_ends_of_the_normal_distribution_are_finite(monkeypatch: pytest.MonkeyPatch, bits: int) -> None:
    monkeypatch.setattr(Counted, "_bits", lambda self, count: torch.full((1, 2), bits))
    values = Counted((1,), "target noise", torch.empty(1, 2)).normal()
    assert bool(torch.isfinite(values).all()) and float(values.abs().min()) > 5
