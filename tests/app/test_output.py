"""What is printed: on full disks, closed streams, poor terminals; whatever people, files and environments say."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import gymnasium as gym
import pytest

from t3d.app.cli import main
from terminals import COMMAND, TRAIN, lines_of, read_until


class FailingPipe(gym.Wrapper[Any, Any, Any, Any]):
    """An environment that lost its own simulator: not our reader."""

    def step(self, action: Any) -> Any:
        raise BrokenPipeError(32, "the simulator has gone")


def failing_pipe() -> FailingPipe:
    return FailingPipe(gym.make("Pendulum-v1"))


class Talkative(gym.Wrapper[Any, Any, Any, Any]):
    """Prints with every step."""

    def step(self, action: Any) -> Any:
        print("stepping", flush=True)
        return super().step(action)


def talkative() -> Talkative:
    return Talkative(gym.make("Pendulum-v1"))


@pytest.fixture
def full() -> Iterator[TextIO]:
    stream = open("/dev/full", "w")  # noqa: SIM115, PTH123
    yield stream
    stream.close()


def end_of(run: Path) -> dict[str, Any]:
    lines = (run / "events.jsonl").read_text().splitlines()
    return dict(json.loads(lines[-1]))


@pytest.mark.parametrize("env", ["Pendulum-v1", "test_output:talkative"])
def test_training_goes_on_when_nothing_can_be_printed(
    env: str, tmp_path: Path, full: TextIO, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", full)
    assert main(["train", env, *TRAIN[2:], "--run.root", str(tmp_path), "--run.name", "full"]) == 0
    assert end_of(tmp_path / "full")["reason"] == "finished"
    assert "could not be written: No space left on device" in capsys.readouterr().err
    journal = [json.loads(line) for line in (tmp_path / "full" / "journal.jsonl").read_text().splitlines()]
    assert "of output could not be written" in journal[-1]["text"] and journal[-1]["event"] == "save-failed"


@pytest.mark.system
def test_a_process_without_room_for_its_output_ends_well(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        ended = subprocess.run([*COMMAND, "--run.name", "full"], cwd=tmp_path, stdout=full, stderr=full, check=False)
    assert ended.returncode == 0 and end_of(tmp_path / "runs" / "full")["reason"] == "finished"


@pytest.mark.system
def test_closed_standard_streams(tmp_path: Path) -> None:
    """What is printed must not end in a file of the run that happened to get the number of a closed stream."""
    line = " ".join(["exec", *COMMAND, "--run.name", "closed", "--total-steps", "1000000", "<&- >&- 2>&-"])
    run = tmp_path / "runs" / "closed"
    with subprocess.Popen(line, shell=True, cwd=tmp_path) as process:
        while not (run / "events.jsonl").exists() or '"eval"' not in (run / "events.jsonl").read_text():
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 128 + signal.SIGTERM and end_of(run)["reason"] == "stopped"
    assert not [file for file in run.rglob("*") if file.is_file() and b"stopping: " in file.read_bytes()]


def test_a_reader_who_leaves_ends_the_run_politely(tmp_path: Path) -> None:
    command = [*COMMAND, "--run.name", "left", "--total-steps", "1000000", "--eval.every-steps", "50"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read()
    assert process.returncode == 0 and errors == "stopped: nobody reads the output; t3d resume runs/left continues\n"
    assert end_of(tmp_path / "runs" / "left")["reason"] == "stopped"
    assert list((tmp_path / "runs" / "left" / "checkpoints").glob("0*")), "saved"


def test_a_broken_pipe_of_the_environment_is_not_our_reader(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "test_output:failing_pipe", *TRAIN[2:], "--run.root", str(tmp_path)]) == 1
    assert "the environment raised BrokenPipeError" in capsys.readouterr().err


def test_an_error_of_any_text_can_be_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    for encoding in ("ascii", "utf-8", "latin-1"):
        written = io.BytesIO()
        monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(written, encoding))
        assert main(["eval", "runs/\udcff-γ-\x1b[31m"]) == 2
        said = written.getvalue().decode(encoding)
        assert "\\udcff" in said and "there is no run at" in said and "\x1b" not in said
        assert ("γ" if encoding == "utf-8" else "\\u03b3") in said


@pytest.mark.parametrize("name", ["x[bold]:cat:", "a[b]γ["])
def test_what_people_name_is_printed_as_it_is(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*TRAIN, "--run.name", name]) == 0
    out = capsys.readouterr().out
    assert f"runs/{name}\n" in out and f"runs/{name}/curve.png" in out
    assert main(["eval", f"runs/{name}", "--episodes", "1"]) == main(["plot", f"runs/{name}"]) == 0
    assert f"plotted: runs/{name}/curve.png" in capsys.readouterr().out


@pytest.mark.system
def test_an_ascii_terminal(tmp_path: Path) -> None:
    surroundings = {**os.environ, "PYTHONIOENCODING": "ascii", "LANG": "C"}
    ended = subprocess.run(
        [*COMMAND, "--run.name", "γ"], cwd=tmp_path, capture_output=True, env=surroundings, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert b"runs/\\u03b3/curve.png" in ended.stdout and b" +- " in ended.stdout


@pytest.mark.system
def test_ctrl_c_leaves_no_torn_table(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [*COMMAND, "--run.name", "torn", "--total-steps", "1000000", "--eval.every-steps", "1000000"]
    surroundings = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    with subprocess.Popen(
        command, cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs, env=surroundings
    ) as process:
        os.close(theirs)
        shown = read_until(ours, b"learning")
        process.send_signal(signal.SIGINT)
        shown += read_until(ours, b"")
    os.close(ours)
    screen = lines_of(shown.decode())
    assert process.returncode == 130
    pictures = [line for line in screen if line.startswith("learning ")]
    assert len(pictures) == 1, "one picture, whole:\n" + "\n".join(screen)
    assert any("stopping: the run is being saved" in line for line in screen)
    assert shown.rindex(b"\x1b[?25h") > shown.rindex(b"\x1b[?25l"), "the cursor is back"
