"""Coefficients that differ between members, or move: a member among others is the member alone with its own numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import helpers
from t3d.algo.coefficients import for_members
from t3d.algo.engines import ENGINES
from t3d.algo.learner import Learner
from t3d.algo.networks import named_tensors
from t3d.algo.rules import TD3
from t3d.algo.td3 import Coefficients, coefficients_of
from t3d.config import TD3Config
from t3d.data.replay import Replay
from t3d.data.samplers import UniformSampler

SPEC = helpers.make_spec()
CFG = TD3Config(batch_size=8, actor_hidden=(12,), critic_hidden=(11,), critics=3)
EACH: dict[str, list[float]] = {
    "gamma": [0.9, 0.99, 0.5],
    "tau": [0.005, 0.1, 0.5],
    "actor_lr": [1e-3, 1e-2, 1e-4],
    "critic_lr": [3e-4, 1e-3, 1e-2],
    "target_noise": [0.2, 0.8, 0.0],
    "target_noise_clip": [0.5, 0.1, 1.0],
    "weight_decay": [0.1, 0.5, 0.0],
    "max_grad_norm": [0.0, 0.1, 0.01],
    "pre_activation_penalty": [0.0, 1.0, 0.1],
}
SEEDS = (4, 5, 6)
CASES = [  # capture traces all numbers at once; each alone is a trace that says little more
    pytest.param(engine, names, marks=pytest.mark.slow if engine == "capture" and len(names) == 1 else ())
    for engine in ("eager", "capture")
    for names in [*([name] for name in EACH if name != "gamma"), list(EACH)]
]


def for_each(names: list[str], dtype: torch.dtype = torch.float64) -> Coefficients:
    return coefficients_of(CFG)._replace(**{name: torch.tensor(EACH[name], dtype=dtype) for name in names})


def updates(learner: Learner, member: int | None = None) -> None:
    """Thirty updates, with the member's part of the batches or all of them."""
    with torch.compiler.set_stance("force_eager"):
        for batch, draws in helpers.random_batches(SPEC, CFG, len(SEEDS), 30):
            learner.update(*(batch, draws) if member is None else helpers.member_of(batch, draws, member))


@pytest.mark.parametrize(("engine", "names"), [*CASES, ("fused", ["tau", "actor_lr", "critic_lr"])], ids=str)
def test_a_member_learns_with_its_own_numbers(engine: str, names: list[str]) -> None:
    together = Learner(SPEC, CFG, SEEDS, dtype=torch.float64, engine=engine, coefficients=for_each(names))
    updates(together)
    for member, seed in enumerate(SEEDS):
        numbers: dict[str, Any] = {name: EACH[name][member] for name in names}
        cfg = replace(CFG, **numbers)
        alone = Learner(SPEC, cfg, (seed,), dtype=torch.float64, engine=engine)
        updates(alone, member)
        ours = dict(named_tensors(together.agent))
        for name, tensor in named_tensors(alone.agent):
            rows = slice(member * len(tensor), (member + 1) * len(tensor)) if tensor.ndim else ...
            assert torch.allclose(ours[name][rows], tensor, atol=1e-10), name


def test_every_number_matters_to_its_member_alone() -> None:
    for name in EACH:
        if name == "gamma":
            continue  # arrives with the batch
        plain, different = (Learner(SPEC, CFG, SEEDS, coefficients=for_each([name], torch.float32)) for _ in range(2))
        getattr(different.coefficients, name)[1] *= 0.5
        for learner in (plain, different):
            for batch, draws in helpers.random_batches(SPEC, CFG, 3, 6, torch.float32):
                learner.update(batch, draws)
        one, other = plain.agent.critic_target.flat, different.agent.critic_target.flat
        changed = [not torch.equal(one[rows : rows + 3], other[rows : rows + 3]) for rows in (0, 3, 6)]
        assert changed == [False, True, False], name


def test_a_discount_of_its_own_for_each_member_that_may_move() -> None:
    replay = Replay(SPEC, 100, 3)
    replay.rows.uniform_(-1, 1)
    replay.set_added([100] * 3)
    gamma = torch.tensor(EACH["gamma"])
    sampler = UniformSampler(replay, CFG, SEEDS, gamma)
    assert torch.equal(sampler.sample().discount, gamma.unsqueeze(1).expand(3, CFG.batch_size))
    gamma[2] = 0.75
    assert (sampler.sample().discount[2] == 0.75).all()


def test_engines_say_what_they_refuse() -> None:
    plain, each = coefficients_of(CFG), for_each(["target_noise"])
    refusals = {
        name: (engine.refuses(TD3, CFG, plain), engine.refuses(TD3, CFG, each)) for name, engine in ENGINES.items()
    }
    assert refusals.pop("fused") == ("", "computes with one target_noise for all seeds")
    assert ENGINES["fused"].refuses(TD3, CFG, for_each(["gamma", "tau", "actor_lr", "critic_lr"])) == ""
    assert set(refusals) == {"eager", "capture"} and set(refusals.values()) == {("", "")}
    for owner in ("actor", "critic"):
        changes: dict[str, Any] = {f"{owner}_network": "layer_norm", f"{owner}_activation": "elu"}
        other = replace(CFG, **changes)
        why = ENGINES["fused"].refuses(TD3, other, plain)
        computed = "computes mlp and layer_norm networks with relu only"
        assert why == f"{computed}, and the {owner}'s network is layer_norm with elu"


@pytest.mark.parametrize(("engine", "names"), CASES, ids=str)
def test_in_float32_too_a_number_of_its_own_gives_the_bits_of_a_float(engine: str, names: list[str]) -> None:
    """All members have the same number, once as a float and once as a tensor: only its rounding could differ."""
    numbers: dict[str, Any] = {name: EACH[name][0] for name in names}
    same = replace(CFG, **numbers)
    plain = coefficients_of(same)
    each = plain._replace(**{name: torch.full((3,), EACH[name][0], dtype=torch.float64) for name in names})
    learners = [Learner(SPEC, same, SEEDS, engine=engine, coefficients=numbers) for numbers in (plain, each)]
    with torch.compiler.set_stance("force_eager"):
        for learner in learners:
            for batch, draws in helpers.random_batches(SPEC, CFG, len(SEEDS), 30, torch.float32):
                learner.update(batch, draws)
    floats, tensors = (dict(named_tensors(learner.agent)) for learner in learners)
    for name, tensor in floats.items():
        assert torch.equal(tensor, tensors[name]), name


def test_members_coefficients_become_tensors_where_they_differ() -> None:
    configs = [replace(CFG, tau=tau) for tau in (0.1, 0.3, 0.1)]
    joined = for_members([coefficients_of(cfg) for cfg in configs])
    assert joined.tau.tolist() == [0.1, 0.3, 0.1] and joined.tau.dtype == torch.float64
    assert joined._replace(tau=0.0) == coefficients_of(CFG)._replace(tau=0.0), "all others stay floats"
