"""Compares settings on the same tasks and seeds: `python experiments/variants.py STUDY`, then `--draw`.

Each training has several seeds side by side, in a process of its own, and leaves a JSON file under docs/variants/STUDY
with every evaluation, the speed, the machine and the versions. One that has such a file is skipped, one that was
stopped continues from its checkpoint, and one that fails is reported while the others go on: repeating the command
finishes the study. One training leaves a GPU idle much of the time, so `--jobs N` runs N at once:

    python experiments/variants.py screen --jobs 5 --actors local:15 --budget 540
    python experiments/variants.py screen --draw        # the table in docs/ablations.md and the pictures
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import variants_report
from variants_results import result_file, results
from variants_studies import STUDIES, Study

import t3d
from t3d.events import End, Resumed, Start, Update
from t3d.store.reader import open_run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="variants to train; default: all")
    parser.add_argument("--tasks", nargs="+", metavar="TASK", help="Gymnasium ids; default: the study's")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--random-steps", type=int, help="for a short try")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--actors", default="local:15", help="of all these trainings together; chosen for 16 cores")
    parser.add_argument("--budget", type=float, default=1e9, metavar="SECONDS", help="no training runs longer")
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="folder of results, page and pictures")
    parser.add_argument("--results", type=Path, help="where to write new results instead")
    parser.add_argument("--runs", type=Path, default=Path("runs/variants"), help="folder of the runs")
    parser.add_argument("--draw", action="store_true", help="train nothing: write the table and draw the pictures")
    parser.add_argument("--train", nargs=2, metavar=("TASK", "NAME"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    chosen = {"tasks": args.tasks, "steps": args.steps, "seeds": args.seeds}
    study = STUDIES[args.study]._replace(**{key: value for key, value in chosen.items() if value is not None})
    if unknown := set(args.only or []) - study.variants.keys():
        parser.error(f"{args.study} has no variant {', '.join(sorted(unknown))}; it has {', '.join(study.variants)}")
    if args.train:
        train(args, study, *args.train)
        return
    if not args.draw:
        train_all(args, study)
    found = results(args, study)
    report = variants_report.Report(args.study, found, [*study.variants], study.beside_paper)
    print(*variants_report.tables(report), sep="\n")
    if args.draw:
        variants_report.draw(report, args.docs)


def train_all(args: argparse.Namespace, study: Study) -> None:
    """Trains what has no result yet, each in a process of its own."""
    deadline, done = time.monotonic() + args.budget, {(one["task"], one["variant"]) for one in results(args, study)}
    pairs = product(study.tasks, args.only or study.variants)
    waiting = [pair for pair in pairs if pair not in done]
    kind, _, actors = args.actors.partition(":")
    share = f"{kind}:{max(1, int(actors) // args.jobs)}" if actors else kind

    def outcome(pair: tuple[str, str]) -> str:
        left, needed = deadline - time.monotonic(), expected_seconds(args, study, *pair)
        if left <= 0 or left < needed <= args.budget:  # one that never fits is trained in several goes
            return f"not started: {max(left, 0):.0f} s are left, and it needs about {needed:.0f} s"
        file, log = result_file(args, *pair), args.runs / args.study / f"{'-'.join(pair)}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        extra = ["--train", *pair, "--actors", share, "--budget", str(left)]
        with log.open("ab") as output:
            command = [sys.executable, __file__, *sys.argv[1:], *extra]
            code = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
        if code:
            return f"FAILED with exit code {code}: {' | '.join(log.read_text(errors='replace').splitlines()[-3:])}"
        return f"finished in {json.loads(file.read_text())['seconds']:.0f} s" if file.exists() else "to be continued"

    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(lambda pair: print(f"{', '.join(pair)}: {outcome(pair)}", flush=True), waiting))


def expected_seconds(args: argparse.Namespace, study: Study, task: str, name: str) -> float:
    """Returns the longest time that this variant, or else another on this task, or else any has taken."""
    found = [one for one in results(args, study) if one.get("steps", study.steps) == study.steps]
    alike = [one for one in found if one["variant"] == name] or [one for one in found if one["task"] == task] or found
    return max((one["seconds"] for one in alike), default=0.0)


def train(args: argparse.Namespace, study: Study, task: str, name: str) -> None:
    """Trains one variant, or continues, and writes its result if it finishes within the budget."""
    root, settings = args.runs / args.study, study.variants[name]
    changes: dict[str, Any] = {
        "env": {"id": task},
        "seeds": list(range(study.seeds)),
        "total_steps": study.steps,
        "actors": args.actors,
        "tf32": study.tf32,
        "eval": {"every_steps": max(1, study.steps // study.evaluations)},
        "log": {"every_steps": max(1, study.steps // 100)},
        "checkpoint": {"every_steps": max(10_000, study.steps // 4)},
        "run": {"root": str(root), "name": f"{task}-{name}"},
    }
    if args.random_steps is not None:
        changes["random_steps"] = args.random_steps
    cfg = t3d.merge(t3d.merge(t3d.preset(settings.get("preset", "default")), settings), changes)
    folder, stop, began = root / f"{task}-{name}", threading.Event(), time.monotonic()
    timer = threading.Timer(min(args.budget, threading.TIMEOUT_MAX), stop.set)
    timer.daemon = True
    timer.start()
    speeds: list[float] = []
    for event in t3d.resume(folder, cfg=cfg, stop=stop) if folder.is_dir() else t3d.train(cfg, stop=stop):
        if isinstance(event, Start | Resumed):
            start = event
        if isinstance(event, Update):
            speeds.append(event.steps_per_second)
        if isinstance(event, End) and event.reason == "finished":
            file = result_file(args, task, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            seconds = max(event.seconds, time.monotonic() - began)  # the first counts earlier processes, too
            about = {"task": task, "variant": name, "settings": settings, "steps": study.steps, "jobs": args.jobs}
            result = {**about, **result_of(start, speeds, seconds), "diverged": event.diverged}
            evals = open_run(folder).evals
            curves = {
                member.seed: [(one.step, round(one.mean_return, 2)) for one in evals[member]] for member in cfg.members
            }
            file.write_text(json.dumps({**result, "evaluations": curves}, indent=1) + "\n")


def result_of(start: Start | Resumed, speeds: list[float], seconds: float) -> dict[str, Any]:
    """Returns how a training ran."""
    return {
        "engine": start.config["engine"],
        "actors": start.config["actors"],
        "parameters": start.parameters,
        "seconds": round(seconds, 1),
        "steps_per_second": round(float(np.median(speeds)), 1),
        "machine": f"{gpu()}, {psutil.cpu_count()} cores ({platform.machine()})",
        "versions": start.versions,
    }


def gpu() -> str:
    import torch  # noqa: PLC0415 (not needed to draw)

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"


if __name__ == "__main__":
    main()
