"""`t3d bench serve`: how quickly `t3d serve` answers single observations, beside an empty handler of the server."""

from __future__ import annotations

import gc
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import psutil
import tyro
from rich.table import Table

from t3d.app.flags import read_flags
from t3d.app.plain_console import PlainConsole
from t3d.app.serve import TOKEN
from t3d.architectures import architecture
from t3d.bench.open_loop import Figures, Request, http_request, is_action, is_status, measure, schedule_of
from t3d.bench.sizes import HALF_CHEETAH
from t3d.errors import UserError
from t3d.files import in_words
from t3d.snapshots import PolicySnapshot
from t3d.store.folder import versions
from t3d.world.policy_files import save_policy

PIPED_WIDTH = 140
HIDDEN = (256, 256)
WARM_UP = 1.0  # seconds before the measurement
NAMES = {"act": "POST /act, one observation", "empty": "GET /health, an empty handler", "bad": "bad requests"}
PERCENTILES = {"p50": 50.0, "p99": 99.0, "p99.9": 99.9, "max": 100.0}


@dataclass(frozen=True)
class BenchServeArgs:
    """Measure how quickly t3d serve answers: one observation after the other at a fixed rate, from a second process.

    Latencies count from when a request was due, so that a server that stands still shows. In between come requests to
    an empty handler of the same server, a tenth as many, and bad requests, a twentieth.
    """

    file: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")] = None
    """What to serve; default: a random policy of HalfCheetah-v5's sizes, 256-256."""
    rate: Annotated[float, tyro.conf.arg(metavar="N")] = 500.0
    """Observations a second."""
    seconds: Annotated[float, tyro.conf.arg(metavar="S")] = 10.0
    """How long."""
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write machine, versions and rows to this file."""


def main(arguments: list[str]) -> int:
    """Measures, prints a table and writes the file; fails if an answer was wrong."""
    args = read_flags(BenchServeArgs, arguments, "t3d bench serve")
    if not 1 <= args.rate <= 10_000 or not 0.1 <= args.seconds <= 86_400:
        raise UserError("--rate must be from 1 to 10000, and --seconds from 0.1 to 86400")
    if args.json:
        _check_writable(args.json)
    console = PlainConsole()
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    console.print(f"measuring {args.rate:g} observations a second for {args.seconds:g} s ...", style="dim")
    found = measured(args)
    console.print(table(found["rows"]))
    console.print(summary(found), soft_wrap=True)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 1 if any(row["wrong"] for row in found["rows"]) else 0


def _check_writable(file: Path) -> None:
    """Fails now rather than after the measurement."""
    try:
        file.open("a").close()
    except OSError as error:
        raise UserError(f"cannot write {file}: {in_words(error)}") from None


def measured(args: BenchServeArgs) -> dict[str, Any]:
    """Serves the policy in another process and sends requests to it."""
    with (
        tempfile.TemporaryDirectory(prefix="t3d-bench-") as folder,
        _server(args.file, Path(folder)) as (process, port),
    ):
        observations, bad = _requests(port)
        empty = Request(http_request("GET", "/health"), is_status(200))
        gc.collect()
        gc.disable()  # the client must not make the server look slow
        schedule = schedule_of(args.rate, args.seconds, observations, empty, bad)
        try:
            measure(("127.0.0.1", port), schedule_of(args.rate, WARM_UP, observations, empty, bad))
            started, cpu = process.memory_info().rss, process.cpu_times()
            figures, late = measure(("127.0.0.1", port), schedule)
        finally:
            gc.enable()
        ended, used = process.memory_info().rss, process.cpu_times()
    return {
        "machine": {"system": platform.platform(), "cores": psutil.cpu_count()},
        "versions": versions(),
        "rate": args.rate,
        "seconds": args.seconds,
        "rows": [_row(kind, figures[kind]) for kind in NAMES if kind in figures],
        "client_late_ms_p99": round(1000 * float(np.percentile(late, 99)), 3),
        "server_mib": [round(bytes_ / 2**20, 1) for bytes_ in (started, ended)],
        "server_cpu": round((sum(used[:2]) - sum(cpu[:2])) / args.seconds, 3),
    }


def table(rows: list[dict[str, Any]]) -> Table:
    """Formats the rows as a table."""
    shown = Table("request", "answers", *(f"{name} ms" for name in PERCENTILES), "wrong")
    for row in rows:
        times = [f"{row['ms'][name]:.2f}" for name in PERCENTILES]
        shown.add_row(NAMES[row["what"]], f"{row['answers']:,}", *times, str(row["wrong"]))
    return shown


def summary(found: dict[str, Any]) -> str:
    """What the table does not say."""
    started, ended = found["server_mib"]
    examples = [f"\nwrong: {row['example']}" for row in found["rows"] if row["wrong"]]
    return (
        f"server: {started} MiB at the start, {ended} MiB at the end, {100 * found['server_cpu']:.0f} % of a core; "
        f"the client itself sent {found['client_late_ms_p99']} ms late (p99)" + "".join(examples)
    )


def _row(kind: str, figures: Figures) -> dict[str, Any]:
    times = np.percentile(1000 * np.array(figures.seconds), [*PERCENTILES.values()])
    ms = {name: round(float(value), 3) for name, value in zip(PERCENTILES, times, strict=True)}
    row = {"what": kind, "answers": len(figures.seconds), "ms": ms, "wrong": figures.wrong}
    return {**row, "example": figures.example} if figures.wrong else row


@contextmanager
def _server(file: str | None, folder: Path) -> Iterator[tuple[psutil.Process, int]]:
    """Runs `t3d serve`; provides its process and its port."""
    command = [sys.executable, "-m", "t3d", "serve", file or str(_random_policy(folder)), "--port", "0"]
    without_token = {name: value for name, value in os.environ.items() if name != TOKEN}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=without_token, **pipes) as server:  # noqa: S603
        try:
            assert server.stdout is not None and server.stderr is not None  # noqa: S101 (pipes)
            address = re.search(r":(\d+)/act", server.stdout.readline() + server.stdout.readline())
            if address is None:
                raise UserError(server.stderr.read().strip().removeprefix("error: "))
            yield psutil.Process(server.pid), int(address[1])
        finally:
            server.terminate()


def _requests(port: int) -> tuple[list[Request], list[Request]]:
    """Good and bad ones; what a good one is, the server says itself."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/info") as answer:
        info = json.load(answer)
    arrays, action = info["observation"]["arrays"], info["action"]
    if len(arrays) > 1 or arrays[0]["path"] or len(arrays[0]["shape"]) != 1 or len(action["shape"]) != 1:
        raise UserError(
            "t3d bench serve sends vectors, and the observations or actions of this policy are something else"
        )
    size = arrays[0]["shape"][0]
    rows = np.random.default_rng(0).normal(size=(100, size)).astype(np.float32)
    is_right = is_action(action["low"], action["high"])
    middle = ((np.array(action["low"]) + action["high"]) / 2).tolist()
    also = {"previous_action": middle} if action["max_change"] else {}
    good = [Request(http_request("POST", "/act", _body(row.tolist(), **also)), is_right) for row in rows]
    refused = is_status(*range(400, 500))
    bodies = [_body([float("nan")] * size), _body([0.0] * (size + 1)), _body("text"), b"{", b"", b"[" * 3000]
    bad = [Request(http_request("POST", "/act", body), refused) for body in bodies]
    bad += [Request(http_request("GET", path), refused) for path in ("/act", "/nothing")]
    bad.append(Request(http_request("POST", "/act", b"x" * 7, "application/octet-stream"), refused))
    return good, bad


def _body(observation: Any, **also: Any) -> bytes:
    return json.dumps({"observation": observation, **also}).encode()


def _random_policy(folder: Path) -> Path:
    """Writes a policy as a run does; how quickly it acts does not depend on its numbers."""
    spec = HALF_CHEETAH
    network = architecture("mlp", (spec.observation_size, *HIDDEN, spec.action_size), "relu")
    flat = np.random.default_rng(0).normal(scale=0.05, size=(1, network.size)).astype(np.float32)
    about = {"env": "HalfCheetah-v5", "kind": "random", "seed": 0, "step": 0}
    save_policy(folder / "random" / "seed-0", PolicySnapshot(0, network, flat), 0, spec, about)
    return folder / "random" / "seed-0"
