"""R7: a signal in any phase is seen at once; the run saves itself, says how to go on, and is gone in five seconds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from run_folders import assert_equal
from t3d.store.checkpoint import newest

pytestmark = pytest.mark.system

WORLD = '''
import os, time
import gymnasium as gym, numpy as np

class World(gym.Env):
    """Pendulum-sized; slow where an environment variable says so."""
    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(self, render_mode=None):
        time.sleep(float(os.environ.get("MAKING", 0)))
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), {}

    def step(self, action):
        time.sleep(float(os.environ.get("STEPPING", 0)))
        self.t += 1
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), 1.0, False, self.t == 50, {}

    def render(self):
        time.sleep(0.05)
        return np.zeros((64, 64, 3), np.uint8)
'''
SMALL = "--td3.actor-hidden 16 --td3.critic-hidden 16 --td3.batch-size 16 --random-steps 100 --eval.episodes 1 "
SMALL += "--total-steps 1000000 --log.every-steps 50 --eval.every-steps 1000000 --run.name held"
LOGS = "runs/held/events.jsonl", "runs/held/journal.jsonl"

PHASES = {  # name: flags, slowness of the world, and what is in the run's files when the phase has been reached
    "start-up": ("", {"MAKING": "0.5"}, ""),
    "warm-up": ("--random-steps 900000", {"STEPPING": "0.001"}, '"event": "eval"'),
    "collect": ("--updates-per-step 0.1", {"STEPPING": "0.02"}, '"event": "update"'),
    "update": ("--updates-per-step 1000 --random-steps 20 --log.every-steps 21", {}, '"event": "update"'),
    "evaluate": ("--eval.episodes 100000", {"STEPPING": "0.001"}, '"event": "start"'),
    "beside": ("--sinks tensorboard wandb --record-every 1 --eval.every-steps 500", {}, '"event": "update"'),
    "checkpoint": ("--checkpoint.every-steps 1", {}, '"step": 20, "member": null'),
    "video": ("--total-steps 150", {}, '"event": "end"'),
}
ON_RAY = {  # the same
    "ray, warm-up": ("--actors ray:2 --random-steps 900000", {"STEPPING": "0.001"}, '"event": "episode"'),
    "ray, evaluate": (
        "--actors ray:8 --seeds 0 1 2 3 --eval.episodes 100000",
        {"STEPPING": "0.001"},
        '"event": "start"',
    ),
}


@contextmanager
def training(folder: Path, flags: str, slowness: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    (folder / "world.py").write_text(WORLD)
    command = [sys.executable, "-m", "t3d", "train", "world:World", *SMALL.split(), *flags.split()]
    surroundings = {**os.environ, "PYTHONUNBUFFERED": "1", **slowness}
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=surroundings
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(process: subprocess.Popen[str], true: Callable[[], bool], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert process.poll() is None and time.monotonic() < until, "the phase was never reached"
        time.sleep(0.01)


def listens(process: subprocess.Popen[str]) -> bool:
    """Whether the process handles SIGTERM itself by now."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    caught = int(next(line for line in status.splitlines() if line.startswith("SigCgt")).split()[1], 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def written(folder: Path) -> str:
    return "".join((folder / log).read_text() for log in LOGS if (folder / log).exists())


def ends_in_time(folder: Path, phase: str, number: signal.Signals, seconds: float = 5) -> None:
    flags, slowness, mark = (PHASES | ON_RAY)[phase]
    with training(folder, flags, slowness) as process:
        wait_for(process, lambda: listens(process) and mark in written(folder))
        time.sleep(5 if phase in ON_RAY else 0.3)  # by then its actors run
        sent = time.monotonic()
        process.send_signal(number)
        assert process.stderr is not None
        word = "skipped" if phase == "video" else "stopping"
        assert any(word in line for line in process.stderr), "after which file was imported"
        assert time.monotonic() - sent < seconds / 10, "seen at once"
        out, errors = process.communicate(timeout=30)
        assert time.monotonic() - sent < seconds
    assert process.returncode == 128 + number and "Traceback" not in errors
    assert "t3d resume runs/held" in out
    checkpoint, notes = newest(folder / "runs" / "held" / "checkpoints")
    assert checkpoint is not None and notes == []
    end = json.loads((folder / LOGS[0]).read_text().splitlines()[-1])
    assert (end["event"], end["reason"]) == ("end", "finished" if phase == "video" else "stopped")
    assert checkpoint.step == end["step"], "nothing is lost"


@pytest.mark.parametrize("phase", ["update", "evaluate", "checkpoint"])
def test_a_signal_in_a_phase(tmp_path: Path, phase: str) -> None:
    hears_hangup = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN  # unless the tests were started by nohup
    number = signal.SIGHUP if phase == "update" and hears_hangup else signal.SIGTERM
    ends_in_time(tmp_path, phase, number, 15)  # beside other tests


@pytest.mark.slow
@pytest.mark.parametrize("trial", range(5))
@pytest.mark.parametrize("phase", PHASES)
def test_a_signal_in_any_phase_five_times(tmp_path: Path, phase: str, trial: int) -> None:
    ends_in_time(tmp_path, phase, signal.SIGINT if trial % 2 else signal.SIGTERM)


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Other programs that take all they can get of the machine."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["ray, warm-up", "ray, evaluate"])
def test_a_signal_with_ray_on_a_busy_machine(tmp_path: Path, phase: str) -> None:
    pytest.importorskip("ray")
    with busy(2 * len(os.sched_getaffinity(0))):
        ends_in_time(tmp_path, phase, signal.SIGTERM)


@pytest.mark.slow
def test_a_signal_while_ray_starts(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with training(tmp_path, "--actors ray:2", {}) as process:
        wait_for(
            process, lambda: any("raylet" in one.name() for one in psutil.Process(process.pid).children(recursive=True))
        )
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 143 and "Traceback" not in errors, errors
    assert "stopped while Ray started" in output and not (tmp_path / "runs" / "held").exists()


@pytest.mark.parametrize(
    "numbers",
    [(signal.SIGTERM, signal.SIGINT), pytest.param((signal.SIGTERM, signal.SIGTERM), marks=pytest.mark.slow)],
)
def test_a_second_signal_leaves_at_once_even_from_a_hanging_environment(
    tmp_path: Path, numbers: tuple[signal.Signals, signal.Signals]
) -> None:
    with training(tmp_path, "", {"STEPPING": "1000"}) as process:
        wait_for(process, lambda: listens(process))
        time.sleep(1)
        process.send_signal(numbers[0])
        assert process.stderr is not None
        while "a second Ctrl-C or SIGTERM quits at once" not in process.stderr.readline():
            assert process.poll() is None  # the lines before say what is imported
        process.send_signal(numbers[1])
        sent = time.monotonic()
        assert process.wait(timeout=10) == -numbers[1]
        assert time.monotonic() - sent < 1


def test_sigusr1_saves_and_goes_on(tmp_path: Path) -> None:
    with training(tmp_path, "", {"STEPPING": "0.001"}) as process:
        wait_for(process, lambda: '"event": "update"' in written(tmp_path))
        for count in (1, 2):
            process.send_signal(signal.SIGUSR1)
            wait_for(process, lambda count=count: written(tmp_path).count('"reason": "asked"') == count, seconds=5)  # type: ignore[misc]
        checkpoint, notes = newest(tmp_path / "runs" / "held" / "checkpoints")
        assert checkpoint is not None and notes == [] and process.poll() is None
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=10)
    assert process.returncode == 143 and out.count("saved at step") == 2


@pytest.mark.parametrize(
    "marks",
    [
        pytest.param(['"step": 300'], id="once"),
        pytest.param(
            ['"event": "start"', '"checkpoint": "000002', '"step": 300'], id="three times", marks=pytest.mark.slow
        ),
    ],
)
def test_one_command_again_and_again_finishes_a_run_that_is_killed(tmp_path: Path, marks: list[str]) -> None:
    """As on a machine that may be taken away at any moment: SIGKILL, then the same command once more.

    R6 between processes: the run that was killed equals the one that was not.
    """
    flags = "--total-steps 400 --checkpoint.every-steps 50 --threads 1 --resume-or-start --no-video"
    for mark in marks:
        with training(tmp_path, flags, {"STEPPING": "0.003"}) as process:
            wait_for(process, lambda mark=mark: mark in written(tmp_path))  # type: ignore[misc]
    with training(tmp_path, flags, {}) as process:
        out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "resuming at step" in out and "its lock is taken over" in out and "Trained 400 steps" in out
    with training(tmp_path, flags, {}) as process:
        out, errors = process.communicate(timeout=60)
    assert process.returncode == 0 and "has already finished its 400 steps" in out
    events = [json.loads(line) for line in (tmp_path / LOGS[0]).read_text().splitlines()]
    assert [event["event"] for event in events].count("start") == 1
    episodes = [event["episode"] for event in events if event["event"] == "episode"]
    assert episodes == list(range(8)), "every episode is told once"
    with training(tmp_path, f"{flags} --run.name straight", {}) as process:
        process.communicate(timeout=60)
    assert_equal(tmp_path / "runs" / "straight", tmp_path / "runs" / "held")
