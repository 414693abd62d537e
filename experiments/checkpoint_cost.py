"""Measures what checkpoints cost: python experiments/checkpoint_cost.py [--steps 100000] [--env HalfCheetah-v5].

Trains once at the default interval and compares the time spent saving with the time of the run. Then fills a replay
with a million transitions, saves it a hundred times as a run of a million steps would, and resumes from it.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path

import torch
from common import random_rollout

import t3d
from t3d.events import End, Saved
from t3d.run.build import assemble
from t3d.run.placement import resolve
from t3d.run.surroundings import Surroundings
from t3d.types import Requests
from t3d.world.make import env_factory


def training_share(env: str, steps: int, root: Path) -> None:
    cfg = t3d.merge(t3d.Config(), {"env": {"id": env}, "total_steps": steps, "run": {"root": str(root), "name": "run"}})
    events = list(t3d.train(cfg))
    saved, end = [event for event in events if isinstance(event, Saved)], events[-1]
    assert isinstance(end, End)
    seconds = [event.save_seconds for event in saved]
    print(f"{env}, {steps:,} steps, {len(saved)} checkpoints, run {end.seconds:,.1f} s, torch {torch.__version__}")
    print(f"  saving took {sum(seconds):.2f} s: {100 * sum(seconds) / end.seconds:.2f} % of the run (our target: 3 %)")
    print(f"  each took {1000 * statistics.median(seconds):.0f} ms (median), {1000 * max(seconds):.0f} ms (longest)")


def million(env: str, root: Path) -> None:
    rows, interval = 1_000_000, 10_000
    changes = {"env": {"id": env}, "total_steps": rows + 10, "run": {"root": str(root), "name": "million"}}
    cfg = t3d.merge(t3d.Config(), {**changes, "eval": {"episodes": 1}})
    with ExitStack() as opened:
        requests = Requests(threading.Event(), threading.Event())
        surroundings = opened.enter_context(closing(Surroundings()))
        training = assemble(resolve(cfg), requests, env_factory(cfg.env), opened, surroundings)
        parts, saver, counters = training.parts, training.saver, training.parts.counters
        saved = []
        for number in range(rows // interval):
            parts.memory.add(random_rollout(parts.collector.spec, 0, number, interval))
            counters.step = counters.evaluated = counters.submitted = parts.memory.added[0]
            parts.collector.member_actors[0].taken = parts.memory.added[0]
            saved.append(saver.save("schedule"))
    assert all(isinstance(event, Saved) for event in saved)
    for number in (2, 10, 50, 100):
        event = saved[number - 1]
        print(f"  checkpoint {number}: {event.new_bytes / 2**20:.1f} MiB, {1000 * event.save_seconds:.0f} ms")
    started = time.monotonic()
    first = next(t3d.resume(root / "million"))
    assert first.step == rows
    print(f"  {rows:,} transitions resumed in {time.monotonic() - started:.2f} s (our target: 5 s)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument("--steps", type=int, default=100_000)
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="checkpoint-cost-"))
    try:
        million(arguments.env, root)
        training_share(arguments.env, arguments.steps, root)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
