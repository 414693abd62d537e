"""The update against the oracle, and every step broken once to see red."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import helpers
import t3d.algo.td3
from t3d.algo.learner import Learner
from t3d.algo.networks import Critic, layers_of
from t3d.algo.td3 import coefficients_of, td3_init, td3_update
from t3d.config import TD3Config

SPEC = helpers.make_spec()
CFG = TD3Config(  # noise so large that every clip and clamp matters
    batch_size=10,
    actor_hidden=(12, 9),
    critic_hidden=(11, 7),
    actor_lr=1e-3,
    critic_lr=2e-3,
    target_noise=0.8,
    target_noise_clip=0.9,
)


def with_critics(critics: int) -> TD3Config:
    return TD3Config(**{**vars(CFG), "critics": critics})


def distance_from_oracle(update: Callable[..., Any], cfg: TD3Config, members: int, updates: int) -> float:
    agent = td3_init(SPEC, cfg, range(members), dtype=torch.float64)
    oracles = [helpers.oracle_of(agent, SPEC, cfg, member) for member in range(members)]
    for number, (batch, draws) in enumerate(helpers.random_batches(SPEC, cfg, members, updates), 1):
        steps = update(agent, batch, draws, cfg, coefficients_of(cfg), number % cfg.policy_delay == 0)
        if any(value is not None and value.requires_grad for value in steps):
            return float("inf")  # a gradient could flow where the paper allows none
        for member, oracle in enumerate(oracles):
            helpers.oracle_update(oracle, batch, draws, member)
    assert all(oracle.iterations == updates for oracle in oracles)
    return max(helpers.difference(agent, oracle, cfg, member) for member, oracle in enumerate(oracles))


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("critics", [1, 2, 5])
def test_update_equals_the_oracle(members: int, critics: int) -> None:
    assert distance_from_oracle(td3_update, with_critics(critics), members, updates=200) < 1e-10


# ruff: noqa: E501
# Each line of td3.py that a careless hand could write otherwise: (what breaks, the right text, the wrong text).
MUTATIONS = [
    ("5: online actor for the target", "agent.actor_target(s2)", "agent.actor(s2)"),
    ("5: action in s, not s2", "agent.actor_target(s2)", "agent.actor_target(s)"),
    ("6: no smoothing noise", "(pi2 + eps).clamp(-1, 1)", "pi2.clamp(-1, 1)"),
    ("6: noise multiplied", "(pi2 + eps).clamp(-1, 1)", "(pi2 * eps).clamp(-1, 1)"),
    ("6: noise not clipped", ".clamp(-clip, clip)", ""),
    ("6: action not clamped", "(pi2 + eps).clamp(-1, 1)", "(pi2 + eps)"),
    ("6: one noise vector for the batch", "draws.target_noise)", "draws.target_noise[:, :1])"),
    ("7: online critics for the targets", "agent.critic_target(s2, a2)", "agent.critic(s2, a2)"),
    ("7: state s for s2", "agent.critic_target(s2, a2)", "agent.critic_target(s, a2)"),
    ("8: mean for min", "AGGREGATES[cfg.aggregate](q2, draws, cfg)", "q2.mean(1)"),
    ("8: max for min", "AGGREGATES[cfg.aggregate](q2, draws, cfg)", "q2.amax(1)"),
    ("9: R times gamma", "y = r + discount *", "y = r * discount *"),
    ("9: terminated ignored", " * (1 - terminated)", ""),
    ("9: no discount", "discount * (1 -", "(1 -"),
    ("9: y with gradient", "with torch.no_grad():", "with torch.enable_grad():"),
    ("9: own y for each critic", "td = q - y.unsqueeze(1)", "td = q - (r + discount * (1 - terminated)).unsqueeze(1) * q2"),
    ("10: next state in the critics", "agent.critic.outputs(s, a)", "agent.critic.outputs(s2, a)"),
    ("10: policy's action for the one taken", "agent.critic.outputs(s, a)", "agent.critic.outputs(s, pi2)"),
    ("11: absolute error", "LOSSES[cfg.critic_loss](outputs, td, y, cfg)", "td.abs()"),
    ("11: mean over critics", ".mean(dim=-1).sum()\n    return", ".mean()\n    return"),
    ("11: sum over the batch", ".mean(dim=-1).sum()\n    return", ".sum()\n    return"),
    ("12: the actor's rate", "coefficients.critic_lr", "coefficients.actor_lr"),
    ("12: critics never step", "optimise(agent.critic, agent", "(lambda *_: None)(agent.critic, agent"),
    ("13: actor descends", "actor_loss = -q_pi", "actor_loss = q_pi"),
    ("13: actor on Q2", "OBJECTIVES[cfg.actor_objective](agent.critic, s, pi)", "agent.critic(s, pi)[:, 1]"),
    ("13: actor on the target critic", "OBJECTIVES[cfg.actor_objective](agent.critic, s, pi)", "agent.critic_target.q1(s, pi)"),
    ("13: actor on the minimum", "OBJECTIVES[cfg.actor_objective](agent.critic, s, pi)", "agent.critic(s, pi).amin(1)"),
    ("13: undelayed actor", " if update_actor else trace", ""),
    ("13: the critics' rate", "coefficients.actor_lr", "coefficients.critic_lr"),
    ("14: actor target never moves", "polyak(agent.actor_target, agent.actor, coefficients.tau)", "pass"),
    ("14: actor target copied", "polyak(agent.actor_target, agent.actor, coefficients.tau)", "polyak(agent.actor_target, agent.actor, 1.0)"),
    ("15: critic targets never move", "polyak(agent.critic_target, agent.critic, coefficients.tau)", "pass"),
    ("15: tau the other way round", "polyak(agent.critic_target, agent.critic, coefficients.tau)", "polyak(agent.critic_target, agent.critic, 1 - coefficients.tau)"),
    ("14, 15: undelayed Polyak", "    return improve(",
     "    if not update_actor:\n        polyak(agent.actor_target, agent.actor, coefficients.tau)\n"
     "        polyak(agent.critic_target, agent.critic, coefficients.tau)\n    return improve("),
]  # fmt: skip


def mutated(right: str, wrong: str) -> Callable[..., Any]:
    source = Path(t3d.algo.td3.__file__).read_text(encoding="utf-8")
    assert source.count(right) == 1, f"the text to break stands {source.count(right)} times in td3.py: {right}"
    module = ModuleType("mutated_td3")
    exec(compile(source.replace(right, wrong), "mutated_td3", "exec"), module.__dict__)
    return module.td3_update  # type: ignore[no-any-return]


@pytest.mark.parametrize(("what", "right", "wrong"), MUTATIONS, ids=[what for what, _, _ in MUTATIONS])
def test_a_broken_step_is_seen(what: str, right: str, wrong: str) -> None:
    assert distance_from_oracle(mutated(right, wrong), CFG, members=1, updates=20) > 1e-8


def test_every_step_from_5_to_15_is_broken_at_least_once() -> None:
    broken = {number for what, _, _ in MUTATIONS for number in re.findall(r"\d+", what.split(":")[0])}
    assert broken == {str(step) for step in range(5, 16)}


def test_the_steps_are_labelled_once_each() -> None:
    root = Path(t3d.algo.td3.__file__).parents[1]
    text = "\n".join(path.read_text(encoding="utf-8") for path in [root / "algo/td3.py", root / "data/replay.py"])
    labels = re.findall(r"(?:# |\"\"\")Step (\d+):", text)
    assert sorted(map(int, labels)) == list(range(1, 16))


@pytest.mark.parametrize(("dtype", "updates", "tolerance"), [(torch.float64, 500, 1e-10), (torch.float32, 20, 1e-5)])
def test_a_member_beside_others_is_the_member_alone(dtype: torch.dtype, updates: int, tolerance: float) -> None:
    seeds = (3, 1, 4)
    together = Learner(SPEC, CFG, seeds, dtype=dtype)
    alone = [Learner(SPEC, CFG, (seed,), dtype=dtype) for seed in seeds]
    for batch, draws in helpers.random_batches(SPEC, CFG, 3, updates, dtype):
        together.update(batch, draws)
        for member, learner in enumerate(alone):
            learner.update(*helpers.member_of(batch, draws, member))
    for member, learner in enumerate(alone):
        assert learner.updates == updates
        ours = together.agent
        rows = slice(member * CFG.critics, (member + 1) * CFG.critics)
        assert (ours.actor.flat[member] - learner.agent.actor.flat[0]).abs().max() < tolerance
        assert (ours.actor_target.flat[member] - learner.agent.actor_target.flat[0]).abs().max() < tolerance
        assert (ours.critic.flat[rows] - learner.agent.critic.flat).abs().max() < tolerance
        assert (ours.critic_target.flat[rows] - learner.agent.critic_target.flat).abs().max() < tolerance


def test_draws_of_a_seed_do_not_depend_on_its_neighbours() -> None:
    together, alone = Learner(SPEC, CFG, (3, 1, 4)), Learner(SPEC, CFG, (1,))
    for _ in range(3):
        assert torch.equal(together.draw().target_noise[1], alone.draw().target_noise[0])
    assert torch.equal(together.agent.critic.flat[2:4], alone.agent.critic.flat)


def test_targets_start_as_copies_in_objects_of_their_own() -> None:
    agent = td3_init(SPEC, CFG, (0,))
    assert torch.equal(agent.actor.flat, agent.actor_target.flat)
    assert torch.equal(agent.critic.flat, agent.critic_target.flat)
    agent.actor.flat.zero_()
    assert agent.actor_target.flat.abs().sum() > 0


def test_twin_critics_differ_and_stay_different() -> None:
    learner = Learner(SPEC, CFG, (0,))
    first, second = learner.agent.critic.flat
    assert (first - second).abs().max() > 0.01
    for batch, draws in helpers.random_batches(SPEC, CFG, 1, 200, torch.float32):
        learner.update(batch, draws)
    assert learner.updates == 200
    assert (first - second).abs().max() > 0.01


def test_initial_weights_are_pytorchs_default_linear() -> None:
    cfg = TD3Config(actor_hidden=(400, 300))
    agent = td3_init(helpers.make_spec(17, 6), cfg, (0, 1))
    for weight, bias in layers_of(agent.actor.architecture, agent.actor.flat):
        bound = weight.shape[1] ** -0.5
        for numbers in (weight, bias):
            assert numbers.abs().max() <= bound
        assert weight.abs().max() > 0.99 * bound
        assert float(weight.detach().std()) == pytest.approx(bound / 3**0.5, rel=0.05)
    assert not torch.equal(agent.actor.flat[0], agent.actor.flat[1])


def test_any_number_of_hidden_layers() -> None:
    cfg = TD3Config(batch_size=4, actor_hidden=(), critic_hidden=(5, 6, 7, 8))
    agent = td3_init(SPEC, cfg, (0, 1))
    s, a = torch.randn(2, 4, 5), torch.randn(2, 4, 3)
    assert agent.actor(s).shape == (2, 4, 3)
    assert agent.critic(s, a).shape == (2, 2, 4)


def test_a_transition_of_weight_two_counts_as_two() -> None:
    once, twice = (Learner(SPEC, CFG, (0,), dtype=torch.float64) for _ in range(2))
    batch, draws = next(helpers.random_batches(SPEC, CFG, 1, 1))
    weight = torch.ones_like(batch.weight)
    weight[:, 0], weight[:, 1] = 2, 0
    steps = once.update(batch._replace(weight=weight), draws)
    rows = [0, 0, *range(2, CFG.batch_size)]
    doubled = type(batch)(*(value[:, rows] for value in batch)), type(draws)(draws.target_noise[:, rows])
    assert torch.allclose(steps.losses["critic"], twice.update(*doubled).losses["critic"])
    assert (once.agent.critic.flat - twice.agent.critic.flat).abs().max() < 1e-12


def test_q1_is_the_first_critic_of_every_member() -> None:
    agent = td3_init(SPEC, with_critics(3), (0, 1))
    s, a = torch.randn(2, 4, 5), torch.randn(2, 4, 3)
    assert isinstance(agent.critic, Critic)
    assert torch.allclose(agent.critic.q1(s, a), agent.critic(s, a)[:, 0])


def test_steps_hold_what_the_update_did() -> None:
    learner = Learner(SPEC, CFG, (0, 1), dtype=torch.float64)
    batches = [
        (batch._replace(discount=torch.rand_like(batch.r)), draws)
        for batch, draws in helpers.random_batches(SPEC, CFG, 2, 3)
    ]
    first = learner.update(*batches[0])
    assert first.pi is None and "actor" not in first.losses
    steps = learner.update(*batches[1])
    batch, draws = batches[1]
    assert batch.discount.std() > 0, "a discount of its own for every transition"
    assert torch.equal(steps.eps, (0.8 * draws.target_noise).clamp(-0.9, 0.9))
    assert torch.equal(steps.a2, (steps.pi2 + steps.eps).clamp(-1, 1))
    assert torch.equal(steps.y, batch.r + batch.discount * (1 - batch.terminated) * steps.q2.min(1).values)
    assert torch.allclose(steps.losses["critic"], ((steps.q - steps.y[:, None]) ** 2).mean(-1).sum(1))
    assert torch.equal(steps.losses["actor"], -steps.q_pi.mean(-1)) and steps.losses["actor"].shape == (2,)
    assert learner.update(*batches[2]).pi is None, "a plain update has no step 13"
    assert steps.eps.shape == (2, CFG.batch_size, SPEC.action_size), "noise of its own for every transition"
