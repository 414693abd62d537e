"""Trains a task of docs/lab/results.md, or reads its finished run, prints its table and plots its curves.

    python experiments/learned.py TASK [--device cpu|cuda] [--threads N]

TASK is one of the names below; its run is runs/TASK, its plot docs/img/TASK.png.
"""

from __future__ import annotations

import argparse
import os
import platform
from pathlib import Path
from typing import Any

import numpy as np

import t3d
from t3d.events import End, Eval, Start
from t3d.insight.plots import plot_curves
from t3d.store.log import read_events
from t3d.store.metrics import best_of
from t3d.store.reader import open_run
from t3d.types import sample_std

PICTURES = Path(__file__).parents[1] / "docs" / "img"
TASKS: dict[str, tuple[str, dict[str, Any]]] = {  # preset, and other settings
    "halfcheetah-100k": ("default", {"env": {"id": "HalfCheetah-v5"}, "seeds": [0, 1, 2], "total_steps": 100_000}),
    "lunar-lander": ("box2d", {"env": {"id": "LunarLanderContinuous-v3"}}),
    "bullet-halfcheetah": ("bullet", {"env": {"id": "HalfCheetahBulletEnv-v0"}, "total_steps": 200_000}),
    "dm-cartpole": ("dm", {"env": {"id": "dm:cartpole-swingup"}}),
}


def train(task: str, device: str, threads: int) -> None:
    preset, settings = TASKS[task]
    rest = {"device": device, "threads": threads, "run": {"root": "runs", "name": task}}
    for event in t3d.train(t3d.merge(t3d.preset(preset), {**settings, **rest})):
        if isinstance(event, Eval):
            print(f"step {event.step:,} seed {event.seed}: {event.mean_return:,.0f}", flush=True)


def report(task: str) -> None:
    run = open_run(Path("runs") / task)
    events = read_events(run.path, kinds=(Start, End))
    start = next(event for event in events if isinstance(event, Start))
    end = next((event for event in events if isinstance(event, End)), None)
    if end is None or end.reason != "finished":
        raise SystemExit(f"{run.path} is not finished; remove it and start again")
    print(f"\n| seed | mean return at {end.step:,} steps | std over episodes | best evaluation |\n|---|---|---|---|")
    for member, evals in run.evals.items():
        last, best = evals[-1], best_of(evals)
        at_its_best = f"{best.mean_return:,.1f} (step {best.step:,})"
        print(f"| {member.seed} | {last.mean_return:,.1f} | {last.std_return:,.1f} | {at_its_best} |")
    finals = [evals[-1].mean_return for evals in run.evals.values()]
    if len(finals) > 1:
        print(f"| mean ± std over seeds | **{np.mean(finals):,.0f} ± {sample_std(finals):,.0f}** | | |")
    versions = ", ".join(f"{name} {version}" for name, version in start.versions.items())
    print(f"\n{end.updates:,} updates in {end.seconds / 60:.1f} minutes; {run.cfg.device}, {run.cfg.threads} threads.")
    print(f"{platform.machine()}, {os.cpu_count()} cores; {versions}.")
    PICTURES.mkdir(exist_ok=True)
    plot_curves([run], PICTURES / f"{task}.png")
    print(f"plotted: docs/img/{task}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_args()
    if not (Path("runs") / args.task).exists():
        train(args.task, args.device, args.threads)
    report(args.task)


if __name__ == "__main__":
    main()
