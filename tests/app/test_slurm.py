"""The documented array for SLURM, with a stand-in for SLURM: tasks are killed or reach their time limit, and go on."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from run_folders import assert_equal, events_of
from t3d.events import End

SCRIPT = Path(__file__).parents[2] / "examples" / "train.sbatch"
FLAGS = shlex.split(
    "Pendulum-v1 --preset quick --total-steps 900 --random-steps 200 --checkpoint.every-steps 100 "
    "--eval.episodes 1 --eval.every-steps 300 --td3.actor-hidden 8 --td3.critic-hidden 8"
)
STAND_INS = {
    "t3d": f'#!/bin/sh\nexec {sys.executable} -m t3d "$@"\n',
    "scontrol": '#!/bin/sh\necho "$@" >> "$ASKED"\n',
}


class Slurm:
    """Runs the tasks of an array as SLURM does: a task leads a process group, and a requeued one runs once more."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.asked = folder, folder / "asked"
        for name, text in STAND_INS.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)

    def start(self, task: int, **more: str) -> subprocess.Popen[bytes]:
        variables = {
            "SLURM_JOB_NAME": "t3d",
            "SLURM_ARRAY_TASK_ID": str(task),
            "SLURM_JOB_ID": str(1000 + task),
            "ASKED": str(self.asked),
            "PATH": f"{self.folder}{os.pathsep}{os.environ['PATH']}",
        }
        with (self.folder / f"{task}.log").open("ab") as log:
            return subprocess.Popen(
                ["bash", str(SCRIPT), *FLAGS],
                cwd=self.folder,
                env={**os.environ, **variables, **more},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def run(self, task: int) -> int:
        return self.start(task).wait(120)

    def interrupted(self, task: int, interrupt: Callable[[int], None]) -> int:
        """Runs a task that is interrupted after its first checkpoint."""
        running = self.start(task)
        deadline = time.monotonic() + 60
        while '"checkpoint": "0' not in self.journal(task):
            assert running.poll() is None and time.monotonic() < deadline, self.log(task)
            time.sleep(0.02)
        interrupt(running.pid)
        return running.wait(60)

    def journal(self, task: int) -> str:
        journal = self.folder / "runs" / f"t3d-{task}" / "journal.jsonl"
        return journal.read_text() if journal.exists() else ""

    def log(self, task: int) -> str:
        return (self.folder / f"{task}.log").read_text()

    def requeued(self) -> list[str]:
        return self.asked.read_text().splitlines() if self.asked.exists() else []


@pytest.fixture
def slurm(tmp_path: Path) -> Slurm:
    return Slurm(tmp_path)


def node_fails(pid: int) -> None:
    os.killpg(pid, signal.SIGKILL)


def time_is_up(pid: int) -> None:
    os.kill(pid, signal.SIGUSR1)  # --signal=B: reaches the script only


def cancelled(pid: int) -> None:
    os.kill(pid, signal.SIGTERM)


def test_a_run_that_is_saved_at_once_is_requeued_too(tmp_path: Path) -> None:
    """It may have ended before the script looks whether it still runs: here the script sleeps after each signal."""
    slurm = Slurm(tmp_path)
    (tmp_path / "t3d").write_text("#!/bin/bash\ntrap 'exit 143' TERM\ntouch started\nwhile :; do sleep 0.01; done\n")
    running = slurm.start(
        3, **{"BASH_FUNC_kill%%": '() { builtin kill "$@"; local there=$?; sleep 0.5; return $there; }'}
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "started").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time_is_up(running.pid)
    assert running.wait(60) == 128 + signal.SIGTERM
    assert slurm.requeued() == ["requeue 1003"]


@pytest.mark.slow
def test_tasks_that_were_killed_or_ran_out_of_time_end_as_if_nothing_had_happened(slurm: Slurm) -> None:
    assert slurm.interrupted(0, node_fails) == -signal.SIGKILL
    assert slurm.requeued() == []  # SLURM does that itself
    assert slurm.run(0) == 0, slurm.log(0)
    assert "resuming at step" in slurm.log(0)

    assert slurm.interrupted(1, time_is_up) == 128 + signal.SIGTERM
    assert slurm.requeued() == ["requeue 1001"]
    assert slurm.interrupted(2, cancelled) == 128 + signal.SIGTERM
    assert slurm.requeued() == ["requeue 1001"], "what was cancelled stays cancelled"
    assert slurm.run(1) == 0, slurm.log(1)

    runs = slurm.folder / "runs"
    for task in (0, 1):
        end = events_of(runs / f"t3d-{task}")[-1]
        assert isinstance(end, End) and (end.reason, end.step) == ("finished", 900)
    assert slurm.run(1) == 0 and "already finished" in slurm.log(1), "submitting the array again does no harm"
    for task in (0, 1):
        (runs / f"t3d-{task}").rename(runs / f"interrupted-{task}")
        assert slurm.run(task) == 0
        assert_equal(runs / f"t3d-{task}", runs / f"interrupted-{task}")
    assert len(slurm.requeued()) == 1
