"""What diagnostics cost, for docs/lab/watching.md: python experiments/diagnostics_cost.py [--device cuda] [--seeds 10].

Trains HalfCheetah-v5 with the default settings but fewer random steps, with and without diagnostics in turns, for each
number of threads. Prints their share of the time of learning, once from the `seconds` of the events and once from the
clock: the time with them beside the time without, which other work on the machine disturbs.
"""

from __future__ import annotations

import argparse
import tempfile
from statistics import median
from typing import Any, NamedTuple

import torch
from common import machine

import t3d
from t3d.events import Diagnosed, End

RANDOM_STEPS = 1_000


class Cost(NamedTuple):
    """How long a training took, and its diagnostics."""

    total: float  # seconds, without evaluations, which there is only one of
    looks: list[float]  # seconds of each


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--actors", default="inline")
    parser.add_argument("--steps", type=int, default=21_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print(f"{machine()}, torch {torch.__version__}, {args.seeds} seeds, actors {args.actors}")
    print("| threads | a look, ms | of the time, by the events | by the clock |\n|---|---|---|---|")
    for threads in args.threads:
        print(row(args, threads), flush=True)


def row(args: argparse.Namespace, threads: int) -> str:
    pairs = [(train(args, threads, 5_000), train(args, threads, 0)) for _ in range(args.rounds)]
    looks = [1e3 * look for with_some, _ in pairs for look in with_some.looks]
    said = [100 * sum(with_some.looks) / with_some.total for with_some, _ in pairs]
    clock = [100 * (with_some.total / without.total - 1) for with_some, without in pairs]
    turns = ", ".join(f"{share:+.1f}" for share in clock)
    return f"| {threads} | {median(looks):.1f} | {median(said):.2f} % | {median(clock):+.1f} % ({turns}) |"


def train(args: argparse.Namespace, threads: int, every: int) -> Cost:
    with tempfile.TemporaryDirectory() as root:
        changes: dict[str, Any] = {
            "env": {"id": "HalfCheetah-v5"},
            "device": args.device,
            "threads": threads,
            "seeds": list(range(args.seeds)),
            "actors": args.actors,
            "total_steps": args.steps,
            "random_steps": RANDOM_STEPS,
            "eval": {"every_steps": args.steps, "episodes": 1, "max_steps": 1},
            "log": {"diagnose_every_steps": every},
            "run": {"root": root},
        }
        events = list(t3d.train(t3d.merge(t3d.Config(), changes)))
    end = events[-1]
    assert isinstance(end, End) and end.reason == "finished"
    looks = [event.seconds for event in events if isinstance(event, Diagnosed) and event.member == 0]
    assert bool(looks) == (every > 0)
    return Cost(end.seconds, looks)


if __name__ == "__main__":
    main()
