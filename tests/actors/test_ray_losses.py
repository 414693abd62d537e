"""R11: a worker or a node killed, a node added, the learner or the head lost, with commands as users type them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("ray", reason="Ray is not installed (t3d[ray])")

from ray_nodes import clean, head, node

TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a-token-of-the-tests"}
SECOND = "--node-ip-address=127.0.0.3"
STEPS, EARLY, CHECKPOINTS = 8_000, 2_500, 1_000  # in all, before anything happens, and between two checkpoints
TRIALS = pytest.mark.parametrize("trial", range(5))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@contextmanager
def learner(folder: Path, address: str, *, command: str = "", more: str = "") -> Iterator[subprocess.Popen[str]]:
    """Runs T3D in a folder, on a cluster; by default the documented command that starts or resumes a run."""
    sizes = f"--td3.actor-hidden 64 64 --td3.critic-hidden 64 64 --threads 1 --checkpoint.every-steps {CHECKPOINTS}"
    actors = (
        f"--actors ray:3 --env.num-envs 3 --total-steps {STEPS} --random-steps 1000 --eval.every-steps 4000 {sizes}"
    )
    command = command or f"train Pendulum-v1 {actors} {more} --run.name robot --no-video --resume-or-start"
    words = [sys.executable, "-m", "t3d", *command.split(), "--ray-address", address]
    with (folder / "said.txt").open("a+") as said:
        running = subprocess.Popen(words, cwd=folder, env=clean(**TOKEN), stdout=said, stderr=said, text=True)
        try:
            yield running
        finally:
            running.kill()
            running.wait()


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    """What the run has told so far."""
    path = folder / "runs" / "robot" / "events.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def steps(folder: Path) -> int:
    return max((event["step"] for event in events(folder, "acting")), default=0)


def actors(folder: Path) -> int:
    """How many actors ran at the last report."""
    return int(events(folder, "acting")[-1]["actors"]) if events(folder, "acting") else 0


def until(condition: Callable[[], object], running: subprocess.Popen[str], seconds: float = 120.0) -> float:
    """Waits, and returns how long."""
    started = time.monotonic()
    while not condition():
        assert running.poll() is None, "it has ended"
        assert time.monotonic() - started < seconds
        time.sleep(0.05)
    return time.monotonic() - started


def finishes(running: subprocess.Popen[str], folder: Path) -> None:
    assert running.wait(timeout=200) == 0, (folder / "said.txt").read_text()
    assert [event["reason"] for event in events(folder, "end")][-1] == "finished"
    assert events(folder, "end")[-1]["step"] == STEPS
    numbers = [event["episode"] for event in events(folder, "episode")]
    assert len(numbers) > STEPS / 200 / 2 and "Traceback" not in (folder / "said.txt").read_text()


@TRIALS
def test_a_worker_is_killed(tmp_path: Path, record_property: Callable[[str, object], None], trial: int) -> None:
    with (
        head(**TOKEN) as address,
        node(f"--address={address}", SECOND, **TOKEN),
        learner(tmp_path, address) as running,
    ):
        until(lambda: steps(tmp_path) > EARLY and actors(tmp_path) == 3, running)
        before = len(events(tmp_path, "actor"))
        victims = [one for one in psutil.process_iter(["cmdline"]) if is_actor_of(one, address)]
        victims[trial % len(victims)].kill()
        noticed = until(lambda: len(events(tmp_path, "actor")) > before, running)
        at = steps(tmp_path)
        until(lambda: steps(tmp_path) > at, running)
        back = until(lambda: any(event["what"] == "back" for event in events(tmp_path, "actor")), running)
        finishes(running, tmp_path)
    record_property("noticed after s", round(noticed, 1))
    record_property("as many actors again after s", round(noticed + back, 1))


def is_actor_of(process: psutil.Process, address: str) -> bool:
    """Whether this is one of T3D's actors, not of another cluster."""
    try:
        named = (process.info["cmdline"] or [""])[0].startswith("ray::Actor")
        return named and any(address in " ".join(parent.cmdline()) for parent in process.parents())
    except psutil.Error:
        return False


@TRIALS
def test_a_node_is_killed(tmp_path: Path, record_property: Callable[[str, object], None], trial: int) -> None:
    with (
        head(**TOKEN) as address,
        node(f"--address={address}", SECOND, **TOKEN) as other,
        learner(tmp_path, address) as running,
    ):
        until(lambda: steps(tmp_path) > EARLY + 300 * trial and actors(tmp_path) == 3, running)
        os.killpg(other.pid, signal.SIGKILL)
        noticed = until(lambda: any(event["what"] == "lost" for event in events(tmp_path, "actor")), running)
        at = steps(tmp_path)
        until(lambda: steps(tmp_path) > at, running)
        finishes(running, tmp_path)
    record_property("noticed after s", round(noticed, 1))


@TRIALS
def test_a_node_is_added(tmp_path: Path, record_property: Callable[[str, object], None], trial: int) -> None:
    with head(**TOKEN) as address, learner(tmp_path, address) as running, ExitStack() as nodes:
        until(lambda: steps(tmp_path) > EARLY + 300 * trial and actors(tmp_path) < 3, running)
        nodes.enter_context(node(f"--address={address}", SECOND, **TOKEN))
        joined = until(lambda: actors(tmp_path) == 3, running)
        finishes(running, tmp_path)
    assert not events(tmp_path, "actor"), "joining late is no fault"
    record_property("all actors run after s", round(joined, 1))


@TRIALS
def test_the_learner_is_killed(tmp_path: Path, record_property: Callable[[str, object], None], trial: int) -> None:
    with head(**TOKEN) as address, node(f"--address={address}", SECOND, **TOKEN):
        with learner(tmp_path, address) as running:
            until(lambda: steps(tmp_path) > EARLY + 300 * trial, running)
            running.kill()
            running.wait()
        record_property("steps lost", resumes(tmp_path, address))


@TRIALS
def test_ray_on_the_learners_machine_is_killed(
    tmp_path: Path, record_property: Callable[[str, object], None], trial: int
) -> None:
    """Ray ends the learner's process at once, without a word: as if it had been killed itself."""
    with ExitStack() as nodes:
        address = nodes.enter_context(head(**TOKEN))
        with learner(tmp_path, address) as running:
            until(lambda: steps(tmp_path) > EARLY + 300 * trial, running)
            nodes.close()
            assert running.wait(timeout=120) == 1
    with head(**TOKEN) as address, node(f"--address={address}", SECOND, **TOKEN):
        record_property("steps lost", resumes(tmp_path, address))


@TRIALS
def test_the_head_is_lost(tmp_path: Path, record_property: Callable[[str, object], None], trial: int) -> None:
    """As seen from another machine, whose own Ray goes on for a while."""
    with (
        head(**TOKEN) as address,
        node(f"--address={address}", SECOND, **TOKEN),
        # so slow that it is not finished before the loss is noticed
        learner(tmp_path, address, more="--updates-per-step 3") as running,
    ):
        until(lambda: steps(tmp_path) > EARLY + 300 * trial, running)
        end_head(address)
        started = time.monotonic()
        assert running.wait(timeout=120) == 2
        ended = time.monotonic() - started
    said = " ".join((tmp_path / "said.txt").read_text().split())
    assert "has not answered for 20 s" in said and "Traceback" not in said
    failed = events(tmp_path, "end")[-1]
    assert failed["reason"] == "failed" and failed["saved"]
    with head(**TOKEN) as address, node(f"--address={address}", SECOND, **TOKEN):
        assert resumes(tmp_path, address, command="resume runs/robot") == 0, "nothing is lost"
    record_property("ended after s", round(ended, 1))


def end_head(address: str) -> None:
    """Kills the control store that makes a node the head, and stops `ray start`, which would end the rest of it."""
    port = address.split(":")[1]
    for option, ending in ((f"--port={port}", signal.SIGSTOP), (f"--gcs_server_port={port}", signal.SIGKILL)):
        (process,) = [one for one in psutil.process_iter(["cmdline"]) if option in (one.info["cmdline"] or [])]
        process.send_signal(ending)


def resumes(folder: Path, address: str, command: str = "") -> int:
    """Runs the same command again, or another, until the run is finished, and returns how many steps were lost."""
    at: int = max(event["step"] for kind in ("acting", "end") for event in events(folder, kind))
    with learner(folder, address, command=command) as running:
        finishes(running, folder)
    (step,) = re.findall(r"resuming at step ([\d,]+) from", (folder / "said.txt").read_text())
    lost = at - int(step.replace(",", ""))
    assert 0 <= lost < CHECKPOINTS + 200
    return lost
