"""What metrics and a second evaluation set cost, for docs/lab/performance.md: `python experiments/conditions_cost.py`.

Trains the drone of the guide with small networks, where updates hide least: plain, with five metrics, with a second set
and metrics, and plain again, in turns. Prints the CPU time of learning, which other work on the machine disturbs
least, beside that of the plain training of the same round, without evaluations, and then what an evaluation takes.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from statistics import median
from typing import Any

import torch
from common import machine

import t3d

METRICS = ["distance:last", "energy:sum", "is_success:max", "reward_near:sum", "reward_saving:mean"]
SETS = {"calm": {"wind": 0}, "windy": {"wind": 3}}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "five metrics": {"env": {"metrics": METRICS}},
    "five metrics and a second set": {"env": {"metrics": METRICS}, "eval": {"sets": SETS}},
    "plain, again": {},
}
RANDOM_STEPS = 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=6_000)
    args = parser.parse_args()
    short = {"total_steps": args.steps, "eval": {"every_steps": args.steps, "episodes": 1, "max_steps": 1}}
    rounds = [{name: seconds(short, case) for name, case in CASES.items()} for _ in range(args.rounds)]
    evaluated = {"total_steps": RANDOM_STEPS + 1, "eval": {"every_steps": 100, "episodes": 10}}
    print(f"{machine()}, torch {torch.__version__}, {args.rounds} rounds of {args.steps:,} steps")
    print("| | CPU time of learning against plain | least to most | an evaluation of 10 episodes |\n|---|---|---|---|")
    for name, case in CASES.items():
        ratios = [of_round[name] / of_round["plain"] for of_round in rounds]
        evaluation = median(evaluation_seconds(evaluated, case) for _ in range(3))
        print(f"| {name} | {median(ratios):.3f} | {min(ratios):.3f} to {max(ratios):.3f} | {1e3 * evaluation:.0f} ms |")


def config(*changes: dict[str, Any]) -> t3d.Config:
    cfg = t3d.merge(t3d.preset("quick"), {"env": {"id": "examples/drone.py:Drone"}, "device": "cpu", "threads": 1})
    for change in ({"random_steps": RANDOM_STEPS, "checkpoint": {"every_steps": 10**12}}, *changes):
        cfg = t3d.merge(cfg, change)
    return cfg


def seconds(*changes: dict[str, Any]) -> float:
    """The CPU time of a training from when it begins to learn until its last report."""
    with tempfile.TemporaryDirectory() as root:
        reports = [
            time.process_time()
            for event in t3d.train(config(*changes, {"run": {"root": root}}))
            if event.event == "update"
        ]
    return reports[-1] - reports[0]


def evaluation_seconds(*changes: dict[str, Any]) -> float:
    """The CPU time of an evaluation: between random actions, so that nearly all of it is theirs."""
    with tempfile.TemporaryDirectory() as root:
        times = [
            time.process_time()
            for event in t3d.train(config(*changes, {"run": {"root": root}}))
            if event.event == "eval" and event.chooses
        ]
    return (times[-1] - times[0]) / (len(times) - 1)


if __name__ == "__main__":
    main()
