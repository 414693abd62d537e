"""Compares settings on the same tasks and seeds: `python experiments/variants.py STUDY`, then `--draw` for the picture.

Each variant trains several seeds side by side and leaves a JSON file under docs/variants/STUDY with every evaluation,
the speed, the machine and the versions. A variant that has one is skipped, so repeating the command finishes the study.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import t3d
from t3d.events import Eval, Start, Update

RESULTS, PICTURES = Path("docs/variants"), Path("docs/img")
COLOURS = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b"]


def networks(kind: str, hidden: list[int]) -> dict[str, Any]:
    return {"td3": {"actor_network": kind, "critic_network": kind, "actor_hidden": hidden, "critic_hidden": hidden}}


STUDIES: dict[str, tuple[list[str], dict[str, dict[str, Any]]]] = {  # tasks, and settings by the name of the variant
    "architectures": (
        ["HalfCheetah-v5"],
        {"mlp": {}, "layer_norm": networks("layer_norm", [256, 256]), "residual": networks("residual", [128, 128])},
    ),
    "n-step": (
        ["HalfCheetah-v5", "Hopper-v5"],
        {"1-step": {}, "3-step": {"replay": {"n_step": 3}}},
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--actors", default="local:6")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--draw", action="store_true", help="only draw the picture of what is there")
    args = parser.parse_args()
    tasks, variants = STUDIES[args.study]
    folder = args.results / args.study
    folder.mkdir(parents=True, exist_ok=True)
    for task in [] if args.draw else tasks:
        for name, settings in variants.items():
            file = folder / f"{task}-{name}.json"
            if not file.exists():
                file.write_text(json.dumps(trained(task, name, settings, args), indent=1) + "\n")
    print(*table(folder), sep="\n")
    if args.draw:
        draw(args.study, folder)


def trained(task: str, name: str, settings: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """Trains one variant and returns what is worth keeping."""
    print(f"{task}, {name} ...", flush=True)
    cfg = t3d.merge(t3d.Config(), {"env": {"id": task}, "total_steps": args.steps, "actors": args.actors})
    cfg = t3d.merge(cfg, {**settings, "seeds": list(range(args.seeds)), "run": {"root": "runs/variants"}})
    evals: dict[int, list[tuple[int, float]]] = {seed: [] for seed in cfg.seeds}
    speeds, started = [], time.monotonic()
    for event in t3d.train(cfg):
        if isinstance(event, Start):
            start = event
        if isinstance(event, Eval):
            evals[int(event.seed or 0)].append((event.step, event.mean_return))
        if isinstance(event, Update):
            speeds.append(event.steps_per_second)
    return {
        "task": task,
        "variant": name,
        "settings": settings,
        "engine": start.config["engine"],
        "actors": args.actors,
        "parameters": start.parameters,
        "seconds": round(time.monotonic() - started, 1),
        "steps_per_second": round(float(np.median(speeds)), 1),
        "machine": f"{gpu()}, {psutil.cpu_count()} cores, {platform.platform()}",
        "versions": start.versions,
        "evaluations": evals,
    }


def gpu() -> str:
    import torch  # noqa: PLC0415

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"


def table(folder: Path) -> list[str]:
    """Returns the results as a table in Markdown."""
    rows = [
        "| task | variant | engine | parameters | steps/s | return at the end | best |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in results(folder):
        last = np.array([[value for _, value in evals][-3:] for evals in one["evaluations"].values()]).mean(1)
        best = np.array([max(value for _, value in evals) for evals in one["evaluations"].values()])
        end, top = (f"{values.mean():,.0f} ± {values.std(ddof=1):,.0f}" for values in (last, best))
        about = f"| {one['task']} | {one['variant']} | {one['engine']} | {one['parameters']:,} "
        rows.append(f"{about}| {one['steps_per_second']:,.0f} | {end} | {top} |")
    return rows


def draw(study: str, folder: Path) -> None:
    """Draws the mean over seeds of each variant, and the range from the worst to the best seed."""
    import matplotlib.pyplot as plt  # noqa: PLC0415

    found = results(folder)
    tasks = list(dict.fromkeys(one["task"] for one in found))
    figure, axes = plt.subplots(1, len(tasks), figsize=(7 * len(tasks), 4.5), squeeze=False, layout="constrained")
    for task, axis in zip(tasks, axes[0], strict=True):
        for one, colour in zip([one for one in found if one["task"] == task], COLOURS, strict=False):
            curves = np.array([[value for _, value in evals] for evals in one["evaluations"].values()])
            steps = [step for step, _ in next(iter(one["evaluations"].values()))]
            axis.plot(steps, curves.mean(0), color=colour, label=one["variant"])
            axis.fill_between(steps, curves.min(0), curves.max(0), color=colour, alpha=0.15, linewidth=0)
        axis.set(title=f"{task}, {len(curves)} seeds", xlabel="steps", ylabel="mean return of an evaluation")
        axis.grid(alpha=0.3)
        axis.legend(loc="upper left")
    figure.savefig(PICTURES / f"{study}.png", dpi=110)


def results(folder: Path) -> list[dict[str, Any]]:
    """Reads the results in the order of the study."""
    tasks, variants = STUDIES[folder.name]
    files = [folder / f"{task}-{name}.json" for task in tasks for name in variants]
    return [json.loads(file.read_text()) for file in files if file.exists()]


if __name__ == "__main__":
    main()
