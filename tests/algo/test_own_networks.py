"""A network from a file of the user's: trained, resumed, acted with in other processes, loaded, refused if wrong."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import helpers
import t3d
from rules_in_tests import ALL_NETWORKS
from run_folders import assert_equal
from t3d.algo.learner import Learner
from t3d.algo.rules import TD3
from t3d.app.cli import main
from t3d.config.networks import architecture
from t3d.errors import UserError
from t3d.events import End, Saved, Start
from t3d.modules import import_named
from t3d.policy.acting import MemberPolicy, PolicySnapshot
from t3d.policy.architectures import ACTIVATIONS, Kind

PAGE = (Path(__file__).parents[2] / "docs" / "beyond-the-defaults.md").read_text(encoding="utf-8")
GATED = re.search(r"```python\n(# gated_network.py\n.*?)```", PAGE, re.DOTALL)[1]  # type: ignore[index]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """What a run sets here must not reach other tests."""
    yield
    torch.set_num_threads(1)


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
    return t3d.merge(cfg, {"seeds": [0, 1], "device": "cpu", "threads": 1, **changes})


def test_it_trains_says_why_it_is_eager_and_resumes_to_the_last_bit(tmp_path: Path, gated: str) -> None:
    events = list(t3d.train(config(tmp_path, "straight", gated)))
    start, end = events[0], events[-1]
    assert isinstance(start, Start) and start.config["engine"] == "eager"
    why = f"fused computes mlp and layer_norm networks with relu only, and the actor's network is {gated} with relu"
    assert start.engine_reason == why
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


FORWARDS = """
import torch
from t3d.policy.architectures import Kind, mlp, mlp_layout
def torch_only(parameters, x, ops):
    return torch.sin(mlp(parameters, x, ops))
def short(parameters, x, ops):
    return mlp(parameters, x, ops)[..., :0]
def different(parameters, x, ops):
    return mlp(parameters, x, ops) * (1.001 if x.ndim == 2 else 1)
def raising(parameters, x, ops):
    return {}["nothing"]
def unused(parameters, x, ops):
    return mlp(parameters[2:], x, ops)
def overwriting(parameters, x, ops):
    if x.ndim == 2:
        x *= 1.0001
    return mlp(parameters, x, ops)
torch_only, short, different, raising, overwriting = (
    Kind(mlp_layout, one) for one in (torch_only, short, different, raising, overwriting)
)
unused = Kind(lambda sizes: mlp_layout(sizes[:1] + sizes), unused)
layout_raises = Kind(lambda sizes: [][0], mlp)
no_parameters = Kind(lambda sizes: [(3, 4)], mlp)
"""
WRONG = {  # as the actor's network, and as the critics'
    "torch_only": ("must be Tensor, not", None),
    "short": (r"returns in torch, for K networks at once, has shape \(2, 8, 0\)", r"has shape \(2, 8, 0\)"),
    "different": ("NumPy, with which policies act, and torch differ by", None),
    "raising": (r"line \d+: KeyError: 'nothing'", r"line \d+: KeyError: 'nothing'"),
    "unused": ("not have been used in the graph", "not have been used in the graph"),
    "overwriting": ("it overwrites its input", None),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("owner", ["actor", "critic"])
def test_a_wrong_network_is_refused_in_a_sentence_before_anything_is_written(
    tmp_path: Path, name: str, owner: str
) -> None:
    file = tmp_path / f"wrong_{name}_{owner}.py"
    file.write_text(FORWARDS)
    changes = {"td3": {f"{owner}_network": f"{file}:{name}"}, "run": {"root": str(tmp_path / "runs")}, "threads": 1}
    training = t3d.train(helpers.small_config(total_steps=120, **changes))
    words = WRONG[name][owner == "critic"]
    if words is None:  # critics never act, so NumPy does not matter
        list(training)
        return
    with pytest.raises(UserError, match=f"the network .*{name} cannot be used: .*{words}"):
        list(training)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("name", "words"), [("layout_raises", "IndexError: list index"), ("no_parameters", "AttributeError: 'tuple'")]
)
def test_a_layout_that_fails_is_refused_in_a_sentence(tmp_path: Path, name: str, words: str) -> None:
    file = tmp_path / f"wrong_layout_{name}.py"
    file.write_text(FORWARDS)
    with pytest.raises(UserError, match=rf"there is no network .*{name} with layers \[3, 16, 16, 1\]: .*{words}"):
        list(t3d.train(config(tmp_path, "wrong", f"{file}:{name}")))


def test_a_rule_may_not_act_with_a_network_that_nobody_could_load(tmp_path: Path) -> None:
    file = tmp_path / "nameless.py"
    file.write_text(
        "from t3d.algo.rules import TD3\n"
        "def init(*arguments):\n"
        "    agent = TD3.init(*arguments)\n"
        "    agent.actor.architecture = agent.actor.architecture._replace(name='mine')\n"
        "    return agent\n"
        "RULE = TD3._replace(init=init)\n"
    )
    words = "its actor's network, mine, is neither one of T3D's nor the one in td3.actor_network"
    with pytest.raises(UserError, match=words):
        list(t3d.train(config(tmp_path, "wrong", "mlp", algo=f"{file}:RULE")))


def test_observations_are_never_overwritten() -> None:
    for kind, activation in ALL_NETWORKS:
        network = architecture(kind, (3, 8, 8, 1), activation)
        policy = MemberPolicy(PolicySnapshot(0, network, np.ones((1, network.size), np.float32)), 0)
        before = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
        given = before.copy()
        policy(given)
        assert np.array_equal(given, before), kind
        assert np.array_equal(ACTIVATIONS[activation](given) * 0, given * 0) and np.array_equal(given, before)


RULE = """
from dataclasses import replace
from t3d.algo.learner import Learner
from t3d.algo.rules import TD3
def narrow(cfg):
    return replace(cfg, actor_hidden=(7,))
wider = TD3._replace(
    init=lambda spec, cfg, *rest: TD3.init(spec, narrow(cfg), *rest),
    parameters=lambda spec, cfg: TD3.parameters(spec, narrow(cfg)),
)
"""


def test_actor_processes_must_know_what_acts(tmp_path: Path) -> None:
    file = tmp_path / f"wider_{os.getpid()}.py"
    file.write_text(RULE)
    changes: dict[str, Any] = {"algo": f"{file}:wider"}
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
