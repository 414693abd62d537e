"""How long should an actor from a policy file rest while its new critics learn? `python experiments/resting_actor.py`.

Trains Pendulum (64-64 networks, 10,000 steps), then fine-tunes the best policy from its file alone, on the same task
and on one with stronger gravity, three seeds each. Prints the mean return of all evaluations until 25,000 steps, the
lowest, and the last.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import t3d
from t3d.events import Eval

BASE = {
    "preset": "quick",
    "device": "cpu",
    "threads": 1,
    "env": {"id": "Pendulum-v1"},
    "td3": {"actor_hidden": [64, 64], "critic_hidden": [64, 64]},
    "random_steps": 1_000,
    "eval": {"every_steps": 1_000, "episodes": 10},
    "log": {"diagnose_every_steps": 0},
    "checkpoint": {"every_steps": 100_000},
}


def main() -> None:
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("--root", default="runs")
    root = args.parse_args().root
    if not (Path(root) / "base").exists():
        train({"seeds": [0], "total_steps": 10_000, "run": {"root": root, "name": "base"}})
    for gravity in (10.0, 13.0):
        for updates in (0, 1_000, 5_000, 20_000):
            means = train(
                {
                    "seeds": [10, 11, 12],
                    "total_steps": 25_000,
                    "env": {"args": {"g": gravity}},
                    "start_from": f"{root}/base/best/seed-0.safetensors",
                    "start_actor_after": updates,
                    "run": {"root": root},
                }
            )
            shown = "  ".join(f"{means[step]:7.1f}" for step in (0, 2_000, 4_000, 8_000, 16_000, 25_000))
            print(f"g={gravity:g} rests {updates:6,}: mean {sum(means.values()) / len(means):7.1f}", end="  ")
            print(f"lowest {min(means.values()):7.1f}  at 0, 2, 4, 8, 16, 25 thousand: {shown}", flush=True)


def train(changes: dict[str, object]) -> dict[int, float]:
    """Returns the mean over seeds of the evaluations at each step."""
    returns: dict[int, list[float]] = {}
    for event in t3d.train(t3d.merge(t3d.merge(t3d.preset("quick"), BASE), changes)):
        if isinstance(event, Eval):
            returns.setdefault(event.step, []).append(event.mean_return)
    return {step: sum(each) / len(each) for step, each in returns.items()}


if __name__ == "__main__":
    sys.exit(main())
