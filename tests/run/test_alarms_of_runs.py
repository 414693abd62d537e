"""Alarms in real runs: provoked, written where they belong, and the same in a run that was killed and resumed."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import TransformReward

import helpers
import t3d
from actor_helpers import actor_config
from run_folders import assert_equal, told
from t3d.alarms.watch import Watch, notes_in_words, watch_over
from t3d.algo.learner import Learner
from t3d.algo.networks import layers_of
from t3d.app.cli import main
from t3d.config import Config, merge
from t3d.config.presets import preset
from t3d.events import Alarm, Diagnosed, EpisodeEnd, Eval, Event, Note
from t3d.store.log import read_events
from t3d.store.summary import read_summary
from worlds import Sound


class Impatient(gym.Wrapper[Any, Any, Any, Any]):
    """Calls its time limit of 10 steps a termination."""

    def reset(self, **keywords: Any) -> Any:
        self.t = 0
        return self.env.reset(**keywords)

    def step(self, action: Any) -> Any:
        observation, reward, *_ = self.env.step(action)
        self.t += 1
        return observation, reward, self.t == 10, False, {}


def impatient() -> gym.Env[Any, Any]:
    return Impatient(gym.make("Pendulum-v1"))


def lavish() -> gym.Env[Any, Any]:
    return TransformReward(gym.make("Pendulum-v1", max_episode_steps=15), lambda reward: 1e4 * float(reward))


def small(root: Path, name: str, **changes: Any) -> Config:
    env = {"id": "", "name": "world"}
    cfg = helpers.small_config(
        env=env, threads=1, run={"root": str(root), "name": name}, checkpoint={"every_steps": 60}
    )
    return merge(cfg, changes)


def alarms(events: list[Event]) -> list[Alarm]:
    return [event for event in events if isinstance(event, Alarm)]


def test_a_time_limit_reported_as_termination_is_told_at_the_twentieth_episode(tmp_path: Path) -> None:
    events = list(t3d.train(small(tmp_path, "run"), make_env=impatient))
    [alarm] = alarms(events)
    assert (alarm.kind, alarm.step, alarm.member) == ("time-limit-terminates", 200, None)
    assert "terminated after exactly 10 steps" in alarm.text and "truncated=True" in alarm.advice
    before = events[events.index(alarm) - 1]
    assert isinstance(before, EpisodeEnd) and before.episode == 19
    assert alarms(read_events(tmp_path / "run")) == [alarm], "and it is written"
    assert read_summary(tmp_path / "run").alarms == 1, "and counted in lists"


def test_large_rewards_are_told_with_what_to_try_and_scaled_ones_are_not(tmp_path: Path) -> None:
    [alarm] = alarms(list(t3d.train(small(tmp_path, "run"), make_env=lavish)))
    assert (alarm.kind, alarm.step) == ("large-rewards", 150)
    assert "--scale-rewards" in alarm.advice
    scaled = small(tmp_path, "scaled", scale_rewards=True)
    assert alarms(list(t3d.train(scaled, make_env=lavish))) == []


def test_a_policy_that_collapses_is_told(tmp_path: Path) -> None:
    level = [0.0]

    class Level(helpers.CountingEnv):
        def step(self, action: Any) -> Any:
            observation, _, *rest = super().step(action)
            return observation, level[0], *rest

    found: list[Event] = []
    for event in t3d.train(small(tmp_path, "run", eval={"every_steps": 30}), make_env=Level):
        found.append(event)
        level[0] = 5.0 if event.step < 100 else 0.0  # good, then as before training
    [alarm] = alarms(found)
    evals = [event for event in found if isinstance(event, Eval)]
    assert alarm.kind == "evaluation-collapsed" and (alarm.member, alarm.seed) == (0, 0)
    bad = [event.step for event in evals if event.step > 100]
    assert alarm.step == bad[4], "the third after those from which the usual change is known"


@pytest.mark.slow
def test_a_run_that_learns_the_pendulum_has_diagnostics_and_no_alarms(tmp_path: Path) -> None:
    run = {"root": str(tmp_path), "name": "run"}
    cfg = merge(preset("quick"), {"env": {"id": "Pendulum-v1"}, "threads": 1, "run": run})
    events = list(t3d.train(cfg))
    looks = [event for event in events if isinstance(event, Diagnosed)]
    assert len(looks) > 5 and all(event.q_rows > 100 for event in looks)
    assert max(event.mean_return for event in events if isinstance(event, Eval)) > -250, "it has learned"
    alarms_found = [alarm for alarm in alarms(events) if alarm.kind != "slow-environment"]  # depends on the machine
    assert alarms_found == []


def test_a_log_that_cannot_be_read_ends_a_resumed_run_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = threading.Event()
    for event in t3d.train(small(tmp_path, "run"), make_env=impatient, stop=stop):
        if event.step > 150:
            stop.set()

    def fail(*_: Any) -> Watch:
        raise OSError("the log cannot be read")

    monkeypatch.setattr("t3d.run.loop.watch_over", fail)
    with pytest.raises(OSError, match="the log cannot be read"):
        list(t3d.resume(tmp_path / "run", make_env=impatient))
    last = json.loads((tmp_path / "run" / "journal.jsonl").read_text().splitlines()[-1])
    assert (last["event"], last["reason"]) == ("end", "failed") and "cannot be read" in last["text"]


def looked_at(tmp_path: Path, **changes: Any) -> Config:
    """A run with diagnostics every 20 steps, after 100 random ones."""
    looks = {"log": {"every_steps": 10, "diagnose_every_steps": 20}, "env": {"id": "Pendulum-v1"}}
    return merge(small(tmp_path, "run", **looks), changes)


def test_an_actor_that_learns_far_too_fast_is_saturated(tmp_path: Path) -> None:
    found = alarms(list(t3d.train(looked_at(tmp_path, td3={"actor_lr": 1.0}))))
    assert "saturated-actor" in [alarm.kind for alarm in found]
    assert "--td3.actor-lr 3e-4 (now 1, " in next(alarm.advice for alarm in found if alarm.kind == "saturated-actor")


def test_a_value_that_never_changes_is_told_by_its_number(tmp_path: Path) -> None:
    class Stuck(Sound):
        def observe(self) -> Any:
            return np.array([self.place[0], 0.5], np.float32)

    cfg = merge(looked_at(tmp_path), {"env": {"id": ""}})
    events = list(t3d.train(cfg, make_env=Stuck))
    [note] = [one for one in events if isinstance(one, Note) and "(counted from 0)" in one.text]
    assert note.step == 200 - 20 and "observation value 1 (counted from 0)" in note.text, "at the fifth look"
    assert alarms(events) == []
    assert note.text in notes_in_words(read_events(tmp_path / "run"))


def test_an_environment_that_is_slower_than_learning_is_told_with_the_flag_that_helps(tmp_path: Path) -> None:
    class Slow(Sound):
        def step(self, action: Any) -> Any:
            time.sleep(0.05)
            return super().step(action)

    changes = {"env": {"id": ""}, "random_steps": 20, "total_steps": 70, "eval": {"episodes": 1, "max_steps": 1}}
    cfg = merge(looked_at(tmp_path), {**changes, "log": {"every_steps": 5, "diagnose_every_steps": 10}})
    [alarm] = alarms(list(t3d.train(cfg, make_env=Slow)))
    assert alarm.kind == "slow-environment" and alarm.member is None and "--actors local:" in alarm.advice


@pytest.mark.slow
def test_actors_that_run_away_from_a_slow_learner_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An update takes as long as 1.7 steps, so each block of them is larger than the last, if nothing holds actors."""

    def slow(learner: Learner, n: int) -> Any:
        time.sleep(0.017 * n)
        return run(learner, n)

    def first_alarm(**changes: Any) -> Alarm | None:
        events = t3d.train(actor_config(tmp_path, "Slow", **small, **changes))
        return next((one for one in events if isinstance(one, Alarm) and one.kind == "update-ratio"), None)

    run = Learner.run
    monkeypatch.setattr(Learner, "run", slow)
    small: dict[str, Any] = {"actors": "local:1", "seeds": [0], "random_steps": 20, "td3": {"policy_delay": 1}}
    small["log"] = {"every_steps": 1}
    found = first_alarm(total_steps=2_000, max_ahead=100_000)
    assert found is not None and "updates_per_step=1 are asked for" in found.text
    assert "a lower --max-ahead (now 100000)" in found.advice
    assert first_alarm(total_steps=100, max_ahead=5, run={"name": "near"}) is None


def spoilt(cfg: Config, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Learner], None]) -> list[Alarm]:
    """The alarms of a run whose agent is changed at the first update, and at every look from then on."""
    learners, found = helpers.caught(monkeypatch, Learner), list[Event]()
    for event in t3d.train(cfg):
        found.append(event)
        if isinstance(event, Diagnosed):
            spoil(learners[0])
    return alarms(found)


def add_to_last_bias(learner: Learner, amount: float) -> None:
    for stack in (learner.agent.critic, learner.agent.critic_target):
        layers_of(stack.architecture, stack.flat)[-1][1].add_(amount)


def test_critics_that_predict_more_and_more_overestimate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = looked_at(tmp_path, td3={"gamma": 0.5}, total_steps=400)
    found = spoilt(cfg, monkeypatch, lambda learner: add_to_last_bias(learner, 1.5))
    assert [alarm.kind for alarm in found] == ["overestimation"]


def test_critics_beyond_what_rewards_allow_diverge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = looked_at(tmp_path, td3={"gamma": 0.9})
    found = spoilt(cfg, monkeypatch, lambda learner: add_to_last_bias(learner, -1e4))
    assert "critics-diverging" in [alarm.kind for alarm in found]
    assert "overestimation" not in [alarm.kind for alarm in found], "they predict too little"


def test_units_that_pass_nothing_are_told_with_the_name_of_their_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(learner: Learner) -> None:
        for _, bias in layers_of(learner.agent.actor.architecture, learner.agent.actor.flat)[:-1]:
            bias.fill_(-1e3)

    found = [alarm for alarm in spoilt(looked_at(tmp_path), monkeypatch, kill) if alarm.kind == "dead-units"]
    assert len(found) == 1 and "100% of the hidden units of the actor" in found[0].text
    assert "--td3.actor-lr" in found[0].advice


@pytest.mark.parametrize("step", [100, 195, 230], ids=["while it counts", "just before it sounds", "after it sounded"])
def test_a_resumed_run_writes_the_same_alarms(tmp_path: Path, step: int) -> None:
    """Whether it was killed or asked to stop."""
    both = {"seeds": [3, 1], "eval": {"every_steps": 60}}
    list(t3d.train(small(tmp_path, "straight", **both), make_env=impatient))
    stop = threading.Event()
    for event in t3d.train(small(tmp_path, "stopped", **both), make_env=impatient, stop=stop):
        if event.step >= step and not stop.is_set():
            shutil.copytree(tmp_path / "stopped", tmp_path / "killed")
            stop.set()
    for broken in (tmp_path / "killed", tmp_path / "stopped"):
        list(t3d.resume(broken, make_env=impatient))
        assert_equal(tmp_path / "straight", broken)
        assert [line["step"] for line in told(broken) if line["event"] == "alarm"] == [200]


WRONG: dict[str, list[Any]] = {
    "member": [9, -1, [], "0", True],
    "seed": [5],
    "td_abs_mean": ["1", [], 10**400],
    "updates": [None, 1.5],
}


def test_a_watch_is_rebuilt_from_the_log_whatever_that_says(tmp_path: Path) -> None:
    cfg, run = small(tmp_path, "run"), tmp_path / "run"
    watch = Watch(cfg)
    for event in t3d.train(cfg, make_env=impatient):
        watch.see(event)
    assert watch_over(cfg, run) == watch and watch.histories.keys() == {0}
    lines = (run / "events.jsonl").read_text().splitlines()
    update = next(json.loads(line) for line in lines if line.startswith('{"event": "update"'))
    wrong = [json.dumps({**update, field: value}) for field, values in WRONG.items() for value in values]
    (run / "events.jsonl").write_text("\n".join([*lines, *wrong, "", "{", "7"]) + "\n")
    assert watch_over(cfg, run) == watch


def test_alarms_are_printed_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "impatience.py").write_text(
        "import gymnasium as gym\n\n\n"
        "class Impatient(gym.Wrapper):\n"
        "    def reset(self, **keywords):\n"
        "        self.t = 0\n"
        "        return self.env.reset(**keywords)\n\n"
        "    def step(self, action):\n"
        "        observation, reward, *_ = self.env.step(action)\n"
        "        self.t += 1\n"
        "        return observation, reward, self.t == 10, False, {}\n\n\n"
        "def make():\n"
        "    return Impatient(gym.make('Pendulum-v1'))\n"
    )
    words = "--total-steps 300 --random-steps 100 --td3.batch-size 16 --td3.actor-hidden 16 --td3.critic-hidden 16"
    words += " --eval.every-steps 150 --eval.episodes 1 --threads 1 --no-video --run.root runs --run.name run"
    assert main(["train", "impatience.py:make", *words.split()]) == 0
    line = "alarm at step 200: each of the last 20 episodes was terminated after exactly 10 steps"
    during, _, summary = capsys.readouterr().out.partition("Trained 300 steps")
    assert line in during and line in summary
    assert "First see to the alarm above" in summary and "Next, try" not in summary
    assert "t3d eval" in summary and "t3d resume" not in summary and "--config" not in summary
    assert main(["runs", "show", "run"]) == 0
    assert (
        f"{line}, and no episode was longer: probably a time limit" in (said := capsys.readouterr().out)
        and " Try: let step() return" in said
    )
