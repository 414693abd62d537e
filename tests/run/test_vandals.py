"""R27: what environments do to torch's and the process's globals ends no training unsaved, and changes no bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import vandals
from t3d.store.checkpoint import newest

pytestmark = pytest.mark.system

SURVIVED = [kind for kind in vandals.KINDS if kind not in ("nothing", "an error that cannot be printed")]
TESTS = Path(vandals.__file__).parent


def trained(root: Path, engine: str, moment: str, kinds: list[str], actors: str = "inline") -> list[dict[str, Any]]:
    """Trains with each kind of environment in a process of its own, and returns what became of it."""
    told = [f"{kind}@{moment}" for kind in kinds]
    command = [sys.executable, vandals.__file__, str(root), actors, engine, *told]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True, stdin=subprocess.DEVNULL)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["kind"] for one in found] == told
    return found


@pytest.mark.parametrize(
    ("engine", "moment"),
    [
        ("eager", "reset"),
        pytest.param("eager", "make", marks=pytest.mark.slow),
        pytest.param("eager", "step", marks=pytest.mark.slow),
        pytest.param("fused", "reset", marks=pytest.mark.slow),
    ],
)
def test_survived_bit_for_bit(tmp_path: Path, engine: str, moment: str) -> None:
    undisturbed, *others = trained(tmp_path, engine, moment, ["nothing", *SURVIVED])
    assert undisturbed["end"]["updates"] > 200 and len(others) >= 12
    for number, one in enumerate(others, start=1):
        assert (one["error"], one["end"]["reason"], one["end"]["saved"]) == ("", "finished", True), one
        assert one["policy"] == undisturbed["policy"], one["kind"]
        assert one["threads"] == [1], one["kind"]
        checkpoint, notes = newest(tmp_path / f"run-{number}" / "checkpoints")
        assert checkpoint is not None and (checkpoint.step, notes) == (300, []), one["kind"]
        modes = [path.stat().st_mode & 0o700 for path in (checkpoint.path, *checkpoint.path.iterdir())]
        assert modes[0] == 0o700 and set(modes[1:]) == {0o600}, one["kind"]


@pytest.mark.slow
def test_actors_survive_too(tmp_path: Path) -> None:
    for one in trained(tmp_path, "eager", "reset", SURVIVED[:4], "local:1"):
        assert (one["error"], one["end"]["reason"], one["end"]["saved"]) == ("", "finished", True), one


def test_numpy_that_raises_is_named(tmp_path: Path) -> None:
    (found,) = trained(tmp_path, "eager", "make", ["numpy errors"])
    assert [note for note in found["notes"] if "numpy.seterr" in note], found["notes"]


def test_an_error_that_cannot_be_printed_is_named_and_the_run_is_saved(tmp_path: Path) -> None:
    (found,) = trained(tmp_path, "eager", "step", ["an error that cannot be printed"])
    assert (found["end"]["reason"], found["end"]["saved"]) == ("failed", True)
    assert "the environment raised Unprintable" in found["end"]["text"]
    checkpoint, _ = newest(tmp_path / "run-0" / "checkpoints")
    assert checkpoint is not None and checkpoint.step == found["end"]["step"] == vandals.AFTER - 1


def command(root: Path, kind: str, *more: str) -> subprocess.Popen[str]:
    """`t3d train` with an environment of this kind."""
    flags = (
        "--total-steps 300 --random-steps 60 --td3.batch-size 32 --eval.every-steps 100 --eval.episodes 1 --threads 1"
    )
    small = "--td3.actor-hidden 16 16 --td3.critic-hidden 16 16 --no-video"
    return subprocess.Popen(
        [sys.executable, "-m", "t3d", "train", "vandals.py:Vandal", "--run.root", str(root), "--run.name", "run",
         *flags.split(), *small.split(), *more],
        env={**os.environ, "VANDAL": kind, "RUN": str(root / "run")}, cwd=TESTS, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.parametrize(
    "kind",
    [
        "descriptors closed",
        "an error that cannot be printed",
        pytest.param("streams closed", marks=pytest.mark.slow),
        pytest.param("no streams", marks=pytest.mark.slow),
    ],
)
def test_the_command_line_says_how_it_ended(tmp_path: Path, kind: str) -> None:
    moment = "step" if "error" in kind else "reset"
    process = command(tmp_path, f"{kind}@{moment}")
    output, errors = process.communicate(timeout=120)
    end = json.loads((tmp_path / "run" / "journal.jsonl").read_text().splitlines()[-1])
    assert end["event"] == "end" and end["saved"], end
    if "error" in kind:
        assert process.returncode == 1 and "Unprintable" in errors and "t3d resume" in errors
    else:
        assert process.returncode == 0 and "Trained 300 steps" in output and "t3d eval" in output, errors


def test_signals_still_save_the_run(tmp_path: Path) -> None:
    with command(tmp_path, "signal handlers@make", "--total-steps", "1000000") as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("step"):
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        try:
            output, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    end = json.loads((tmp_path / "run" / "journal.jsonl").read_text().splitlines()[-1])
    assert process.returncode == 143 and end["reason"] == "stopped" and end["saved"], (output, end)
