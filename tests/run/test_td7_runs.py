"""TD7 in whole runs: members that rest, exact resume, actors, export, explain, and what is refused."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_resume import broken_off

import helpers
import t3d
from run_folders import assert_equal
from t3d.actors.inline import InlineCollector
from t3d.actors.shared_memory import RANDOM, Ring, SharedState
from t3d.algo.learner import Learner
from t3d.algo.networks import named_tensors
from t3d.app.cli import main
from t3d.app.train import parse
from t3d.config import Config, TD3Config, merge
from t3d.errors import UserError
from t3d.events import Diagnosed, End, EpisodeEnd, Update
from t3d.insight.explain import explained
from t3d.insight.one_update import one_update
from t3d.policy.acting import PolicySnapshot, SavedPolicy
from t3d.run import pace
from t3d.run.pace import Budgets
from t3d.run.parts import Parts
from t3d.ship.c_source import c_source
from t3d.ship.export import TOLERANCE, compiled, compiler, largest_difference
from t3d.store.reader import open_run

SIZES = {"batch_size": 8, "embedding": 6, "encoder_hidden": 7, "actor_hidden": [9, 8], "critic_hidden": [8, 7]}


def small(root: Path, name: str, **changes: Any) -> Config:
    base = helpers.small_config(total_steps=420, random_steps=60, checkpoint={"every_steps": 60})
    own = {"env": {"id": "uneven:Uneven"}, "algo": "td7", "td3": vars(Config().td3), "td7": SIZES}
    return merge(base, {**own, "run": {"root": str(root), "name": name}, **changes})


def test_each_member_makes_as_many_updates_as_its_assessed_episodes_have_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_parts = helpers.caught(monkeypatch, Parts)
    resting: list[tuple[int, bool]] = []
    run, rest = Learner.run, InlineCollector.rest
    acting: list[int] = []

    def counted_run(self: Learner, n: int, rest: Collection[int] = ()) -> Any:
        resting.append((len(rest), max(made_parts[0].steps) == 420))
        return run(self, n, rest)

    def counted_rest(self: InlineCollector, members: Collection[int]) -> None:
        acting.append(len(members))
        rest(self, members)

    monkeypatch.setattr(Learner, "run", counted_run)
    monkeypatch.setattr(InlineCollector, "rest", counted_rest)
    events = list(t3d.train(small(tmp_path, "run", seeds=[0, 1, 2])))
    (parts,) = made_parts
    pace = parts.pace
    assert isinstance(pace, Budgets)
    learner, made = parts.learner, parts.learner.made
    counted = [0, 0, 0]
    for event in events:
        if isinstance(event, EpisodeEnd) and event.member is not None and event.step - event.length >= 60:
            counted[event.member] += event.length
    assert counted == pace.steps  # a single episode assesses a policy
    assert made == [steps - steps % 2 for steps in counted] and len({*made}) > 1
    assert all(is_over or not resting for resting, is_over in resting)  # until one of them acts no more
    assert {2} <= {resting for resting, _ in resting} and {*acting} >= {0, 1, 2}
    assert max(made) <= learner.updates < 1.2 * min(made)  # so hardly any is taken back
    assert any(isinstance(event, Update) and event.other_losses["encoder"] > 0 for event in events)
    assert any(isinstance(event, Diagnosed) and event.dead_units["actor"] is not None for event in events)


def test_a_member_learns_what_it_learns_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agents = []
    for number, seeds in enumerate(([0, 1, 2], [1])):
        made_parts = helpers.caught(monkeypatch, Parts)
        list(t3d.train(small(tmp_path, str(number), seeds=seeds)))
        agents.append(made_parts[0].learner.agent)
    for name, tensor in named_tensors(agents[1]):
        ours = dict(named_tensors(agents[0]))[name].view(3, -1)[1]
        assert torch.allclose(ours, tensor.view(-1), rtol=1e-3, atol=1e-3), name


@pytest.mark.parametrize(("step", "kill"), [(150, True), (233, False), (310, True)])
def test_a_run_that_was_killed_and_resumed_is_the_same_to_the_last_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, kill: bool
) -> None:
    seeds = {"seeds": [0, 1, 2]}
    list(t3d.train(small(tmp_path, "whole", **seeds)))
    path = broken_off(monkeypatch, small(tmp_path, "broken", **seeds), step, kill=kill)
    list(t3d.resume(path))
    assert_equal(tmp_path / "whole", path)


def test_actor_processes_and_a_sweep(tmp_path: Path) -> None:
    cfg = small(tmp_path, "run", actors="local:2", seeds=[0], sweep=["td7.gamma=0.9,0.99"], total_steps=200)
    events = list(t3d.train(cfg))
    assert max(event.updates for event in events if isinstance(event, Update)) > 0
    assert {path.name for path in (tmp_path / "run" / "last").iterdir()} >= {"gamma-0.9-seed-0.safetensors"}


@pytest.mark.parametrize("at_once", [64, 4])
def test_an_actor_acts_by_one_policy_from_an_episodes_beginning_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """While others learn, and when a run is resumed, too; and each member makes its own updates."""
    made_parts = helpers.caught(monkeypatch, Parts)
    monkeypatch.setattr(pace, "AT_ONCE", at_once)
    acted: dict[tuple[int, ...], set[int]] = {}
    published: dict[int, Any] = {}  # by updates, (M, P)
    receive, publish = Ring.receive, SharedState.publish

    def kept(self: SharedState, snapshot: PolicySnapshot, limit: int) -> None:
        published[snapshot.updates] = snapshot.flat.copy()
        publish(self, snapshot, limit)

    def seen(self: Ring) -> Any:
        rows, about = receive(self)
        for member, (env, episode, *_), updates in zip(about["member"], about["origin"], about["updates"], strict=True):
            acted.setdefault((int(member), int(env), int(episode)), set()).add(int(updates))
        return rows, about

    monkeypatch.setattr(Ring, "receive", seen)
    monkeypatch.setattr(SharedState, "publish", kept)
    run = Budgets.run

    def stopping(self: Budgets, n: int) -> Any:
        trace = run(self, n)
        if not stopped and self.parts.learner.updates > 100 and len(self._resting()) == 2:
            stopped.append(self.parts.learner.updates)
            started.stop()
        return trace

    def slow(self: Budgets, n: int) -> Any:
        if self.parts.learner.updates == stopped[0]:
            taken = self.parts.collector.shared_state.taken[self._resting()]  # type: ignore[attr-defined]
            time.sleep(2)  # by then an actor that may act has acted
            now = self.parts.collector.shared_state.taken[self._resting()]  # type: ignore[attr-defined]
            waited.append(np.array_equal(now, taken))
        return run(self, n)

    stopped, waited = list[int](), list[bool]()
    monkeypatch.setattr(Budgets, "run", stopping)
    started = t3d.train(small(tmp_path, "run", actors="local:2", seeds=[0, 1, 2]))
    list(started)
    assert stopped
    monkeypatch.setattr(Budgets, "run", slow)
    list(t3d.resume(tmp_path / "run"))
    assert waited == [True]
    by_policy = {about: sorted(updates - {RANDOM}) for about, updates in acted.items() if updates != {RANDOM}}
    assert len({first for first, *_ in by_policy.values()}) > 5
    for (member, *_), (first, *others) in by_policy.items():
        assert all(np.array_equal(published[other][member], published[first][member]) for other in others)
    parts = made_parts[-1]
    assert isinstance(parts.pace, Budgets)
    assert parts.learner.made == [steps - steps % 2 for steps in parts.pace.steps]


def test_the_checkpoint_policy_is_evaluated_shipped_and_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_parts = helpers.caught(monkeypatch, Parts)
    list(t3d.train(small(tmp_path, "run")))
    agent = made_parts[0].learner.agent
    policy = t3d.load_policy(tmp_path / "run" / "last" / "seed-0")
    assert isinstance(policy, SavedPolicy)
    assert np.array_equal(policy.snapshot.flat, agent.checkpoint.flat.numpy())
    assert not np.array_equal(policy.snapshot.flat, agent.policy.flat.numpy())
    s = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    in_torch = agent.checkpoint(torch.from_numpy(s).unsqueeze(0))[0].detach().numpy()
    assert np.abs(policy(s) - in_torch).max() < 1e-6
    if compiler() is not None:
        with compiled(c_source(policy.snapshot, policy.spec, []), policy.spec) as actions:
            assert largest_difference(policy, actions) <= TOLERANCE
    pytest.importorskip("onnxruntime")
    assert main(["export", str(tmp_path / "run"), "--policy", "last", "--seed", "0"]) == 0
    assert largest_difference(policy, t3d.load_policy(tmp_path / "run" / "policy.onnx").actions) <= TOLERANCE


def test_an_update_is_explained_by_its_own_steps(tmp_path: Path) -> None:
    list(t3d.train(small(tmp_path, "run", seeds=[0, 1])))
    update = one_update(open_run(tmp_path / "run"))
    steps = explained(update)
    assert [step.number for step in steps] == [*range(1, 17)]
    assert {quantity.source for step in steps for quantity in step.quantities} >= {
        "trace.zsa",
        "trace.q[0]",
        "trace.pi",
    }
    assert "γ = 0.99" in steps[9].settings and steps[9].example.endswith(steps[8].example.rpartition(" ")[2])


def test_a_newcomer_is_told_what_applies_to_td7(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = "--td7.batch-size 8 --td7.embedding 6 --td7.encoder-hidden 7 --td7.actor-hidden 8 --td7.critic-hidden 8"
    short = f"--total-steps 300 --random-steps 50 --eval.episodes 1 --run.root {tmp_path} --run.name run --no-video"
    assert main(f"train Pendulum-v1 --preset quick --algo td7 {sizes} {short}".split()) == 0
    said = capsys.readouterr().out.replace("fused computes TD3 only", "")
    assert "preset quick says nothing about TD7" in said and "t3d train HalfCheetah-v5 --algo td7  #" in said
    assert main(["explain", str(tmp_path / "run")]) == 0
    assert main(["report", str(tmp_path / "run")]) == 0
    pages = [(tmp_path / "run" / name).read_text(encoding="utf-8") for name in ("explain.html", "report.html")]
    for text in (said, capsys.readouterr().out, *pages):
        assert "TD3" not in text.replace("fused computes TD3 only", "")


def test_a_run_too_short_for_an_episode_says_why_it_made_no_update(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small_run = f"--algo td7 --random-steps 50 --eval.episodes 1 --run.root {tmp_path} --no-video --td7.batch-size 8"
    assert main(f"train Pendulum-v1 {small_run} --total-steps 399".split()) == 0
    assert "No update was made: TD7 learns when an episode ends that began after 50 steps" in capsys.readouterr().out
    assert main(f"train Pendulum-v1 {small_run} --total-steps 400 --updates-per-step 0.1".split()) == 0
    assert "No update was made" not in capsys.readouterr().out


def test_learning_rates_are_set_while_it_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_parts = helpers.caught(monkeypatch, Parts)
    run, before = t3d.train(small(tmp_path, "run")), None
    for event in run:
        if isinstance(event, EpisodeEnd) and event.step > 200 and before is None:
            before = made_parts[0].learner.agent
            before = [before.f.flat.clone(), before.critic.flat.clone()]
            with pytest.raises(UserError, match="these can: actor_lr, critic_lr, encoder_lr, exploration_noise"):
                run.set(gamma=0.9)
            run.set(encoder_lr=0)
    agent = made_parts[0].learner.agent
    assert before is not None and torch.equal(agent.f.flat, before[0])
    assert not torch.equal(agent.critic.flat, before[1])


def test_one_actor_is_not_enough_to_start_from(tmp_path: Path) -> None:
    list(t3d.train(small(tmp_path, "first")))
    policy = str(tmp_path / "first" / "last" / "seed-0.safetensors")
    with pytest.raises(UserError, match="TD7 starts with its encoders and critics, too; name a run of TD7"):
        list(t3d.train(small(tmp_path, "second", start_from=policy)))
    with pytest.raises(UserError, match="TD7 starts with its encoders and critics, too; name a run of TD7"):
        list(t3d.train(helpers.small_config(start_from=policy, run={"root": str(tmp_path), "name": "third"})))


@pytest.mark.parametrize("flag", ["--td3.gamma=0.98", "--td3.actor_lr=0.0003"])
def test_a_flag_of_another_algorithm_is_refused_even_if_it_changes_nothing(flag: str) -> None:
    with pytest.raises(UserError, match=f"{flag.partition('=')[0].replace('_', '-')} is not used: the settings of td7"):
        parse(["Pendulum-v1", "--preset", "quick", "--algo", "td7", flag])


def test_a_run_goes_on_from_another_and_is_assessed_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    list(t3d.train(small(tmp_path, "first")))
    made_parts = helpers.caught(monkeypatch, Parts)
    list(t3d.train(small(tmp_path, "second", start_from=str(tmp_path / "first"), total_steps=100)))
    learner = made_parts[0].learner
    assert learner.agent.f_adam.steps[0] > learner.made[0]  # it has learned before


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"td3": {**vars(TD3Config()), "tau": 0.1}},
            r"td3.tau=0.1 is not used: the settings of td7 are called td7\.NAME",
        ),
        ({"algo": "td3"}, r"td7\.\w+=.* is not used: the settings of td3 are called td3\.NAME"),
        ({"replay": {"sampling": "proportional"}}, "chooses transitions by td7.priority_exponent"),
        ({"scale_rewards": True}, "without --scale-rewards"),
        ({"sweep": ["td3.gamma=0.9,0.99"]}, "td3.gamma cannot be swept"),
        ({"env": {"id": "image_worlds:Dot"}}, "has no encoder of images"),
    ],
)
def test_what_td7_does_not_use_is_refused(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        list(t3d.train(small(tmp_path, "run", **changes)))


def test_the_guides_rule_has_settings_hears_episodes_and_learns_between_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "beyond-the-defaults.md").read_text(encoding="utf-8")
    (code,) = [block for block in page.split("```python\n") if block.startswith("# keeper_rule.py")]
    file = tmp_path / "keeper_rule.py"
    file.write_text(code.partition("```")[0])
    made_parts = helpers.caught(monkeypatch, Parts)
    flags = f"--algo {file}:keeper --own.margin 8 --own.batch-size 8 --own.actor-hidden 8 --own.critic-hidden 8"
    args = parse(["uneven:Uneven", *flags.split(), "--seeds", "0", "1"])
    base = helpers.small_config(env={"id": "uneven:Uneven"}, seeds=[0, 1], run={"root": str(tmp_path), "name": "run"})
    events = list(t3d.train(replace(base, algo=args.cfg.algo, own=args.cfg.own, td3=TD3Config())))
    (parts,) = made_parts
    bests = [-1e30, -1e30]
    for event in events:
        if isinstance(event, EpisodeEnd) and event.member is not None and event.step - event.length >= 100:
            is_better = event.total_reward >= bests[event.member] + 8
            bests[event.member] = event.total_reward if is_better else bests[event.member]
    assert parts.learner.agent.best_return.tolist() == pytest.approx(bests)
    assert min(parts.learner.made) > 100


def test_a_run_that_was_stopped_within_a_round_of_updates_ends_it_when_it_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = {"seeds": [0, 1, 2]}
    list(t3d.train(small(tmp_path, "whole", **seeds)))
    run, left = Budgets.run, list[int]()

    def stopping(self: Budgets, n: int) -> Any:
        trace = run(self, n)
        if self.parts.learner.updates > 100 and (due := self.due()) and not left:
            left.append(due)
            started.stop()
        return trace

    monkeypatch.setattr(Budgets, "run", stopping)
    started = t3d.train(small(tmp_path, "broken", **seeds))
    events = list(started)
    assert left and isinstance(end := events[-1], End) and end.reason == "stopped"
    list(t3d.resume(tmp_path / "broken"))
    assert_equal(tmp_path / "whole", tmp_path / "broken")
