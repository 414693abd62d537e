"""A search tries what it says, continues after any end, shares its trials, and judges the best on fresh seeds."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import helpers
import t3d
from fake_runs import evaluation, session, write_run
from t3d.api.tune import _can_differ, _space, _values
from t3d.app.cli import main
from t3d.config import Config, Member, load_config, merge, to_toml
from t3d.errors import StoppedEarly, UserError
from t3d.events import Event, to_line
from t3d.insight.comparison import compare
from t3d.insight.groups import Group, Training
from t3d.store.reader import open_run

optuna = pytest.importorskip("optuna")
SPACE = ["td3.gamma=0.9..0.999", "td3.critic_lr=1e-4..3e-3:log", "noise.exploration_noise=0.05..0.4"]
ALONE = ["td3.gamma=0.9..0.999", "td3.batch_size=16..256"]


def config(root: Path, name: str = "search", **changes: Any) -> Config:
    quick = {"total_steps": 130, "eval": {"every_steps": 60}, "log": {"diagnose_every_steps": 0}, "threads": 1}
    return merge(merge(helpers.small_config(run={"root": str(root), "name": name}), quick), changes)


def search(cfg: Config, space: list[str] = SPACE, **how: Any) -> Any:
    return t3d.tune(cfg, space, **{"trials": 4, "fresh_seeds": 2, "progress": False, **how})


class Made:
    """Stands in for training: a seed returns most where gamma is 0.97 and the batch is large."""

    def __init__(self) -> None:
        self.runs: list[str] = []

    def train(self, cfg: Config, **_: Any) -> Iterator[Event]:
        self.runs.append(cfg.run.name)
        path = Path(cfg.run.root, cfg.run.name)
        write_run(path, {}, seeds=cfg.seeds)
        (path / "config.toml").write_text(to_toml(cfg))
        with (path / "events.jsonl").open("w") as log:
            log.write(f"{to_line(session(path, cfg))}\n")
            for step in range(0, cfg.total_steps + 1, 10):
                for number, member in enumerate(cfg.members):
                    own = cfg.of(member)
                    value = own.td3.batch_size / 10 - abs(own.td3.gamma - 0.97) * step - member.seed
                    event = evaluation(number, member.seed, step, value)
                    print(to_line(event), file=log, flush=True)
                    yield event

    def resume(self, path: Path, *_: Any, **__: Any) -> Iterator[Event]:
        self.runs.append(f"{path.name} again")
        return iter(())


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    made = Made()
    monkeypatch.setattr("t3d.api.tune.train", made.train)
    monkeypatch.setattr("t3d.api.tune.resume", made.resume)
    monkeypatch.setattr("t3d.api.tune._draw", lambda *_: None)
    return made


def sentence(cfg: Config, space: list[str] = SPACE, **how: Any) -> str:
    with pytest.raises(UserError) as told:
        search(cfg, space, **how)
    return str(told.value)


def score(path: Path, member: Member) -> float:
    (row,) = compare([Group("", {"Pendulum-v1": [Training(open_run(path), member)]})]).rows
    return row.mean.value


def test_trials_train_side_by_side_and_the_best_are_judged_on_fresh_seeds(tmp_path: Path) -> None:
    tuning = search(config(tmp_path))
    path = tuning.path / "trials-0000"
    for trial, member in zip(tuning.study.trials, open_run(path).cfg.members, strict=True):
        assert dict(member.values) == pytest.approx(trial.params, rel=1e-5)
        (row,) = compare([Group("", {"Pendulum-v1": [Training(open_run(path), member)]})]).rows
        assert trial.value == row.mean.value
    ranked = sorted(tuning.study.trials, key=lambda trial: trial.value, reverse=True)

    assert tuning.comparison is not None
    _, *others = tuning.comparison.rows
    assert [*tuning.points] == [row.name for row in tuning.comparison.rows]
    assert [*tuning.points] == ["defaults", *(f"trial {trial.number}" for trial in ranked[:3])]
    for row in tuning.comparison.rows:
        assert [seed.training.member.seed for seed in row.scored.seeds] == [1, 2]
        assert row.mean.interval is not None
        assert all(dict(seed.training.member.values) == tuning.points[row.name] for seed in row.scored.seeds)
    assert tuning.points["defaults"]["td3.gamma"] == 0.99

    assert tuning.best == max(others, key=lambda row: row.mean.value).name
    cfg, best = load_config(tuning.path / "best.toml"), tuning.points[tuning.best]
    assert (cfg.td3.gamma, cfg.td3.critic_lr) == (best["td3.gamma"], best["td3.critic_lr"])
    assert (cfg.seeds, cfg.sweep, cfg.run.name) == ((0,), (), "")
    for name in ("history", "slices", "importances"):
        assert (tuning.path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert f"{tuning.best}: td3.gamma=" in repr(tuning)


def test_nothing_is_trained_twice_and_more_trials_may_follow(tmp_path: Path, made: Made) -> None:
    first = search(config(tmp_path))
    assert made.runs[0] == "trials-0000"
    assert search(config(tmp_path)).best == first.best
    assert made.runs[2:] == [f"{made.runs[1]} again"]
    assert len(search(config(tmp_path), trials=6, together=1).study.trials) == 6
    assert {"trials-0004", "trials-0005"} < {*made.runs}


def test_settings_that_members_share_train_in_runs_of_their_own(tmp_path: Path, made: Made) -> None:
    space = [
        "td3.gamma=0.9..0.99",
        "td3.actor_hidden=[8],[16, 16]",
        "td3.policy_delay=1..3",
        "scale_rewards=true,false",
    ]
    tuning = search(config(tmp_path), space, trials=3, sampler="random")
    configs = [open_run(tuning.path / f"trials-{number:04d}").cfg for number in range(3)]
    trained = [(cfg.td3.gamma, cfg.td3.actor_hidden, cfg.td3.policy_delay, cfg.scale_rewards) for cfg in configs]
    assert trained == [(*_values(trial.params).values(),) for trial in tuning.study.trials]


def test_a_trial_that_falls_behind_alone_is_stopped(tmp_path: Path, made: Made) -> None:
    tuning = search(config(tmp_path, total_steps=300), ALONE, trials=16, sampler="random")
    pruned = [trial for trial in tuning.study.trials if trial.state.name == "PRUNED"]
    assert pruned
    for trial in pruned:
        (evals,) = open_run(tuning.path / f"trials-{trial.number:04d}").evals.values()
        assert 100 <= evals[-1].step == trial.user_attrs["stopped"] < 300
        before = [each for each in tuning.study.trials[: trial.number] if each.state.name == "COMPLETE"]
        assert evals[-1].mean_return < np.median([each.intermediate_values[evals[-1].step] for each in before])


class Killed(BaseException):
    pass


def test_what_a_killed_process_left_is_taken_over(tmp_path: Path, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as dying, pytest.raises(Killed):
        dying.setattr("t3d.api.tune.train", die)
        search(config(tmp_path))
    journal(tmp_path / "search").ask().suggest_float("td3.gamma", 0.9, 0.999)  # killed while it asked for settings
    tuning = search(config(tmp_path))
    assert [trial.state.name for trial in tuning.study.trials] == [*["COMPLETE"] * 4, "FAIL"]
    assert len(open_run(tmp_path / "search/trials-0000").cfg.members) == 4
    assert tuning.comparison is not None


def test_processes_share_trials_and_the_last_one_comes_to_the_verdict(
    tmp_path: Path, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def slow(cfg: Config, **_: Any) -> Iterator[Event]:
        entered.set()
        assert go_on.wait(60)
        return made.train(cfg)

    with ThreadPoolExecutor() as pool:
        with monkeypatch.context() as slowly:
            slowly.setattr("t3d.api.tune.train", slow)
            other = pool.submit(search, config(tmp_path), together=2)
            assert entered.wait(60)
        ours = search(config(tmp_path), together=2)
        assert made.runs == ["trials-0002"]
        assert ours.comparison is None
        go_on.set()
        theirs = other.result()
    assert theirs.comparison is not None
    assert len({str(trial.params) for trial in theirs.study.trials}) == 4


def test_a_stopped_search_says_that_it_continues(tmp_path: Path, made: Made) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(StoppedEarly, match="the same command continues"):
        search(config(tmp_path), stop=stop)


PROGRAM = """
import sys, t3d
from pathlib import Path
import test_tune
test_tune.search(test_tune.config(Path(sys.argv[1]), **test_tune.LONGER), trials=2)
"""
LONGER: dict[str, Any] = {"total_steps": 800, "checkpoint": {"every_steps": 100}}


def test_killed_while_it_trains_it_continues_to_the_last_bit(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(Path(__file__).parent)])}
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path)], env=env)
    run, until = tmp_path / "search/trials-0000", time.monotonic() + 120
    while not any((run / "checkpoints").glob("*-step-[1-9]*")) and time.monotonic() < until:
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert {trial.state.name for trial in journal(tmp_path / "search").trials} == {"RUNNING"}
    killed = search(config(tmp_path, **LONGER), trials=2)
    assert "resumed" in (run / "journal.jsonl").read_text()
    whole = search(config(tmp_path / "whole", **LONGER), trials=2)
    assert [trial.value for trial in killed.study.trials] == [trial.value for trial in whole.study.trials]


def journal(folder: Path) -> Any:
    backend = optuna.storages.journal.JournalFileBackend(str(folder / "study.jsonl"))
    return optuna.load_study(study_name=folder.name, storage=optuna.storages.JournalStorage(backend))


def test_the_password_of_a_database_is_written_nowhere(
    tmp_path: Path, made: Made, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tuning = search(config(tmp_path), trials=1, storage=f"sqlite:///{tmp_path / 'study.db'}?timeout=20")
    assert tuning.study.trials[0].state.name == "COMPLETE"
    assert b"timeout=20" not in b"".join(path.read_bytes() for path in tuning.path.rglob("*") if path.is_file())
    monkeypatch.setenv("T3D_STORAGE", "postgresql://me:pass-word-1@nowhere.invalid/db")
    assert main(["tune", "Pendulum-v1", "--space", *SPACE, "--run.root", str(tmp_path / "other")]) == 2
    said = "".join(capsys.readouterr())
    assert "Optuna cannot use the database of --storage" in said
    assert "pass-word-1" not in said


def test_nothing_is_unpickled(tmp_path: Path, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    import pickle  # noqa: PLC0415

    def refuse(*_: object) -> None:
        raise AssertionError("pickle")

    for name in ("loads", "load", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    search(config(tmp_path), trials=2)
    search(config(tmp_path), trials=3)


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ([], "there is nothing to search: name settings after --space"),
        (["td3.gamma"], "cannot be read; write FIELD=LOW..HIGH"),
        (["td3.gama=0.9..0.99"], "there is no setting td3.gama, did you mean td3.gamma?"),
        (["td3.gamma=0.9..1.5"], "td3.gamma=1.5 is out of range; it must be between 0 and 1"),
        (["td3.gamma=0.99..0.9"], "needs two numbers, the lower one first"),
        (["td3.tau=0..0.1:log"], "td3.tau=0..0.1:log' cannot be searched: `low > 0` must hold"),
        (["td3.gamma=0.9..high"], "it needs two numbers, the lower one first"),
        (["td3.gamma=0.9"], "needs two or more values, each only once"),
        (["noise.kind=gaussian,pinkish"], "noise.kind='pinkish' is not one of gaussian, ou, pink"),
        (["td3.gamma=0.9..0.99", "td3.gamma=0.9,0.99"], "space names td3.gamma twice; give it once"),
        (["td3.policy_delay=1.5..3"], "td3.policy_delay=1.5 is not an integer"),
        (["env.args.g=9..11"], "env.args.g has no value to compare with; say what it is now: --env.args g=VALUE"),
        (
            ["total_steps=100..200"],
            "total_steps cannot be searched: it is the same for all trials, or they could not be compared",
        ),
        (["eval.episodes=1..5"], "eval.episodes cannot be searched"),
        (["noise.final_noise=0.1..0.2"], "noise.final_noise=0.1 is used only with noise.decay_steps"),
    ],
)
def test_a_space_that_makes_no_sense_is_a_sentence(tmp_path: Path, space: list[str], words: str) -> None:
    assert words in sentence(config(tmp_path), space)
    assert not (tmp_path / "search").exists(), "nothing has been written"


def test_other_mistakes_are_sentences(tmp_path: Path, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = config(tmp_path)
    assert "trials=0 is too few" in sentence(cfg, trials=0)
    assert "sampler=grid is neither tpe nor random" in sentence(cfg, sampler="grid")
    assert "fresh_seeds=1 is too few; give at least 2" in sentence(cfg, fresh_seeds=1)
    assert "a search has sweeps of its own" in sentence(merge(cfg, {"sweep": ["td3.tau=0.1,0.2"]}))
    scheduled = merge(cfg, {"env": {"args": {"g": 9.0}, "schedule": {"g": "uniform:9:11"}}})
    assert "g is searched and in env.schedule" in sentence(scheduled, ["env.args.g=9..11"])
    (tmp_path / "search").mkdir()
    (tmp_path / "search/study.jsonl").write_text("{}\nno journal\n{}\n")
    assert "Optuna cannot use" in sentence(cfg)
    search(config(tmp_path, "known"), trials=1)
    assert "has a study with total_steps=130, and this one has 150" in sentence(
        config(tmp_path, "known", total_steps=150)
    )
    assert "has a study with space=noise.exploration_noise=" in sentence(config(tmp_path, "known"), SPACE[:1])
    (tmp_path / "file").write_text("")
    assert "cannot write" in sentence(config(tmp_path / "file"))
    monkeypatch.setattr("t3d.errors.find_spec", lambda name: None)
    assert 'pip install "t3d[tune]"' in sentence(cfg)


def test_values_keep_their_types(tmp_path: Path) -> None:
    cfg = merge(config(tmp_path), {"env": {"args": {"g": 9, "size": 2.0}}})
    words = ["env.args.g=8..10", "env.args.size=1..3", "replay.n_step=1..3", "td3.actor_hidden=[8],[16, 16]"]
    space = _space(words, cfg)
    kinds = ["IntDistribution", "FloatDistribution", "IntDistribution", "CategoricalDistribution"]
    assert [type(values).__name__ for values in space.values()] == kinds
    assert [_can_differ(cfg, *setting) for setting in space.items()] == [True, True, True, False]
    assert _values({"a": 1.23456789, "b": "[16, 16]", "c": "pink", "d": 3}) == {
        **{"a": 1.23457, "b": (16, 16), "c": "pink", "d": 3}
    }


def test_the_command_line_prints_the_verdict(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    cfg = config(tmp_path)
    flags = ["--preset", "quick", "--total-steps", "130", "--random-steps", "100", "--eval.every-steps", "60"]
    flags += ["--td3.batch-size", "16", "--eval.episodes", "1", "--threads", "1", "--run.root", cfg.run.root]
    command = ["tune", "Pendulum-v1", *flags, "--space", *SPACE, "--trials", "2", "--fresh-seeds", "2"]
    assert main(command) == 0
    out, err = capfd.readouterr()
    assert "trials 0 to 1, side by side, of 2" in err
    for words in ("defaults: td3.gamma=0.99", "trial 1: td3.gamma=", "best settings:", "with 95 % intervals"):
        assert words in out
    assert tomllib.loads((tmp_path / "tune-Pendulum-v1/best.toml").read_text())["td3"]["batch_size"] == 16
    assert main([*command, "--space", "td3.tau=0.1..0.2"]) == 2
    assert "--space is given twice; name all after one" in capfd.readouterr().err
    assert main(["tune", "Pendulum-v1"]) == 2
    assert "name settings to search, e.g. t3d tune ENV --space" in capfd.readouterr().err
