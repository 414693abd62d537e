"""What a sweep costs, and what it equals: three values times two seeds in one run, against runs one after the other.

python experiments/sweep_cost.py     trains on Pendulum-v1 with preset quick; prints figures of docs/lab/learning.md and
                                     draws its picture
python experiments/sweep_cost.py tune    prints what sixteen trials of a search cost as one batch, and one by one
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

import t3d
from t3d.algo.coefficients import for_members
from t3d.algo.engines.verify import FixedBatch, random_batch
from t3d.algo.learner import Learner
from t3d.algo.td3 import coefficients_of
from t3d.app.tables import print_sweep
from t3d.bench.updates import HALF_CHEETAH
from t3d.config import Config, Member, TD3Config, merge
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
        print_sweep(run.cfg.members, run.evals, run.stopped, Console(width=100))
        plot_curves([run], PICTURE)
        seconds = {"one run of six members, eager": swept}
        seconds["one run of six members, fused"] = train(base, "sweep-fused", engine="fused", **SWEEP)
        values = [run.cfg.members[first : first + 2] for first in (0, 2, 4)]
        pairs = [train(base, f"pair-{number}", engine="eager", **alone(*both)) for number, both in enumerate(values)]
        seconds["three runs of two seeds, eager"] = np.sum(pairs, axis=0)
        for engine in ("eager", "fused"):
            each = [train(base, f"{engine}-{m.name}", engine=engine, **alone(m)) for m in run.cfg.members]
            seconds[f"six runs, {engine}"] = np.sum(each, axis=0)
        print("\n| | seconds | seconds of CPU time |\n|---|---|---|")
        for title, times in seconds.items():
            print_times(title, times)
        names = {"pairs": [f"pair-{number // 2}" for number in range(6)]}
        names["single runs"] = [f"eager-{member.name}" for member in run.cfg.members]
        for title, others in names.items():
            pairs_of = zip(run.cfg.members, others, strict=True)
            same = [last(root, "sweep", m.name) == last(root, other, f"seed-{m.seed}") for m, other in pairs_of]
            print(f"{sum(same)} of 6 members equal those of the {title} to the last bit")
    print_updates()
    print(f"{platform.processor() or platform.machine()}, 1 thread, torch {torch.__version__}")


def print_search() -> None:
    """Trains sixteen trials of t3d tune as it does, as members of one run, and each in a run of its own."""
    rng = np.random.default_rng(0)
    names = ["td3.gamma", "td3.actor_lr", "td3.critic_lr"]
    gammas, rates = rng.uniform(0.95, 0.999, 16).round(4), 10 ** rng.uniform(-4, -2.5, (2, 16))
    trials = [(float(g), float(f"{a:.4g}"), float(f"{c:.4g}")) for g, a, c in zip(gammas, *rates, strict=True)]
    sweep = f"{':'.join(names)}={','.join(':'.join(map(str, trial)) for trial in trials)}"
    few: dict[str, Any] = {"total_steps": 1500, "random_steps": 300, "log": {"diagnose_every_steps": 0}}
    print("| | seconds | seconds of CPU time |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as root:
        base = merge(t3d.preset("quick"), {**few, "env": {"id": "Pendulum-v1"}, "threads": 1, "run": {"root": root}})
        train(base, "first", engine="eager", total_steps=400)  # which imports everything
        settings = [{name.removeprefix("td3."): value for name, value in zip(names, t, strict=True)} for t in trials]
        for engine in ("fused", "eager"):
            print_times(f"one batch, {engine}", train(base, engine, engine=engine, sweep=[sweep]))
            each = [train(base, f"{engine}-{n}", engine=engine, td3=of_one) for n, of_one in enumerate(settings)]
            print_times(f"sixteen runs in one process, {engine}", np.sum(each, axis=0))
        print_times("one batch, as a command", command(root, "--sweep", sweep))
        flags = [
            [word for pair in zip(names, t, strict=True) for word in (f"--{pair[0]}", str(pair[1]))] for t in trials
        ]
        print_times("sixteen commands, one after the other", np.sum([command(root, *each) for each in flags], axis=0))


def command(root: str, *flags: str) -> tuple[float, float]:
    """Runs t3d train with the settings of print_search, and returns its seconds and those of CPU time."""
    few = ["--total-steps", "1500", "--random-steps", "300", "--log.diagnose-every-steps", "0", "--threads", "1"]
    words = ["train", "Pendulum-v1", "--preset", "quick", "--run.root", root, *few, *flags]
    before = os.times()
    subprocess.run([sys.executable, "-m", "t3d", *words], check=True, capture_output=True)
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return after.elapsed - before.elapsed, cpu


def print_times(title: str, times: Sequence[float]) -> None:
    print(f"| {title} | {times[0]:.0f} | {times[1]:.0f} |", flush=True)


def print_updates() -> None:
    """Prints milliseconds per update and member, with the default networks and HalfCheetah's sizes."""
    torch.set_num_threads(1)
    cfg = TD3Config()
    each = for_members(
        [coefficients_of(replace(cfg, gamma=g, tau=t)) for g in (0.9, 0.98, 0.995) for t in (0.01, 0.02)]
    )
    cases = {"six members of a sweep, eager": ("eager", 6, each), "one seed, eager": ("eager", 1, None)}
    cases["six members of a sweep, fused"] = ("fused", 6, each)
    cases["one seed, fused"] = ("fused", 1, None)
    for title, (engine, members, coefficients) in cases.items():
        source = FixedBatch(random_batch(HALF_CHEETAH, cfg, members, "cpu"))
        seeds = range(members)
        learner = Learner(HALF_CHEETAH, cfg, seeds, engine=engine, coefficients=coefficients, source=source)
        times = []
        for _ in range(10):
            started = time.process_time()
            learner.run(10)
            times.append((time.process_time() - started) / 10 / members)
        print(f"{title}: {1000 * min(times):.2f} ms per update and member")


def alone(*members: Member) -> dict[str, Any]:
    """The settings of a run without a sweep: members with the same values."""
    values = {field.removeprefix("td3."): value for field, value in members[0].values}
    return {"seeds": [member.seed for member in members], "td3": values}


def train(base: Config, name: str, **changes: Any) -> tuple[float, float]:
    """Trains, and returns the seconds it took and those of CPU time."""
    started = time.process_time()
    *_, end = t3d.train(merge(base, {**changes, "run": {"name": name}}))
    assert isinstance(end, End) and end.reason == "finished"
    return end.seconds, time.process_time() - started


def last(root: str, run: str, name: str) -> str:
    return t3d.load_policy(Path(root) / run / "last" / name).sha256


if __name__ == "__main__":
    print_search() if sys.argv[1:] == ["tune"] else main()
