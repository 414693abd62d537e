"""Where a run is placed: device, threads and a replay that fits."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

import helpers
from t3d.algo.rules import TD3
from t3d.config import Config
from t3d.data.memory import Memory
from t3d.errors import UserError
from t3d.run.build import assemble
from t3d.run.placement import replay_device, resolve, set_threads
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
        assert set_threads(resolve(Config(threads=2)), helpers.make_spec(), TD3, "fused") == 2
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set_threads(resolve(Config()), helpers.make_spec(), TD3, "fused") == before


def test_a_short_run_takes_no_more_memory_than_it_needs(tmp_path: Path) -> None:
    cfg = helpers.small_config(run={"root": str(tmp_path)})
    with ExitStack() as opened:
        requests = Requests(threading.Event(), threading.Event())
        memory = assemble(resolve(cfg), requests, env_factory("Pendulum-v1"), opened).parts.memory
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
