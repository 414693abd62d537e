"""Long logs and many runs stay quick, and the server stays small."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from fake_runs import write_long_run

PAGE = ("return", "total_reward", "q_mean", "critic_loss", "actor_loss", "steps_per_second", "q_bias", "dead_units")
SERIES = "&".join(f"metric={name}" for name in PAGE)


@contextmanager
def serving(root: Path) -> Iterator[tuple[str, psutil.Process]]:
    """`t3d dash` in another process, as its user would start it."""
    command = [sys.executable, "-m", "t3d", "dash", str(root), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[1], psutil.Process(process.pid)
        finally:
            process.terminate()


def timed(address: str, path: str) -> tuple[Any, float]:
    """An answer, and the seconds it took."""
    parts = urlsplit(address)
    assert parts.hostname
    started = time.monotonic()
    with closing(http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)) as connection:
        connection.request("GET", path)
        content = connection.getresponse().read()
    return json.loads(content), time.monotonic() - started


def spent(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def largest(process: psutil.Process) -> int:
    """The most memory that it has ever had, in bytes."""
    (line,) = [one for one in Path(f"/proc/{process.pid}/status").read_text().splitlines() if one.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


@pytest.mark.slow
def test_three_hundred_runs_are_listed_in_a_second(tmp_path: Path) -> None:
    first = write_long_run(tmp_path / "run-0", 5_000)
    for number in range(1, 300):
        path = tmp_path / f"run-{number}"
        (path / "best").mkdir(parents=True)
        for name in ("config.toml", "events.jsonl", "journal.jsonl", "best/seed-0.json", "best/seed-1.json"):
            (path / name).hardlink_to(first / name)
    with serving(tmp_path) as (address, process):
        timed(address, "/api/session")
        figures = []
        for _ in range(3):
            before = spent(process)
            found, seconds = timed(address, "/api/runs")
            figures.append((seconds, spent(process) - before))
        assert len(found["runs"]) == 300
        print("list:", figures, "MB:", process.memory_info().rss / 2**20)
        assert figures[0][1] < 1.0 and max(cpu for _, cpu in figures[1:]) < 0.3


@pytest.mark.slow
def test_a_run_of_a_million_events_is_shown_in_two_seconds(tmp_path: Path) -> None:
    files = ["config.toml", "events.jsonl", "journal.jsonl", *(f"best/seed-{seed}.json" for seed in range(5))]
    write_long_run(tmp_path / "a", 1_000_000, seeds=range(5))
    for name in "bc":
        (tmp_path / name / "best").mkdir(parents=True)
        for file in files:
            (tmp_path / name / file).hardlink_to(tmp_path / "a" / file)
    with serving(tmp_path) as (address, process):
        timed(address, "/api/session")
        for name in "abc":
            before, started = spent(process), time.monotonic()
            page, _ = timed(address, f"/api/runs/{name}")
            series, _ = timed(address, f"/api/runs/{name}/series?{SERIES}")
            shown, shown_cpu = time.monotonic() - started, spent(process) - before
            steps = series["series"][1]["lines"][0]["members"][0]["steps"]
            assert len(series["series"]) == 10 and steps[0] < 0.1 * steps[-1] and steps[-1] > 0.95 * page["steps"]
            while not series["complete"]:
                series, _ = timed(address, f"/api/runs/{name}/series?{SERIES}")
            whole, whole_cpu = time.monotonic() - started, spent(process) - before
            print(f"{name}: curves of the whole run {shown:.2f} s (cpu {shown_cpu:.2f} s), ", end="")
            print(f"every event {whole:.2f} s ({whole_cpu:.2f} s), {process.memory_info().rss / 2**20:.0f} MB")
            assert shown_cpu < 2.0
        before, started, together = spent(process), time.monotonic(), {"complete": False}
        while not together["complete"]:
            together, _ = timed(address, f"/api/compare?run=a&run=b&run=c&pool=no&{SERIES}")
            assert spent(process) - before < 120  # not by the clock: it gives way to everything else
        print(f"all three: {time.monotonic() - started:.2f} s, at most {largest(process) / 2**20:.0f} MB")
        assert largest(process) < 300 * 2**20
