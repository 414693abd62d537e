"""What a sweep costs: three values times two seeds in one run, against six runs one after the other.

python experiments/sweep_cost.py     trains on Pendulum-v1 with preset quick; prints docs/sweeps.md's table, draws its
                                     picture, and compares each member's last policy with its single run's
"""

from __future__ import annotations

import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

import t3d
from t3d.app.tables import sweep_table
from t3d.config import Config, Member, merge
from t3d.events import End
from t3d.insight.plots import plot_curves
from t3d.store.reader import open_run

PICTURE = Path(__file__).parents[1] / "docs" / "img" / "sweep.png"
SWEEP = {"sweep": ["td3.gamma=0.9,0.98,0.995"], "seeds": [0, 1]}


def main() -> None:
    with tempfile.TemporaryDirectory() as root:
        base = merge(t3d.preset("quick"), {"env": {"id": "Pendulum-v1"}, "threads": 1, "run": {"root": root}})
        swept = train(base, "sweep", engine="eager", **SWEEP)
        run = open_run(Path(root) / "sweep")
        Console(width=100).print(sweep_table(run.cfg.members, run.evals, run.stopped))
        plot_curves([run], PICTURE)
        seconds = {"one run of six members, eager": swept}
        for engine in ("eager", "fused"):
            each = [train(base, f"{engine}-{one.name}", engine=engine, **alone(one)) for one in run.cfg.members]
            seconds[f"six runs, {engine}"] = np.sum(each, axis=0)
        print("\n| | seconds | seconds of CPU time |\n|---|---|---|")
        for what, (wall, cpu) in seconds.items():
            print(f"| {what} | {wall:.0f} | {cpu:.0f} |")
        same = [
            last(root, "sweep", one.name) == last(root, f"eager-{one.name}", f"seed-{one.seed}")
            for one in run.cfg.members
        ]
        print(f"\n{sum(same)} of {len(same)} members are their single runs to the last bit")
        print(f"{platform.processor() or platform.machine()}, 1 thread, torch {torch.__version__}")


def alone(member: Member) -> dict[str, Any]:
    return {"seeds": [member.seed], "td3": {field.removeprefix("td3."): value for field, value in member.values}}


def train(base: Config, name: str, **changes: Any) -> tuple[float, float]:
    """Trains, and returns the seconds it took and those of CPU time."""
    started = time.process_time()
    *_, end = t3d.train(merge(base, {**changes, "run": {"name": name}}))
    assert isinstance(end, End) and end.reason == "finished"
    return end.seconds, time.process_time() - started


def last(root: str, run: str, name: str) -> str:
    return t3d.load_policy(Path(root) / run / "last" / name).sha256


if __name__ == "__main__":
    main()
