"""The update that the engine capture compiles is the rule's own: traced here, run without a compiler and a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_pixels import CAMERA, SMALL

import helpers
import t3d
from image_batches import image_batches
from rules_in_tests import ALL_RULES, CHOICES, NETWORKS, settings_for
from t3d.algo.engines import ENGINES
from t3d.algo.engines.verify import mismatch
from t3d.algo.learner import Learner
from t3d.algo.networks import named_tensors, with_tensors
from t3d.algo.rules import PIXELS, TD3, Rule
from t3d.algo.td3 import coefficients_of
from t3d.config import RuleConfig, TD3Config, TD7Config
from t3d.policy.spec import Spec

SPEC = helpers.make_spec()
CFG = TD3Config(batch_size=16, actor_hidden=(8,), critic_hidden=(9,))
COPIES = ("g_fixed", "policy_target", "g_target", "critic_target", "checkpoint", "seen_low", "seen_high", "assessment")
STILL = {TD3Config: ("limit",), TD7Config: COPIES}  # what updates do not move, only copies do


@pytest.fixture(autouse=True)
def _without_a_compiler() -> Iterator[None]:
    """Also where there is Triton: compiled for a CPU, Adam loses its steps."""
    with torch.compiler.set_stance("force_eager"):
        yield


def assert_same_updates(rule: Rule, cfg: RuleConfig, batches: Any, spec: Spec = SPEC) -> None:
    """Every step of every update, and everything that was learned; in float64 only rounding differs."""
    eager, traced = (
        Learner(spec, cfg, range(2), dtype=torch.float64, engine=engine, rule=rule) for engine in ("eager", "capture")
    )
    for batch, draws in batches:
        expected, given = eager.update(batch, draws), traced.update(batch, draws)
        assert type(given) is type(expected)
        for name, value in expected._asdict().items():
            other = getattr(given, name)
            assert (value is None) == (other is None), name
            if other is not None:
                torch.testing.assert_close(other, value, rtol=0, atol=1e-11)
                assert not other.requires_grad
    moved = dict(named_tensors(Learner(spec, cfg, range(2), dtype=torch.float64, rule=rule).agent))
    for (name, tensor), (_, other) in zip(named_tensors(eager.agent), named_tensors(traced.agent), strict=True):
        torch.testing.assert_close(other, tensor, rtol=0, atol=1e-11, msg=name)
        assert name.startswith(STILL[rule.settings]) or not torch.equal(tensor, moved[name]), f"{name} has not moved"


@pytest.mark.parametrize("rule", ALL_RULES)
def test_every_rule_is_traced(rule: str) -> None:
    cfg = settings_for(rule, CFG)
    assert_same_updates(ALL_RULES[rule], cfg, helpers.random_batches(SPEC, cfg, 2, 5))


@pytest.mark.parametrize(("kind", "activation"), NETWORKS)
def test_every_architecture_is_traced(kind: str, activation: str) -> None:
    networks: dict[str, Any] = {f"{owner}_network": kind for owner in ("actor", "critic")}
    networks |= {f"{owner}_activation": activation for owner in ("actor", "critic")}
    cfg = replace(CFG, **networks)
    assert_same_updates(TD3, cfg, helpers.random_batches(SPEC, cfg, 2, 4))


IN_ONE = {  # of "together"
    "truncated",
    "actor on the mean",
    "categorical",
    "weight decay",
    "gradient clipping",
    "cosine schedule",
    "penalty",
}


@pytest.mark.parametrize(
    "choice", [pytest.param(choice, marks=pytest.mark.slow if choice in IN_ONE else ()) for choice in CHOICES]
)
def test_every_choice_is_traced(choice: str) -> None:
    cfg = replace(CFG, **CHOICES[choice])
    assert_same_updates(TD3, cfg, helpers.random_batches(SPEC, cfg, 2, 4))


@pytest.mark.parametrize("choice", ["plain", "together"])
def test_updates_with_images_are_traced(choice: str) -> None:
    cfg = replace(SMALL, **CHOICES.get(choice, {}))
    assert_same_updates(PIXELS, cfg, image_batches(CAMERA, cfg, 2, 4), CAMERA)


@pytest.mark.parametrize("name", ["default", "plus"])
def test_presets_pass_the_proof_with_which_a_run_begins(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "capture", ENGINES["capture"]._replace(records=False))
    assert mismatch("capture", SPEC, replace(t3d.preset(name).td3, batch_size=32), range(2), "cpu") == ""


def test_batches_of_another_size_are_traced_anew() -> None:
    cfg = replace(CFG, policy_delay=1)
    sizes = (16, 7, 16)
    batches = [next(helpers.random_batches(SPEC, replace(cfg, batch_size=size), 2, 1)) for size in sizes]
    assert_same_updates(TD3, cfg, batches)


def test_numbers_that_move_are_followed() -> None:
    rate = torch.tensor([1e-3, 1e-4], dtype=torch.float64)
    learner = Learner(SPEC, CFG, range(2), engine="capture", coefficients=coefficients_of(CFG)._replace(critic_lr=rate))
    batches = list(helpers.random_batches(SPEC, CFG, 2, 6, torch.float32))
    for batch, draws in batches[:4]:
        learner.update(batch, draws)
    rate.zero_()
    still = learner.agent.critic.flat.clone()
    for batch, draws in batches[4:]:
        learner.update(batch, draws)
    assert torch.equal(still, learner.agent.critic.flat)


def test_a_rate_that_is_set_is_in_memory_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "capture", ENGINES["capture"]._replace(records=False))  # graphs need a GPU
    eager, traced = (Learner(SPEC, CFG, range(2), dtype=torch.float64, engine=name) for name in ("eager", "capture"))
    batches = helpers.random_batches(SPEC, CFG, 2, 4)
    traced.set_rates(critic_lr=CFG.critic_lr)
    assert traced.coefficients.critic_lr is CFG.critic_lr, "what has not changed needs no other graphs"
    for rate in (2e-3, 5e-3):
        eager.set_rates(critic_lr=rate)
        traced.set_rates(critic_lr=rate)
        for batch, draws in (next(batches), next(batches)):
            eager.update(batch, draws)
            traced.update(batch, draws)
    assert isinstance(traced.coefficients.critic_lr, torch.Tensor) and float(traced.coefficients.critic_lr) == 5e-3
    assert traced.coefficients.actor_lr == CFG.actor_lr  # what has not changed is no tensor
    for (name, tensor), (_, other) in zip(named_tensors(eager.agent), named_tensors(traced.agent), strict=True):
        torch.testing.assert_close(other, tensor, rtol=0, atol=1e-11, msg=name)


@pytest.mark.parametrize("backend", ["aot_eager"])
def test_what_was_traced_can_be_compiled_whole(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as a machine without a GPU can tell."""
    with torch.compiler.set_stance("default"):
        monkeypatch.setattr(
            "t3d.algo.engines.capture.compiled_if_possible",
            lambda function: torch.compile(function, fullgraph=True, dynamic=False, backend=backend),
        )
        cfg = replace(CFG, **CHOICES["together"])
        assert_same_updates(TD3, cfg, helpers.random_batches(SPEC, cfg, 2, 4))
        torch.compiler.reset()


def test_an_agent_with_other_tensors_is_the_same_agent() -> None:
    agent = Learner(SPEC, CFG, range(2)).agent
    other = with_tensors(agent, [tensor + 1 for _, tensor in named_tensors(agent)])
    assert [name for name, _ in named_tensors(other)] == [name for name, _ in named_tensors(agent)]
    for (_, tensor), (_, changed) in zip(named_tensors(agent), named_tensors(other), strict=True):
        assert torch.equal(tensor + 1, changed)
    s, a = torch.randn(2, 3, 5), torch.randn(2, 3, 3)
    assert other.critic(s, a).shape == agent.critic(s, a).shape == (2, 2, 3)
    assert not torch.equal(other.critic(s, a), agent.critic(s, a))
