"""Images in CUDA graphs: captured equals eager, wherever frames are kept; and what a machine without a GPU can tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import helpers
import t3d
from image_rollouts import Player, image_spec
from rules_in_tests import CHOICES
from t3d.algo.engines.verify import FixedBatch, exact_products, mismatch, random_batch
from t3d.algo.learner import Learner
from t3d.algo.networks import named_tensors
from t3d.algo.rules import PIXELS
from t3d.config import Config, TD3Config
from t3d.data.frames import FrameReplay
from t3d.data.memory import Memory
from t3d.events import End, Resumed, Start
from t3d.policy.spec import Spec
from t3d.types import Batch, State

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
SMALL: dict[str, Any] = {
    "batch_size": 16,
    **{"actor_hidden": [16, 16], "critic_hidden": [16, 16], "actor_lr": 1e-3, "critic_lr": 1e-3, "tau": 0.05},
    **{"encoder_channels": 4, "encoder_strides": [3, 2], "encoder_features": 6},
}
LAYER_NORM = {"actor_network": "layer_norm", "critic_network": "layer_norm"}


class Case(NamedTuple):
    vector: int = 0
    images: int = 1
    stack: int = 3
    members: int = 2
    td3: dict[str, Any] = {}  # noqa: RUF012
    rest: dict[str, Any] = {}  # noqa: RUF012

    @property
    def spec(self) -> Spec:
        return image_spec(self.vector, self.images, self.stack, (3, 16, 18))

    def cfg(self, **more: Any) -> Config:
        whole = {"total_steps": 400, "seeds": list(range(self.members)), "env": {"num_envs": 2}}
        return t3d.merge(helpers.small_config(**whole, **self.rest, td3={**SMALL, **self.td3}), more)


CASES = {
    "plain": Case(),
    "one member, one frame": Case(members=1, stack=1),
    "3-step": Case(rest={"replay": {"n_step": 3}}),
    "priorities": Case(rest={"replay": {"sampling": "proportional"}}),
    "lap, 3-step": Case(td3={"critic_loss": "huber"}, rest={"replay": {"sampling": "lap", "n_step": 3}}),
    "two images": Case(images=2),
    "a vector beside an image": Case(vector=5),
    "a vector beside two images": Case(vector=3, images=2, stack=2),
    "LayerNorm": Case(td3=LAYER_NORM),
    "3 critics": Case(td3={"critics": 3}),
    "unshifted": Case(td3={"image_shift": 0}),
    "scaled rewards": Case(rest={"scale_rewards": True}),
    "everything": Case(
        vector=3,
        images=2,
        members=3,
        td3={**LAYER_NORM, **CHOICES["together"]},
        rest={"replay": {"sampling": "proportional", "n_step": 3}, "scale_rewards": True},
    ),
}

COMPILED = ("plain", "lap, 3-step", "everything")  # sampling of these is compiled too, as in a run; it takes a while


def compiling(yes: bool) -> Any:
    """Lets Inductor compile, or not, within a with statement."""
    return torch.compiler.set_stance("default" if yes else "force_eager")


class Doubled:
    """A memory whose batches are float64, so that what is learned from them can be compared closely."""

    def __init__(self, memory: Memory) -> None:
        self.memory, self.device, self.capture_safe = memory, memory.device, memory.capture_safe

    def sample(self) -> Batch:
        return Batch(*(part.double() if part.is_floating_point() else part for part in self.memory.sample()))

    def feedback(self, index: Tensor, td: Tensor) -> None:
        self.memory.feedback(index, td.float())

    def keep(self, members: Sequence[int]) -> Callable[[], None]:
        return self.memory.keep(members)

    def find_highest(self, members: Sequence[int]) -> None:
        self.memory.find_highest(members)

    def state(self) -> State:
        return self.memory.state()

    def restore(self, state: State) -> None:
        self.memory.restore(state)


def learned(case: Case, engine: str, device: str, replay_on: str, **more: Any) -> dict[str, Tensor]:
    """Everything that updates have changed, in a run whose replay wraps meanwhile."""
    cfg = case.cfg(**more)
    memory = Memory(case.spec, cfg, replay_on)
    players = [Player(np.random.default_rng(member), case.spec, member, 2, (1, 40)) for member in range(case.members)]
    memory.add(*(player.play(300) for player in players))
    learner = Learner(
        case.spec, cfg.td3, cfg.seeds, device, torch.float64, engine=engine, rule=PIXELS, source=Doubled(memory)
    )
    start = {name: tensor.clone() for name, tensor in named_tensors(learner.agent)}
    with exact_products():
        if engine == "capture":
            learner.prepare()
        for n in (1, 2, 9, 5):
            learner.run(n)
            memory.add(*(player.play(60) for player in players))
    found = dict(named_tensors(learner.agent))
    assert learner.updates == 17 and not any(torch.equal(found[name], start[name]) for name in start)
    return found


def assert_same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    for name, tensor in theirs.items():
        assert torch.allclose(ours[name], tensor, rtol=1e-6, atol=1e-8), (name, (ours[name] - tensor).abs().max())


@GPU
@pytest.mark.parametrize("case", CASES)
def test_captured_equals_eager(case: str) -> None:
    """With sampling from frames on the GPU, and feedback, in the graph."""
    with compiling(case in COMPILED):
        assert_same(*(learned(CASES[case], engine, "cuda", "cuda") for engine in ("capture", "eager")))


@GPU
@pytest.mark.parametrize("case", ["plain", "everything"])
@pytest.mark.parametrize("on_disk", [False, True], ids=["in host memory", "on disk"])
def test_frames_that_are_not_on_the_gpu_are_copied_there(case: str, on_disk: bool, tmp_path: Path) -> None:
    kept = {"replay": {"frames_on_disk": on_disk}, "run": {"root": str(tmp_path)}}
    with compiling(False):
        assert_same(*(learned(CASES[case], engine, "cuda", "cpu", **kept) for engine in ("capture", "eager")))


@pytest.mark.parametrize("on_disk", [False, True], ids=["in host memory", "on disk"])
def test_a_cpu_learns_the_same_wherever_frames_are(on_disk: bool, tmp_path: Path) -> None:
    kept = {"replay": {"frames_on_disk": on_disk}, "run": {"root": str(tmp_path)}}
    assert_same(learned(CASES["plain"], "eager", "cpu", "cpu", **kept), learned(CASES["plain"], "eager", "cpu", "cpu"))


@GPU
@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_passes_the_check_with_which_a_run_starts(choice: str) -> None:
    case = Case(vector=2, td3=CHOICES[choice])
    with compiling(False):
        assert mismatch("capture", case.spec, case.cfg().td3, range(2), "cuda", PIXELS) == ""


@GPU
def test_the_preset_passes_the_check_at_its_own_size() -> None:
    """Which switches off convolutions that round differently each time: on a GPU that twelve tests shared it failed."""
    spec, cfg = image_spec(0, 1, 3, (3, 84, 84)), t3d.preset("pixels").td3
    assert mismatch("capture", spec, cfg, range(3), "cuda", PIXELS) == ""


@GPU
@pytest.mark.parametrize(("vector", "shape"), [(0, (3, 84, 84)), (3, (3, 84, 84)), (0, (1, 33, 35)), (1, (3, 34, 34))])
def test_batches_assembled_on_the_gpu_are_the_cpus_to_the_last_bit(vector: int, shape: tuple[int, int, int]) -> None:
    spec, rng = image_spec(vector, 1, 3, shape), np.random.default_rng(0)
    players = [Player(rng, spec, member, 2, (1, 30)) for member in range(2)]
    there, here = (FrameReplay(spec, 300, 2, device, 2) for device in ("cuda", "cpu"))
    for _ in range(12):
        blocks = [player.play(int(rng.integers(1, 80))) for player in players]
        there.add(*blocks)
        here.add(*blocks)
        index, last = (here.pick(torch.rand(2, 64, dtype=torch.float64)) for _ in range(2))
        for ours, theirs in zip(there.gather(index.cuda(), last.cuda()), here.gather(index, last), strict=True):
            assert torch.equal(ours.cpu(), theirs)


@GPU
def test_nothing_waits_for_the_gpu_while_a_block_is_learned() -> None:
    case = CASES["3-step"]
    cfg = case.cfg()
    memory = Memory(case.spec, cfg, "cuda")
    for member in range(case.members):
        memory.add(Player(np.random.default_rng(member), case.spec, member, 2, (1, 40)).play(300))
    learner = Learner(case.spec, cfg.td3, cfg.seeds, "cuda", engine="capture", rule=PIXELS, source=memory)
    learner.prepare()
    learner.run(8)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")  # whatever waits for the GPU raises
    try:
        learner.run(32)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert learner.updates == 40


@GPU
@pytest.mark.parametrize("on_disk", [False, True], ids=["on the GPU", "on disk"])
def test_a_run_with_images_is_captured_and_goes_on(tmp_path: Path, on_disk: bool) -> None:
    cfg = helpers.small_config(
        **{"device": "cuda", "seeds": [0, 1], "td3": SMALL, "replay": {"frames_on_disk": on_disk, "n_step": 3}},
        env={"id": "image_worlds:TwoCameras", "frame_stack": 2},
        run={"root": str(tmp_path), "name": "gpu"},
    )
    for event in t3d.train(cfg):
        if isinstance(event, Start):
            assert event.config["engine"] == "capture"
            assert event.engine_reason == ""
        if event.step >= 200:
            break
    events = list(t3d.resume(tmp_path / "gpu"))
    assert isinstance(events[0], Resumed) and events[0].config["engine"] == "capture" and events[0].notes == []
    assert isinstance(events[-1], End) and (events[-1].updates, events[-1].reason) == (200, "finished")


@pytest.mark.parametrize("choice", ["plain", *CHOICES])
def test_an_update_asks_for_no_value_and_stays_on_its_device(choice: str) -> None:
    """On a device whose tensors have shapes and no values: a CUDA graph could record neither."""
    case = Case(vector=2, images=2, td3=CHOICES.get(choice, {}))
    cfg = case.cfg().td3
    learner = Learner(case.spec, cfg, range(2), "meta", rule=PIXELS)
    batch = random_batch(case.spec, cfg, 2, "meta")
    for phase in learner.phases:
        trace = learner.update(batch, learner.draw())
        assert {value.device.type for value in trace if value is not None} == {"meta"}
        assert (trace.pi is not None) == phase


def test_a_value_that_is_asked_for_would_be_seen() -> None:
    def update(agent: Any, batch: Batch, *arguments: Any) -> Any:
        return PIXELS.update(agent, batch._replace(r=batch.r / float(batch.r.max())), *arguments)

    case = Case()
    learner = Learner(case.spec, case.cfg().td3, range(2), "meta", rule=PIXELS._replace(update=update))
    with pytest.raises(RuntimeError, match="meta"):
        learner.update(random_batch(case.spec, case.cfg().td3, 2, "meta"), learner.draw())


@pytest.mark.parametrize("shift", [0, 4])
def test_the_draws_of_an_update_can_be_compiled_whole(shift: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What prepare() compiles for a GPU besides sampling and the update (tests/data/test_frames.py)."""
    monkeypatch.setattr("t3d.algo.learner.open_streams", t3d.random_streams.Counted)
    cfg = replace(TD3Config(batch_size=8), image_shift=shift)
    spec = image_spec(0, 1, 3, (3, 32, 32))
    plain, compiled = (Learner(spec, cfg, range(2), rule=PIXELS) for _ in range(2))
    source = FixedBatch(random_batch(spec, cfg, 2, "cpu"))
    together = torch.compile(
        lambda: (source.sample(), compiled.draw()), fullgraph=True, dynamic=False, backend="aot_eager"
    )
    for _ in range(2):
        expected, (_, drawn) = plain.draw(), together()
        assert (drawn.shift is None) == (shift == 0)
        for ours, theirs in zip(drawn, expected, strict=True):
            assert (ours is None and theirs is None) or torch.equal(ours, theirs)
    torch.compiler.reset()
