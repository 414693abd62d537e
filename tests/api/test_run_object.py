"""A run as an object: it trains, says what it reported, takes numbers and settings, and is continued."""

from __future__ import annotations

import csv
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import drones
import t3d
from drones import Drone
from run_folders import assert_equal, events_of
from t3d.config import Config, load_config
from t3d.errors import NothingLeft, UserError
from t3d.events import End, Eval, Logged, Resumed, Saved, SettingsChanged

SMALL: dict[str, Any] = {
    "random_steps": 40,
    "threads": 1,
    "td3.batch_size": 4,
    "td3.actor_hidden": [8],
    "td3.critic_hidden": [8],
    "replay.capacity": 1000,
    "eval.every_steps": 60,
    "eval.episodes": 2,
    "log.every_steps": 20,
    "log.diagnose_every_steps": 60,
    "checkpoint.every_steps": 10_000,
}


@pytest.fixture(autouse=True)
def in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def small(name: str, env: Any = "drones:Drone", **given: Any) -> t3d.Run:
    settings = {**SMALL, **given.pop("settings", {})}
    return t3d.train(env, total_steps=given.pop("total_steps", 120), name=name, settings=settings, **given)


@pytest.fixture(scope="module")
def two_seeds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[t3d.Run]:
    here, folder = Path.cwd(), tmp_path_factory.mktemp("two")
    os.chdir(folder)
    try:
        run = small("two", seeds=[0, 3]).finish()
    finally:
        os.chdir(here)
    yield t3d.open_run(run.path)


def test_arguments_are_the_settings_that_they_name() -> None:
    run = small("run", preset="quick", seeds=range(2), env_args={"wind": 0.5}, settings={"td3.gamma": 0.9})
    run.finish()
    cfg = load_config(run.path / "config.toml")
    assert (cfg.env.id, cfg.env.args, cfg.seeds, cfg.preset) == ("drones:Drone", {"wind": 0.5}, (0, 1), "quick")
    assert (cfg.td3.gamma, cfg.td3.tau, cfg.total_steps) == (0.9, 0.02, 120)


def test_a_config_a_table_an_id_and_a_class_train_the_same() -> None:
    written = {**SMALL, "seeds": (1,)}
    table: dict[str, Any] = {}
    for name, value in {**written, "env.id": "drones:Drone", "total_steps": 120}.items():
        section, _, key = name.rpartition(".")
        (table.setdefault(section, {}) if section else table)[key] = value
    t3d.train({**table, "run": {"name": "table"}}).finish()
    t3d.train(t3d.merge(Config(), {**table, "run": {"name": "config"}})).finish()
    small("class", Drone, seeds=[1]).finish()
    small("id", seeds=[1]).finish()
    for name in ("config", "class", "id"):
        assert_equal(Path("runs/table"), Path("runs") / name)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"settings": {"gamma": 0.9}}, "gamma is called td3.gamma now"),
        ({"settings": {"td3.gama": 0.9}}, "unknown key td3.gama"),
        ({"settings": {"td3.gamma": 2}}, "td3.gamma=2 is out of range"),
        ({"settings": {"total_steps": 5}}, "total_steps is among the settings and an argument; give it once"),
        ({"preset": "quik"}, "unknown preset quik"),
        ({"seeds": 3}, "seeds=3 is not a list of integers"),
    ],
)
def test_a_mistake_is_a_sentence_before_anything_is_written(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        t3d.train("drones:Drone", total_steps=120, **given)
    assert not Path("runs").exists()


@pytest.mark.parametrize("env", [Drone(), 3])
def test_what_makes_no_environment_is_a_sentence(env: Any) -> None:
    with pytest.raises(UserError, match=r"pass a function that makes them|cannot be called; pass a function"):
        small("run", env).finish()
    assert not Path("runs").exists()


def test_a_preset_and_settings_that_have_another_are_a_sentence() -> None:
    with pytest.raises(UserError, match="preset=quick, and preset=paper is given; leave one of them out"):
        t3d.train(t3d.preset("quick"), preset="paper")


def test_nothing_is_printed_and_no_folder_made_before_it_trains(capfd: pytest.CaptureFixture[str]) -> None:
    run = small("run")
    assert run.step == 0 and not Path("runs").exists()
    with pytest.raises(UserError, match=r"the run has not begun: call finish\(\), or loop over it"):
        _ = run.path
    run.finish()
    assert capfd.readouterr() == ("", "")
    assert run.step == 120 and run.path == Path("runs/run").absolute()


def test_a_bar_is_shown_when_it_is_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    small("run").finish(progress=True)
    said = capfd.readouterr()
    assert said.out == "" and "120/120" in said.err


def test_a_finished_run_is_finished_again_at_once_and_a_loop_says_so(two_seeds: t3d.Run) -> None:
    before = (two_seeds.path / "events.jsonl").read_bytes()
    assert t3d.open_run(two_seeds.path).finish().step == 120
    with pytest.raises(NothingLeft, match="has already finished its 120 steps"):
        next(t3d.open_run(two_seeds.path))
    assert (two_seeds.path / "events.jsonl").read_bytes() == before


def test_columns_have_a_row_for_each_step_and_a_column_for_each_seed(two_seeds: t3d.Run) -> None:
    evals = [event for event in events_of(two_seeds.path) if isinstance(event, Eval)]
    assert two_seeds.evaluations == evals
    steps, values = two_seeds.column("return")
    assert steps.tolist() == [0, 60, 120]
    assert values.T.tolist() == [[event.mean_return for event in evals if event.seed == seed] for seed in (0, 3)]
    assert two_seeds.column("return", seed=3).values.tolist() == values[:, 1].tolist()
    with pytest.raises(UserError, match=r"gradient_norms has several entries; name one: gradient_norms.actor"):
        two_seeds.column("gradient_norms")
    with pytest.raises(UserError, match="has no metric q_meann, did you mean q_mean"):
        two_seeds.column("q_meann")


def test_seeds_that_report_at_other_steps_leave_gaps() -> None:
    run = small("run", seeds=[0, 1], env=drones.Drone)
    run.finish()
    steps, values = run.column("total_reward")
    assert values.shape == (len(steps), 2) and (np.diff(steps) > 0).all()
    assert np.isnan(values).sum() == 2 * len(steps) - sum(
        len(run.column("total_reward", seed).steps) for seed in (0, 1)
    )


def test_policies_evaluations_and_files_of_a_run(two_seeds: t3d.Run) -> None:
    policy = two_seeds.policy(seed=3)
    assert policy.about["seed"] == 3 and policy([0.0, 0.0]).shape == (1,)
    assert two_seeds.policy(seed=0, which="last").about["step"] == 120
    result = two_seeds.evaluate(episodes=3, seed=3)
    assert (result.seed, result.episodes, len(result.returns)) == (3, 3, 3)
    assert result == t3d.evaluate(two_seeds.path / "best/seed-3.safetensors", 3)
    windy = two_seeds.evaluate(2, seed=3, env_args={"wind": 1.0})
    assert windy.env == "drones:Drone(wind=1.0)" and windy.returns != result.returns[:2]
    assert two_seeds.evaluate(2).seed in (0, 3), "the best on fresh episodes"
    assert two_seeds.export("c").read_text().startswith("/*")
    assert two_seeds.report().read_text().startswith("<!doctype html>")
    assert two_seeds.record(steps=5, out="short.mp4") == Path("short.mp4") and Path("short.mp4").stat().st_size > 500


def test_runs_are_listed_and_compared(two_seeds: t3d.Run) -> None:
    other = small("other", env_args={}, seeds=[5]).finish()
    assert [run.name for run in t3d.runs("runs", search="other")] == ["other"]
    with pytest.raises(UserError, match="runs are sorted by time, return, name, steps, not by length"):
        t3d.runs("runs", sort="length")
    compared = two_seeds.compare(other, names=["two", "other"])
    assert [row.name for row in compared.rows] == ["two", "other"]
    assert "two" in repr(compared) and "<table" in compared._repr_html_()
    assert t3d.compare(two_seeds.path, other.path).rows[0].mean == compared.rows[0].mean


def test_stop_in_a_loop_saves_and_finish_continues_to_the_last_bit() -> None:
    run = small("run")
    for event in run:
        if event.step >= 70:
            run.stop()
    assert run.step < 120 and "stopped" in repr(run)
    assert run.finish().step == 120
    small("straight").finish()
    assert_equal(Path("runs/straight"), Path("runs/run"))


def test_a_run_that_another_thread_stops_ends_and_can_be_finished() -> None:
    run = small("run", total_steps=20_000)
    stopper = threading.Timer(1.0, run.stop)
    stopper.start()
    *_, end = run
    assert isinstance(end, End) and end.reason == "stopped" and end.saved
    assert next(iter(run)).event == "resumed"
    run.close()


def test_a_run_whose_folder_is_gone_has_a_name() -> None:
    run = small("run").finish()
    shutil.rmtree(run.path)
    assert repr(run) == f"<the run {run.path}, which cannot be read>"


def test_save_writes_a_checkpoint_before_the_training_goes_on() -> None:
    run = small("run")
    for event in run:
        if event.event == "eval" and event.step == 60:
            run.save()
    saved = [event for event in events_of(run.path, "journal.jsonl") if isinstance(event, Saved)]
    assert [(event.reason, event.step) for event in saved] == [("asked", 60), ("end", 120)]


def log_and_set(run: t3d.Run, until: tuple[str, int] = ("end", 120)) -> None:
    for event in run:
        if event.event == "eval":
            run.log(difficulty=event.step / 10)
        if event.event == "eval" and event.step == 60:
            run.set(exploration_noise=0.01, actor_lr=0.1)
        if (event.event, event.step) == until:
            break


def test_numbers_of_the_program_become_a_metric() -> None:
    run = small("run")
    log_and_set(run)
    steps, values = run.column("difficulty")
    assert steps.tolist() == [0, 60, 120] and values[:, 0].tolist() == [0, 6, 12]
    logged = [event for event in events_of(run.path) if isinstance(event, Logged)]
    assert [(event.step, event.metrics) for event in logged] == [
        (step, {"difficulty": step / 10}) for step in (0, 60, 120)
    ]


def rows_of(path: Path) -> list[dict[str, str]]:
    with (path / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_numbers_of_the_program_have_a_column_of_metrics_csv_whenever_they_begin() -> None:
    run = small("run")
    log_and_set(run)
    logged = [row for row in rows_of(run.path) if row["event"] == "logged"]
    assert [(row["step"], row["difficulty"]) for row in logged] == [("0", "0.0"), ("60", "6.0"), ("120", "12.0")]


def test_a_resume_cuts_metrics_csv_where_it_was_though_its_first_line_has_grown() -> None:
    """The checkpoint is older than the column."""
    run = small("run", settings={"checkpoint.every_steps": 50})
    for event in run:
        if event.event == "saved" and event.step == 50:
            shutil.copytree(run.path, "killed")  # before the column
        if event.event == "eval" and event.step == 60:
            run.log(difficulty=6)
            break
    before = rows_of(Path("killed"))
    shutil.copy(run.path / "metrics.csv", "killed")  # as a kill at step 60 would leave it
    again = t3d.resume("killed")
    for event in again:
        if event.event == "resumed":
            assert isinstance(event, Resumed) and "metrics.csv" not in str(event.notes)
            kept = rows_of(Path("killed"))
            assert [{**row, "difficulty": None} for row in before] == kept[: len(before)] == kept
    assert [row["step"] for row in rows_of(Path("killed")) if row["event"] == "eval"] == ["0", "60", "120"]


def test_a_frame_has_a_column_for_each_metric(two_seeds: t3d.Run) -> None:
    pytest.importorskip("pandas")
    frame = two_seeds.frame()
    evals = frame[frame.event == "eval"]
    assert evals.mean_return.tolist() == [event.mean_return for event in two_seeds.evaluations]


def test_settings_hold_from_the_step_at_which_they_were_changed() -> None:
    run, same = small("run"), small("same")
    log_and_set(run)
    for event in same:
        if event.event == "eval":
            same.log(difficulty=event.step / 10)
    (changed,) = [event for event in events_of(run.path) if isinstance(event, SettingsChanged)]
    assert (changed.step, changed.values) == (60, {"noise.exploration_noise": 0.01, "td3.actor_lr": 0.1})
    ours, others = (load_policies(name) for name in ("run", "same"))
    assert any((ours[name] != others[name]).any() for name in ours)
    before, after = run.column("actor_loss"), same.column("actor_loss")
    equal = before.values[before.steps <= 60] == after.values[after.steps <= 60]
    assert equal.all() and (before.values[-1] != after.values[-1]).all()


def load_policies(name: str) -> dict[str, Any]:
    from safetensors.numpy import load_file  # noqa: PLC0415

    return dict(load_file(Path("runs") / name / "last/seed-0.safetensors"))


@pytest.mark.parametrize("until", [("eval", 60), ("update", 80)])
def test_a_resume_keeps_changed_settings_to_the_last_bit(until: tuple[str, int]) -> None:
    """Left right after they were changed, and later."""
    log_and_set(small("straight"))
    run = small("run")
    log_and_set(run, until)
    assert "changed" not in [event.event for event in (t3d.resume(run.path) if until[1] == 80 else run)]
    assert load_config(run.path / "config.toml").td3.actor_lr == 3e-4, "as the run was started"
    ours, others = (load_policies(name) for name in ("run", "straight"))
    assert all((ours[name] == others[name]).all() for name in ours)


LIVE = {
    **{"noise.exploration_noise": 0.4, "noise.decay_steps": 50, "noise.final_noise": 0.02},
    **{"td3.actor_lr": 0.01, "td3.critic_lr": 0.02},
}


@pytest.mark.parametrize("engine", ["fused", "eager"])
def test_settings_changed_before_the_first_step_are_those_of_a_run_that_was_started_with_them(engine: str) -> None:
    small("started", settings={**LIVE, "engine": engine}).finish()
    run = small("changed", settings={"noise.decay_steps": 50, "engine": engine})
    next(run)
    run.set(**{name: value for name, value in LIVE.items() if name != "noise.decay_steps"})
    run.finish()
    ours, others = (load_policies(name) for name in ("changed", "started"))
    assert all((ours[name] == others[name]).all() for name in ours)
    small("unchanged", settings={"engine": engine}).finish()
    assert (ours["actor"] != load_policies("unchanged")["actor"]).any()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"gamma": 0.9}, "gamma cannot be changed while a run trains; these can: .*actor_lr"),
        ({"actor_lrr": 0.9}, "did you mean actor_lr"),
        ({"actor_lr": 2}, "td3.actor_lr=2 is out of range"),
        ({"env_args": {"winds": 2}}, "drones:Drone takes .*, and winds is none of them"),
    ],
)
def test_settings_that_cannot_be_changed_are_a_sentence(settings: dict[str, Any], sentence: str) -> None:
    with small("run") as run:
        next(run)
        with pytest.raises(UserError, match=sentence):
            run.set(**settings)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "3", None, [1.0]])
def test_only_finite_numbers_are_logged(value: Any) -> None:
    with small("run") as run:
        next(run)
        with pytest.raises(UserError, match=r"difficulty(=.* is not a finite number| is .*, not numbers| has shape)"):
            run.log(difficulty=value)


def test_a_run_that_does_not_train_takes_nothing(two_seeds: t3d.Run) -> None:
    for run in (small("never"), two_seeds):
        with pytest.raises(UserError, match="does not train"):
            run.log(x=1)
        with pytest.raises(UserError, match="does not train"):
            run.set(actor_lr=0.1)


def test_an_environment_of_this_program_alone_is_played_by_what_makes_it() -> None:
    class Own(Drone):
        pass

    run = small("own", Own).finish()
    result = run.evaluate(2)
    assert result.env.endswith("Own") and run.record(steps=3).stat().st_size > 500
    with pytest.raises(UserError, match="was trained on an environment made in Python"):
        t3d.evaluate(run.path, 2)
    again = t3d.open_run(run.path, make_env=Own)
    assert again.evaluate(2).returns == result.returns
    assert t3d.resume(run.path, make_env=Own, total_steps=180).finish().step == 180


def test_fine_tuning_starts_from_a_run(two_seeds: t3d.Run) -> None:
    run = small("tuned", seeds=[3], env_args={"wind": 0.5}, start_from=two_seeds).finish()
    assert "of two (seed-3)" in run.summary.origin


class Windy(Drone):
    """Remembers the wind of the steps that it made."""

    winds: list[float] = []  # noqa: RUF012

    def step(self, action: Any) -> Any:
        self.winds.append(self.wind)
        return super().step(action)


def test_arguments_of_training_episodes_change_and_a_resume_keeps_them() -> None:
    Windy.winds.clear()
    run = small("windy", Windy, settings={"eval.every_steps": 1000})
    for event in run:
        if event.event == "episode" and event.step < 60:
            assert {*Windy.winds} == {0.0}
            run.set(env_args={"wind": 1.5})
        if event.step >= 100:
            break
    assert {*Windy.winds} == {0.0, 1.5}
    Windy.winds.clear()
    run.finish()
    assert Windy.winds.count(1.5) >= 20, "where it is trained on; it is evaluated in calm air"
    (changed,) = {str(event.values) for event in events_of(run.path) if isinstance(event, SettingsChanged)}
    assert changed == "{'env.args.wind': 1.5}"
    assert load_config(run.path / "config.toml").env.args == {}
