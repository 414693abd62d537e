"""How quickly `t3d serve` answers single observations: python experiments/serve_latency.py [FILE] [--seconds 600]

Serves a policy in another process (by default a random one of HalfCheetah-v5's sizes, 256-256) and sends observations
at a fixed rate, whether or not earlier ones are answered. Latencies count from when a request was due, so that a server
that stands still shows. In between come requests to an empty handler of the same server, a tenth as many, and bad ones,
a twentieth. Fails if an answer is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import os
import platform
import re
import selectors
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
from common import write_results

from t3d.bench.updates import HALF_CHEETAH
from t3d.config.networks import architecture
from t3d.policy.acting import PolicySnapshot
from t3d.policy.files import save_policy

CONNECTIONS, WARM_UP, TURNS = 32, 1.0, 20
NAMES = {"act": "POST /act, one observation", "empty": "GET /health, an empty handler", "bad": "bad requests"}
PERCENTILES = {"p50": 50.0, "p99": 99.0, "p99.9": 99.9, "max": 100.0}


class Request(NamedTuple):
    """What to send, and the status of a right answer."""

    kind: str
    content: bytes
    status: range


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", help="what to serve")
    parser.add_argument("--rate", type=float, default=500.0, help="observations a second")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--json", type=Path, help="write machine, versions and rows to this file")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, served(args.file or random_policy(Path(folder))) as (process, port):
        requests = requests_for(port)
        gc.collect()
        gc.disable()  # the client must not make the server look slow
        measure(port, requests, args.rate, WARM_UP)
        memory, cpu = process.memory_info().rss, sum(process.cpu_times()[:2])
        rows, late = measure(port, requests, args.rate, args.seconds)
        after = process.memory_info().rss
        cpu = (sum(process.cpu_times()[:2]) - cpu) / args.seconds
    results = {
        "machine": {"system": platform.platform(), "cores": psutil.cpu_count()},
        "rate": args.rate,
        "seconds": args.seconds,
        "rows": rows,
        "client_late_ms_p99": round(1000 * float(np.percentile(late, 99)), 3),
        "server_mib": [round(size / 2**20, 1) for size in (memory, after)],
        "server_cpu": round(cpu, 3),
    }
    for row in rows:
        times = ", ".join(f"{name} {value:.2f} ms" for name, value in row["ms"].items())
        print(f"{NAMES[row['what']]}: {row['answers']:,} answers, {times}, {row['wrong']} wrong")
    print({key: results[key] for key in ("client_late_ms_p99", "server_mib", "server_cpu")})
    if args.json:
        write_results(args.json, **results)
    return sum(row["wrong"] for row in rows)


def measure(
    port: int, requests: dict[str, list[Request]], rate: float, seconds: float
) -> tuple[list[Any], list[float]]:
    """Returns a row for each kind of request, and by how many seconds the client itself was late.

    The event loop uses select, which wakes to the microsecond; epoll rounds up to the next millisecond.
    """
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        answers, late = runner.run(send(port, schedule(requests, rate, seconds)))
    rows = []
    for kind, group in itertools.groupby(sorted(answers), key=lambda answer: answer[0]):
        times, right = np.array([[elapsed, right] for _, elapsed, right in group]).T
        ms = np.percentile(1000 * times, [*PERCENTILES.values()]).round(3).tolist()
        wrong = int((right == 0).sum())
        rows.append(
            {"what": kind, "answers": len(times), "ms": dict(zip(PERCENTILES, ms, strict=True)), "wrong": wrong}
        )
    return rows, late


async def send(
    port: int, schedule: Iterator[tuple[float, Request]]
) -> tuple[list[tuple[str, float, bool]], list[float]]:
    """Sends requests when they are due; returns kind, seconds and whether it was right of each answer."""
    answers: list[tuple[str, float, bool]] = []
    late: list[float] = []
    waiting: asyncio.Queue[tuple[float, Request]] = asyncio.Queue()

    async def connection() -> None:
        reader = writer = None
        while True:
            due, request = await waiting.get()
            if writer is None:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert reader is not None
            writer.write(request.content)
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head.lower())
            await reader.readexactly(int(length[1]) if length else 0)
            answers.append((request.kind, time.perf_counter() - due, int(head[9:12]) in request.status))
            if b"connection: close" in head.lower():
                writer.close()
                writer = None
            waiting.task_done()

    tasks = [asyncio.ensure_future(connection()) for _ in range(CONNECTIONS)]
    start = time.perf_counter() + 0.1
    for after, request in schedule:
        if (delay := start + after - time.perf_counter()) > 0:
            await asyncio.sleep(delay)
        late.append(time.perf_counter() - start - after)
        waiting.put_nowait((start + after, request))
    await asyncio.wait_for(waiting.join(), timeout=30)  # what has no answer by then is an error
    for task in tasks:
        task.cancel()
    return answers, late


def schedule(requests: dict[str, list[Request]], rate: float, seconds: float) -> Iterator[tuple[float, Request]]:
    """Yields an observation at each turn and, halfway to the next, the others in between."""
    following = {kind: itertools.cycle(of_kind) for kind, of_kind in requests.items()}
    between = {0: "empty", TURNS // 2: "empty", TURNS // 4: "bad"}
    for turn in range(int(rate * seconds)):
        yield turn / rate, next(following["act"])
        if turn % TURNS in between:
            yield (turn + 0.5) / rate, next(following[between[turn % TURNS]])


@contextmanager
def served(file: str) -> Iterator[tuple[psutil.Process, int]]:
    """Runs `t3d serve`; provides its process and its port."""
    command = [sys.executable, "-m", "t3d", "serve", file, "--port", "0"]
    environment = {name: value for name, value in os.environ.items() if name != "T3D_TOKEN"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = next(match for line in server.stdout if (match := re.search(r":(\d+)/act", line)))
            yield psutil.Process(server.pid), int(address[1])
        finally:
            server.terminate()


def requests_for(port: int) -> dict[str, list[Request]]:
    """Good and bad requests; what a good one is, the server says itself."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/info") as answer:
        (array,) = json.load(answer)["observation"]["arrays"]  # it sends vectors only
    size = array["shape"][0]
    rows = np.random.default_rng(0).normal(size=(100, size)).astype(np.float32).tolist()
    bodies = [json.dumps({"observation": row}).encode() for row in ([float("nan")] * size, [0.0] * (size + 1), "text")]
    return {
        "act": [http("act", "POST", "/act", json.dumps({"observation": row}).encode()) for row in rows],
        "empty": [http("empty", "GET", "/health")],
        "bad": [
            *(http("bad", "POST", "/act", body) for body in (*bodies, b"{", b"", b"[" * 3000)),
            *(http("bad", "GET", path) for path in ("/act", "/nothing")),
        ],
    }


def http(kind: str, method: str, path: str, body: bytes = b"") -> Request:
    head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    content = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
    return Request(kind, content, range(400, 500) if kind == "bad" else range(200, 201))


def random_policy(folder: Path) -> str:
    """Writes a policy as a run does; how quickly it acts does not depend on its numbers."""
    network = architecture("mlp", (HALF_CHEETAH.observation_size, 256, 256, HALF_CHEETAH.action_size), "relu")
    flat = np.random.default_rng(0).normal(scale=0.05, size=(1, network.size)).astype(np.float32)
    about = {"env": "HalfCheetah-v5", "kind": "random", "seed": 0, "step": 0}
    save_policy(folder / "random" / "seed-0", PolicySnapshot(0, network, flat), 0, HALF_CHEETAH, about)
    return str(folder / "random" / "seed-0")


if __name__ == "__main__":
    sys.exit(main())
