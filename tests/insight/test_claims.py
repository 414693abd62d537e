"""Members of a claim's run are what runs of TD3 with their settings are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import helpers
import t3d
from run_folders import events_of
from t3d.algo.coefficients import for_members
from t3d.algo.learner import Learner, named_tensors
from t3d.algo.rules import TD3, Rule
from t3d.config import TD3Config, merge
from t3d.errors import UserError
from t3d.insight.claims import CLAIMS, CRITICS, DELAY, claim_config

UPDATES = 12
SPEC = helpers.make_spec()
SMALL = TD3Config(batch_size=16, actor_hidden=(8, 8), critic_hidden=(8, 8), actor_lr=1e-3, critic_lr=1e-3)
FLOAT = torch.float64


def learned(rule: Rule, cfgs: list[TD3Config], seeds: list[int], member: int | None = None) -> Learner:
    """Learns from the same batches whether all members are there or one alone."""
    together = rule is not TD3
    coefficients = for_members([rule.coefficients(cfg) for cfg in cfgs]) if together else None
    learner = Learner(SPEC, cfgs[0], seeds, dtype=FLOAT, rule=rule, coefficients=coefficients)
    for batch, draws in helpers.random_batches(SPEC, SMALL, 2, UPDATES):
        batch, draws = (batch, draws) if member is None else helpers.member_of(batch, draws, member)
        learner.update(batch, draws)
    return learner


def of_member(learner: Learner, member: int) -> dict[str, torch.Tensor]:
    return {
        name: tensor.view(learner.members, -1)[member]
        for name, tensor in named_tensors(learner.agent)
        if tensor.ndim
    }


@pytest.mark.parametrize(
    ("rule", "field"), [(CRITICS, "critics"), (DELAY, "policy_delay")], ids=["critics", "policy_delay"]
)
@pytest.mark.parametrize("member", [0, 1])
def test_a_member_is_a_run_of_td3_with_its_value(rule: Rule, field: str, member: int) -> None:
    cfgs = [replace(SMALL, **{field: value}) for value in (1, 2)]  # type: ignore[arg-type]
    together = of_member(learned(rule, cfgs, [5, 6]), member)
    alone = of_member(learned(TD3, [cfgs[member]], [5 + member], member), 0)
    for name, expected in alone.items():
        assert torch.allclose(together[name][: len(expected)], expected, rtol=0, atol=1e-12), name
    if (rule, member) == (CRITICS, 0):
        critics = together["critic"].view(2, -1)
        assert torch.equal(critics[0], critics[1]), "a single critic's second one is its copy"
        assert len(alone["critic"]) == critics.shape[1], "and the run alone had one critic"


def test_delays_and_critics_do_make_a_difference() -> None:
    for rule, field in ((CRITICS, "critics"), (DELAY, "policy_delay")):
        cfgs = [replace(SMALL, **{field: value}) for value in (1, 2)]  # type: ignore[arg-type]
        same_seeds = learned(rule, cfgs, [5, 5], None)
        batch_free = [of_member(same_seeds, member)["actor"] for member in (0, 1)]
        assert not torch.allclose(*batch_free, atol=1e-4)


def test_an_actor_of_delay_three_moves_at_every_third_update() -> None:
    cfgs = [replace(SMALL, policy_delay=value) for value in (1, 3)]
    learner = Learner(SPEC, cfgs[0], [5, 6], rule=DELAY, coefficients=for_members([DELAY.coefficients(c) for c in cfgs]))
    moved = []
    for batch, draws in helpers.random_batches(SPEC, SMALL, 2, 6, torch.float32):
        before = learner.agent.actor.flat.clone()
        learner.update(batch, draws)
        moved.append((learner.agent.actor.flat != before).any(dim=1).tolist())
    assert moved == [[True, False], [True, False], [True, True]] * 2


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_is_an_ordinary_run_whose_members_have_names(name: str, tmp_path: Path) -> None:
    small: dict[str, Any] = {
        **{"total_steps": 160, "random_steps": 100, "seeds": [0, 1], "threads": 1},
        **{"td3": {"batch_size": 16}, "eval": {"every_steps": 80, "episodes": 1}, "run": {"name": "run"}},
    }
    events = list(t3d.train(merge(claim_config(name, "Pendulum-v1", str(tmp_path)), small)))
    field = CLAIMS[name].sweep.partition("=")[0].removeprefix("td3.")
    first, second = CLAIMS[name].sweep.partition("=")[2].split(",")
    expected = [f"{field}-{value}-seed-{seed}" for value in (first, second) for seed in (0, 1)]
    assert events_of(tmp_path / "run")[0].members == expected  # type: ignore[attr-defined]
    assert events[-1].reason == "finished"  # type: ignore[attr-defined]
    resumed = list(t3d.resume(tmp_path / "run", total_steps=200))
    assert resumed[-1].reason == "finished"  # type: ignore[attr-defined]


def test_whole_numbers_are_swept_only_by_rules_that_read_them() -> None:
    cfg = claim_config("overestimation", "Pendulum-v1", "runs")
    assert [cfg.td3_of(member).critics for member in cfg.members] == [1] * 8 + [2] * 8
    with pytest.raises(UserError, match="critics cannot be swept"):
        merge(cfg, {"rule": "td3"})
    with pytest.raises(UserError, match=r"td3.critics=1.5 is not an integer"):
        halves = merge(cfg, {"sweep": ["td3.critics=1.5,2"]})
        halves.td3_of(halves.members[0])
