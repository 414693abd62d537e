"""What actors on a Ray cluster collect, and what they cost the learner, for docs/lab/clusters.md.

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
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from typing import Any

os.environ |= {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # Ray gives way to other programs, of which a node should have none
}

from common import drawing
from sleeping import EPISODE

import t3d
from t3d.config import Config, merge
from t3d.events import ActingEvent, Diagnosed

HERE = Path(__file__).parent
RESULTS = HERE.parent / "docs" / "lab" / "clusters" / "bench.json"
PICTURE = HERE.parent / "docs" / "img" / "cluster.png"
NODES, CPUS = 4, 2  # Ray nodes, and CPUs that each claims to have: it starts so many idle workers at once
STEP_MS, ACTORS = (10, 100, 1), (1, 2, 4, 8, 16, 32, 64)
TINY = {"actor_hidden": [16, 16]}  # all nodes share the cores of this machine, so that acting must cost little
MAX_AHEAD = (96, 384, 6400)  # the default with local actors, a middle, and the default with sixteen Ray actors
SECONDS = 6.0  # of each measurement


def main() -> None:
    parts = {"scaling": scaling, "learner": learner, "beside": beside, "picture": picture}
    if not {*sys.argv[1:]} <= {*parts}:
        sys.exit(__doc__)
    names = sys.argv[1:] or [*parts]
    if len(names) == 1:
        parts[names[0]]()
        return
    for name in names:  # each in a process of its own: Ray reads its settings once
        subprocess.run([sys.executable, __file__, name], check=True)


def scaling() -> None:
    """Collected steps a second against actors, with updates off; goes on with what is missing."""
    rows = json.loads(RESULTS.read_text()).get("scaling", []) if RESULTS.exists() else []
    done = [(row["step_ms"], row["actors"]) for row in rows]
    with cluster() as address:
        for milliseconds, actors in itertools.product(STEP_MS, ACTORS):
            if (milliseconds, actors) not in done:
                settings = {"ray_address": address, "updates_per_step": 0, "td3": TINY}
                cfg = config(f"ms{milliseconds}", actors=f"ray:{actors}", **settings)
                rows.append({"step_ms": milliseconds, "actors": actors, **measured(cfg, SECONDS)})
                write("scaling", rows)


def learner() -> None:
    """The share of its time that a learner at full speed spends on publishing and receiving, with 16 actors."""
    with cluster() as address:
        rows = []
        for max_ahead in MAX_AHEAD:
            cfg = config("ms10", actors="ray:16", ray_address=address, random_steps=1000, max_ahead=max_ahead)
            rows.append({"max_ahead": max_ahead, **measured(cfg, 30.0)})
            write("learner", rows)


def beside() -> None:
    """Local and Ray actors on this machine: what they collect, and how old their policies are."""
    rows = []
    for milliseconds in (0, 1, 10):
        for actors in ("local:4", "ray:4"):
            cfg = config(f"ms{milliseconds}", actors=actors, updates_per_step=0)
            small = {"actor_hidden": [64, 64], "critic_hidden": [64, 64]}
            learning = config(f"ms{milliseconds}", actors=actors, random_steps=500, td3=small)
            training = measured(learning, 20.0)
            rows.append({"step_ms": milliseconds, "actors": actors, **measured(cfg, SECONDS), "training": training})
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
        "log": {"every_steps": 1000, "diagnose_every_steps": 1000},
        "threads": 1,
        "device": "cpu",
        "ray_cpus": 0.1 if settings["actors"].startswith("ray") else 1.0,  # they sleep
    }
    cfg = merge(Config(), {**base, **settings})
    return merge(cfg, {"env": {"num_envs": max(1, cfg.async_actors)}})


@contextmanager
def cluster() -> Iterator[str]:
    """Several nodes on this machine."""
    from ray.cluster_utils import Cluster  # noqa: PLC0415 (a cluster of T3D's own wants to import Ray itself)

    nodes = Cluster()
    try:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            nodes.add_node(num_cpus=CPUS, object_store_memory=2**28, include_dashboard=False, temp_dir=folder)
            for _ in range(NODES - 1):
                nodes.add_node(num_cpus=CPUS, object_store_memory=2**28)
            yield nodes.address
    finally:
        nodes.shutdown()


def measured(cfg: Config, seconds: float) -> dict[str, Any]:
    """Runs for a while once all actors have played; what the events and the clock of the learner's thread say.

    receiving is its share of time in the collector without waiting; with updates off, its share of CPU time instead.
    """
    stop, shares, waits = threading.Event(), list[float](), list[float]()
    began: tuple[float, float, int] | None = None
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as root:
        for event in t3d.train(merge(cfg, {"run": {"root": root}}), stop=stop):
            now = time.monotonic(), time.thread_time(), event.step
            if began is None:
                began = now if event.step >= max(2 * cfg.random_steps, 2 * EPISODE * cfg.async_actors) else None
            elif isinstance(event, Diagnosed) and event.acting_share is not None:
                shares.append(event.acting_share)
            elif isinstance(event, ActingEvent):
                waits.append(event.learner_waited)
                results |= {name: getattr(event, name) for name in ("age_median", "age_p99", "actors_waited")}
                results["running"] = event.actors
            elif now[0] > began[0] + seconds and not stop.is_set():
                took, cpu, steps = (after - before for after, before in zip(now, began, strict=True))
                receiving = mean(shares) - mean(waits) if cfg.updates_per_step else cpu / took
                results |= {"steps_per_second": round(steps / took, 1), "receiving": round(receiving, 4)}
                stop.set()
    return results


def write(part: str, rows: list[dict[str, Any]]) -> None:
    """Adds what was measured to the results, with where."""
    RESULTS.parent.mkdir(exist_ok=True)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results[part] = rows
    results["machine"] = {"cores": os.cpu_count(), "processor": platform.machine(), "ray_nodes": NODES}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(part, rows[-1], flush=True)


def picture() -> None:
    """Draws collected steps a second against actors, and the learner's time for receiving them."""
    results = json.loads(RESULTS.read_text())["scaling"]
    with drawing(PICTURE, (10, 4)) as figure:
        speed, cost = figure.subplots(1, 2)
        for milliseconds in sorted(STEP_MS):
            rows = [row for row in results if row["step_ms"] == milliseconds]
            actors = [row["actors"] for row in rows]
            (line,) = speed.plot(
                actors, [row["steps_per_second"] for row in rows], "o-", label=f"{milliseconds} ms a step"
            )
            speed.plot(actors, [1000 / milliseconds * count for count in actors], ":", color=line.get_color())
            cost.plot(actors, [100 * row["receiving"] for row in rows], "o-", color=line.get_color())
        speed.set(xscale="log", yscale="log", xlabel="actors", ylabel="collected steps a second")
        speed.set_title("four Ray nodes on two cores (dotted: no overhead)", fontsize=10)
        speed.legend()
        cost.set(xscale="log", xlabel="actors", ylabel="learner's time spent receiving (%)", ylim=(0, None))
        for axes in (speed, cost):
            axes.set_xticks(ACTORS, [str(count) for count in ACTORS])
            axes.minorticks_off()
            axes.grid(alpha=0.3)


if __name__ == "__main__":
    main()
