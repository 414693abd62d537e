"""The update that the engine graph compiles is td3_update: the same traces, networks and optimisers, on any machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

import helpers
import t3d
import t3d.algo.learner
import t3d.algo.td3
from rules_in_tests import CHOICES
from t3d.algo.adam import adam_init
from t3d.algo.coefficients import for_members
from t3d.algo.engines import ENGINES, graph
from t3d.algo.engines.graph import HIDDEN
from t3d.algo.engines.verify import mismatch
from t3d.algo.learner import Learner, named_tensors
from t3d.algo.rules import TD3
from t3d.algo.td3 import Coefficients, coefficients_of
from t3d.config import TD3Config
from t3d.config.presets import PRESETS
from t3d.policy.architectures import NORM_EPSILON
from t3d.random_streams import Counted
from t3d.types import Batch, Draws, UpdateTrace

SPEC = helpers.make_spec()
CFG = TD3Config(batch_size=16, actor_hidden=(8,), critic_hidden=(9,))
NETWORKS = [(actor, critic) for actor in HIDDEN for critic in HIDDEN]


def by_hand(candidate: Learner, batch: Batch, draws: Draws, moves: bool) -> UpdateTrace:
    with torch.no_grad():
        return graph.update(candidate.agent, batch, draws, candidate.cfg, candidate.coefficients, moves)


def assert_equal_updates(
    cfg: TD3Config, members: int, count: int, coefficients: Coefficients | None = None, atol: float = 1e-12
) -> None:
    """Every step of every update, and everything that was learned; in float64 only rounding differs."""
    eager, candidate = (
        Learner(SPEC, cfg, range(members), dtype=torch.float64, coefficients=coefficients) for _ in range(2)
    )
    for batch, draws in helpers.random_batches(SPEC, cfg, members, count):
        weighted = batch._replace(weight=torch.rand_like(batch.r) + 0.5, discount=torch.rand_like(batch.r))
        moves = eager.updates_to_full_trace == 1
        expected = eager.update(weighted, draws)
        given = by_hand(candidate, weighted, draws, moves)
        for name, value in expected._asdict().items():
            other = getattr(given, name)
            assert (value is None) == (other is None), name
            if value is not None:
                torch.testing.assert_close(other, value, rtol=0, atol=atol)
    ours = dict(named_tensors(candidate.agent))
    for name, value in named_tensors(eager.agent):
        torch.testing.assert_close(ours[name], value, rtol=0, atol=atol)
    assert float(candidate.agent.actor_adam.steps) == count // cfg.policy_delay > 0


@helpers.products(
    network=[*HIDDEN], members=[1, 3], critics=[1, 2, 5], hidden=[(), (7,), (8, 9, 10)], policy_delay=[1, 2, 3]
)
def test_the_compilable_update_is_td3_update(
    network: str, members: int, critics: int, hidden: tuple[int, ...], policy_delay: int
) -> None:
    sizes: dict[str, Any] = {"actor_hidden": hidden, "critic_hidden": hidden[::-1]}
    networks: dict[str, Any] = {"actor_network": network, "critic_network": network}
    cfg = replace(CFG, critics=critics, policy_delay=policy_delay, **sizes, **networks)
    assert_equal_updates(cfg, members, 30)


@helpers.products(networks=NETWORKS, objective=[*graph.OBJECTIVES], members=[1, 3], critics=[2, 5])
def test_it_is_for_every_network_and_objective(
    networks: tuple[str, str], objective: Any, members: int, critics: int
) -> None:
    actor, critic = networks
    cfg = replace(CFG, actor_network=actor, critic_network=critic, actor_objective=objective, critics=critics)
    assert_equal_updates(cfg, members, 20)


@pytest.mark.parametrize(("actor", "critic"), NETWORKS)
@pytest.mark.parametrize("objective", graph.OBJECTIVES)
def test_it_is_in_a_sweep(actor: str, critic: str, objective: Any) -> None:
    """Members with numbers of their own."""
    cfg = replace(CFG, actor_network=actor, critic_network=critic, actor_objective=objective, critics=3)
    each = [
        replace(cfg, tau=0.005, critic_lr=1e-3, target_noise=0.2, target_noise_clip=0.5, weight_decay=0.0),
        replace(cfg, tau=0.1, actor_lr=1e-2, target_noise=0.8, target_noise_clip=0.1, max_grad_norm=0.05),
        replace(cfg, tau=0.5, critic_lr=1e-2, target_noise=0.0, target_noise_clip=1.0, weight_decay=0.5),
    ]
    assert_equal_updates(cfg, 3, 20, for_members([coefficients_of(one) for one in each]))


@pytest.mark.parametrize("objective", ["mean", "min"])
def test_critics_that_agree_share_the_gradient(objective: Any) -> None:
    cfg = replace(CFG, actor_objective=objective, critics=3, policy_delay=1)
    eager, candidate = (Learner(SPEC, cfg, (0, 1), dtype=torch.float64) for _ in range(2))
    for learner in (eager, candidate):
        for stack in (learner.agent.critic, learner.agent.critic_target):
            stack.flat[1::3] = stack.flat[::3]  # the first two of every three are equal and remain so
    for batch, draws in helpers.random_batches(SPEC, cfg, 2, 10):
        eager.update(batch, draws)
        by_hand(candidate, batch, draws, moves=True)
    assert torch.equal(candidate.agent.critic.flat[1::3], candidate.agent.critic.flat[::3])
    torch.testing.assert_close(candidate.agent.actor_adam.mean, eager.agent.actor_adam.mean, rtol=0, atol=1e-13)


@given(size=st.integers(1, 9), flat=st.booleans(), seed=st.integers(0, 1000))
def test_the_gradient_of_layer_normalisation_is_autograds(size: int, flat: bool, seed: int) -> None:
    """Also of a single unit, and of units that are all equal, where only epsilon is left of the deviation."""
    generator = torch.Generator().manual_seed(seed)
    z, scale, shift, d_h = torch.randn(4, 2, 5, size, dtype=torch.float64, generator=generator)
    z = z[..., :1].expand_as(z).clone() if flat else z
    inputs = [z, scale[:, :1].clone(), shift[:, :1].clone()]
    hidden = HIDDEN["layer_norm"]
    kept = hidden.forward(*inputs)
    d_z, *others = hidden.backward(d_h, *inputs[1:], *kept)
    for one in inputs:
        one.requires_grad_()
    normal = functional.layer_norm(inputs[0], (size,), eps=NORM_EPSILON)
    expected = (normal * inputs[1] + inputs[2]).relu()
    torch.testing.assert_close(kept[0], expected.detach(), rtol=0, atol=1e-11)
    right = torch.autograd.grad(expected, inputs, d_h)
    given = [d_z, *(one.sum(dim=1, keepdim=True) for one in others)]
    for ours, theirs in zip(given, right, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9 if flat else 1e-11)


@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_is_computed_or_refused(choice: str) -> None:
    cfg = replace(CFG, **CHOICES[choice])
    refusal = ENGINES["graph"].refuses(TD3, cfg, coefficients_of(cfg))
    assert bool(refusal) == (choice in {"huber", "categorical", "penalty", "together"}), refusal
    if not refusal:
        assert_equal_updates(cfg, 2, 20)


@pytest.mark.parametrize("name", ["default", "paper", "plus"])
def test_presets_are_computed_and_pass_the_proof(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32, at their own sizes but for the batch, as a run on a GPU begins.

    Not compiled, even if there is Triton: compiled for a CPU, Adam loses its steps (see the next test).
    """
    cfg = replace(t3d.preset(name).td3, batch_size=64)
    assert ENGINES["graph"].refuses(TD3, cfg, coefficients_of(cfg)) == ""
    monkeypatch.setitem(ENGINES, "graph", ENGINES["graph"]._replace(devices=("cpu",), is_recorded=False))
    with torch.compiler.set_stance("force_eager"):
        assert mismatch("graph", SPEC, cfg, range(2), "cpu") == ""


TRACED: dict[str, dict[str, Any]] = {
    **{name: CHOICES[name] for name in ("gradient clipping", "min of random 2", "cosine schedule")},
    "default": {},
    "actor on the minimum": {**CHOICES["actor on the minimum"], "actor_network": "layer_norm"},
    "plus": PRESETS["plus"].changes["td3"],
}


@pytest.mark.parametrize("choice", TRACED)
def test_what_is_compiled_can_be_traced_whole(choice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as a machine without a GPU can tell.

    Steps of Adam are counted in float32 here: on a CPU, torch 2.13 loses what compiled code adds to a single float64.
    """
    monkeypatch.setattr(t3d.algo.learner, "open_streams", Counted)  # as on a GPU
    monkeypatch.setattr(t3d.algo.td3, "adam_init", lambda flat: adam_init(flat)._replace(steps=torch.zeros(())))
    cfg = replace(CFG, **TRACED[choice])
    compiled, plain = (Learner(SPEC, cfg, (0, 1), dtype=torch.float64) for _ in range(2))
    batch, _ = next(helpers.random_batches(SPEC, cfg, 2, 1))
    draws = torch.compile(compiled.draw, fullgraph=True, backend="eager")()
    expected = by_hand(plain, batch, draws, moves=True)
    with torch.no_grad():
        update = torch.compile(graph.update, fullgraph=True, dynamic=False, backend="aot_eager")
        trace = update(compiled.agent, batch, draws, cfg, compiled.coefficients, True)
    torch.compiler.reset()
    assert isinstance(draws, Draws) and isinstance(trace, UpdateTrace)
    ours = [*trace._asdict().items(), *named_tensors(compiled.agent)]
    theirs = [*expected._asdict().items(), *named_tensors(plain.agent)]
    for (name, value), (_, right) in zip(ours, theirs, strict=True):
        assert (value is None) == (right is None), name
        if right is not None:
            torch.testing.assert_close(value, right, rtol=0, atol=1e-13)
