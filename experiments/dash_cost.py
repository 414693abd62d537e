"""What an open dashboard costs a training, for docs/lab/watching.md: python experiments/dash_cost.py [--rounds 150].

A training with the default settings but fewer random steps is alone and watched in turns, 200 steps each. Watched: the
server of `t3d train --dash` runs beside it, and a page that is open all the time is imitated: it looks for changes
every second and then asks for the run and for the curves of the first screen. Alone: the server is halted. Prints by
how much a watched step is slower than those before and after it, by the training's own processor time (what T3D itself
does for the page) and by the clock (the page's share of the machine too, which other work on the machine disturbs:
leave it alone).
"""

from __future__ import annotations

import argparse
import http.client
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psutil

import t3d
from t3d.dash.process import beside
from t3d.events import Update
from t3d.store.folder import versions

RANDOM_STEPS, LOOK_SECONDS = 1_000, 1.0
SCREEN = "metric=return&metric=total_reward&metric=length&metric=q_predicted&metric=q_return&metric=q_bias&points=400"


class Moment(NamedTuple):
    """How far a training is."""

    step: int
    cpu: float  # seconds of the training process, all threads
    clock: float


class Page(threading.Thread):
    """Imitates an open page: it looks every second and, after a change, asks for its run and the curves."""

    def __init__(self, address: str, run: str) -> None:
        super().__init__(daemon=True)
        self.server, self.changes = urlsplit(address).netloc, f"/api/live?run={run}"
        self.paths = [f"/api/runs/{run}", f"/api/runs/{run}/series?{SCREEN}"]
        self.tag, self.answers, self.ended = "", 0, threading.Event()

    def run(self) -> None:
        while not self.ended.wait(LOOK_SECONDS):
            with suppress(OSError, http.client.HTTPException):  # there is no run yet, or no server any more
                tag = self._ask(self.changes, {"if-none-match": self.tag})
                if tag != self.tag:
                    for path in self.paths:
                        self._ask(path, {})
                    self.tag = tag

    def _ask(self, path: str, headers: dict[str, str]) -> str:
        with closing(http.client.HTTPConnection(self.server, timeout=10)) as connection:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            if answer.status not in (200, 304):
                raise ConnectionError
            answer.read()
            self.answers += 1
            return answer.headers["etag"] or ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--steps", type=int, default=200, help="alone, and watched, in each round")
    parser.add_argument("--train", metavar="FOLDER", help="what this command starts for the training")
    args = parser.parse_args()
    if args.train:
        train(args, args.train)
        return
    print(", ".join(f"{name} {version}" for name, version in versions().items() if name in ("t3d", "torch", "cpu")))
    print(f"{args.env}, {args.threads} threads; milliseconds of a step, alone and watched in turns", flush=True)
    with tempfile.TemporaryDirectory() as root, training(args, root) as moments, watching(Path(root)) as server:
        costs = [measured(server, moments, args.steps, watched=turn % 2 == 1) for turn in range(2 * args.rounds + 1)]
    for name, values in zip(("processor time", "the clock"), zip(*costs, strict=True), strict=True):
        more = [200 * values[turn] / (values[turn - 1] + values[turn + 1]) - 100 for turn in range(1, len(values), 2)]
        off = 2 * stdev(more) / len(more) ** 0.5 if len(more) > 1 else float("nan")
        print(f"alone {median(values[::2]):.3f} ms, watched {median(values[1::2]):.3f} ms by {name}")
        print(f"  watched: {mean(more):+.2f} % ± {off:.2f} (mean ± twice its error), median {median(more):+.2f} %")


@contextmanager
def training(args: argparse.Namespace, root: str) -> Iterator[list[Moment]]:
    """A training in a process of its own; how far it is, as a list that grows."""
    command = [sys.executable, __file__, "--env", args.env, "--threads", str(args.threads), "--train", root]
    moments: list[Moment] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = process.stdout
        reader = threading.Thread(target=lambda: moments.extend(Moment(*json.loads(line)) for line in lines))
        reader.start()
        while len(moments) < 10:  # it has learned for a while
            time.sleep(0.1)
        try:
            yield moments
        finally:
            process.kill()
            reader.join()


def measured(server: psutil.Process, moments: list[Moment], steps: int, *, watched: bool) -> tuple[float, float]:
    """What each of the next steps costs, in milliseconds: processor time, and by the clock."""
    if watched:
        server.resume()
    else:
        server.suspend()
    begin = moments[-1]
    while (end := moments[-1]).step < begin.step + steps:
        time.sleep(0.05)
    each = 1000 / (end.step - begin.step)
    return each * (end.cpu - begin.cpu), each * (end.clock - begin.clock)


@contextmanager
def watching(root: Path) -> Iterator[psutil.Process]:
    """An open page; provides the process of its server."""
    before = {*psutil.Process().children()}
    with beside(root) as address:
        (server,) = {*psutil.Process().children()} - before
        page = Page(address, "run")
        page.start()
        while not page.answers:
            time.sleep(0.1)
        try:
            yield server
        finally:
            server.resume()
            page.ended.set()
        taken = sum(server.cpu_times()[:2])
        print(f"the page got {page.answers} answers, for which the server took {taken:.1f} s of processor time")


def train(args: argparse.Namespace, root: str) -> None:
    """Trains until it is killed, and prints how far it is."""
    changes: dict[str, Any] = {
        "env": {"id": args.env},
        "threads": args.threads,
        "total_steps": 10**7,
        "random_steps": RANDOM_STEPS,
        "eval": {"every_steps": 10**7},
        "checkpoint": {"every_steps": 10**7},
        "log": {"every_steps": 50},
        "run": {"root": root, "name": "run"},
    }
    for event in t3d.train(t3d.merge(t3d.Config(), changes)):
        if isinstance(event, Update):
            print(json.dumps([event.step, time.process_time(), time.monotonic()]), flush=True)


if __name__ == "__main__":
    main()
