"""Compares settings on the same tasks and seeds: `python experiments/variants.py STUDY`, then `--draw`.

Each training has several seeds side by side, in a process of its own, and leaves a file docs/lab/variants/STUDY/*.json
with every evaluation, the speed, the machine and the versions. One that has such a file is skipped, one that was
stopped continues from its checkpoint, and one that fails is reported while the others go on: repeating the command
finishes the study. One training leaves a GPU idle much of the time, so `--jobs N` runs N at once; with `--together`
they are threads of one process, because kernels of several processes take turns:

    python experiments/variants.py screen --jobs 5 --actors local:15 --budget 540
    python experiments/variants.py screen --draw        # the table in docs/lab/ablations.md and the pictures
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import variants_report
from common import machine, train_or_resume
from variants_studies import STUDIES, Study

import t3d
from t3d.events import End, Resumed, Start, Update
from t3d.store.reader import open_run

BUILDING = threading.Lock()  # compiling is not for several threads at once


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="variants to train; default: all")
    parser.add_argument("--tasks", nargs="+", metavar="TASK", help="Gymnasium ids; default: the study's")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--random-steps", type=int, help="for a short try")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--together", action="store_true", help="in threads of this process, each with a CUDA stream")
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
    report = variants_report.Report(args.study, results(args, study), [*study.variants], study.beside_paper)
    print(*variants_report.tables(report), sep="\n")
    if args.draw:
        variants_report.draw(report, args.docs)


def train_all(args: argparse.Namespace, study: Study) -> None:
    """Trains what has no result yet, each in a process of its own."""
    deadline = time.monotonic() + args.budget
    done = {(result["task"], result["variant"]) for result in results(args, study)}
    waiting = [pair for pair in product(study.tasks, args.only or study.variants) if pair not in done]
    kind, _, actors = args.actors.partition(":")
    share = f"{kind}:{max(1, int(actors) // args.jobs)}" if actors else kind

    def outcome(pair: tuple[str, str]) -> str:
        left, needed = deadline - time.monotonic(), expected_seconds(args, study, *pair)
        if left <= 0 or left < needed <= args.budget:  # one that never fits is trained in several goes
            return f"not started: {max(left, 0):.0f} s are left, and it needs about {needed:.0f} s"
        problem = (in_thread if args.together else in_process)(args, study, pair, share, left)
        if problem:
            return f"FAILED {problem}"
        file = result_file(args, *pair)
        return f"finished in {json.loads(file.read_text())['seconds']:.0f} s" if file.exists() else "to be continued"

    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(lambda pair: print(f"{', '.join(pair)}: {outcome(pair)}", flush=True), waiting))


def in_process(args: argparse.Namespace, study: Study, pair: tuple[str, str], actors: str, budget: float) -> str:
    """Trains in a process of its own; returns what went wrong, if anything did."""
    log = args.runs / args.study / f"{'-'.join(pair)}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    extra = ["--train", *pair, "--actors", actors, "--budget", str(budget)]
    with log.open("ab") as output:
        command = [sys.executable, __file__, *sys.argv[1:], *extra]
        code = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
    return f"with exit code {code}: {' | '.join(log.read_text(errors='replace').splitlines()[-3:])}" if code else ""


def in_thread(args: argparse.Namespace, study: Study, pair: tuple[str, str], actors: str, budget: float) -> str:
    """Trains in this thread, beside others that use the GPU at the same time; returns what went wrong, if anything."""
    own_stream = torch.cuda.stream(torch.cuda.Stream()) if torch.cuda.is_available() else nullcontext()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = study.tf32  # each run puts it back to it
    try:
        with own_stream:
            train(argparse.Namespace(**{**vars(args), "actors": actors, "budget": budget}), study, *pair)
    except Exception as error:
        return f"with {error!r}"
    return ""


def expected_seconds(args: argparse.Namespace, study: Study, task: str, name: str) -> float:
    """Returns the longest time that this variant, or else another on this task, or else any has taken."""
    done = [result for result in results(args, study) if result.get("steps", study.steps) == study.steps]
    same_variant = [result["seconds"] for result in done if result["variant"] == name]
    same_task = [result["seconds"] for result in done if result["task"] == task]
    return max(same_variant or same_task or [result["seconds"] for result in done], default=0.0)


def result_file(args: argparse.Namespace, task: str, name: str) -> Path:
    return Path(args.results or args.docs / "lab" / "variants", args.study, f"{task}-{name}.json")


def results(args: argparse.Namespace, study: Study) -> list[dict[str, Any]]:
    """Reads the results in the order of the study, new ones and those in docs."""
    here, there = result_file(args, "", "").parent, args.docs / "lab" / "variants" / args.study
    read = []
    for task, name in product(study.tasks, study.variants):
        folders = [here, there, *([there.parent / study.also_from] if study.also_from else [])]
        files = [path / f"{task}-{name}.json" for path in folders]
        read += [json.loads(file.read_text()) for file in files if file.exists()][:1]
    return read


def train(args: argparse.Namespace, study: Study, task: str, name: str) -> None:
    """Trains one variant, or continues, and writes its result if it finishes within the budget."""
    root, settings = args.runs / args.study, study.variants[name]
    changes: dict[str, Any] = {
        "env": {"id": task},
        "seeds": list(range(study.first_seed, study.first_seed + study.seeds)),
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
    stop, began = threading.Event(), time.monotonic()
    timer = threading.Timer(min(args.budget, threading.TIMEOUT_MAX), stop.set)
    timer.daemon = True
    timer.start()
    speeds: list[float] = []
    events = train_or_resume(cfg, stop=stop)
    with BUILDING:
        first = next(events)
    for event in chain([first], events):
        if isinstance(event, Start | Resumed):
            start = event
        if isinstance(event, Update):
            speeds.append(event.steps_per_second)
        if isinstance(event, End) and event.reason == "finished":
            file = result_file(args, task, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            seconds = max(event.seconds, time.monotonic() - began)  # the first counts earlier processes, too
            about = {"task": task, "variant": name, "settings": settings, "steps": study.steps, "jobs": args.jobs}
            result = {
                **about,
                "engine": start.config["engine"],
                "actors": start.config["actors"],
                "parameters": start.parameters,
                "seconds": round(seconds, 1),
                "steps_per_second": round(float(np.median(speeds)), 1),
                "machine": machine(),
                "versions": start.versions,
                "diverged": event.diverged,
                "evaluations": {
                    member.seed: [(result.step, round(result.mean_return, 2)) for result in evals]
                    for member, evals in open_run(root / f"{task}-{name}").evals.items()
                },
            }
            file.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
