"""What actors on a Ray cluster collect, and what they cost the learner: the figures and the picture of docs/cluster.md.

python experiments/cluster_bench.py scaling     environments of 1, 10 and 100 ms a step, 1 to 64 actors, four Ray nodes
python experiments/cluster_bench.py learner     a learner at full speed while 16 actors send: its time for receiving
python experiments/cluster_bench.py beside      local and Ray actors side by side
python experiments/cluster_bench.py picture     draws what the others have measured

All nodes are processes of this machine (ray.cluster_utils.Cluster), and the environments sleep instead of computing.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import secrets
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

os.environ |= {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # Ray gives way to other programs, of which a node should have none
}

import numpy as np
from ray.cluster_utils import Cluster

import t3d
from t3d.actors.checkup import check
from t3d.actors.local import LocalCollector
from t3d.actors.ray_cluster import Connection, connect
from t3d.actors.ray_collector import RayCollector
from t3d.actors.supervisor import for_workers
from t3d.actors.worker_log import WorkerLog
from t3d.config import Config, merge
from t3d.config.networks import actor_architecture
from t3d.events import ActingEvent
from t3d.policy.snapshots import PolicySnapshot
from t3d.world.make import env_factory, with_full_paths

HERE = Path(__file__).parent
FIGURES = HERE.parent / "docs" / "cluster" / "bench.json"
PICTURE = HERE.parent / "docs" / "img" / "cluster.png"
NODES, CPUS = 4, 2  # Ray nodes, and CPUs that each claims to have: it starts so many idle workers at once
STEP_MS, ACTORS = (10, 100, 1), (1, 2, 4, 8, 16, 32, 64)
TINY = {"actor_hidden": [16, 16]}  # all nodes share the cores of this machine, so that acting must cost little
MAX_AHEAD = (96, 384, 6400)  # the default with local actors, a middle, and the default with sixteen Ray actors
SECONDS, WARM_UP = 6.0, 2.0  # of each measurement, and before it once all actors run
LONGEST_START = 240.0  # seconds for all actors to run


def main() -> None:
    parts = {"scaling": scaling, "learner": learner, "beside": beside, "picture": picture}
    if not {*sys.argv[1:]} <= {*parts}:
        sys.exit(__doc__)
    for name in sys.argv[1:] or parts:
        parts[name]()


def scaling() -> None:
    """Collected steps a second against actors, with updates off; goes on with what is missing."""
    rows = json.loads(FIGURES.read_text()).get("scaling", []) if FIGURES.exists() else []
    done = [(row["step_ms"], row["actors"]) for row in rows]
    with cluster() as address:
        first = config("ms1", actors="ray:1", ray_address=address)
        with closing(connect(first)) as connection:
            for milliseconds, actors in itertools.product(STEP_MS, ACTORS):
                if (milliseconds, actors) not in done:
                    cfg = config(
                        f"ms{milliseconds}", actors=f"ray:{actors}", ray_address=address, updates_per_step=0, td3=TINY
                    )
                    rows.append({"step_ms": milliseconds, "actors": actors, **collected(cfg, connection)})
                    write("scaling", rows)


def learner() -> None:
    """The share of its time that a learner at full speed spends on publishing and receiving, with 16 actors."""
    with cluster() as address:
        rows = []
        for max_ahead in MAX_AHEAD:
            cfg = config("ms10", actors="ray:16", ray_address=address, random_steps=1000, max_ahead=max_ahead)
            rows.append({"max_ahead": max_ahead, **trained(cfg, seconds=30.0)})
            write("learner", rows)


def beside() -> None:
    """Local and Ray actors on this machine: what they collect, and how old their policies are."""
    rows = []
    for milliseconds in (0, 1, 10):
        for actors in ("local:4", "ray:4"):
            cfg = config(f"ms{milliseconds}", actors=actors, updates_per_step=0)
            small = {"actor_hidden": [64, 64], "critic_hidden": [64, 64]}
            learning = config(f"ms{milliseconds}", actors=actors, random_steps=500, td3=small)
            row = {"step_ms": milliseconds, "actors": actors, **collected(cfg), "training": trained(learning, 20.0)}
            rows.append(row)
            write("beside", rows)


def config(env: str, **settings: Any) -> Config:
    """The defaults, with one environment for each actor and almost no evaluation."""
    base = {
        "env": {"id": f"{HERE / 'sleeping.py'}:{env}"},
        "total_steps": 10_000_000,
        "random_steps": 0,
        "replay": {"capacity": 100_000},
        "eval": {"every_steps": 10**9, "episodes": 1},
        "checkpoint": {"every_steps": 10**9},
        "log": {"every_steps": 1000, "diagnose_every_steps": 0},
        "threads": 1,
        "device": "cpu",
        "ray_cpus": 0.1 if settings["actors"].startswith("ray") else 1.0,  # they sleep
    }
    cfg = merge(Config(), {**base, **settings})
    return merge(cfg, {"env": {"num_envs": max(1, cfg.async_actors)}})


@contextmanager
def cluster() -> Iterator[str]:
    """Several nodes on this machine."""
    nodes = Cluster()
    try:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            nodes.add_node(num_cpus=CPUS, object_store_memory=2**28, include_dashboard=False, temp_dir=folder)
            for _ in range(NODES - 1):
                nodes.add_node(num_cpus=CPUS, object_store_memory=2**28)
            yield nodes.address
    finally:
        nodes.shutdown()


def collected(cfg: Config, connection: Connection | None = None) -> dict[str, float]:
    """Collects without learning."""
    cfg = with_full_paths(cfg)
    make_env = env_factory(cfg.env)
    with ExitStack() as opened:
        log = opened.enter_context(closing(WorkerLog()))
        checkup = check(cfg, make_env, log, threading.Event(), play=False)
        if cfg.actors_kind == "ray":
            if connection is None:
                connection = opened.enter_context(closing(connect(for_workers(cfg, make_env))))
            collector: Any = RayCollector(cfg, make_env, checkup, connection)
        else:
            collector = LocalCollector(cfg, make_env, checkup, log)
        opened.enter_context(closing(collector))
        network = actor_architecture(checkup.spec, cfg.td3)
        collector.publish(PolicySnapshot(0, network, np.zeros((1, network.size), np.float32)), 0)
        deadline = time.monotonic() + LONGEST_START
        while collector.totals().actors < cfg.async_actors and time.monotonic() < deadline:
            collector.poll()
        take(collector, WARM_UP)
        before = collector.totals()
        figures = take(collector, SECONDS)
        waited = collector.totals().since(before).actors_waited
        return {**figures, "running": collector.totals().actors, "actors_waited": round(waited, 4)}


def take(collector: Any, seconds: float) -> dict[str, float]:
    """Polls for a while: steps a second, and the CPU time of this thread and of this process as shares."""
    steps, started, thread, process = 0, time.monotonic(), time.thread_time(), time.process_time()
    while time.monotonic() - started < seconds:
        steps += sum(len(rollout.rows) for rollout in collector.poll().rollouts)
    took = time.monotonic() - started
    return {
        "steps_per_second": round(steps / took, 1),
        "receiving": round((time.thread_time() - thread) / took, 4),
        "receiving_all_threads": round((time.process_time() - process) / took, 4),
    }


class Stopwatch:
    """The time that a learner spends in its collector, and what the collector says of it."""

    def __init__(self) -> None:
        self.seconds, self.collector = 0.0, None
        self.cpu_seconds = {"publish": 0.0, "poll": 0.0}  # of the learner's thread

    @contextmanager
    def around(self, kind: Any) -> Iterator[None]:
        """Times publish and poll of a kind of collector."""
        before = {name: getattr(kind, name) for name in ("publish", "poll")}
        for name, method in before.items():
            setattr(kind, name, self._timed(name, method))
        try:
            yield
        finally:
            for name, method in before.items():
                setattr(kind, name, method)

    def _timed(self, name: str, method: Any) -> Any:
        def timed(collector: Any, *arguments: Any) -> Any:
            started, cpu, self.collector = time.monotonic(), time.thread_time(), collector
            try:
                return method(collector, *arguments)
            finally:
                self.seconds += time.monotonic() - started
                self.cpu_seconds[name] += time.thread_time() - cpu

        return timed


def trained(cfg: Config, seconds: float) -> dict[str, Any]:
    """Trains for a while after the random steps, and times what the collector takes of the learner's time."""
    stop, watch = threading.Event(), Stopwatch()
    start: tuple[float, int, float, dict[str, float], Any] | None = None
    figures: dict[str, Any] = {}
    kind = RayCollector if cfg.actors_kind == "ray" else LocalCollector
    with tempfile.TemporaryDirectory() as root, watch.around(kind):
        for event in t3d.train(merge(cfg, {"run": {"root": root}}), stop=stop):
            if not isinstance(event, ActingEvent) or stop.is_set() or event.step < 2 * cfg.random_steps:
                continue
            now, totals = time.monotonic(), watch.collector.totals()  # type: ignore[attr-defined]
            if start is None:
                start = now, event.step, watch.seconds, dict(watch.cpu_seconds), totals
            elif now - start[0] > seconds:
                took, acting = now - start[0], totals.since(start[4])
                busy = (watch.seconds - start[2]) / took - acting.learner_waited
                figures = {"steps_per_second": round((event.step - start[1]) / took, 1), "receiving": round(busy, 4)}
                figures |= {
                    f"{name}_cpu": round((watch.cpu_seconds[name] - start[3][name]) / took, 4) for name in start[3]
                }
                figures |= {name: round(value, 4) for name, value in acting._asdict().items() if value is not None}
                stop.set()
    return figures


def write(part: str, measured: Any) -> None:
    """Adds what was measured to the figures, with where."""
    FIGURES.parent.mkdir(exist_ok=True)
    figures = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    figures[part] = measured
    figures["machine"] = {"cores": os.cpu_count(), "processor": platform.machine(), "ray_nodes": NODES}
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
    print(part, measured[-1] if isinstance(measured, list) else measured, flush=True)


def picture() -> None:
    """Draws collected steps a second against actors, and the learner's time for receiving them."""
    import matplotlib.pyplot as plt  # noqa: PLC0415

    rows = json.loads(FIGURES.read_text())["scaling"]
    figure, (speed, cost) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for milliseconds in sorted(STEP_MS):
        mine = [row for row in rows if row["step_ms"] == milliseconds]
        actors = [row["actors"] for row in mine]
        (line,) = speed.plot(actors, [row["steps_per_second"] for row in mine], "o-", label=f"{milliseconds} ms a step")
        speed.plot(actors, [1000 / milliseconds * count for count in actors], ":", color=line.get_color())
        cost.plot(actors, [100 * row["receiving"] for row in mine], "o-", color=line.get_color())
    speed.set(xscale="log", yscale="log", xlabel="actors", ylabel="collected steps a second")
    speed.set_title("four Ray nodes on two cores (dotted: no overhead)", fontsize=10)
    speed.legend()
    cost.set(xscale="log", xlabel="actors", ylabel="learner's time spent receiving (%)", ylim=(0, None))
    for axes in (speed, cost):
        axes.set_xticks(ACTORS, [str(count) for count in ACTORS])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    figure.savefig(PICTURE, dpi=110)


if __name__ == "__main__":
    main()
