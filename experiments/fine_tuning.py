"""What a new run gains from what another has learned: `python experiments/fine_tuning.py`; docs/lab/learning.md.

Trains a task, then trains for other conditions: from scratch, from that run, from it with its replay, and from each
seed's policy file alone, whose actor rests for some updates while its new critics learn. What is in
docs/lab/fine_tuning already is skipped, and a run that was stopped continues: repeating the command finishes the study.
`--draw` trains nothing.
"""

from __future__ import annotations

import argparse
import json
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import drawing, machine, train_or_resume, write_into, write_results

import t3d
from t3d.errors import NothingLeft
from t3d.insight.drawing import STEPS, look
from t3d.insight.statistics import band, estimate, first_reaching, mean
from t3d.insight.wording import estimated
from t3d.store.columns import read_metric

SEEDS, TOTAL_STEPS = [0, 1, 2, 3, 4], 20_000
RESULTS, PAGE, PICTURE = Path("docs/lab/fine_tuning"), Path("docs/lab/learning.md"), Path("docs/img/fine-tuning.png")


class Study(NamedTuple):
    """A task that is learned first, for how long, the arguments of the next one, and when that is solved."""

    env_id: str
    first_steps: int
    args: dict[str, float]
    metric: str
    solved: float


STUDIES = {
    "drone-wind-1.5": Study("examples/drone.py:Drone", 20_000, {"wind": 1.5}, "success", 0.8),
    "drone-wind-5": Study("examples/drone.py:Drone", 20_000, {"wind": 5.0}, "success", 0.8),
    "pendulum-gravity-13": Study("Pendulum-v1", 10_000, {"g": 13.0}, "return", -350.0),
}
RESTS = {f"from a policy file, {updates:,} updates of rest": updates for updates in (0, 1_000, 5_000)}
WAYS: dict[str, dict[str, Any]] = {  # what is on top of a run's settings; FIRST is the folder of the first run
    "from scratch": {},
    "from the run": {"start_from": "FIRST"},
    "from the run, with its replay": {"start_from": "FIRST", "start_replay": True},
    **{way: {"start_from": "FIRST/best/seed-SEED", "start_actor_after": updates} for way, updates in RESTS.items()},
}
DRAWN = [way for way in WAYS if RESTS.get(way, 5_000) == 5_000]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", nargs="+", default=["drone-wind-1.5", "drone-wind-5"], choices=[*STUDIES])
    parser.add_argument("--root", type=Path, default=Path("runs/fine_tuning"), help="folder of the runs")
    parser.add_argument("--draw", action="store_true", help="train nothing: write the tables and draw the picture")
    args = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name in [] if args.draw else args.studies:
        study, file = STUDIES[name], RESULTS / f"{name}.json"
        first = args.root / name.partition("-")[0]
        train(study, first, SEEDS, {"total_steps": study.first_steps})
        ways = json.loads(file.read_text())["ways"] if file.exists() else {}
        for number, way in enumerate(WAYS):
            if way not in ways:
                folder = args.root / f"{name}-{number}"
                ways[way] = follow(study, folder, WAYS[way], first)
                write_results(file, **study._asdict(), steps=TOTAL_STEPS, seeds=SEEDS, ways=ways, machine=machine())
                print(name, row(way, ways[way], study.solved), flush=True)
    write({name: json.loads(file.read_text()) for name in STUDIES if (file := RESULTS / f"{name}.json").exists()})


def follow(study: Study, folder: Path, way: dict[str, Any], first: Path) -> list[list[list[float]]]:
    """Trains after the first run; returns the steps and the values of each seed's evaluations."""
    start, curves = way.get("start_from", ""), list[list[list[float]]]()
    for seeds in [[seed] for seed in SEEDS] if "SEED" in start else [SEEDS]:  # a policy file is of one seed
        path = folder.with_name(f"{folder.name}-{seeds[0]}")
        given = start.replace("FIRST", str(first)).replace("SEED", str(seeds[0]))
        train(study, path, seeds, {**way, "env": {"args": study.args}, "start_from": given})
        (metric,), columns = read_metric([path], study.metric)
        curves += [[each.steps.tolist(), each.values.tolist()] for each in columns[path].series(metric).values()]
    return curves


def train(study: Study, folder: Path, seeds: list[int], changes: dict[str, Any]) -> None:
    """Trains, or continues, or does nothing if the run is complete."""
    cfg = {
        "env": {"id": study.env_id},
        "total_steps": TOTAL_STEPS,
        "seeds": seeds,
        "device": "cpu",
        "threads": 1,
        "eval": {"every_steps": 500, "episodes": 20, "best_by": study.metric},
        "log": {"diagnose_every_steps": 0},
        "run": {"root": str(folder.parent), "name": folder.name},
    }
    with suppress(NothingLeft):
        for _ in train_or_resume(t3d.merge(t3d.merge(t3d.preset("quick"), cfg), changes)):
            pass


def row(way: str, curves: list[list[list[float]]], solved: float) -> str:
    """A line of a table: means over seeds with their bootstrap intervals."""
    firsts = np.array([first_reaching(np.array(steps), np.array(values), solved) for steps, values in curves])
    there, values = firsts[np.isfinite(firsts)], np.array([values for _, values in curves])
    every = len(there) == len(firsts)
    first = estimated(estimate(mean, [there]), "{:,.0f}".format) if every else f"{len(there)} of {len(firsts)} seeds"
    numbers = [estimated(estimate(mean, [of])) for of in (values[:, 0], values.min(axis=1), values.mean(axis=1))]
    return f"| {' | '.join([way, first, *numbers])} |"


def write(results: dict[str, Any]) -> None:
    """Writes the tables into the page, and draws the picture."""
    lines = []
    for name, result in results.items():
        head = f"first at {result['metric']} {result['solved']:g}, steps | at step 0 | lowest | mean of all evaluations"
        lines += ["", f"| {name} | {head} |", "|---|---|---|---|---|"]
        lines += [row(way, curves, result["solved"]) for way, curves in result["ways"].items()]
    text = "\n".join([*lines[1:], "", "![From one policy to the next](../img/fine-tuning.png)"])
    print(text)
    write_into(PAGE, "fine-tuning", "fine_tuning.py", text)
    rows = -(-len(results) // 2)
    with drawing(PICTURE, (9, 1 + 3 * rows)) as figure:
        for axes, (name, result) in zip(figure.subplots(rows, 2, squeeze=False).flat, results.items(), strict=False):
            for index, way in enumerate(way for way in DRAWN if way in result["ways"]):
                values = np.array([of_seed for _, of_seed in result["ways"][way]])
                steps, (middle, low, high) = result["ways"][way][0][0], band(mean, values)
                axes.plot(steps, middle, label=way, **look(index))
                axes.fill_between(steps, low, high, color=look(index)["color"], alpha=0.15, linewidth=0)
            axes.set(title=name, xlabel="steps", ylabel=result["metric"])
            axes.xaxis.set_major_formatter(STEPS)
            axes.locator_params(axis="x", nbins=5)
            axes.grid(alpha=0.3)
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)


if __name__ == "__main__":
    main()
