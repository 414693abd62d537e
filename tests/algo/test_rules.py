"""Rules other than TD3: the learner, checkpoints, the proof and a whole run work from the names of a rule's fields."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import helpers
import t3d
from ddpg import DDPG
from rules_in_tests import ALL_RULES, TRACKING, settings_for
from run_folders import assert_equal, weights
from t3d.actors.inline import InlineCollector
from t3d.algo.engines.verify import FixedBatch, mismatch, random_batch
from t3d.algo.learner import Learner
from t3d.algo.networks import named_tensors
from t3d.algo.own_code import check_own_code
from t3d.algo.rules import rule_of
from t3d.config import TD3Config
from t3d.errors import UserError
from t3d.events import End, Eval, Saved, Start, TraceSummary, Update

SPEC = helpers.make_spec()
CFG = TD3Config(batch_size=8, actor_hidden=(12, 12), critic_hidden=(12, 12))
HERE = Path(__file__).parents[1]
DDPG_FILE = f"{HERE / 'ddpg.py'}:DDPG"


def learner_of(rule: str, members: int = 2, **changes: Any) -> Learner:
    cfg = settings_for(rule, CFG)
    return Learner(SPEC, cfg, range(members), rule=ALL_RULES[rule], source=FixedBatch(batch_of(members)), **changes)


def batch_of(members: int = 2) -> Any:
    return random_batch(SPEC, CFG, members, "cpu")


@pytest.mark.parametrize("rule", ALL_RULES)
def test_a_learner_goes_on_to_the_last_bit(rule: str) -> None:
    straight, begun = learner_of(rule), learner_of(rule)
    straight.run(20)
    begun.run(7)
    resumed = learner_of(rule)
    resumed.restore(begun.state())
    resumed.run(13)
    for (name, one), (_, other) in zip(named_tensors(straight.agent), named_tensors(resumed.agent), strict=True):
        assert torch.equal(one, other), name
    assert resumed.updates == 20


@pytest.mark.parametrize("rule", ALL_RULES)
def test_a_member_beside_others_is_the_member_alone(rule: str) -> None:
    together, alone = learner_of(rule, 3, dtype=torch.float64), learner_of(rule, 1, dtype=torch.float64)
    for _ in range(20):
        batch, draws = batch_of(3), together.draw()
        batch = type(batch)(*(part.double() if part.is_floating_point() else part for part in batch))
        together.update(batch, draws)
        alone.update(*helpers.member_of(batch, draws, 0))
    ours, theirs = dict(named_tensors(together.agent)), dict(named_tensors(alone.agent))
    for name, tensor in theirs.items():
        mine = ours[name][: len(tensor)] if tensor.ndim else ours[name]
        assert torch.allclose(mine, tensor, atol=1e-10), name


@pytest.mark.parametrize("rule", ALL_RULES)
def test_what_is_not_finite_is_found_by_its_name_and_member(rule: str) -> None:
    learner = learner_of(rule, 3)
    assert learner.non_finite() == []
    for name, tensor in named_tensors(learner.agent):
        if tensor.ndim:
            tensor[len(tensor) // 3] = float("nan")  # the first row of member 1
            assert (name, 1) in learner.non_finite()
    named = [name for name, _ in learner.non_finite()]
    assert named == [name for name, tensor in named_tensors(learner.agent) if tensor.ndim]


def test_a_state_of_another_rule_is_refused_by_the_names_that_differ() -> None:
    with pytest.raises(ValueError, match="has largest, limit, which its rule does not know"):
        learner_of("td3").restore(learner_of("tracking").state())
    with pytest.raises(ValueError, match="lacks largest, limit"):
        learner_of("tracking").restore(learner_of("td3").state())


def test_rare_operations_happen_after_every_250th_update() -> None:
    seen: list[int] = []

    def noted(agent: Any, cfg: Any) -> None:
        TRACKING.periodic[0].run(agent, cfg)
        assert torch.equal(agent.actor_target.flat, agent.actor.flat) and torch.equal(agent.limit, agent.largest)
        seen.append(int(agent.critic_adam.steps))

    rule = TRACKING._replace(periodic=(TRACKING.periodic[0]._replace(run=noted),))
    learner = Learner(SPEC, CFG, range(2), rule=rule, source=FixedBatch(batch_of()))
    for _ in range(60):
        learner.run(10)
    assert seen == [250, 500] and learner.updates == 600
    assert not torch.equal(learner.agent.actor.flat, learner.agent.actor_target.flat), "a hundred updates later"


def test_rare_operations_do_not_depend_on_how_updates_are_cut_into_runs() -> None:
    whole, pieces = learner_of("tracking"), learner_of("tracking")
    whole.run(600)
    for n in (1, 248, 1, 1, 249, 3, 97):
        pieces.run(n)
    assert pieces.updates == 600
    for (name, one), (_, other) in zip(named_tensors(whole.agent), named_tensors(pieces.agent), strict=True):
        assert torch.equal(one, other), name


def test_the_largest_target_is_tracked_and_acts() -> None:
    learner = learner_of("tracking")
    largest = torch.zeros(2)
    for _ in range(30):
        largest = largest.maximum(learner.run(1).y.amax(dim=1))
    assert torch.equal(learner.agent.largest, largest) and (largest > 0).all()
    learner.agent.limit.fill_(-5)
    assert learner.run(1).y.amax() < largest.amin()


def test_the_proof_sees_a_tracked_value_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def forgetful(*arguments: Any) -> Any:
        agent = arguments[0]
        made.append(agent) if agent not in made else None
        before = agent.largest.clone()
        trace = TRACKING.update(*arguments)
        if agent is made[-1] and len(made) > 1:
            agent.largest.copy_(before)
        return trace

    found = mismatch("eager", SPEC, CFG, (0, 1), "cpu", TRACKING._replace(update=forgetful, periodic=()))
    assert "of the largest differ from eager's" in found


def test_unknown_rules_are_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"unknown rule td4, did you mean td7\? \(td3, td7, or FILE.py:NAME for your own\)"
    ):
        rule_of("td4")
    with pytest.raises(UserError, match="there is no file"):
        rule_of("nowhere.py:RULE")
    (tmp_path / "wrong_rule.py").write_text("RULE = 3\n")
    with pytest.raises(UserError, match=r"wrong_rule.py:RULE is of type int; a rule must be a Rule"):
        rule_of(f"{tmp_path}/wrong_rule.py:RULE")
    with pytest.raises(UserError, match=r"wrong_rule.py:OTHER does not exist; a rule must be"):
        rule_of(f"{tmp_path}/wrong_rule.py:OTHER")


def config(tmp_path: Path, name: str, **changes: Any) -> Any:
    changes = {"threads": 1, **changes}  # bits depend on them
    return helpers.small_config(
        algo=DDPG_FILE,
        seeds=[0, 1],
        run={"root": str(tmp_path), "name": name},
        checkpoint={"every_steps": 100},
        **changes,
    )


def test_a_rule_from_a_file_trains_says_why_it_is_eager_and_resumes_to_the_last_bit(tmp_path: Path) -> None:
    events = list(t3d.train(config(tmp_path, "straight", device="cpu")))
    start, end = events[0], events[-1]
    assert (
        isinstance(start, Start)
        and start.config["engine"] == "eager"
        and "fused computes TD3 only" in start.engine_reason
    )
    one_critic = Learner(helpers.make_spec(3, 1), config(tmp_path, "x").td3, (0,), rule=DDPG).agent
    assert start.parameters == one_critic.actor.flat.numel() + one_critic.critic.flat.numel()
    assert isinstance(end, End) and (end.reason, end.updates) == ("finished", 200)
    assert any(isinstance(event, Update) and event.critic_loss > 0 for event in events)
    assert any(isinstance(event, TraceSummary) and set(event.values) == {"y", "q", "td", "q_pi"} for event in events)
    for event in t3d.train(config(tmp_path, "resumed", device="cpu")):
        if isinstance(event, Saved) and event.step == 200:
            break
    list(t3d.resume(tmp_path / "resumed"))
    assert_equal(tmp_path / "straight", tmp_path / "resumed")


def train_until_first_update(cfg: Any) -> None:
    for event in t3d.train(cfg):
        if isinstance(event, Update):
            break


def test_a_rule_whose_file_has_gone_is_missed_in_a_sentence(tmp_path: Path) -> None:
    shutil.copy(HERE / "ddpg.py", tmp_path / "own_rule.py")
    cfg = helpers.small_config(algo=f"{tmp_path}/own_rule.py:DDPG", run={"root": str(tmp_path), "name": "run"})
    train_until_first_update(cfg)
    (tmp_path / "own_rule.py").unlink()
    with pytest.raises(UserError, match=r".*own_rule\.py, which is missing"):
        list(t3d.resume(tmp_path / "run"))


def test_a_rule_trains_with_actor_processes(tmp_path: Path) -> None:
    events = list(t3d.train(config(tmp_path, "actors", actors="local:2")))
    assert isinstance(events[-1], End) and (events[-1].reason, events[-1].updates) == ("finished", 200)


@pytest.mark.slow
def test_ddpg_solves_pendulum_on_three_seeds(tmp_path: Path) -> None:
    cfg = t3d.merge(t3d.preset("quick"), {"env": {"id": "Pendulum-v1"}, "algo": DDPG_FILE, "seeds": [0, 1, 2]})
    cfg = t3d.merge(cfg, {"total_steps": 20_000, "run": {"root": str(tmp_path), "name": "ddpg"}})
    finals = {event.seed: event.mean_return for event in t3d.train(cfg) if isinstance(event, Eval)}
    assert len(finals) == 3 and min(finals.values()) > -200, finals


WRONG = """
from typing import Any, NamedTuple
import torch
from t3d.algo.rules import TD3, PeriodicOperation
from t3d.algo.td3 import Agent

class Grown(NamedTuple):
    actor: Any
    actor_target: Any
    critic: Any
    critic_target: Any
    actor_adam: Any
    critic_adam: Any
    more: Any

class Named(NamedTuple):
    actor: Any
    actor_target: Any
    critic: Any
    critic_target: Any
    actor_adam: Any
    critic_adam: Any
    target_noise: Any

class Numbers(NamedTuple):
    tau: float = 0.1

def grown(kind, value):
    return lambda *arguments: kind(*TD3.init(*arguments), value)

def fails(*arguments):
    raise KeyError("no such thing")

raising_update = TD3._replace(update=fails)
raising_init = TD3._replace(init=fails)
no_phases = TD3._replace(phases=lambda cfg: [])
period_zero = TD3._replace(periodic=(PeriodicOperation(0, lambda agent, cfg: None),))
raising_operation = TD3._replace(periodic=(PeriodicOperation(10**6, fails),))
agent_with_number = TD3._replace(init=grown(Grown, 3.0))
agent_without_members = TD3._replace(init=grown(Grown, torch.zeros(3)))
agent_with_counts = TD3._replace(init=grown(Grown, torch.zeros(5, dtype=torch.int64)))
name_taken = TD3._replace(init=grown(Named, torch.zeros(2)))
no_trace = TD3._replace(update=lambda *arguments: None)


def flat_errors(*arguments):
    trace = TD3.update(*arguments)
    return trace._replace(td=trace.td[:, 0])


def reshaped(name):
    def update(*arguments):
        trace = TD3.update(*arguments)
        return trace._replace(**{name: getattr(trace, name)[..., None]})
    return update


def of_eight(agent, batch, *rest):
    return TD3.update(agent, batch._replace(r=batch.r.view(2, 8)), *rest)


td_without_critics = TD3._replace(update=flat_errors)
q_of_another_shape = TD3._replace(update=reshaped("q"))
y_of_another_shape = TD3._replace(update=reshaped("y"))
one_size_of_batch = TD3._replace(update=of_eight)
incomplete_trace = TD3._replace(phases=lambda cfg: [False])
no_gamma = TD3._replace(coefficients=lambda cfg: Numbers())
wrong_count = TD3._replace(parameters=lambda spec, cfg: 7)
"""
MISTAKES = {
    "raising_update": r".*wrong_rules.*\.py, line \d+: KeyError: 'no such thing'",
    "raising_init": r".*wrong_rules.*\.py, line \d+: KeyError: 'no such thing'",
    "raising_operation": r".*wrong_rules.*\.py, line \d+: KeyError: 'no such thing'",
    "no_phases": "it has no phases",
    "period_zero": "a periodic operation must come after one or more updates",
    "agent_with_number": "more of its agent is of type float, not a tensor",
    "agent_without_members": r"more of its agent has shape \(3,\), without an axis for seeds",
    "name_taken": "target_noise is the name of two things in a checkpoint",
    "no_trace": "the trace of its last phase lacks q, y, td, losses",
    "incomplete_trace": r"the trace of its last phase lacks losses\['actor'\]",
    "td_without_critics": r"td of its trace has shape \(2, 8\), not \(seeds, critics, batch\)",
    "q_of_another_shape": r"q of its trace has shape \(2, 2, 8, 1\) instead of \(2, 2, 8\)",
    "y_of_another_shape": r"y of its trace has shape \(2, 8, 1\) instead of \(2, 8\)",
    "one_size_of_batch": r".*wrong_rules.*\.py, line \d+: RuntimeError: .* size 18",
    "no_gamma": "its coefficients have no gamma",
    "wrong_count": r"its parameters\(\) are 7, but its optimisers move \d+",
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_a_rule_is_a_sentence_before_anything_is_written(tmp_path: Path, name: str) -> None:
    file = tmp_path / f"wrong_rules_{name}.py"
    file.write_text(WRONG)
    cfg = helpers.small_config(algo=f"{file}:{name}", run={"root": str(tmp_path / "runs")})
    with pytest.raises(UserError, match=f"the rule .*:{name} cannot be used: {MISTAKES[name]}"):
        list(t3d.train(cfg))
    assert not (tmp_path / "runs").exists()


IGNORED: dict[str, dict[str, Any]] = {  # settings that DDPG takes no notice of
    "td3.critic_loss": {"td3": {"critic_loss": "huber"}},
    "td3.lr_schedule": {"td3": {"lr_schedule": "linear", "lr_updates": 10}},
    "td3.weight_decay": {"td3": {"weight_decay": 1e-6}},
    "td3.max_grad_norm": {"td3": {"max_grad_norm": 1e6}},
    "td3.pre_activation_penalty": {"td3": {"pre_activation_penalty": 0.1}},
    "the weights of transitions": {"replay": {"sampling": "proportional"}},
}


@pytest.mark.parametrize("what", IGNORED)
def test_a_setting_that_a_rule_takes_no_notice_of_is_refused(tmp_path: Path, what: str) -> None:
    rule = f"{Path(__file__).parents[1] / 'ddpg.py'}:DDPG"
    cfg = helpers.small_config(algo=rule, run={"root": str(tmp_path / "runs")}, **IGNORED[what])
    with pytest.raises(UserError, match=f"DDPG cannot be used: it takes no notice of {what}"):
        list(t3d.train(cfg))
    own = tmp_path / f"own_rules_{[*IGNORED].index(what)}.py"
    own.write_text("from t3d.algo.rules import TD3\nOWN = TD3._replace()\n")
    rule_that_reads = helpers.small_config(algo=f"{own}:OWN", run={"root": str(tmp_path / "runs")}, **IGNORED[what])
    check_own_code(rule_that_reads, helpers.make_spec(), rule_of(f"{own}:OWN"))


def test_counts_need_no_axis_for_seeds(tmp_path: Path) -> None:
    file = tmp_path / "counting_rules.py"
    file.write_text(WRONG)
    cfg = helpers.small_config(algo=f"{file}:agent_with_counts", seeds=[0, 1], run={"root": str(tmp_path / "runs")})
    events = list(t3d.train(cfg))
    assert isinstance(events[-1], End) and events[-1].reason == "finished" and events[-1].saved


def test_what_is_shipped_is_evaluated_and_saved_and_what_acts_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "shipped_rule.py"
    file.write_text("from t3d.algo.rules import TD3\nRULE = TD3._replace(shipped=lambda agent: agent.actor_target)\n")
    learners, collectors = helpers.caught(monkeypatch, Learner), helpers.caught(monkeypatch, InlineCollector)
    cfg = helpers.small_config(algo=f"{file}:RULE", device="cpu", run={"root": str(tmp_path / "runs")})
    events = list(t3d.train(cfg))
    agent = learners[-1].agent
    assert np.array_equal(weights(events), agent.actor_target.flat[0].numpy())
    assert not np.array_equal(weights(events), agent.actor.flat[0].numpy())
    acting = np.concatenate([one.ravel() for one in collectors[-1].policies[0]._parameters])
    assert np.array_equal(acting, agent.actor.flat[0].numpy())


def test_a_rule_whose_file_has_moved_is_found_by_config_toml(tmp_path: Path) -> None:
    shutil.copy(HERE / "ddpg.py", tmp_path / "first_place.py")
    cfg = helpers.small_config(algo=f"{tmp_path}/first_place.py:DDPG", run={"root": str(tmp_path), "name": "run"})
    train_until_first_update(cfg)
    (tmp_path / "first_place.py").rename(tmp_path / "second_place.py")
    settings = tmp_path / "run" / "config.toml"
    settings.write_text(settings.read_text().replace("first_place.py:DDPG", "second_place.py:Trace"))
    with pytest.raises(UserError, match="a run resumes as it was started"):
        list(t3d.resume(tmp_path / "run"))
    settings.write_text(settings.read_text().replace("second_place.py:Trace", "second_place.py:DDPG"))
    events = list(t3d.resume(tmp_path / "run"))
    assert isinstance(events[-1], End) and events[-1].reason == "finished"
    assert any("second_place.py:DDPG" in note for note in events[0].notes)  # type: ignore[attr-defined]
