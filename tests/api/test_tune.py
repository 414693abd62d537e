"""A search tries what it says, continues after any end, shares its trials, and judges the best on fresh seeds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

import helpers
import t3d
from t3d.api.tune import _can_differ, _space, _values
from t3d.app.cli import main
from t3d.config import Config, Member, load_config, merge
from t3d.errors import StoppedEarly, UserError
from t3d.insight.comparison import compare
from t3d.insight.groups import Group, Training
from t3d.store.reader import open_run

optuna = pytest.importorskip("optuna")
SPACE = ["td3.gamma=0.9..0.999", "td3.critic_lr=1e-4..3e-3:log", "noise.exploration_noise=0.05..0.4"]


def config(root: Path, name: str = "search", **changes: Any) -> Config:
    quick = {"total_steps": 130, "eval": {"every_steps": 60}, "log": {"diagnose_every_steps": 0}, "threads": 1}
    return merge(merge(helpers.small_config(run={"root": str(root), "name": name}), quick), changes)


def search(cfg: Config, space: list[str] = SPACE, **how: Any) -> Any:
    return t3d.tune(cfg, space, **{"trials": 4, "fresh_seeds": 2, "progress": False, **how})


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
        assert trial.value == score(path, member)
    ranked = sorted(tuning.study.trials, key=lambda trial: trial.value, reverse=True)

    assert tuning.comparison is not None
    _, *others = tuning.comparison.rows
    assert [*tuning.points] == [row.name for row in tuning.comparison.rows]
    assert [row.name for row in others] == [f"trial {trial.number}" for trial in ranked[:3]]
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

    again = search(config(tmp_path))
    assert again.study.trials == tuning.study.trials, "nothing is left to train"
    more = search(config(tmp_path), trials=5)
    assert len(more.study.trials) == 5


def test_settings_that_members_share_train_in_runs_of_their_own(tmp_path: Path) -> None:
    space = [
        "td3.gamma=0.9..0.99",
        "td3.actor_hidden=[8],[16, 16]",
        "td3.policy_delay=1..3",
        "scale_rewards=true,false",
    ]
    tuning = search(config(tmp_path), space, trials=3, sampler="random")
    trained = [
        (cfg.td3.gamma, cfg.td3.actor_hidden, cfg.td3.policy_delay, cfg.scale_rewards)
        for path in tuning.path.glob("trials-*")
        for of_run in [open_run(path).cfg]
        for cfg in map(of_run.of, of_run.members)
    ]
    wanted = [(*_values(trial.params).values(),) for trial in tuning.study.trials]
    assert sorted(map(str, trained)) == sorted(map(str, wanted))
    assert len([*tuning.path.glob("trials-*")]) == 3


def test_a_trial_that_falls_behind_alone_is_stopped(tmp_path: Path) -> None:
    cfg = config(tmp_path, total_steps=220, eval={"every_steps": 20})
    tuning = search(cfg, ["td3.batch_size=8..32"], trials=9, sampler="random")
    pruned = [trial for trial in tuning.study.trials if trial.state.name == "PRUNED"]
    assert pruned
    for trial in pruned:
        (evals,) = open_run(tuning.path / f"trials-{trial.number:04d}").evals.values()
        assert 220 / 3 <= evals[-1].step < 220


def test_a_stopped_search_continues_with_its_trials(tmp_path: Path) -> None:
    stop = threading.Event()
    threading.Timer(0.0, stop.set).start()
    with pytest.raises(StoppedEarly, match="the same command continues"):
        search(config(tmp_path, total_steps=20_000), stop=stop)
    assert not (tmp_path / "search/best.toml").exists()


PROGRAM = """
import sys, t3d
from pathlib import Path
import test_tune
test_tune.search(test_tune.config(Path(sys.argv[1]), **test_tune.LONGER), together=2)
"""
LONGER: dict[str, Any] = {"total_steps": 1000, "checkpoint": {"every_steps": 100}}


def start(root: Path) -> subprocess.Popen[bytes]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(Path(__file__).parent)])}
    return subprocess.Popen([sys.executable, "-c", PROGRAM, str(root)], env=env)


def test_killed_it_continues_and_two_processes_share_its_trials(tmp_path: Path) -> None:
    first, folder = start(tmp_path), tmp_path / "search"
    until = time.monotonic() + 120
    while not any((folder / "trials-0000/checkpoints").glob("*-step-[1-9]*")) and time.monotonic() < until:
        time.sleep(0.02)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    study = optuna.load_study(study_name=None, storage=journal(folder))
    assert [trial.state.name for trial in study.trials] == ["RUNNING"] * 2

    assert [process.wait(240) for process in [start(tmp_path), start(tmp_path)]] == [0, 0]
    study = optuna.load_study(study_name=None, storage=journal(folder))
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 4
    assert len({str(trial.params) for trial in study.trials}) == 4
    logs = [(folder / f"trials-000{number}/journal.jsonl").read_text() for number in (0, 2)]
    assert ["resumed" in text for text in logs] == [True, False]
    (run, whole) = (open_run(path / "trials-0000") for path in (folder, search_alone(tmp_path / "whole")))
    assert run.evals.keys() == whole.evals.keys()
    for member, evals in run.evals.items():
        assert [each.mean_return for each in evals] == [each.mean_return for each in whole.evals[member]]


def search_alone(root: Path) -> Path:
    path: Path = search(config(root, **LONGER), trials=2, together=2).path
    return path


def journal(folder: Path) -> Any:
    return optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(folder / "study.jsonl")))


def test_the_password_of_a_database_is_written_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tuning = search(config(tmp_path), trials=1, storage=f"sqlite:///{tmp_path / 'study.db'}?timeout=20")
    assert tuning.study.trials[0].state.name == "COMPLETE"
    assert b"timeout=20" not in b"".join(path.read_bytes() for path in tuning.path.rglob("*") if path.is_file())
    monkeypatch.setenv("T3D_STORAGE", "postgresql://me:pass-word-1@nowhere.invalid/db")
    assert main(["tune", "Pendulum-v1", "--space", *SPACE, "--run.root", str(tmp_path / "other")]) == 2
    said = "".join(capsys.readouterr())
    assert "Optuna cannot use the database of --storage" in said
    assert "pass-word-1" not in said


def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        (["td3.tau=0..0.1:log"], "cannot be searched: The `low` value must be larger than 0 for a log"),
        (["td3.gamma=0.9..high"], "it needs two numbers, the lower one first"),
        (["td3.gamma=0.9"], "needs two or more values, each only once"),
        (["noise.kind=gaussian,pinkish"], "noise.kind=pinkish is not one of gaussian, ou, pink"),
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


def test_other_mistakes_are_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = config(tmp_path)
    assert "trials=0 is too few" in sentence(cfg, trials=0)
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
