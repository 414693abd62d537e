"""A seed that diverges stops; the others go on as if nothing had happened, and everything says so."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import helpers
import t3d
from run_folders import assert_equal, events_of
from t3d.algo.learner import Learner
from t3d.app.cli import main
from t3d.app.session import print_results
from t3d.app.terminal import PlainConsole
from t3d.config import Member
from t3d.errors import Diverged
from t3d.events import End, Eval, Event, Saved, SeedStopped, Update
from t3d.insight.plots import plot_curves
from t3d.store.checkpoint import newest
from t3d.store.reader import open_run

SEEDS = [0, 1, 2]


def config(tmp_path: Path, name: str, **changes: Any) -> Any:
    base: dict[str, Any] = {
        "seeds": SEEDS,
        "threads": 1,
        "checkpoint": {"every_steps": 70},
        "eval": {"every_steps": 60, "episodes": 2},
    }
    return helpers.small_config(**{**base, "run": {"root": str(tmp_path), "name": name}, **changes})


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Spoils a network of the given members after their 50th update."""
    update = Learner.run

    def poison(network: str, members: list[int]) -> None:
        def spoiled(self: Learner, *arguments: Any) -> Any:
            trace = update(self, *arguments)
            if self.updates == 50 and self.members == len(SEEDS):
                flat = getattr(self.agent, network).flat
                for member in members:
                    flat[member * len(flat) // self.members, 0] = math.nan
            return trace

        helpers.replace_updates(monkeypatch, spoiled)

    return poison


def last(tmp_path: Path, name: str, seed: int) -> np.ndarray[Any, Any]:
    return load_file(tmp_path / name / "last" / f"seed-{seed}.safetensors")["actor"]


def stops(events: list[Event]) -> list[SeedStopped]:
    return [event for event in events if isinstance(event, SeedStopped)]


@pytest.mark.parametrize("network", ["critic", "critic_target", "actor"])
def test_the_middle_seed_stops_and_the_others_learn_what_they_would_have(
    tmp_path: Path, poisoned: Any, network: str
) -> None:
    list(t3d.train(config(tmp_path, "sound")))
    poisoned(network, [1])
    events = list(t3d.train(config(tmp_path, "poisoned")))
    (stopped,), end = stops(events), events[-1]
    assert (stopped.member, stopped.seed) == (1, 1) and 140 <= stopped.step <= 300
    assert isinstance(end, End) and (end.reason, end.step, end.updates, end.saved) == ("finished", 300, 200, True)
    for seed in (0, 2):
        assert np.array_equal(last(tmp_path, "poisoned", seed), last(tmp_path, "sound", seed)), "to the last bit"
    assert np.isfinite(last(tmp_path, "poisoned", 1)).all(), "the last sound policy is kept"
    after = events[events.index(stopped) :]
    assert {event.seed for event in after if isinstance(event, Eval | Update)} == {0, 2}
    assert {event.seed for event in events if isinstance(event, Eval)} == {0, 1, 2}


def test_it_is_told_everywhere(tmp_path: Path, poisoned: Any, capsys: pytest.CaptureFixture[str]) -> None:
    poisoned("actor", [1])
    events = list(t3d.train(config(tmp_path, "poisoned")))
    end = events[-1]
    assert isinstance(end, End)
    run = open_run(tmp_path / "poisoned")
    assert set(run.stopped) == {Member(1)} and stops(events_of(run.path)) == stops(events)
    print_results(run, end, PlainConsole())
    said = capsys.readouterr().out
    assert "seed 1 diverged at step 150 and stopped: the actor of seed 1 is not finite" in " ".join(said.split())
    assert "seed 0: mean return" in said and "seed 2: mean return" in said
    assert main(["runs", "show", str(run.path)]) == 0
    shown = capsys.readouterr().out
    assert main(["runs", "--root", str(tmp_path)]) == 0
    assert "1 diverged" in capsys.readouterr().out
    assert "seed 1 diverged at step 150" in shown and "1 (diverged)" in shown and "mean of 2" in shown
    pytest.importorskip("matplotlib")
    plot_curves([run], tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 10_000
    plot_curves([run], tmp_path / "alone.png", seed=1)
    for seed in (0, 2):
        assert t3d.load_policy(run.path / "best" / f"seed-{seed}").about["mean_return"] < 0


def test_an_action_that_is_not_finite_is_noticed_before_a_report_is_due(tmp_path: Path, poisoned: Any) -> None:
    poisoned("actor", [1])
    rarely: dict[str, Any] = {name: {"every_steps": 1000} for name in ("log", "eval", "checkpoint")}
    events = list(t3d.train(config(tmp_path, "poisoned", **rarely)))
    (stopped,) = stops(events)
    assert stopped.step == 150 and stopped.text == "the action for environment 0 of seed 1 is [nan]"


def test_a_run_with_a_stopped_seed_resumes_to_the_last_bit(tmp_path: Path, poisoned: Any) -> None:
    poisoned("critic", [1])
    list(t3d.train(config(tmp_path, "straight")))
    for event in t3d.train(config(tmp_path, "resumed")):
        if isinstance(event, Saved) and event.step == 210:
            break
    events = list(t3d.resume(tmp_path / "resumed"))
    assert stops(events) == [], "it was told before"
    assert_equal(tmp_path / "straight", tmp_path / "resumed")
    assert len(stops(events_of(tmp_path / "resumed"))) == 1


def test_a_run_fails_only_when_none_is_left(tmp_path: Path, poisoned: Any) -> None:
    poisoned("critic", [0, 1, 2])
    with pytest.raises(Diverged, match="all seeds have diverged; the last one: the critic"):
        list(t3d.train(config(tmp_path, "all")))
    events = events_of(tmp_path / "all")
    end = events[-1]
    assert isinstance(end, End) and end.reason == "failed" and end.diverged == ["seed-0", "seed-1", "seed-2"]
    assert [event.seed for event in stops(events)] == [0, 1, 2], "each was told"
    checkpoint, _ = newest(tmp_path / "all" / "checkpoints")
    assert checkpoint is not None and checkpoint.step == 140, "the last sound one"


def test_a_stop_that_a_checkpoint_notices_is_told_after_a_resume_too(tmp_path: Path, poisoned: Any) -> None:
    """Nothing acts on a target network, and no report or evaluation is due before the checkpoint."""
    poisoned("critic_target", [1])
    rarely: dict[str, Any] = {"log": {"every_steps": 1000}, "eval": {"every_steps": 1000, "episodes": 1}}
    for event in t3d.train(config(tmp_path, "run", **rarely)):
        if isinstance(event, Saved) and event.step == 210:
            break
    list(t3d.resume(tmp_path / "run"))
    assert [event.seed for event in stops(events_of(tmp_path / "run"))] == [1] and set(
        open_run(tmp_path / "run").stopped
    ) == {Member(1)}


@pytest.mark.parametrize("actors", ["inline", "local:3"])
def test_a_policy_that_overflows_in_an_evaluation_stops_its_seed_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, actors: str
) -> None:
    """Its weights are finite, so that only acting shows it, and the evaluation acts first."""
    update = Learner.run

    def huge(self: Learner, *arguments: Any) -> Any:
        trace = update(self, *arguments)
        if self.updates == 80 and self.members == len(SEEDS):
            self.agent.actor.flat[1] *= 1e25
        return trace

    helpers.replace_updates(monkeypatch, huge)
    events = list(t3d.train(config(tmp_path, "huge", actors=actors, log={"every_steps": 1000})))
    (stopped,), end = stops(events), events[-1]
    assert stopped.seed == 1 and (actors != "inline" or "the evaluation of seed 1" in stopped.text)
    assert isinstance(end, End) and (end.reason, end.updates, end.diverged) == ("finished", 200, ["seed-1"])


@pytest.mark.parametrize("network", ["actor", "critic"])
def test_with_actor_processes_the_others_go_on(tmp_path: Path, poisoned: Any, network: str) -> None:
    poisoned(network, [1])
    cfg = config(tmp_path, "actors", actors="local:3", total_steps=600, max_ahead=10)
    events = list(t3d.train(cfg))
    (stopped,), end = stops(events), events[-1]
    assert stopped.seed == 1 and isinstance(end, End)
    assert (end.reason, end.step, end.updates) == ("finished", 600, 500)
    finals = {event.seed for event in events if isinstance(event, Eval) and event.step == 600}
    assert finals == {0, 2}
    resumed = list(t3d.resume(tmp_path / "actors", total_steps=700))
    assert isinstance(resumed[-1], End) and resumed[-1].updates == 600 and stops(resumed) == []
