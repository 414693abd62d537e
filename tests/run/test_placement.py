"""Where a run is placed: device, threads and a replay that fits."""

from __future__ import annotations

import threading
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import torch

import helpers
import t3d
from image_rollouts import image_spec
from t3d.algo.engines.verify import random_batch
from t3d.algo.rules import PIXELS, TD3
from t3d.config import Config, EnvConfig
from t3d.data.memory import Memory, bytes_needed
from t3d.errors import UserError
from t3d.run.build import assemble
from t3d.run.placement import batch_bytes, replay_device, resolve, set_threads
from t3d.run.surroundings import Surroundings
from t3d.types import Requests
from t3d.world.make import env_factory


def test_a_replay_that_does_not_fit_is_refused_with_a_size_that_does() -> None:
    cfg = helpers.small_config(total_steps=10**12, replay={"capacity": 10**12})
    with pytest.raises(UserError, match=r"GiB are free; replay.capacity=\d+ would fit"):
        replay_device(resolve(cfg), helpers.make_spec())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_cuda_is_refused_where_there_is_none() -> None:
    with pytest.raises(UserError, match="no CUDA device"):
        resolve(Config(device="cuda"))
    assert resolve(Config()).device == "cpu"


def test_threads_are_set_and_recorded() -> None:
    before = torch.get_num_threads()
    try:
        assert set_threads(resolve(Config(threads=2)), helpers.make_spec(), TD3, "fused") == (2, [])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set_threads(resolve(Config()), helpers.make_spec(), TD3, "fused") == (before, [])


def test_a_short_run_takes_no_more_memory_than_it_needs(tmp_path: Path) -> None:
    cfg = helpers.small_config(run={"root": str(tmp_path)})
    with ExitStack() as opened:
        requests = Requests(threading.Event(), threading.Event())
        surroundings = opened.enter_context(closing(Surroundings()))
        make_env = env_factory(EnvConfig("Pendulum-v1"))
        memory = assemble(resolve(cfg), requests, make_env, opened, surroundings).parts.memory
    assert isinstance(memory, Memory) and memory.replay.capacity == 300


@pytest.mark.parametrize(("sweep", "who"), [([], "seeds"), (["td3.gamma=0.9,0.99"], "members")])
@pytest.mark.parametrize("free", [0, 2**17], ids=["networks", "replay"])
def test_what_does_not_fit_into_memory_names_what_to_train_fewer_of(
    sweep: list[str], who: str, free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("t3d.run.placement._free_bytes", lambda device: free)
    cfg = helpers.small_config(device="cpu", total_steps=10**5, sweep=sweep)
    with pytest.raises(UserError, match=f"or train fewer {who} at once$"):
        replay_device(cfg, helpers.make_spec())


@pytest.mark.parametrize("members", [1, 3])
def test_what_an_update_computes_of_images_is_counted(members: int) -> None:
    """At least what autograd keeps for the backward pass, and not many times that."""
    cfg = helpers.small_config(seeds=list(range(members)), td3={"batch_size": 32})
    spec = image_spec(2, 2, 3, (3, 40, 44))
    agent = PIXELS.init(spec, cfg.td3, cfg.seeds)
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    s = random_batch(spec, cfg.td3, members, "cpu").s
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        encoded = agent.policy.encode(s)
    assert encoded.requires_grad and sum(kept.values()) > 4 * s.numel()
    assert sum(kept.values()) < batch_bytes(cfg, spec) < 5 * sum(kept.values())
    assert batch_bytes(cfg, helpers.make_spec()) == 0


@pytest.mark.parametrize("every", [0, 1000])
def test_a_replay_of_images_leaves_room_for_updates(monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    """And for the second agent that diagnostics try updates on."""
    log, agents = {"diagnose_every_steps": every}, 2 if every else 1
    cfg = helpers.small_config(device="cpu", total_steps=50_000, td3={"batch_size": 256}, log=log)
    spec = image_spec(0, 1, 3, (3, 84, 84))
    networks, replay = agents * 20 * PIXELS.parameters(spec, cfg.td3), bytes_needed(spec, cfg)
    needed = networks + replay + agents * batch_bytes(cfg, spec)
    for free, fits in ((needed - 1, False), (needed, True)):
        monkeypatch.setattr("t3d.run.placement._free_bytes", lambda device, free=free: free)
        if fits:
            assert replay_device(cfg, spec) == "cpu"
        else:
            with pytest.raises(UserError, match="the replay needs"):
                replay_device(cfg, spec)
    monkeypatch.setattr("t3d.run.placement._free_bytes", lambda device: networks)
    with pytest.raises(UserError, match=r"make td3.batch_size or the images smaller"):
        replay_device(cfg, spec)


@pytest.mark.parametrize(
    "changes", [{"image_shift": 2}, {"encoder_channels": 8}, {"encoder_strides": [2]}, {"encoder_features": 9}], ids=str
)
def test_settings_of_images_are_refused_where_there_are_none(tmp_path: Path, changes: dict[str, Any]) -> None:
    cfg = helpers.small_config(td3=changes, run={"root": str(tmp_path)})
    with pytest.raises(UserError, match=rf"td3.{next(iter(changes))}=\S+ is for images, and Pendulum-v1 observes none"):
        list(t3d.train(cfg))
    assert not list(tmp_path.iterdir())
