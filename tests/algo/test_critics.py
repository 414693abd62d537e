"""What may be chosen about critics and their optimisation, against hand-made values, brute force and torch.optim."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import helpers
from rules_in_tests import CHOICES
from t3d.algo.adam import adam_init, adam_step, clipped, decay, scheduled
from t3d.algo.critics import AGGREGATES, LOSSES, OBJECTIVES, expectation, two_hot
from t3d.algo.learner import Learner
from t3d.algo.networks import named_tensors
from t3d.algo.td3 import coefficients_of, optimise, penalty, td3_init
from t3d.config import TD3Config
from t3d.types import Draws

SPEC = helpers.make_spec()
CFG = TD3Config(batch_size=6, actor_hidden=(8,), critic_hidden=(9,))
Q2 = torch.tensor([[[1.0, 6.0], [4.0, 2.0], [3.0, 9.0], [8.0, 5.0]]])  # one member, four critics, two transitions


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"aggregate": "min"}, [1.0, 2.0]),
        ({"aggregate": "mean"}, [4.0, 5.5]),
        ({"aggregate": "truncated", "drop_highest": 1}, [8 / 3, 13 / 3]),
        ({"aggregate": "truncated", "drop_highest": 2}, [2.0, 3.5]),
        ({"aggregate": "min_of_random_2"}, [3.0, 5.0]),  # the last two critics are chosen
    ],
)
def test_aggregates_of_values_made_by_hand(changes: dict[str, Any], expected: list[float]) -> None:
    cfg = replace(CFG, critics=4, **changes)
    draws = Draws(torch.empty(0), torch.tensor([[-1.0, 0.0, 2.0, 0.5]]))
    found = AGGREGATES[cfg.aggregate](Q2, draws, cfg)
    torch.testing.assert_close(found, torch.tensor([expected]))


def test_two_random_critics_are_every_pair_equally_often_and_each_members_own() -> None:
    cfg = replace(CFG, critics=3, aggregate="min_of_random_2")
    learner, pairs = Learner(SPEC, cfg, (0, 1)), []
    for _ in range(600):
        choice = learner.draw().critic_choice
        assert choice is not None and choice.shape == (2, 3)
        pairs.append([tuple(sorted(row)) for row in choice.topk(2, dim=1).indices.tolist()])
    counts = [[pair[member] for pair in pairs].count(both) for member in (0, 1) for both in ((0, 1), (0, 2), (1, 2))]
    assert all(150 < count < 250 for count in counts), counts
    assert len({tuple(pair) for pair in pairs}) == 9, "members choose independently"


def test_draws_that_nobody_needs_are_not_made() -> None:
    assert Learner(SPEC, CFG, (0,)).draw().critic_choice is None
    assert "critic_choice" not in Learner(SPEC, CFG, (0,)).state()


def test_the_actor_maximises_the_first_the_mean_or_the_smallest() -> None:
    agent = td3_init(SPEC, replace(CFG, critics=3), (0, 1))
    s, pi = torch.randn(2, 6, SPEC.observation_size), torch.randn(2, 6, SPEC.action_size)
    q = agent.critic(s, pi)
    expected = {"first": q[:, 0], "mean": q.sum(1) / 3, "min": q.min(dim=1).values}
    assert expected.keys() == OBJECTIVES.keys()
    for name, values in expected.items():
        torch.testing.assert_close(OBJECTIVES[name](agent.critic, s, pi), values)


def test_every_named_choice_is_in_the_list_that_tests_go_through() -> None:
    hints = get_type_hints(TD3Config)
    for field in fields(TD3Config):
        if get_origin(hints[field.name]) is Literal and not field.name.endswith("_activation"):
            chosen = {choice.get(field.name, field.default) for choice in CHOICES.values()}
            assert chosen == set(get_args(hints[field.name])), field.name


def test_huber_is_half_the_square_and_then_a_line() -> None:
    td = torch.tensor([[[-3.0, -1.0, -0.5, 0.0, 0.2, 2.0]]])
    expected = [[[2.5, 0.5, 0.125, 0.0, 0.02, 1.5]]]
    torch.testing.assert_close(LOSSES["huber"](td, td, td, CFG), torch.tensor(expected))


def brute_force_two_hot(y: float, values: list[float]) -> list[float]:
    """The weights of the two values next to y, found by looking at every pair."""
    y, weights = min(max(y, values[0]), values[-1]), [0.0] * len(values)
    for place in range(len(values) - 1):
        low, high = values[place], values[place + 1]
        if low <= y <= high:
            weights[place], weights[place + 1] = (high - y) / (high - low), (y - low) / (high - low)
            break
    return weights


@given(
    y=st.lists(st.floats(-30, 30), min_size=1, max_size=8),
    low=st.floats(-20, 10),
    width=st.floats(0.5, 30),
    bins=st.integers(2, 40),
)
def test_the_two_hot_projection_is_the_brute_force_one(y: list[float], low: float, width: float, bins: int) -> None:
    cfg = replace(CFG, critic_loss="categorical", value_low=low, value_high=low + width, value_bins=bins)
    values = torch.linspace(low, low + width, bins, dtype=torch.float64)
    target = two_hot(torch.tensor([y], dtype=torch.float64), cfg)
    expected = [brute_force_two_hot(one, values.tolist()) for one in y]
    torch.testing.assert_close(target, torch.tensor([expected], dtype=torch.float64), atol=1e-9, rtol=0)
    torch.testing.assert_close(target.sum(-1), torch.ones(1, len(y), dtype=torch.float64))
    mean = (target * values).sum(-1)
    torch.testing.assert_close(mean, torch.tensor([y], dtype=torch.float64).clamp(low, low + width), atol=1e-8, rtol=0)


def test_the_loss_of_a_categorical_critic_is_cross_entropy_and_its_value_an_expectation() -> None:
    cfg = replace(CFG, critic_loss="categorical", value_low=-1.0, value_high=1.0, value_bins=3)
    outputs = torch.tensor([[[[0.0, math.log(2.0), 0.0]]]])  # probabilities 1/4, 1/2, 1/4
    y = torch.tensor([[0.5]])  # half at 0, half at 1
    expected = -(0.5 * math.log(0.5) + 0.5 * math.log(0.25))
    found = LOSSES["categorical"](outputs, outputs, y, cfg)
    torch.testing.assert_close(found, torch.tensor([[[expected]]]))
    logits = torch.tensor([0.0, 0.0, math.log(2.0)])  # 1/4, 1/4, 1/2
    torch.testing.assert_close(expectation(logits, cfg), torch.tensor(0.25))


def test_a_categorical_critic_learns_the_value_of_a_transition() -> None:
    """Terminated transitions have the value of their reward, also outside the middle of a bin."""
    changes: dict[str, Any] = {"value_low": -2.0, "value_high": 2.0, "value_bins": 21, "critic_lr": 1e-2}
    learner = Learner(SPEC, replace(CFG, critic_loss="categorical", **changes), (0, 1))
    batch, draws = next(helpers.random_batches(SPEC, CFG, 2, 1, torch.float32))
    batch = batch._replace(terminated=torch.ones_like(batch.r), r=batch.r.clamp(-1.9, 1.9))
    for _ in range(300):
        trace = learner.update(batch, draws)
    assert (trace.q - batch.r.unsqueeze(1)).abs().max() < 0.05
    assert trace.q.shape == trace.td.shape == trace.loss.shape == (2, 2, 6)


@pytest.mark.parametrize("choice", CHOICES)
def test_a_member_beside_others_is_the_member_alone(choice: str) -> None:
    cfg, seeds = replace(CFG, **CHOICES[choice]), (3, 1)
    together, alone = Learner(SPEC, cfg, seeds, dtype=torch.float64), Learner(SPEC, cfg, (1,), dtype=torch.float64)
    plain = Learner(SPEC, replace(CFG, critics=cfg.critics), (1,), dtype=torch.float64)
    for batch, draws in helpers.random_batches(SPEC, cfg, 2, 30):
        together.update(batch, draws)
        alone.update(*helpers.member_of(batch, draws, 1))
        plain.update(*helpers.member_of(batch, draws, 1))
    ours = dict(named_tensors(together.agent))
    for name, tensor in named_tensors(alone.agent):
        rows = slice(len(tensor), 2 * len(tensor)) if tensor.ndim else ...
        torch.testing.assert_close(ours[name][rows], tensor, rtol=0, atol=1e-12)
    if choice != "min of 5":
        assert alone.agent.actor.flat.sub(plain.agent.actor.flat).abs().max() > 1e-6, "it changes what is learned"


def descended(owner: str, changes: dict[str, Any], gradients: list[torch.Tensor], every: int) -> torch.Tensor:
    """The actors or the critics of two members after some gradients."""
    cfg = replace(CFG, **changes)
    agent = td3_init(SPEC, cfg, (0, 1), dtype=torch.float64)
    stack, adam = getattr(agent, owner), getattr(agent, f"{owner}_adam")
    for gradient in gradients:
        rate = scheduled(0.01, adam.steps, cfg, every)
        optimise(stack, adam, gradient, rate, coefficients_of(cfg))
    return stack.flat  # type: ignore[no-any-return]


@pytest.mark.parametrize(("owner", "every"), [("critic", 1), ("actor", 2)])
def test_optimising_is_that_of_torch_for_each_member_on_its_own(owner: str, every: int) -> None:
    start = descended(owner, {}, [], every)
    generator = torch.Generator().manual_seed(0)
    gradients = [torch.randn(start.shape, dtype=torch.float64, generator=generator) * size for size in (0.01, 1, 100)]
    each = len(start) // 2
    gradients = [one * torch.tensor([1.0] * each + [9.0] * each).unsqueeze(1) for one in gradients]  # members differ
    schedule = {"lr_schedule": "linear", "lr_updates": 4, "lr_final": 0.5}
    found = descended(owner, {"weight_decay": 0.3, "max_grad_norm": 2.0, **schedule}, gradients, every)
    for member in (0, 1):
        rows = slice(each * member, each * member + each)
        parameter = torch.nn.Parameter(start[rows].clone())
        optimiser = torch.optim.AdamW([parameter], lr=0.01, weight_decay=0.3)
        falling = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda made: max(0.5, 1 - 0.5 * made * every / 4))
        for gradient in gradients:
            parameter.grad = gradient[rows].clone()
            torch.nn.utils.clip_grad_norm_([parameter], 2.0)
            optimiser.step()
            falling.step()
        torch.testing.assert_close(found[rows], parameter.detach(), rtol=0, atol=1e-10)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_transition_of_weight_zero_is_not_learned_from(loss: Any) -> None:
    ours, theirs = (Learner(SPEC, replace(CFG, critic_loss=loss), (0,), dtype=torch.float64) for _ in range(2))
    batch, draws = next(helpers.random_batches(SPEC, CFG, 1, 1))
    weight = torch.ones_like(batch.weight)
    weight[:, 0] = 0
    other = batch._replace(weight=weight, r=batch.r + 100 * (1 - weight))
    ours.update(batch._replace(weight=weight), draws)
    theirs.update(other, draws)
    torch.testing.assert_close(ours.agent.critic.flat, theirs.agent.critic.flat, rtol=0, atol=1e-12)
    assert torch.equal(ours.agent.critic_adam.mean, theirs.agent.critic_adam.mean)


def test_every_update_clips_the_gradients_of_actor_and_critics() -> None:
    """What Adam remembers of a first gradient is a tenth of it."""
    cfg = replace(CFG, max_grad_norm=1e-3, policy_delay=1)
    learner = Learner(SPEC, cfg, (0, 1), dtype=torch.float64)
    learner.update(*next(helpers.random_batches(SPEC, cfg, 2, 1)))
    for state in (learner.agent.actor_adam, learner.agent.critic_adam):
        norms = state.mean.view(2, -1).norm(dim=1) / 0.1
        torch.testing.assert_close(norms, torch.full((2,), 1e-3, dtype=torch.float64), rtol=1e-2, atol=0)


def test_a_limit_touches_only_the_members_above_it() -> None:
    gradient = torch.tensor(
        [[3.0, 4.0], [0.0, 0.0], [0.3, 0.4], [0.0, 0.0]]
    )  # two members of two rows: norms 5 and 0.5
    found = clipped(gradient, 2, 1.0)
    torch.testing.assert_close(found[0], torch.tensor([0.6, 0.8]), atol=1e-5, rtol=0)
    assert torch.equal(found[2], gradient[2])
    each = clipped(gradient, 2, torch.tensor([0.0, 0.25], dtype=torch.float64))  # 0 is no limit
    assert torch.equal(each[0], gradient[0])
    torch.testing.assert_close(each[2], torch.tensor([0.15, 0.2]), atol=1e-5, rtol=0)
    assert clipped(gradient, 2, 0.0) is gradient


@pytest.mark.parametrize(
    ("schedule", "steps", "share"),
    [
        *(("linear", 0, 1.0), ("linear", 25, 0.775), ("linear", 100, 0.1), ("linear", 900, 0.1)),
        *(("cosine", 0, 1.0), ("cosine", 50, 0.55), ("cosine", 25, 0.1 + 0.45 * (1 + 2**-0.5)), ("cosine", 300, 0.1)),
    ],
)
def test_schedules_against_their_formula(schedule: Any, steps: int, share: float) -> None:
    cfg = replace(CFG, lr_schedule=schedule, lr_updates=100, lr_final=0.1)
    rate = scheduled(0.2, torch.tensor(float(steps)), cfg)
    assert float(rate) == pytest.approx(0.2 * share, rel=1e-6)


def test_both_rates_reach_zero_with_the_same_update() -> None:
    """Although the actor has made half as many steps."""
    cfg = replace(CFG, lr_schedule="linear", lr_updates=40, lr_final=0.0, actor_lr=1e-2, critic_lr=1e-2)
    learner = Learner(SPEC, cfg, (0,), dtype=torch.float64)
    for batch, draws in helpers.random_batches(SPEC, cfg, 1, 40):
        learner.update(batch, draws)
    before = learner.agent.actor.flat.clone(), learner.agent.critic.flat.clone()
    for batch, draws in helpers.random_batches(SPEC, cfg, 1, 4, seed=1):
        learner.update(batch, draws)
    assert torch.equal(before[0], learner.agent.actor.flat) and torch.equal(before[1], learner.agent.critic.flat)


def test_decay_without_a_gradient_shrinks_by_rate_times_strength() -> None:
    flat = torch.ones(4, 3, dtype=torch.float64)
    decay(flat, torch.tensor([0.1, 0.2], dtype=torch.float64), 0.5)
    torch.testing.assert_close(flat[:, 0], torch.tensor([0.95, 0.95, 0.9, 0.9], dtype=torch.float64))
    untouched = torch.ones(2, 2)
    decay(untouched, 0.1, 0.0)
    assert torch.equal(untouched, torch.ones(2, 2))


def test_the_penalty_keeps_the_actor_off_the_rails_of_its_tanh() -> None:
    """With critics that always want more, the actor saturates without it and stays in between with it."""
    outputs = []
    for strength in (0.0, 1.0):
        cfg = replace(CFG, pre_activation_penalty=strength, actor_lr=1e-2, policy_delay=1)
        learner = Learner(SPEC, cfg, (0,))
        for batch, draws in helpers.random_batches(SPEC, cfg, 1, 300, torch.float32):
            taken = batch._replace(r=5 * batch.a.sum(-1), terminated=torch.ones_like(batch.r))
            learner.update(taken, draws)
        outputs.append(float(learner.agent.actor.forward(batch.s).detach().abs().mean()))
    assert outputs[0] > 3 > 2 * outputs[1] > 0, outputs


def test_the_penalty_is_a_mean_over_batch_and_actions_and_part_of_the_loss() -> None:
    values = torch.tensor([[[1.0, 2.0], [3.0, 0.0]], [[0.0, 0.0], [0.0, 4.0]]])  # two members
    torch.testing.assert_close(penalty(values, 0.5), torch.tensor([0.5 * 14 / 4, 0.5 * 16 / 4]))
    cfg = replace(CFG, pre_activation_penalty=0.5, policy_delay=1)
    learner = Learner(SPEC, cfg, (0, 1), dtype=torch.float64)
    batch, draws = next(helpers.random_batches(SPEC, cfg, 2, 1))
    paid = 0.5 * learner.agent.actor.forward(batch.s).detach().square().mean(dim=(1, 2))
    trace = learner.update(batch, draws)
    torch.testing.assert_close(trace.losses["actor"], paid - trace.q_pi.mean(-1))


def test_adam_moves_rows_with_rates_of_their_own_as_floats_do() -> None:
    """To the last bit, in float32 too: a tensor rounds as the number does."""
    generator = torch.Generator().manual_seed(0)
    gradient = torch.randn(2, 50, generator=generator)
    together, rates = torch.ones(2, 50), [3e-4, 7e-3]
    state = adam_init(together)
    alone = [torch.ones(1, 50) for _ in rates]
    states = [adam_init(one) for one in alone]
    for number in range(1, 9):
        adam_step(state, together, gradient / number, torch.tensor(rates, dtype=torch.float64))
        for row, (one, its_state, rate) in enumerate(zip(alone, states, rates, strict=True)):
            adam_step(its_state, one, gradient[row : row + 1] / number, rate)
    assert torch.equal(together, torch.cat(alone))
