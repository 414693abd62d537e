"""HalfCheetah-v5, preset default, three seeds in one run, 100,000 steps each.

    python experiments/halfcheetah_100k.py [--device cpu|cuda] [--threads N]

Trains into runs/halfcheetah-100k (about 25 minutes on two cores), or takes the finished run that is there; prints the
table of docs/results.md and draws docs/img/halfcheetah-100k.png.
"""

from __future__ import annotations

import argparse
import os
import platform
from pathlib import Path

import numpy as np

import t3d
from t3d.config import Config, merge
from t3d.events import End, Eval, Start
from t3d.insight.plots import plot_curves
from t3d.insight.runs import open_run, read_events

FOLDER = Path("runs/halfcheetah-100k")
PICTURE = Path(__file__).parents[1] / "docs" / "img" / "halfcheetah-100k.png"
SETTINGS = {"env": {"id": "HalfCheetah-v5"}, "seeds": [0, 1, 2], "total_steps": 100_000}


def train(device: str, threads: int) -> None:
    where = {"root": str(FOLDER.parent), "name": FOLDER.name}
    cfg = merge(Config(), {**SETTINGS, "device": device, "threads": threads, "run": where})
    for event in t3d.train(cfg):
        if isinstance(event, Eval):
            print(f"step {event.step:,} seed {event.seed}: {event.mean_return:,.0f}", flush=True)


def report() -> None:
    run = open_run(FOLDER)
    events = list(read_events(FOLDER))
    start = next(event for event in events if isinstance(event, Start))
    end = next((event for event in events if isinstance(event, End)), None)
    if end is None or end.reason != "finished":
        raise SystemExit(f"{FOLDER} is not finished; remove it and start again")
    print("\n| seed | mean return at 100,000 steps | std over 10 episodes | best evaluation |\n|---|---|---|---|")
    for seed, evals in run.evals.items():
        last, best = evals[-1], max(one.mean_return for one in evals)
        print(f"| {seed} | {last.mean_return:,.0f} | {last.std_return:,.0f} | {best:,.0f} |")
    finals = [evals[-1].mean_return for evals in run.evals.values()]
    print(f"| mean ± std over seeds | **{np.mean(finals):,.0f} ± {np.std(finals):,.0f}** | | |")
    versions = ", ".join(f"{name} {version}" for name, version in start.versions.items())
    print(f"\n{end.updates:,} updates in {end.seconds / 60:.1f} minutes; {run.cfg.device}, {run.cfg.threads} threads.")
    print(f"{platform.machine()}, {os.cpu_count()} cores; {versions}.")
    PICTURE.parent.mkdir(exist_ok=True)
    plot_curves([run], PICTURE)
    print(f"drawn: {PICTURE}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_args()
    if not FOLDER.exists():
        train(args.device, args.threads)
    report()


if __name__ == "__main__":
    main()
