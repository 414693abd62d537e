"""TD7's update against its oracle, every step broken once to see red, and its assessment of policies."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import helpers
import t3d.algo.td7
from t3d.algo.learner import Learner
from t3d.algo.networks import named_tensors
from t3d.algo.rules import RULES
from t3d.algo.td7 import coefficients_of, copy_hard, init
from t3d.config import TD7Config
from t3d.types import EpisodeResult, State
from td7_oracle import TD7Oracle, fill, flat

SPEC, TD7 = helpers.make_spec(), RULES["td7"]
CFG = TD7Config(  # noise so large that every clip and clamp matters
    batch_size=10,
    embedding=6,
    encoder_hidden=7,
    actor_hidden=(12, 9),
    critic_hidden=(11, 7),
    actor_lr=1e-3,
    critic_lr=2e-3,
    encoder_lr=3e-3,
    target_noise=0.8,
    target_noise_clip=0.9,
)


def oracle_of(agent: Any, member: int, cfg: TD7Config = CFG) -> TD7Oracle:
    oracle = TD7Oracle(SPEC.observation_size, SPEC.action_size, cfg)
    for module in (oracle.encoder, oracle.actor, oracle.critics):
        module.double()
    fill(agent.f.flat[member], oracle.encoder.of_state)
    fill(agent.g.flat[member], oracle.encoder.of_pair)
    fill(agent.policy.actor.flat[member], oracle.actor)
    for row, critic in enumerate(oracle.critics):
        fill(agent.critic.flat[member * cfg.critics + row], critic)
    oracle.begin()
    return oracle


def difference(agent: Any, oracle: TD7Oracle, member: int) -> float:
    rows = slice(member * CFG.critics, (member + 1) * CFG.critics)
    pairs = [
        (agent.f.flat[member], flat(oracle.encoder.of_state)),
        (agent.g.flat[member], flat(oracle.encoder.of_pair)),
        (agent.policy.flat[member], flat(oracle.fixed.of_state, oracle.actor)),
        (agent.g_fixed.flat[member], flat(oracle.fixed.of_pair)),
        (agent.policy_target.flat[member], flat(oracle.oldest.of_state, oracle.actor_target)),
        (agent.g_target.flat[member], flat(oracle.oldest.of_pair)),
        (agent.critic.flat[rows].flatten(), flat(*oracle.critics)),
        (agent.critic_target.flat[rows].flatten(), flat(*oracle.critic_targets)),
        (
            torch.stack([agent.seen.low[member], agent.seen.high[member]]),
            torch.tensor(oracle.limits, dtype=torch.float64),
        ),
        (
            torch.stack([agent.seen.lowest[member], agent.seen.highest[member]]),
            torch.tensor(oracle.seen, dtype=torch.float64),
        ),
    ]
    return max(float((ours - theirs).detach().abs().max()) for ours, theirs in pairs)


def updated(module: Any, members: int, updates: int, copy_every: int) -> tuple[Any, list[TD7Oracle]]:
    """Our agent and oracles after the same updates."""
    agent = init(SPEC, CFG, range(members), dtype=torch.float64)
    oracles = [oracle_of(agent, member) for member in range(members)]
    for oracle in oracles:
        oracle.copy_every = copy_every
    for number, (batch, draws) in enumerate(helpers.random_batches(SPEC, CFG, members, updates), 1):
        is_large = batch._replace(r=3 * batch.r)  # so that errors beyond one occur
        trace = module.update(agent, is_large, draws, CFG, coefficients_of(CFG), number % CFG.policy_delay == 0)
        if any(value is not None and value.requires_grad for value in trace):
            raise AssertionError("a gradient could flow where the paper allows none")
        if number % copy_every == 0:
            module.copy_hard(agent, CFG)
        s, a, r, s2, terminated, *_ = is_large
        for m, oracle in enumerate(oracles):
            column = (part[m].unsqueeze(1) for part in (r, terminated))
            oracle.update(s[m], a[m], next(column), s2[m], next(column), draws.target_noise[m])
    assert all(oracle.iterations == updates for oracle in oracles)
    return agent, oracles


def distance(module: Any, members: int, updates: int, copy_every: int = 250) -> float:
    try:
        agent, oracles = updated(module, members, updates, copy_every)
    except (AssertionError, RuntimeError):
        return float("inf")
    return max(difference(agent, oracle, member) for member, oracle in enumerate(oracles))


@pytest.mark.parametrize("members", [1, 3])
def test_update_equals_the_oracle(members: int) -> None:
    assert distance(t3d.algo.td7, members, updates=520) < 1e-10


# ruff: noqa: E501
# Each line of td7.py that a careless hand could write otherwise: (what breaks, the right text, the wrong text).
MUTATIONS = [
    ("5: fixed encoder predicts", "zs = agent.f.forward(s)", "zs = policy.f.forward(s)"),
    ("5: next state for the state", "zs = agent.f.forward(s)", "zs = agent.f.forward(s2)"),
    ("5: action forgotten", "zsa = agent.g.forward(torch.cat([zs, a], dim=-1))\n    # Step 6", "zsa = agent.g.forward(torch.cat([zs, a * 0], dim=-1))\n    # Step 6"),
    ("6: target of the fixed encoder", "zs2 = agent.f.forward(s2)", "zs2 = policy.f.forward(s2)"),
    ("6: absolute error", "(zsa - zs2).square().mean", "(zsa - zs2).abs().mean"),
    ("6: sum over the embedding", ".mean(dim=(1, 2))  # (M,)", ".mean(dim=1).sum(dim=1)  # (M,)"),
    ("6: f never learns", "adam_step(agent.f_adam, agent.f.flat, for_f, coefficients.encoder_lr)", "pass"),
    ("6: g learns at the critics' rate", "for_g, coefficients.encoder_lr", "for_g, coefficients.critic_lr"),
    ("7: online actor for the target", "pi2 = target.act(", "pi2 = policy.act("),
    ("7: fixed encoder for the target's", "zs2_target = target.f.forward(s2)", "zs2_target = policy.f.forward(s2)"),
    ("7: noise not clipped", ".clamp(-clip, clip)", ""),
    ("7: action not clipped", ")).clamp(-1, 1)", "))"),
    ("8: online critics", "values(agent.critic_target,", "values(agent.critic,"),
    ("8: fixed pair encoder", "agent.g_target, s2", "agent.g_fixed, s2"),
    ("9: mean for min", "q2.amin(dim=1).clamp", "q2.mean(dim=1).clamp"),
    ("9: values not clipped", ".clamp(seen.low.unsqueeze(1), seen.high.unsqueeze(1))", ""),
    ("9: clipped by what is seen at once", "seen.low.unsqueeze(1), seen.high.unsqueeze(1)", "seen.lowest.unsqueeze(1), seen.highest.unsqueeze(1)"),
    ("10: terminated ignored", " * (1 - terminated)", ""),
    ("10: range of the values, not the targets", "seen.highest.maximum(y.amax(dim=1))", "seen.highest.maximum(v2.amax(dim=1))"),
    ("10: range of this batch alone", "seen.lowest.copy_(seen.lowest.minimum(y.amin(dim=1)))", "seen.lowest.copy_(y.amin(dim=1))"),
    ("11: learning encoder for the fixed one", "fixed_zs = policy.f.forward(s)", "fixed_zs = agent.f.forward(s)"),
    ("11: learning pair encoder", "agent.g_fixed, s, fixed_zs, a)", "agent.g, s, fixed_zs, a)"),
    ("12: squared error", "torch.where(td.abs() < 1, td.square() / 2, td.abs())", "td.square() / 2"),
    ("12: mean over critics", "loss.mean(dim=-1).sum()", "loss.mean()"),
    ("13: critics never step", "adam_step(agent.critic_adam, agent.critic.flat, gradient, coefficients.critic_lr)", "pass"),
    ("13: the actor's rate", "gradient, coefficients.critic_lr", "gradient, coefficients.actor_lr"),
    ("14: actor descends", "actor_loss = -q_pi", "actor_loss = q_pi"),
    ("14: actor on the minimum", ".mean(dim=1)  # (M, B)", ".amin(dim=1)  # (M, B)"),
    ("14: undelayed actor", " if update_actor else trace", ""),
    ("14: no way through g", "zs, pi).mean(dim=1)", "zs, pi.detach()).mean(dim=1) + 0 * pi.sum()"),
    ("14: the critics' rate", "gradient, coefficients.actor_lr)\n    return", "gradient, coefficients.critic_lr)\n    return"),
    ("15: fixed encoder copied too early", "    agent.policy_target.flat.copy_(agent.policy.flat)\n", "    agent.policy.f.flat.copy_(agent.f.flat)\n    agent.policy_target.flat.copy_(agent.policy.flat)\n"),
    ("15: g copied the other way round", "agent.g_target.flat.copy_(agent.g_fixed.flat)\n", "agent.g_target.flat.copy_(agent.g.flat)\n"),
    ("15: critics' targets never move", "    agent.critic_target.flat.copy_(agent.critic.flat)\n", ""),
    ("15: limits stay", "    agent.seen.low.copy_(agent.seen.lowest)\n", ""),
]  # fmt: skip


@pytest.mark.parametrize(("what", "right", "wrong"), MUTATIONS, ids=[what for what, _, _ in MUTATIONS])
def test_a_broken_step_is_seen(what: str, right: str, wrong: str) -> None:
    source = Path(t3d.algo.td7.__file__).read_text(encoding="utf-8")
    assert source.count(right) == 1, f"the text to break stands {source.count(right)} times in td7.py: {right}"
    module = ModuleType("mutated_td7")
    exec(compile(source.replace(right, wrong), "mutated_td7", "exec"), module.__dict__)
    assert distance(module, members=1, updates=24, copy_every=5) > 1e-8


def test_every_step_of_the_update_is_broken_at_least_once() -> None:
    assert {what.split(":")[0] for what, _, _ in MUTATIONS} == {str(step) for step in range(5, 16)}


def test_the_steps_are_labelled_once_each() -> None:
    text = Path(t3d.algo.td7.__file__).read_text(encoding="utf-8")
    labels = re.findall(r"(?:# |\"\"\")Step (\d+)[:,]", text)
    assert sorted(map(int, labels)) == list(range(2, 17))


def heard(learner: Learner, returns: list[float], length: int = 10, member: int = 0) -> list[int]:
    return [learner.hear(member, EpisodeResult(0, 0, total, length, False)) for total in returns]


def checkpoint(learner: Learner, member: int = 0) -> float:
    return float(learner.agent.checkpoint.flat[member, 0])


def mark(learner: Learner, number: float) -> None:
    learner.agent.policy.flat.fill_(number)


def test_a_policy_that_does_not_do_worse_becomes_the_checkpoint() -> None:
    learner = Learner(SPEC, CFG, (0, 1), rule=TD7)
    for number, (total, kept) in enumerate([(-50, 1), (-60, 1), (-40, 3), (-40, 4), (-41, 4)], 1):
        mark(learner, number)
        assert heard(learner, [total]) == [10]  # one episode is enough, and its steps are due
        assert checkpoint(learner) == kept
    assert learner.agent.assessment.best.tolist()[0] == -40
    assert checkpoint(learner, 1) not in (1, 3, 4)  # the other member heard nothing


def test_later_a_policy_is_assessed_over_several_episodes_by_its_lowest_return() -> None:
    learner = Learner(SPEC, TD7Config(**{**vars(CFG), "assess_episodes": 3, "assess_after": 100}), (0,), rule=TD7)
    assert heard(learner, [100.0]) == [10]
    learner.made = [100]
    assert heard(learner, [100.0]) == [10]
    learner.made = [101]  # from here on: three episodes, and nine tenths of the best are enough, once
    mark(learner, 7)
    assert heard(learner, [95.0, 90.0, 120.0]) == [0, 0, 30]
    assert checkpoint(learner) == 7 and float(learner.agent.assessment.best) == 90
    mark(learner, 8)
    assert heard(learner, [300.0, 89.0]) == [0, 20]  # over at once
    assert checkpoint(learner) == 7
    assert heard(learner, [90.0, 90.0, 90.0]) == [0, 0, 30] and checkpoint(learner) == 8


def test_an_episode_that_was_cut_off_says_nothing_of_a_policy_but_its_steps_count() -> None:
    learner = Learner(SPEC, CFG, (0,), rule=TD7)
    mark(learner, 5)
    cut = EpisodeResult(0, 0, 900.0, 3, terminated=False, bad_values=1)
    assert learner.hear(0, cut) == 0 and checkpoint(learner) != 5
    assert heard(learner, [-50.0]) == [13] and checkpoint(learner) == 5 and float(learner.agent.assessment.best) == -50


def test_another_task_is_assessed_anew() -> None:
    learner = Learner(SPEC, CFG, (0, 1), rule=TD7)
    heard(learner, [500.0])
    learner.forget()
    mark(learner, 9)
    assert heard(learner, [-3.0]) == [10] and checkpoint(learner) == 9


def test_a_hard_copy_moves_each_generation_by_one() -> None:
    agent = init(SPEC, CFG, (0,))
    stacks = (agent.f, agent.policy.f, agent.policy_target.f)
    for number, stack in enumerate(stacks):
        stack.flat.fill_(number)
    copy_hard(agent, CFG)
    assert [float(stack.flat[0, 0]) for stack in stacks] == [0, 0, 1]


def test_a_member_that_rests_stays_as_it_is_and_others_do_not_notice() -> None:
    seeds = (3, 1, 4)
    fixed = Fixed(*next(helpers.random_batches(SPEC, CFG, 3, 1, torch.float64)))
    together = Learner(SPEC, CFG, seeds, dtype=torch.float64, rule=TD7, source=fixed)
    alone = [
        Learner(SPEC, CFG, (seed,), dtype=torch.float64, rule=TD7, source=fixed.of(m)) for m, seed in enumerate(seeds)
    ]
    for rest in ([], [1], [0, 1], [2], []):
        together.run(100, rest)
        for member in {0, 1, 2} - {*rest}:
            alone[member].run(100)
    assert together.made == [400, 300, 400] and together.updates == 500
    for member, learner in enumerate(alone):
        theirs = dict(named_tensors(learner.agent))
        for name, tensor in named_tensors(together.agent):
            ours = tensor.view(3, -1)[member]
            assert (ours - theirs[name].view(-1)).abs().max() <= 1e-8 * (1 + ours.abs().max()), name
        assert torch.equal(together.draw().target_noise[member], learner.draw().target_noise[0]) or member


class Fixed:
    """A source that always returns the same batch."""

    capture_safe, device = False, torch.device("cpu")

    def __init__(self, batch: Any, draws: Any) -> None:
        self.batch, self.draws = batch, draws

    def of(self, member: int) -> Fixed:
        return Fixed(*helpers.member_of(self.batch, self.draws, member))

    def sample(self) -> Any:
        return self.batch

    def keep(self, members: Any) -> Callable[[], None]:
        return lambda: None

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None: ...

    def feedback(self, index: Any, td: Any) -> None: ...
    def find_highest(self, members: Any) -> None: ...
