"""Reproduces the paper's Table 1 with one command: python experiments/table1.py

Trains the seven tasks, ten seeds each, 1M steps, on a machine with a GPU, and writes docs/lab/table1.md and its plot.
A task that has a result is skipped, and one that was killed continues from its checkpoint: repeating the same command
finishes the table. If matplotlib is missing, `--only-write` on another machine writes the page from the results.

    python experiments/table1.py Hopper-v5 --name hopper-paper --preset paper     # a variant beside the table
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
from common import drawing, machine, train_or_resume

import t3d
from t3d.config import diff
from t3d.events import ActingEvent, End, Eval, Event
from t3d.store.reader import open_run
from t3d.types import sample_std

FOLDER = Path(__file__).parent
RESULTS, PAGE, PICTURE = Path("docs/lab/table1"), Path("docs/lab/table1.md"), Path("docs/img/table1.png")
WHOLE = 1_000_000  # steps, as in the paper
BEGINNING = 0.4  # of a run, in which memory and speed may still settle: compiler processes take two minutes to exit


class Task(NamedTuple):
    """The name of the authors' curve and the value in the paper's Table 1."""

    curve: str
    paper: str


TASKS = {
    "HalfCheetah-v5": Task("HalfCheetah", "9637 ± 859"),
    "Hopper-v5": Task("Hopper", "3564 ± 115"),
    "Walker2d-v5": Task("Walker", "4683 ± 540"),
    "Ant-v5": Task("Ant", "4372 ± 1000"),
    "Reacher-v5": Task("Reacher", "-3.6 ± 0.6"),
    "InvertedPendulum-v5": Task("InvertedPendulum", "1000 ± 0"),
    "InvertedDoublePendulum-v5": Task("InvertedDoublePendulum", "9337 ± 15"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=[*TASKS], metavar="TASK", help="Gymnasium ids; default: all seven")
    parser.add_argument("--name", default="", help="name of a variant, which is not part of the table")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--runs", type=Path, default=Path("runs/table1"), help="folder of the runs")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=WHOLE)
    parser.add_argument("--eval-every", type=int, default=50_000)
    parser.add_argument("--actors", default="local:15", help="chosen for 16 cores")
    parser.add_argument("--max-ahead", type=int, default=96)
    parser.add_argument("--note", default="", help="shown with the result, e.g. what else ran on the machine")
    parser.add_argument("--exact", action="store_true", help="float32 throughout, without TF32")
    parser.add_argument("--only-write", action="store_true", help="train nothing")
    args = parser.parse_args()
    for task in [] if args.only_write else args.tasks:
        name = args.name or task
        if any(finished(folder / f"{name}.json") for folder in (args.results, RESULTS)):
            print(f"{name} already has a result")
            continue
        args.results.mkdir(parents=True, exist_ok=True)
        file = args.results / f"{name}.json"
        for result in train(args, task, name, file):  # after every evaluation, in case the machine is killed
            file.write_text(json.dumps(result))
    write(args.results)


def finished(file: Path) -> bool:
    return file.exists() and json.loads(file.read_text())["finished"]


def train(args: argparse.Namespace, task: str, name: str, file: Path) -> Iterator[dict[str, Any]]:
    """Yields the result so far after every evaluation."""
    changes = {
        "env": {"id": task},
        "seeds": list(range(args.seeds)),
        "total_steps": args.steps,
        "actors": args.actors,
        "max_ahead": args.max_ahead,
        "tf32": not args.exact,
        "eval": {"every_steps": args.eval_every},
        "log": {"every_steps": max(1, args.steps // 100)},
        "checkpoint": {"every_steps": 200_000},
        "run": {"root": str(args.runs), "name": name},
    }
    cfg, started = t3d.merge(t3d.preset(args.preset), changes), time.monotonic()
    folder = args.runs / name
    events = train_or_resume(cfg)
    before = json.loads(file.read_text())["seconds"] if file.exists() and folder.is_dir() else 0.0
    samples: list[dict[str, Any]] = []
    about: dict[str, Any] = {}
    for event in with_progress(events, name):
        about = about or _about(event)
        if isinstance(event, ActingEvent):
            samples.append({**resources(), **vars(event), "seconds": time.monotonic() - started})
        if isinstance(event, End) or (isinstance(event, Eval) and event.seed == cfg.seeds[-1]):
            seconds = before + time.monotonic() - started
            complete = isinstance(event, End) and event.reason == "finished"
            evals = open_run(folder).evals  # those of an earlier process too
            returns = [[result.mean_return for result in evals[member]] for member in cfg.members]
            steps = [result.step for result in evals[cfg.members[-1]]]
            curves = {"seconds": seconds, "steps": steps, "returns": returns, "samples": samples}
            yield {"env": task, "note": args.note, "finished": complete, **about, **curves}


def _about(start: Any) -> dict[str, Any]:
    """Returns settings, versions and machine of a run, from its first event."""
    changes = diff(t3d.merge(t3d.Config(), start.config), t3d.Config())
    return {
        "settings": {key: value for key, (_, value) in changes.items() if key != "run.root"},
        "versions": start.versions,
        "machine": machine(),
    }


def with_progress(events: Iterator[Event], name: str) -> Iterator[Event]:
    """Yields the events and prints a line when all seeds have been evaluated."""
    returns: dict[int, list[float]] = {}
    started = time.monotonic()
    for event in events:
        if isinstance(event, Eval):
            returns.setdefault(event.step, []).append(event.mean_return)
            mean, spread, seen = np.mean(returns[event.step]), sample_std(returns[event.step]), len(returns[event.step])
            if seen == len(returns[min(returns)]) and event.step > min(returns):
                seconds = time.monotonic() - started
                print(f"{name} {event.step:>9,} {mean:9.1f} ± {spread:7.1f}  {seconds:.0f} s", flush=True)
        yield event


def resources() -> dict[str, float]:
    """Returns memory, open files and threads of this process and its workers together."""
    me = psutil.Process()
    processes = [me, *me.children(recursive=True)]
    held: dict[str, float] = {"rss_mib": 0, "files": 0, "threads": 0}
    for process in processes:
        try:
            held["rss_mib"] += process.memory_info().rss / 2**20
            held["files"] += process.num_fds()
            held["threads"] += process.num_threads()
        except psutil.NoSuchProcess:
            pass
    return {**held, "processes": len(processes)}


def soak(result: dict[str, Any]) -> str:
    """Describes how memory, files, threads and speed changed after the beginning."""
    samples = [sample for sample in result["samples"] if sample["since"] >= BEGINNING * result["steps"][-1]]
    if len(samples) < 4:
        return "too short to say"
    halves = samples[: len(samples) // 2], samples[len(samples) // 2 :]
    rates = [
        (half[-1]["step"] - half[0]["step"]) / (half[-1]["seconds"] - half[0]["seconds"])
        for half in halves
        if len(half) > 1
    ]
    changes = [f"{key} {samples[0][key]:,.0f} to {samples[-1][key]:,.0f}" for key in ("rss_mib", "files", "threads")]
    return (
        f"{', '.join(changes)}; steps/s per seed {rates[0]:,.0f}, then {rates[1]:,.0f} ({rates[1] / rates[0] - 1:+.1%})"
    )


def write(results: Path) -> None:
    written = {path.stem: json.loads(path.read_text()) for path in sorted(results.glob("*.json"))}
    lines = [
        "# The paper's Table 1",
        "",
        "Made by `python experiments/table1.py`: ten seeds per task, 1M steps, default TD3 hyperparameters; run",
        "settings are listed below. Evaluated without noise (10 episodes per seed every 50,000 steps). Mean ± standard",
        "deviation over seeds (n - 1; the column *paper's Table 1* is quoted, and divides by n: its ± is",
        "5 % smaller). *Best* is the evaluation with the highest mean, as in the paper. Our maximum is over",
        "about 21 evaluations, the paper's over one every 5,000 steps, so the maxima are not comparable. The paper",
        "used v1 of the environments, which are not the same tasks as v5.",
        "",
        "| task | last | best | paper's Table 1 | authors' last | seconds | steps/s, all seeds |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [_row(name, task, written.get(name)) for name, task in TASKS.items()]
    lines += [_stopped(name, result) for name, result in written.items() if name in TASKS and not result["finished"]]
    lines += ["", f"![learning curves of T3D and the authors](../img/{PICTURE.name})", ""]
    versions = [(result["machine"], result["versions"]) for result in written.values()]
    machines = {f"{machine}, T3D {of['t3d']}, torch {of['torch']}" for machine, of in versions}
    lines += [f"Machine: {'; '.join(sorted(machines))}. Seconds are for the whole command, start-up included.", ""]
    lines += ["Settings that differ from the defaults (names that are not in the table are [variants](#variants)):", ""]
    for name, result in written.items():
        given = {key: value for key, value in result["settings"].items() if key not in ("env.id", "run.name", "seeds")}
        lines += [f"- `{name}`: " + ", ".join(f"{key}={value}" for key, value in given.items())]
        lines += [f"  - {result['note']}"] if result.get("note") else []
        lines += [f"  - after two fifths of the run: {soak(result)}"] if name in TASKS else []
    lines += _variants({name: result for name, result in written.items() if name not in TASKS})
    PAGE.write_text("\n".join(lines) + "\n")
    try:
        draw(written)
    except ImportError:
        print(f"no {PICTURE} without matplotlib; run this with --only-write where it is installed")


def _variants(results: dict[str, dict[str, Any]]) -> list[str]:
    if not results:
        return []
    return [
        "\n## Variants\n",
        "Shorter or different runs that [results](results.md) and [performance](performance.md) refer to: `ahead-N`",
        "has `max_ahead` N, `ant-15` and `cheetah-15` measure speed with fifteen actors, `hopper-paper` has the",
        "paper's hyperparameters.\n",
        "| result | task | last | best | seconds |",
        "|---|---|---|---|---|",
        *(f"| {name} | {of['env']} | {last(of)} | {best(of)} | {of['seconds']:,.0f} |" for name, of in results.items()),
        *[_stopped(name, result) for name, result in results.items() if not result["finished"]],
    ]


def _stopped(name: str, result: dict[str, Any]) -> str:
    return f"\n{name} was stopped at step {reached(result):,}; its last evaluation is at step {result['steps'][-1]:,}."


def _row(name: str, task: Task, result: dict[str, Any] | None) -> str:
    authors = paper_curve(task.curve)
    their_last = f"{authors['mean'][-1]:,.1f} ± {authors['std'][-1]:,.1f}"
    if result is None:
        return f"| {name} | not run | | {task.paper} | {their_last} | | |"
    rate = len(result["returns"]) * reached(result) / result["seconds"]
    cells = [name, last(result), best(result), task.paper, their_last, f"{result['seconds']:,.0f}", f"{rate:,.0f}"]
    return f"| {' | '.join(cells)} |"


def reached(result: dict[str, Any]) -> int:
    return int(result["samples"][-1]["step"])


def last(result: dict[str, Any]) -> str:
    returns = np.array(result["returns"])[:, -1]
    return f"{returns.mean():,.1f} ± {sample_std(returns):,.1f}"


def best(result: dict[str, Any]) -> str:
    returns = np.array(result["returns"])
    where = int(returns.mean(axis=0).argmax())
    return f"{returns[:, where].mean():,.1f} ± {sample_std(returns[:, where]):,.1f}"


def paper_curve(name: str) -> dict[str, list[float]]:
    """Returns the authors' own learning curve, by the columns of paper_curves.csv.

    These are of the ten seeds in learning_curves/ of their repository, an evaluation every 5,000 steps, on v1 of the
    environments; deviations with n - 1. mean_of_three and std_of_three are of each seed's mean of three evaluations,
    50,000 steps apart, of which the last is the row's: what variants.py calls the return at the end.
    """
    with (FOLDER / "paper_curves.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["env"] == name]
    return {key: [float(row[key] or "nan") for row in rows] for key in rows[0] if key != "env"}


def draw(results: dict[str, dict[str, Any]]) -> None:
    PICTURE.parent.mkdir(exist_ok=True)
    with drawing(PICTURE, (15, 6.5)) as figure:
        grid = figure.subplots(2, 4)
        for axes, (name, task) in zip(grid.flat, TASKS.items(), strict=False):
            authors = {key: np.array(values) for key, values in paper_curve(task.curve).items()}
            _band(axes, authors["step"], authors["mean"], authors["std"], "the authors, v1", "tab:gray")
            if name in results:
                steps, returns = np.array(results[name]["steps"]), np.array(results[name]["returns"])
                _band(axes, steps, returns.mean(0), sample_std(returns, axis=0), "T3D, v5", "tab:blue")
            for variant, result in results.items():
                is_whole = result["finished"] and result["steps"][-1] == WHOLE
                if variant not in TASKS and result["env"] == name and is_whole:
                    axes.plot(
                        result["steps"], np.mean(result["returns"], axis=0), "--", label=variant, color="tab:orange"
                    )
                    axes.legend()
            axes.set(title=name if name in results else f"{name} (not run)", xlabel="steps")
        grid[0, 0].set_ylabel("mean return, 10 seeds")
        grid[0, 0].legend()
        grid.flat[-1].axis("off")


def _band(axes: Any, steps: Any, mean: Any, spread: Any, label: str, colour: str) -> None:
    axes.plot(steps, mean, label=label, color=colour)
    axes.fill_between(steps, mean - spread, mean + spread, alpha=0.2, color=colour)


if __name__ == "__main__":
    main()
