"""The user's own files: found again from another folder, announced before they run, never taken from a run's folder."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import py_compile
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import helpers
import t3d
from t3d.app.cli import main
from t3d.config import load_toml

ROBOT = Path(__file__).parents[1] / "drones.py"
SMALL = "--total-steps 60 --random-steps 40 --td3.batch-size 4 --eval.episodes 1 --threads 1 --no-video"
SMALL += " --td3.actor-hidden 4 --td3.critic-hidden 4 --run.root"


class Done(NamedTuple):
    """What a command has returned and printed."""

    returncode: int
    stdout: str
    stderr: str


def t3d_in(folder: Path, *words: str) -> Done:
    """Runs a command in a folder, as if in a process of its own, in which nothing of the user's was imported."""
    path, modules, out, err = [*sys.path], {*sys.modules}, io.StringIO(), io.StringIO()
    try:
        with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            return Done(main([*words]), out.getvalue(), err.getvalue())
    finally:
        sys.path[:] = path
        for name in {*sys.modules} - modules:
            if name.partition(".")[0] in ("my_robot", "parts", "nets"):
                del sys.modules[name]
        importlib.invalidate_caches()


def test_a_process_of_its_own_finds_it_too(project: Path, elsewhere: Path) -> None:
    command = [sys.executable, "-m", "t3d", "eval", str(project / "runs" / "module"), "--episodes", "1"]
    environment = {**os.environ, "PYTHONPATH": str(Path(t3d.__file__).parents[1])}
    done = subprocess.run(command, cwd=elsewhere, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == [f"environment my_robot:Drone from {project / 'my_robot.py'}"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder with an environment in a file and one in a package, and a run of each kind of name for them."""
    home = tmp_path_factory.mktemp("project")
    (home / "parts").mkdir()
    shutil.copy(ROBOT, home / "my_robot.py")
    (home / "parts" / "arm.py").write_text("from my_robot import Drone\n\nclass Arm(Drone):\n    pass\n")
    for name, env_id in NAMES.items():
        trained = t3d_in(home, "train", env_id, *SMALL.split(), str(home / "runs"), "--run.name", name)
        assert trained.returncode == 0, trained.stderr
        file = home / ("parts/arm.py" if "arm" in env_id else "my_robot.py")
        assert trained.stderr.splitlines()[0] == f"environment {env_id.replace('.py', '')} from {file}"
    return home


NAMES = {"module": "my_robot:Drone", "file": "my_robot.py:make_drone", "package": "parts.arm:Arm", "alone": "parts.arm"}
MORE = {"resume": ["--total-steps", "70"]}  # there is more to train


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    (tmp_path / "elsewhere").mkdir()
    return tmp_path / "elsewhere"


@pytest.mark.parametrize("name", NAMES)
def test_a_run_is_evaluated_and_resumed_from_another_folder(name: str, project: Path, elsewhere: Path) -> None:
    run = shutil.copytree(project / "runs" / name, elsewhere.parent / name)
    for words in (["eval", str(run), "--episodes", "1"], ["resume", str(run), "--total-steps", "70", "--no-video"]):
        done = t3d_in(elsewhere, *words)
        assert done.returncode == 0, done.stderr
        file = project / ("my_robot.py" if name in ("module", "file") else "parts/arm.py")
        first = done.stderr.splitlines()[0]
        assert first.startswith("environment ") and first.endswith(f" from {file}"), "where it was"


def test_a_module_alone_is_stored_with_the_name_of_what_it_makes(project: Path) -> None:
    assert load_toml(project / "runs/alone/config.toml")["env"]["id"] == "parts.arm:Arm"
    words = ["train", "parts.arm", *SMALL.split(), "runs", "--run.name", "alone", "--resume-or-start"]
    assert "has already finished" in t3d_in(project, *words).stdout, "the same command"


def test_videos_are_recorded_from_another_folder(project: Path, elsewhere: Path) -> None:
    run, out = project / "runs" / "module", elsewhere / "film.mp4"
    done = t3d_in(elsewhere, "record", str(run), "--steps", "5", "--out", str(out))
    assert done.returncode == 0 and out.is_file(), done.stderr
    assert done.stderr.splitlines()[0] == f"environment my_robot:Drone from {project / 'my_robot.py'}"


def test_the_file_in_the_current_folder_comes_first(project: Path, elsewhere: Path) -> None:
    """As when a run was copied to another machine, or the project was moved."""
    shutil.copy(ROBOT, elsewhere / "my_robot.py")
    done = t3d_in(elsewhere, "eval", str(project / "runs" / "module"), "--episodes", "1")
    assert done.stderr.splitlines()[0] == f"environment my_robot:Drone from {elsewhere / 'my_robot.py'}"


@pytest.mark.parametrize("name", ["module", "file"])
@pytest.mark.parametrize("command", ["eval", "resume", "record"])
def test_a_file_that_is_missing_is_named(command: str, name: str, project: Path, elsewhere: Path) -> None:
    run = moved(project / "runs" / name, elsewhere.parent / "gone", project, "/nowhere")
    done = t3d_in(elsewhere, command, str(run), *MORE.get(command, []))
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert " was in /nowhere/my_robot.py, which is missing; " in done.stderr


def moved(run: Path, copy: Path, then: Path, now: Path | str) -> Path:
    """A copy of a run whose files say that it was trained in another folder."""
    shutil.copytree(run, copy)
    for file in ("config.toml", "events.jsonl", "journal.jsonl"):
        text = (copy / file).read_text()
        (copy / file).write_text(text.replace(str(then), str(now)))
    for checkpoint in (copy / "checkpoints").glob("*-step-*/*.json"):  # resume reads the settings in config.toml too
        assert checkpoint.is_file()
    return copy


@pytest.mark.parametrize("command", ["eval", "resume", "record"])
@pytest.mark.parametrize("where", ["remembered", "current folder", "package", "path"])
def test_no_file_inside_the_runs_folder_is_ever_imported(
    command: str, where: str, project: Path, elsewhere: Path
) -> None:
    """Whoever sends a run must not send code with it."""
    run, started_in = elsewhere.parent / "sent", elsewhere
    evil = f"open({str(elsewhere / 'ran')!r}, 'w')\n"
    if where == "package":  # the run's folder is itself a package that its config names
        run = shutil.copytree(project / "runs" / "module", elsewhere.parent / "my_robot")
        (run / "__init__.py").write_text(evil)
        started_in = elsewhere.parent
    elif where == "path":
        run = moved(project / "runs" / "file", run, project, run)
    else:
        run = moved(project / "runs" / "module", run, project, run if where == "remembered" else "/nowhere")
        started_in = elsewhere if where == "remembered" else run
    (run / "my_robot.py").write_text(evil)
    done = t3d_in(started_in, command, str(run), *MORE.get(command, []))
    assert not (elsewhere / "ran").exists()
    assert done.returncode == 2 and "no file inside a run's folder is ever imported" in done.stderr, done.stderr


def test_networks_and_rules_are_found_again_too(project: Path, elsewhere: Path) -> None:
    network = "from t3d.policy.architectures import KINDS\n\nWIDE = KINDS['mlp']\n"
    (project / "nets.py").write_text(network)
    words = ["Pendulum-v1", "--td3.actor-network", "nets:WIDE", *SMALL.split(), str(project / "runs")]
    assert t3d_in(project, "train", *words, "--run.name", "nets").returncode == 0
    done = t3d_in(elsewhere, "eval", str(project / "runs" / "nets"), "--episodes", "1")
    assert done.returncode == 0, done.stderr
    assert f"network nets:WIDE from {project / 'nets.py'}" in done.stderr


def test_python_programs_are_told_by_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: Any
) -> None:
    shutil.copy(ROBOT, tmp_path / "quiet_robot.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "quiet_robot", raising=False)
    logger = __import__("logging").getLogger("t3d.imports")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", True)
    with caplog.at_level("INFO", "t3d.imports"):
        next(t3d.train(helpers.small_config(env={"id": "quiet_robot:Drone"}, run={"root": str(tmp_path / "runs")})))
    assert [one.message for one in caplog.records] == [
        f"environment quiet_robot:Drone from {tmp_path / 'quiet_robot.py'}"
    ]
    assert capfd.readouterr().err == ""
    (run,) = (tmp_path / "runs").iterdir()
    start = json.loads((run / "journal.jsonl").read_text().splitlines()[0])
    assert start["files"] == {"quiet_robot:Drone": str(tmp_path / "quiet_robot.py")}


@pytest.mark.parametrize("kind", ["parent package", "compiled", "library of the same name"])
def test_no_code_inside_a_runs_folder_runs_however_it_is_named(tmp_path: Path, kind: str) -> None:
    assert main(["train", "Pendulum-v1", *SMALL.split(), str(tmp_path / "runs"), "--run.name", "sent", "--quiet"]) == 0
    run, mark = tmp_path / "runs" / "sent", tmp_path / "executed"
    leaves_a_mark = f"open({str(mark)!r}, 'w').close()\n"
    env_id, folder, command = "runs.sent.cart:Cart", tmp_path, ["eval", "runs/sent"]
    if kind == "parent package":
        (run / "__init__.py").write_text(leaves_a_mark)
    elif kind == "compiled":
        (tmp_path / "cart.py").write_text(leaves_a_mark)
        py_compile.compile(str(tmp_path / "cart.py"), str(run / "cart.pyc"))
        (tmp_path / "cart.py").unlink()
    else:
        env_id = "gymnasium.envs.classic_control.pendulum:PendulumEnv"
        folder, command = run, ["record", ".", "--steps", "2"]
        (run / "imageio_ffmpeg.py").write_text(leaves_a_mark)
    written = (run / "config.toml").read_text()
    (run / "config.toml").write_text(written.replace('id = "Pendulum-v1"', f'id = "{env_id}"'))
    environment = {**os.environ, "PYTHONPATH": str(Path(t3d.__file__).parents[1])}
    python = [sys.executable, "-m", "t3d", *command]
    done = subprocess.run(python, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "no file inside a run's folder is ever imported" in done.stderr, done.stderr
    assert not mark.exists()
