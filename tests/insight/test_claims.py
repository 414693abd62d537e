"""Members of a claim's run are what runs of TD3 with their settings are."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import helpers
import t3d
from run_folders import events_of
from t3d.algo.coefficients import for_members
from t3d.algo.learner import Learner, named_tensors
from t3d.algo.rules import TD3, Rule
from t3d.app.cli import main
from t3d.config import Config, TD3Config, merge, to_toml
from t3d.errors import UserError
from t3d.events import Diagnosed, Event, to_line
from t3d.insight import claims
from t3d.insight.claim_picture import findings, plot_claim, verdict
from t3d.insight.claims import CLAIMS, CRITICS, DELAY, claim_config
from t3d.insight.statistics import estimate, mean
from t3d.run.reporter import eval_event
from t3d.store.reader import open_run
from t3d.types import Batch, Draws, Evaluation

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
        learner.update(*((batch, draws) if member is None else helpers.member_of(batch, draws, member)))
    return learner


def of_member(learner: Learner, member: int) -> dict[str, torch.Tensor]:
    return {
        name: tensor.view(learner.members, -1)[member] for name, tensor in named_tensors(learner.agent) if tensor.ndim
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
        coefficients = for_members([rule.coefficients(cfg) for cfg in cfgs])
        learner = Learner(SPEC, cfgs[0], [5, 5], dtype=FLOAT, rule=rule, coefficients=coefficients)
        for batch, draws in helpers.random_batches(SPEC, SMALL, 1, UPDATES):
            twice = Batch(*(part.repeat_interleave(2, 0) for part in batch))
            learner.update(twice, Draws(draws.target_noise.repeat_interleave(2, 0)))
        first, second = (of_member(learner, member)["actor"] for member in (0, 1))
        assert not torch.allclose(first, second, rtol=0, atol=1e-6)


def test_an_actor_of_delay_three_moves_at_every_third_update() -> None:
    cfgs = [replace(SMALL, policy_delay=value) for value in (1, 3)]
    learner = Learner(
        SPEC, cfgs[0], [5, 6], rule=DELAY, coefficients=for_members([DELAY.coefficients(c) for c in cfgs])
    )
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


def told(step: int, member: int, cfg: Config, bias: float) -> Diagnosed:
    """A diagnosis in which only the bias matters."""
    nothing: dict[str, Any] = {
        field.name: [] if "list" in str(field.type) else {} if "dict" in str(field.type) else 0
        for field in dataclasses.fields(Diagnosed)
    }
    seed = cfg.members[member].seed
    about = {"step": step, "member": member, "seed": seed, "q_predicted": bias - 50, "q_return": -50, "q_bias": bias}
    return Diagnosed(**{**nothing, **about})


def test_findings_are_means_over_the_end_of_training(tmp_path: Path) -> None:
    cfg = merge(claim_config("smoothing", "Pendulum-v1", "runs"), {"seeds": [3, 8], "total_steps": 10_000})
    late = {0: 12.0, 1: 14.0, 2: -2.0, 3: 1.0}  # by member
    events: list[Event] = [
        told(step, member, cfg, late[member] if step >= 7_000 else 500.0)
        for step in (2_000, 6_999, 7_000, 10_000)
        for member in late
    ]
    for step in (0, 7_000):
        for member in late:
            returns, lengths = np.array([-100.0 * (1 + member // 2)]), np.array([200])
            evaluation = Evaluation(step, member, helpers.snapshot_for(SPEC, 4), returns, lengths)
            events.append(eval_event(evaluation, cfg, best=False))
    (tmp_path / "events.jsonl").write_text("".join(to_line(event) + "\n" for event in events), encoding="utf-8")
    (tmp_path / "config.toml").write_text(to_toml(cfg), encoding="utf-8")
    first, without, with_noise, verdict_of_it = findings(open_run(tmp_path), "smoothing")
    assert first == "From step 7,000 on:"
    assert "no smoothing: values are 13.0 above the returns" in without and "(+12.0 to +14.0 over 2 seeds)" in without
    assert "smoothing: values are 0.5 below the returns" in with_noise
    assert without.endswith("-100.0") and with_noise.endswith("-200.0")
    assert verdict_of_it == verdict(CLAIMS["smoothing"], "Pendulum-v1", np.array([12.0, 14.0]), np.array([-2.0, 1.0]))
    plot_claim(open_run(tmp_path), "smoothing", tmp_path / "claim.png")
    with Image.open(tmp_path / "claim.png") as image:
        assert image.width > 1000


AROUND = np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
AGREE, OPPOSITE, NEITHER = "The claim is seen on X", "The opposite of the claim is seen on X", "is not seen on X"


@pytest.mark.parametrize("name", CLAIMS)
@pytest.mark.parametrize(
    ("first", "second", "of_bias", "of_size"),
    [
        (20, 0, AGREE, AGREE),
        (0, 20, OPPOSITE, OPPOSITE),
        (-20, 0, OPPOSITE, AGREE),
        (0, -20, AGREE, OPPOSITE),
        (20, -20, AGREE, NEITHER),
        (0, 0, NEITHER, NEITHER),
    ],
)
def test_a_verdict_is_about_what_the_claim_says(
    name: str, first: float, second: float, of_bias: str, of_size: str
) -> None:
    """Overestimation and smoothing are about values that are too high, the delay about values that are wrong."""
    expected = of_size if name == "delay" else of_bias
    assert expected in verdict(CLAIMS[name], "X", AROUND + first, AROUND + second)


def test_a_verdict_needs_more_than_chance_and_five_seeds() -> None:
    claim = CLAIMS["overestimation"]
    wide = np.array([-20.0, 0.0, 5.0, 10.0, 30.0])
    assert verdict(claim, "X", wide, AROUND).startswith("The claim is not seen on X: the bias of one critic minus")
    assert verdict(claim, "X", wide, AROUND).endswith("contains 0.")
    assert "decides nothing: 4 seeds of a kind left" in verdict(claim, "X", AROUND + 20, AROUND[:4])
    low, high = estimate(mean, [AROUND + 20]).interval or (0, 0)  # the others do not vary
    said = verdict(claim, "X", AROUND + 20, np.zeros(5))
    assert said.endswith(f"is +20, and its 95 % interval [{low:+.3g}, {high:+.3g}] is above 0.")


def test_the_command_trains_compares_and_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small: dict[str, Any] = {
        **{"total_steps": 420, "random_steps": 100, "seeds": [0, 1], "threads": 1, "td3": {"batch_size": 16}},
        **{"eval": {"every_steps": 105, "episodes": 1}, "log": {"every_steps": 60, "diagnose_every_steps": 60}},
    }
    monkeypatch.setattr(claims, "SETTINGS", small)
    assert main(["explain", "--claim", "delay", "--root", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    (folder,) = tmp_path.iterdir()
    assert "From step 294 on:" in said and "delay 1: values are" in said and "delay 2: values are" in said
    assert (folder / "delay.png").is_file() and str(folder / "delay.png") in said
    (folder / "delay.png").unlink()
    assert main(["explain", str(folder), "--claim", "delay"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == said[said.index("\nFrom step 294") :].splitlines()
    assert (folder / "delay.png").is_file()
    assert main(["explain", str(folder), "--claim", "smoothing"]) == 2
    assert "was not trained for the claim smoothing" in capsys.readouterr().err
    assert main(["explain", "--claim", "delay", "--seed", "0"]) == 2
    assert main(["explain", "--claim", "twins"]) == 2


def test_whole_numbers_are_swept_only_by_rules_that_read_them() -> None:
    cfg = claim_config("overestimation", "Pendulum-v1", "runs")
    assert [cfg.td3_of(member).critics for member in cfg.members] == [1] * 8 + [2] * 8
    with pytest.raises(UserError, match="critics cannot be swept"):
        merge(cfg, {"rule": "td3"})
    with pytest.raises(UserError, match=r"td3.critics=1.5 is not an integer"):
        halves = merge(cfg, {"sweep": ["td3.critics=1.5,2"]})
        halves.td3_of(halves.members[0])
