"""The fused engine against td3_update: networks, Adam's memory and every field of Steps; and its lines broken to see red."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import helpers
import t3d.algo.engines.fused
import t3d.algo.td3
from rules_in_tests import CHOICES
from t3d.algo.engines import ENGINES
from t3d.algo.engines.fused import Fused
from t3d.algo.engines.verify import FixedBatch, random_batch
from t3d.algo.learner import Learner
from t3d.algo.networks import named_tensors
from t3d.algo.rules import TD3
from t3d.algo.td3 import coefficients_of, td3_init, td3_update
from t3d.config import TD3Config
from t3d.data.replay import Replay
from t3d.data.samplers import UniformSampler
from t3d.types import Batch, Draws

SPEC = helpers.make_spec()


def make_config(**changes: Any) -> TD3Config:
    """Noise so large that every clip and clamp matters, rates that differ."""
    base: dict[str, Any] = {
        "batch_size": 10,
        "actor_hidden": (12, 9),
        "critic_hidden": (11, 7),
        "actor_lr": 1e-3,
        "critic_lr": 2e-3,
        "target_noise": 0.8,
        "target_noise_clip": 0.9,
    }
    return TD3Config(**{**base, **changes})


def weighted_batches(cfg: TD3Config, members: int, count: int, dtype: torch.dtype) -> list[tuple[Batch, Draws]]:
    """Random batches with a discount and a weight of its own for every transition."""
    return [
        (batch._replace(discount=batch.s[..., 0].sigmoid(), weight=batch.s[..., 1].exp()), draws)
        for batch, draws in helpers.random_batches(SPEC, cfg, members, count, dtype)
    ]


def tensors(agent: Any) -> list[Tensor]:
    """All that an update changes."""
    return [tensor for _, tensor in named_tensors(agent)]


def largest(pairs: list[tuple[Tensor, Tensor]]) -> float:
    """The largest distance; infinite where one of the two is not a number."""
    assert all(a.shape == b.shape for a, b in pairs)
    found = max(float((a - b).abs().max()) for a, b in pairs)
    sound = all(bool(torch.isfinite(a).all()) for a, _ in pairs)
    return found if sound else float("inf")


def distance(
    engine: Callable[..., Any],
    cfg: TD3Config,
    members: int,
    updates: int,
    dtype: torch.dtype = torch.float64,
    **differ: Any,
) -> float:
    """The largest distance between any number of td3_update and of the engine, over Steps, networks and Adam."""
    agent, theirs = (td3_init(SPEC, cfg, range(members), dtype=dtype) for _ in range(2))
    coefficients = coefficients_of(cfg)._replace(**differ)
    fused = engine(agent, cfg, coefficients)
    found = 0.0
    for number, (batch, draws) in enumerate(weighted_batches(cfg, members, updates, dtype), 1):
        update_actor = number % cfg.policy_delay == 0
        steps = fused(batch, draws, update_actor)
        truth = td3_update(theirs, batch, draws, cfg, coefficients, update_actor)
        if [value is None for value in steps] != [value is None for value in truth]:
            return float("inf")  # a step too many or too few
        found = max(found, largest([(a, b) for a, b in zip(steps, truth, strict=True) if b is not None]))
    assert theirs.critic_adam.steps == updates and theirs.actor_adam.steps == updates // cfg.policy_delay
    states = zip(tensors(agent), tensors(theirs), strict=True)
    return max(found, largest(list(states)))


@helpers.products(members=[1, 3], critics=[1, 2, 5], layers=[(), (7,), (16, 16), (8, 9, 10)], policy_delay=[1, 2, 3])
def test_fused_is_td3_update(members: int, critics: int, layers: tuple[int, ...], policy_delay: int) -> None:
    cfg = make_config(actor_hidden=layers, critic_hidden=layers[::-1], critics=critics, policy_delay=policy_delay)
    assert distance(Fused, cfg, members, updates=200) < 1e-10
    assert distance(Fused, cfg, members, updates=4, dtype=torch.float32) < 1e-5


NORMED: dict[str, Any] = {"actor_network": "layer_norm", "critic_network": "layer_norm"}
PLUS: dict[str, Any] = {**NORMED, **CHOICES["truncated"], "actor_objective": "mean"}


@helpers.products(members=[1, 3], critics=[2, 5], layers=[(), (7,), (16, 9)], objective=["first", "mean"])
def test_normed_layers(members: int, critics: int, layers: tuple[int, ...], objective: Any) -> None:
    sizes: dict[str, Any] = {"actor_hidden": layers, "critic_hidden": layers[::-1], "critics": critics}
    cfg = make_config(**NORMED, **sizes, actor_objective=objective)
    assert distance(Fused, cfg, members, updates=100) < 1e-9
    assert distance(Fused, cfg, members, updates=4, dtype=torch.float32) < 1e-4


@pytest.mark.parametrize("of", ["actor_network", "critic_network"])
def test_one_network_may_be_normed(of: str) -> None:
    assert distance(Fused, make_config(**{of: "layer_norm"}), members=2, updates=50) < 1e-9


@pytest.mark.parametrize(("actor", "critic"), [((), (5, 6)), ((6, 5), ()), ((40, 30), (3,)), ((2,), (30, 40, 50))])
@pytest.mark.parametrize("critics", [1, 2])
def test_actor_and_critics_of_different_depth(actor: tuple[int, ...], critic: tuple[int, ...], critics: int) -> None:
    assert distance(Fused, make_config(actor_hidden=actor, critic_hidden=critic, critics=critics), 2, 50) < 1e-10


def test_networks_as_large_as_real_ones_take_other_paths_in_blas() -> None:
    cfg = make_config(batch_size=100, actor_hidden=(400, 300), critic_hidden=(400, 300))
    assert distance(Fused, cfg, members=2, updates=6) < 1e-10


def test_one_action_and_one_transition() -> None:
    spec, cfg = helpers.make_spec(1, 1), make_config(batch_size=1)
    agent, theirs = (td3_init(spec, cfg, (0,), dtype=torch.float64) for _ in range(2))
    fused = Fused(agent, cfg, coefficients_of(cfg))
    for batch, draws in helpers.random_batches(spec, cfg, 1, 20):
        fused(batch, draws, True)
        td3_update(theirs, batch, draws, cfg, coefficients_of(cfg), True)
    assert largest(list(zip(tensors(agent), tensors(theirs), strict=True))) < 1e-12


COMPUTED = {"min of 5", "mean", "min of random 2", "truncated", "actor on the mean"}


@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_is_computed_or_refused(choice: str) -> None:
    cfg = make_config(**CHOICES[choice])
    refusal = ENGINES["fused"].refuses(TD3, cfg, coefficients_of(cfg))
    assert bool(refusal) == (choice not in COMPUTED), refusal
    assert refusal or distance(Fused, cfg, members=2, updates=20) < 1e-10


EACH = {name: torch.tensor(values, dtype=torch.float64) for name, values in {
    "gamma": [0.9, 0.99], "tau": [0.005, 0.3], "actor_lr": [1e-3, 1e-2], "critic_lr": [3e-3, 1e-4],
}.items()}  # fmt: skip


@pytest.mark.parametrize("names", [["gamma", "tau"], ["critic_lr"], ["actor_lr"], [*EACH]], ids=str)
def test_members_may_have_discounts_targets_and_learning_rates_of_their_own(names: list[str]) -> None:
    differ: dict[str, Any] = {name: EACH[name] for name in names}
    cfg = make_config()
    assert ENGINES["fused"].refuses(TD3, cfg, coefficients_of(cfg)._replace(**differ)) == ""
    assert distance(Fused, cfg, 2, updates=50, **differ) < 1e-10
    assert distance(Fused, make_config(**NORMED, critics=5), 2, updates=50, **differ) < 1e-9


def sampled(cfg: TD3Config, members: int) -> UniformSampler:
    """Batches as a run sees them: columns of gathered rows, not tensors in one piece."""
    replay = Replay(SPEC, 500, members)
    replay.rows.uniform_(-1, 1)
    replay.rows[..., 9].round_().abs_()  # terminated
    replay.size.fill_(500)
    return UniformSampler(replay, cfg, range(members))


def test_batches_from_the_replay() -> None:
    cfg = make_config()
    agent, theirs = (td3_init(SPEC, cfg, (0, 1)) for _ in range(2))
    sample, fused = sampled(cfg, 2), Fused(agent, cfg, coefficients_of(cfg))
    for _ in range(4):
        batch, draws = sample.sample(), Draws(torch.randn(2, cfg.batch_size, SPEC.action_size))
        assert not batch.s.is_contiguous()
        fused(batch, draws, True)
        td3_update(theirs, batch, draws, cfg, coefficients_of(cfg), True)
    assert largest(list(zip(tensors(agent), tensors(theirs), strict=True))) < 1e-5


def test_no_memory_is_taken_once_it_runs() -> None:
    cfg = make_config(batch_size=64, actor_hidden=(32, 32), critic_hidden=(32, 32))
    fused = Fused(td3_init(SPEC, cfg, (0, 1)), cfg, coefficients_of(cfg))
    batches = weighted_batches(cfg, 2, 8, torch.float32)
    places = {tuple(value.data_ptr() for value in fused(*batches[0], True)[:8])}
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        for batch, draws in batches:
            steps = fused(batch, draws, True)
            places.add(tuple(value.data_ptr() for value in steps[:8]))
    assert len(places) == 1, "Steps are views of buffers that stay"
    taken = [event.self_cpu_memory_usage for event in profiled.events()]
    assert len(taken) > 500, "the profiler saw the updates"
    assert max(taken) <= 8, "at most one number, the 1 that Adam adds to the steps made"


def test_the_memory_test_sees_the_eager_update() -> None:
    cfg = make_config()
    agent = td3_init(SPEC, cfg, (0,))
    batch, draws = weighted_batches(cfg, 1, 1, torch.float32)[0]
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        td3_update(agent, batch, draws, cfg, coefficients_of(cfg), True)
    assert max(event.self_cpu_memory_usage for event in profiled.events()) > 1000


def test_other_networks_of_the_process_keep_their_gradients_and_mode() -> None:
    agent = td3_init(SPEC, make_config(), (0,))
    fused = Fused(agent, make_config(), coefficients_of(make_config()))
    batch, draws = weighted_batches(make_config(), 1, 1, torch.float32)[0]
    steps = fused(batch, draws, True)
    assert torch.is_grad_enabled()
    assert not any(value.requires_grad or value.is_inference() for value in steps if value is not None)
    assert not any(tensor.is_inference() for tensor in tensors(agent))
    loss = agent.actor(batch.s).square().sum()
    assert agent.actor.gradient(loss).abs().sum() > 0, "autograd still works on networks that the engine has changed"


# ruff: noqa: E501
# Lines of fused.py that a careless hand could write otherwise: (what breaks, the right text, the wrong text).
MUTATIONS = [
    ("4: actions left behind", "self.a.copy_(batch.a)", "pass"),
    ("5: online actor for the target", "Pass(agent.actor_target.flat, actor,", "Pass(agent.actor.flat, actor,"),
    ("5: action in s, not s2", "actor, self.s2[0]", "actor, self.s[0]"),
    ("5: no tanh", "self.actor_target.forward().tanh_()", "self.actor_target.forward()"),
    ("6: noise not clipped", ".clamp_(-clip, clip)", ""),
    ("6: action not clamped", "out=self.a2).clamp_(-1, 1)", "out=self.a2)"),
    ("6: critics see another action", "self.critics_a2.copy_(a2)", "self.critics_a2.copy_(self.pi2)"),
    ("7: online critics for the targets", "Pass(agent.critic_target.flat, critic, x2", "Pass(agent.critic.flat, critic, x2"),
    ("7: state s for s2", "critic, x2, *memory", "critic, x, *memory"),
    ("8: max for min", "torch.amin(q2, 1, out=v2)", "torch.amax(q2, 1, out=v2)"),
    ("9: terminated ignored", "torch.sub(self.one, batch.terminated, out=self.y)", "self.y.fill_(1)"),
    ("9: no discount", ".mul_(batch.discount)", ""),
    ("10: next state in the critics", "Pass(agent.critic.flat, critic, x, *memory", "Pass(agent.critic.flat, critic, x2, *memory"),
    ("11: weight ignored", "torch.mul(td, batch.weight, ", "torch.mul(td, self.one, "),
    ("11: half the gradient", "2 / cfg.batch_size)", "1 / cfg.batch_size)"),
    ("12: the actor's rate", "self.critic_descent.step(self.coefficients.critic_lr)", "self.critic_descent.step(self.coefficients.actor_lr)"),
    ("12: bias gradient of hidden layers", "torch.sum(g, 1, keepdim=True, out=bias)", "pass"),
    ("12: bias gradient of the last layer", "torch.sum(d_output, 2, out=self._bias)", "pass"),
    ("12: weight gradient of the last layer", "self._weight.copy_(", "("),
    ("12: ReLU let through", "relu_backward(g, h, 0, grad_input=g)", "pass"),
    ("12: another epsilon", "eps=EPSILON", "eps=1e-6"),
    ("13: actor descends", "fill_(-1 / (cfg.batch_size", "fill_(1 / (cfg.batch_size"),
    ("13: actor on Q2", "critic.flat[:: cfg.critics //", "critic.flat[1 :: cfg.critics //"),
    ("13: Q1 at the action taken", "self.a[: self.maximised].copy_(self.pi)", "pass"),
    ("13: gradient of states for that of actions", "self.q_pi.d_input(self.actions,", "self.q_pi.d_input(slice(0, 3),"),
    ("13: no gradient of tanh", "torch.addcmul(self.one, pi, pi, value=-1, out=self.actor.d_output).mul_(d_pi)", "self.actor.d_output.copy_(d_pi)"),
    ("13: Q1 in the actor's memory", "memory[0][for_actor:]", "memory[0]"),
    ("13: undelayed actor", "if update_actor else steps", "if True else steps"),
    ("14: actor target never moves", "polyak(self.agent.actor_target, self.agent.actor, self.coefficients.tau)", "pass"),
    ("15: critic targets never move", "polyak(self.agent.critic_target, self.agent.critic, self.coefficients.tau)", "pass"),
]  # fmt: skip


def mutated(right: str, wrong: str) -> Callable[..., Any]:
    source = Path(t3d.algo.engines.fused.__file__).read_text(encoding="utf-8")
    assert source.count(right) == 1, f"the text to break stands {source.count(right)} times in fused.py: {right}"
    module = ModuleType("mutated_fused")
    exec(compile(source.replace(right, wrong), "mutated_fused", "exec"), module.__dict__)
    return module.Fused  # type: ignore[no-any-return]


OF_PLUS = [  # the same, of lines that only other networks, aggregates and objectives reach
    ("7: norm of another layer's scale", "z, z.shape[-1:], scale, shift, NORM_EPSILON", "z, z.shape[-1:], shift, shift, NORM_EPSILON"),
    ("7: no ReLU", "torch.clamp_min(normal, 0, out=h)", "h.copy_(normal)"),
    ("8: the minimum all the same", 'if name == "min" else', "if True else"),
    ("12: gradient of the norm left out", "norm.backward()", "pass"),
    ("12: gradient of a scale left out", "norm.d_scale, norm.d_shift = d_scale, d_shift", "norm.d_shift = d_shift"),
    ("12: gradient of a shift left out", "norm.d_scale, norm.d_shift = d_scale, d_shift", "norm.d_scale = d_scale"),
    ("13: the actor on the sum", "fill_(-1 / (cfg.batch_size * self.maximised))", "fill_(-1 / cfg.batch_size)"),
    ("13: the gradient of one critic", ".sum(dim=1)", "[:, 0]"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "right", "wrong"), OF_PLUS, ids=[what for what, _, _ in OF_PLUS])
def test_a_broken_line_of_plus_is_seen(what: str, right: str, wrong: str) -> None:
    cfg = make_config(**PLUS)
    assert distance(Fused, cfg, members=1, updates=20) < 1e-9 < 1e-8 < distance(mutated(right, wrong), cfg, 1, 20)


@pytest.mark.parametrize(("what", "right", "wrong"), MUTATIONS, ids=[what for what, _, _ in MUTATIONS])
def test_a_broken_line_is_seen(what: str, right: str, wrong: str) -> None:
    assert distance(mutated(right, wrong), make_config(), members=1, updates=20) > 1e-8


def test_the_steps_are_labelled_once_each() -> None:
    text = Path(t3d.algo.engines.fused.__file__).read_text(encoding="utf-8")
    assert [int(step) for step in re.findall(r"# Step (\d+):", text)] == list(range(4, 16))


@pytest.mark.slow
def test_resident_memory_is_flat_over_a_hundred_thousand_updates() -> None:
    """Small networks, two members: what would leak does so at any size."""
    cfg = TD3Config(batch_size=32, actor_hidden=(32, 32), critic_hidden=(32, 32))
    spec = helpers.make_spec(17, 6)
    learner = Learner(spec, cfg, range(2), engine="fused", source=FixedBatch(random_batch(spec, cfg, 2, "cpu")))
    process = psutil.Process()
    learner.run(5_000)
    before = process.memory_info().rss
    learner.run(100_000)
    assert learner.updates == 105_000
    assert abs(process.memory_info().rss - before) < 2**20, "less than a megabyte"
