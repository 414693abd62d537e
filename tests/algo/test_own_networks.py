"""A network from a file of the user's: trained, resumed, acted with in other processes, loaded, refused if wrong."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import helpers
import t3d
from run_folders import assert_equal
from t3d.algo.learner import Learner
from t3d.algo.rules import TD3
from t3d.app.cli import main
from t3d.architectures import Kind
from t3d.errors import UserError
from t3d.events import End, Saved, Start
from t3d.modules import import_named

PAGE = (Path(__file__).parents[2] / "docs" / "networks.md").read_text(encoding="utf-8")
GATED = re.search(r"```python\n(# gated_network.py\n.*?)```", PAGE, re.DOTALL)[1]  # type: ignore[index]


@pytest.fixture
def gated(tmp_path: Path) -> str:
    """The network of the page, in a file whose name no other test imports."""
    file = tmp_path / f"gated_{tmp_path.name}_{os.getpid()}.py"
    file.write_text(GATED)
    return f"{file}:gated"


def config(tmp_path: Path, name: str, network: str, **changes: Any) -> Any:
    networks = {"actor_network": network, "critic_network": network, "critic_activation": "tanh"}
    place = {"root": str(tmp_path / "runs"), "name": name}
    cfg = helpers.small_config(td3=networks, run=place, checkpoint={"every_steps": 100})
    return t3d.merge(cfg, {"seeds": [0, 1], "device": "cpu", **changes})


def test_it_trains_says_why_it_is_eager_and_resumes_to_the_last_bit(tmp_path: Path, gated: str) -> None:
    events = list(t3d.train(config(tmp_path, "straight", gated)))
    start, end = events[0], events[-1]
    assert isinstance(start, Start) and start.config["engine"] == "eager"
    assert start.engine_reason == f"fused computes ReLU perceptrons only, and the actor's network is {gated} with relu"
    assert isinstance(end, End) and (end.reason, end.updates) == ("finished", 200)
    for event in t3d.train(config(tmp_path, "resumed", gated)):
        if isinstance(event, Saved) and event.step == 200:
            break
    list(t3d.resume(tmp_path / "runs" / "resumed"))
    assert_equal(tmp_path / "runs" / "straight", tmp_path / "runs" / "resumed")


def test_actor_processes_evaluation_and_load_policy(
    tmp_path: Path, gated: str, capsys: pytest.CaptureFixture[str]
) -> None:
    events = list(t3d.train(config(tmp_path, "actors", gated, actors="local:2")))
    assert isinstance(events[-1], End) and events[-1].reason == "finished"
    run = tmp_path / "runs" / "actors"
    assert main(["eval", str(run), "--episodes", "1", "--seed", "0"]) == 0
    assert "mean return" in capsys.readouterr().out
    stem = run / "last" / "seed-1"
    with pytest.raises(UserError, match=r"the network of .*seed-1 is .*:gated', which is not one of T3D's; import it"):
        t3d.load_policy(stem)
    policy = t3d.load_policy(stem, network=import_named(gated, Kind, "network"))
    actions = [policy(observation) for observation in np.eye(3, dtype=np.float32)]
    assert len({float(action[0]) for action in actions}) == 3


WRONG = {
    "torch only": ("forward_torch", "in NumPy, with which policies act, it raises TypeError"),
    "another shape": ("forward_short", r"in torch, where it passes K networks at once, it returns shape \(2, 5, 2\)"),
    "different": ("forward_different", "NumPy and torch differ by"),
    "raises": ("forward_raises", "in torch, .* it raises KeyError"),
}
FORWARDS = """
import torch
from t3d.architectures import Kind, mlp, mlp_layout
def forward_torch(parameters, x, ops):
    return torch.sin(mlp(parameters, x, ops))
def forward_short(parameters, x, ops):
    return mlp(parameters[:-2], x, ops)[..., :2]
def forward_different(parameters, x, ops):
    return mlp(parameters, x, ops) + (1 if x.ndim == 2 else 0)
def forward_raises(parameters, x, ops):
    return {}["nothing"]
forward_torch, forward_short, forward_different, forward_raises = (
    Kind(mlp_layout, one) for one in (forward_torch, forward_short, forward_different, forward_raises)
)
layout_raises = Kind(lambda sizes: [][0], mlp)
"""


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_network_is_refused_in_a_sentence_before_anything_is_written(tmp_path: Path, what: str) -> None:
    name, words = WRONG[what]
    file = tmp_path / f"wrong_{name}.py"
    file.write_text(FORWARDS)
    with pytest.raises(UserError, match=f"the network .*{name} cannot be used: {words}"):
        list(t3d.train(config(tmp_path, "wrong", f"{file}:{name}")))
    assert not (tmp_path / "runs" / "wrong").exists()


def test_a_layout_that_fails_is_refused_in_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "wrong_layout.py"
    file.write_text(FORWARDS)
    with pytest.raises(
        UserError, match=r"there is no network .*layout_raises with layers \[3, 16, 16, 1\]: list index"
    ):
        list(t3d.train(config(tmp_path, "wrong", f"{file}:layout_raises")))


RULE = """
from dataclasses import replace
from t3d.algo.learner import Learner
from t3d.algo.rules import TD3
wider = TD3._replace(init=lambda spec, cfg, *rest: TD3.init(spec, replace(cfg, actor_hidden=(7,)), *rest))
"""


def test_actor_processes_must_know_what_acts(tmp_path: Path) -> None:
    file = tmp_path / f"wider_{os.getpid()}.py"
    file.write_text(RULE)
    changes: dict[str, Any] = {"rule": f"{file}:wider"}
    words = "acts with another network than td3.actor_network and td3.actor_hidden describe"
    with pytest.raises(UserError, match=words):
        list(t3d.train(config(tmp_path, "local", "mlp", actors="local:2", **changes)))
    events = list(t3d.train(config(tmp_path, "inline", "mlp", **changes)))
    assert isinstance(events[-1], End) and events[-1].reason == "finished"
    assert t3d.load_policy(tmp_path / "runs" / "inline" / "last" / "seed-0").about["network"]["sizes"] == [3, 7, 1]


def test_what_acts_and_what_is_shipped_may_differ() -> None:
    shipped = TD3._replace(shipped=lambda agent: agent.actor_target)
    cfg = replace(helpers.small_config().td3, tau=0.5)
    learner = Learner(helpers.make_spec(), cfg, (0,), rule=shipped)
    for batch, draws in helpers.random_batches(helpers.make_spec(), cfg, 1, 4, torch.float32):
        learner.update(batch, draws)
    assert np.array_equal(learner.snapshot().flat, learner.agent.actor_target.flat.numpy())
    assert np.array_equal(learner.snapshot(learner.acting).flat, learner.agent.actor.flat.numpy())
    assert not np.array_equal(learner.snapshot().flat, learner.snapshot(learner.acting).flat)
