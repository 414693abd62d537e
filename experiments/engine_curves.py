"""Compares what engines learn: experiments/engine_curves.py train ENGINE FILE.json, then draw FILE... PICTURE.

`train` runs HalfCheetah-v5 for 50,000 steps on three seeds with one engine (default settings except for the length) and
writes every evaluation; `draw` puts the curves of several such files into one picture, with the spread over seeds.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

import t3d
from t3d.events import End, Eval, Start
from t3d.types import sample_std

STEPS, SEEDS = 50_000, [0, 1, 2]


def train(engine: str, file: Path) -> None:
    with tempfile.TemporaryDirectory() as root:
        changes = {"env": {"id": "HalfCheetah-v5"}, "total_steps": STEPS, "seeds": SEEDS, "engine": engine}
        events = list(t3d.train(t3d.merge(t3d.Config(), {**changes, "run": {"root": root}})))
    start, end = events[0], events[-1]
    assert isinstance(start, Start) and isinstance(end, End) and start.config["engine"] == engine
    curves = [[[e.step, e.mean_return] for e in events if isinstance(e, Eval) and e.seed == seed] for seed in SEEDS]
    last = [curve[-1][1] for curve in curves]
    about = {key: start.config[key] for key in ("engine", "device", "threads", "tf32")}
    file.write_text(json.dumps({**about, "versions": start.versions, "seconds": end.seconds, "curves": curves}))
    print(f"{engine}: {np.mean(last):,.0f} ± {sample_std(last):,.0f} at {STEPS:,} steps, {end.seconds:,.0f} s {last}")


def draw(files: list[Path], picture: Path) -> None:
    import matplotlib  # noqa: PLC0415 (a GPU machine may have none)

    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for file in files:
        run = json.loads(file.read_text())
        curves = np.array(run["curves"])  # (seed, evaluation, 2)
        steps, returns = curves[0, :, 0], curves[..., 1]
        mean, spread = returns.mean(axis=0), sample_std(returns, axis=0)
        (line,) = axes.plot(steps, mean, label=f"{run['engine']} ({run['device']})")
        axes.fill_between(steps, mean - spread, mean + spread, alpha=0.2, color=line.get_color())
    axes.set(xlabel="steps", ylabel="mean return", title=f"HalfCheetah-v5, {len(SEEDS)} seeds, band: ± one deviation")
    axes.legend()
    figure.tight_layout()
    figure.savefig(picture, dpi=120)


if __name__ == "__main__":
    command, *rest = sys.argv[1:]
    if command == "train":
        train(rest[0], Path(rest[1]))
    else:
        draw([Path(name) for name in rest[:-1]], Path(rest[-1]))
