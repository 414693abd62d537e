"""Do critics overestimate? The picture in docs/lab/watching.md: `python experiments/overestimation.py`.

Trains HalfCheetah-v5 with one critic and with two (whose minimum is the target, as in the paper), five seeds each, and
draws what the critics predict beside the returns that followed, from the `diagnostics` events. Each training leaves its
metrics in docs/lab/overestimation; one that has left them is not repeated, and `--draw` trains nothing.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from common import drawing, machine, train_or_resume

import t3d
from t3d.events import Diagnosed, End, Start
from t3d.store.log import read_events

CRITICS = {1: "one critic", 2: "two critics, the smaller value"}
METRICS = ("step", "q_predicted", "q_return", "q_bias", "q_rows")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument("--steps", type=int, default=300_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--random-steps", type=int, default=25_000)
    parser.add_argument("--actors", default="inline")
    parser.add_argument("--runs", type=Path, default=Path("runs/overestimation"), help="folder of the runs")
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="folder of the results and the picture")
    parser.add_argument("--draw", action="store_true", help="train nothing")
    args = parser.parse_args()
    for critics in CRITICS:
        if not args.draw and not results_file(args, critics).exists():
            train(args, critics)
    results = {critics: json.loads(results_file(args, critics).read_text()) for critics in CRITICS}
    draw(results, args.docs / "img" / "overestimation.png")
    for critics, result in results.items():
        predicted, bias = (np.array(last_quarter(result, name)) for name in ("q_predicted", "q_bias"))
        errors = 100 * bias / (predicted - bias)  # q_bias leaves out the critics' own part in a return
        each = ", ".join(f"{error:+.1f}" for error in errors)
        print(f"{CRITICS[critics]}: over the last quarter {errors.mean():+.1f} % of the true value; by seed {each}")


def train(args: argparse.Namespace, critics: int) -> None:
    """Trains, or continues where it was stopped, and writes its metrics."""
    folder = args.runs / f"critics-{critics}"
    changes: dict[str, Any] = {
        "env": {"id": args.env},
        "seeds": list(range(args.seeds)),
        "total_steps": args.steps,
        "random_steps": args.random_steps,
        "actors": args.actors,
        "td3": {"critics": critics},
        "run": {"root": str(args.runs), "name": folder.name},
    }
    cfg = t3d.merge(t3d.Config(), changes)
    *_, end = train_or_resume(cfg)
    assert isinstance(end, End) and end.reason == "finished"
    start = next(iter(read_events(folder, kinds=[Start])))
    curves: dict[int, list[list[Any]]] = {seed: [] for seed in cfg.seeds}
    for event in read_events(folder, kinds=[Diagnosed]):
        curves[event.seed].append([getattr(event, name) for name in METRICS])
    about = {"env": args.env, "critics": critics, "machine": machine(), "versions": start.versions, "fields": METRICS}
    result = {**about, "seconds": round(end.seconds, 1), "diverged": end.diverged, "seeds": curves}
    file = results_file(args, critics)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(result) + "\n")


def results_file(args: argparse.Namespace, critics: int) -> Path:
    return Path(args.docs, "lab", "overestimation", f"critics-{critics}.json")


def column(rows: list[list[Any]], name: str) -> np.ndarray[Any, Any]:
    """A metric of one seed, NaN where no return was known yet."""
    values = [row[METRICS.index(name)] for row in rows]
    return np.array([np.nan if value is None else value for value in values], float)


def last_quarter(result: dict[str, Any], name: str) -> list[float]:
    """The mean of a metric over the last quarter of the looks, for each seed."""
    each = [column(rows, name) for rows in result["seeds"].values()]
    return [float(np.nanmean(values[len(values) * 3 // 4 :])) for values in each]


def draw(results: dict[int, dict[str, Any]], file: Path) -> None:
    """Draws predictions beside returns for each number of critics, and the bias of all: means, and every seed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with drawing(file, (15, 4.5)) as figure:
        axes = figure.subplots(1, 3)
        seeds = [rows for result in results.values() for rows in result["seeds"].values()]
        highest = max(np.nanmax(column(rows, name)) for rows in seeds for name in ("q_predicted", "q_return"))
        for axis, (critics, result), colour in zip(axes, results.items(), ("tab:red", "tab:blue"), strict=False):
            plot(axis, result, "q_predicted", colour, "predicted by the critics")
            plot(axis, result, "q_return", "black", "discounted return that followed")
            axis.set(title=CRITICS[critics], ylim=(None, 1.05 * highest))
            axis.legend(frameon=False, loc="upper left")
            plot(axes[2], result, "q_bias", colour, CRITICS[critics])
        axes[2].set(title="predicted minus returned")
        axes[2].axhline(0, color="black", linewidth=0.8)
        axes[2].legend(frameon=False, loc="upper left")
        for axis in axes:
            axis.set_xlabel("steps")
            axis.grid(alpha=0.3)
        axes[0].set_ylabel("value")


def plot(axis: Any, result: dict[str, Any], name: str, colour: str, label: str) -> None:
    """Draws the mean over seeds, and each seed thinly; looks happen at nearly the same steps."""
    looks = min(len(rows) for rows in result["seeds"].values())
    steps = column(next(iter(result["seeds"].values())), "step")[:looks]
    values = np.stack([column(rows, name)[:looks] for rows in result["seeds"].values()])
    axis.plot(steps, values.T, color=colour, linewidth=0.6, alpha=0.4)
    axis.plot(steps, values.mean(axis=0), color=colour, linewidth=2, label=label)


if __name__ == "__main__":
    main()
