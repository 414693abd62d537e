"""What members that rest cost TD7, and what it would lose and gain if all members learned in step.

python experiments/td7_in_step.py exact|step SEEDS STEPS [ENV]    trains small networks and prints a row of the table
                                                                   in docs/lab/learning.md

Exact is what T3D does: policies are assessed as they are, then each member makes its updates, and then acts again.
In step, every member makes an update in every step, as TD3 does. That departs from the paper in one thing: a policy
changes during the episodes that assess it, and the checkpoint is the one that the last episode ended with.
"""

from __future__ import annotations

import sys
import tempfile
import time
from typing import Any

import numpy as np

import t3d
import t3d.run.build
import t3d.run.parts
from t3d.algo.learner import Learner
from t3d.events import Eval
from t3d.run.pace import Budgets, Steady
from t3d.run.parts import Parts
from t3d.types import EpisodeResult

NETWORKS = {"embedding": 64, "encoder_hidden": 64, "actor_hidden": [64, 64], "critic_hidden": [64, 64]}


class InStep(Steady):
    """An update of every member in every step; the rule hears episodes, and what it says is due is not asked for."""

    def hear(self, member: int, episode: EpisodeResult) -> None:
        parts = self.parts
        if parts.steps[member] - episode.length * parts.cfg.num_envs >= self.governor.begins:
            parts.learner.hear(member, episode)


def main(variant: str, seeds: int, steps: int, env: str = "Hopper-v5") -> None:
    made: list[Parts] = []

    def caught(*arguments: Any, **keywords: Any) -> Parts:
        made.append(Parts(*arguments, **keywords))
        return made[-1]

    t3d.run.build.Parts = caught  # type: ignore[misc, assignment]
    t3d.run.parts.Budgets = {"exact": Budgets, "step": InStep}[variant]  # type: ignore[misc, assignment]
    run_updates, learning = Learner.run, [0.0]

    def timed(self: Learner, *arguments: Any) -> Any:
        started = time.process_time()
        trace = run_updates(self, *arguments)
        learning[0] += time.process_time() - started
        return trace

    Learner.run = timed  # type: ignore[method-assign]
    settings = {
        **{"env": {"id": env}, "algo": "td7", "td7": {**NETWORKS, "batch_size": 64}, "seeds": range(seeds)},
        **{"device": "cpu", "threads": 1},
        **{"total_steps": steps, "random_steps": steps // 8, "eval": {"every_steps": steps // 3}},
        "log": {"every_steps": steps // 3, "diagnose_every_steps": 0},
    }
    with tempfile.TemporaryDirectory() as root:
        events = list(t3d.train({**settings, "run": {"root": root}}))
    learner = made[0].learner
    last = [event.mean_return for event in events if isinstance(event, Eval) and event.step == steps]
    each, most, seconds = np.array(learner.made), learner.updates, learning[0]
    wasted = 1 - each.sum() / (most * seeds)
    print(f"| {env} | {seeds} | {variant} | {each.mean():,.0f} | {most:,} | {wasted:.0%} | {seconds:.0f} | ", end="")
    print(f"{np.mean(last):,.0f} ± {np.std(last, ddof=1):,.0f} |")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
