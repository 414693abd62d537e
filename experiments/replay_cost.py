"""What the replay costs, for docs/lab/performance.md and docs/lab/learning.md.

python experiments/replay_cost.py rows [--device cuda]     bytes a row, microseconds to add one and to sample a batch
python experiments/replay_cost.py priorities [FILE.json]   sampling by error on the CPU: a million transitions of
                                                           HalfCheetah's sizes, batches of 256, one thread, in turns
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from common import random_rollout, seconds, write_results

from t3d.algo.learner import Learner
from t3d.bench.updates import HALF_CHEETAH
from t3d.config import Config, TD3Config, merge
from t3d.data.memory import Memory
from t3d.data.replay import bytes_needed
from t3d.types import row_sizes

ROWS, ROUNDS = 200_000, 5
MANY_ROWS, TURNS, UPDATES = 1_000_000, 12, 40
SAMPLING = ("uniform", "proportional", "lap")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["rows", "priorities"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("file", nargs="?", type=Path)
    args = parser.parse_args()
    if args.part == "rows":
        print(json.dumps(rows(args.device)))
    else:
        priorities(args.file)


def rows(device: str) -> dict[str, Any]:
    return {
        "device": device,
        "bytes": bytes_needed(HALF_CHEETAH, 1, 1),
        "add one": best(lambda: adding(device, members=1, size=1, blocks=3000)),
        "add 10 x 32": best(lambda: adding(device, members=10, size=32, blocks=100)),
        "sample": best(lambda: sampling(device, 1)),
        "sample, 3 steps": best(lambda: sampling(device, 3)),
    }


def best(measure: Callable[[], float]) -> float:
    return round(1e6 * min(measure() for _ in range(ROUNDS)), 2)


def memory_of(device: str, members: int, n_step: int = 1) -> Memory:
    cfg = merge(Config(), {"total_steps": ROWS, "seeds": list(range(members)), "replay": {"n_step": n_step}})
    return Memory(HALF_CHEETAH, cfg, device)


def adding(device: str, members: int, size: int, blocks: int) -> float:
    memory = memory_of(device, members)
    rollouts = [[random_rollout(HALF_CHEETAH, member, n, size) for member in range(members)] for n in range(blocks)]

    def add() -> None:
        for block in rollouts:
            memory.add(*block)
        wait(device)

    return seconds(add) / (blocks * size * members)


def sampling(device: str, n_step: int, batches: int = 300) -> float:
    memory = memory_of(device, 1, n_step)
    for number in range(100):
        memory.add(random_rollout(HALF_CHEETAH, 0, number, 1000))

    def sample() -> None:
        for _ in range(batches):
            memory.sample()
        wait(device)

    wait(device)
    return seconds(sample) / batches


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def priorities(file: Path | None) -> None:
    torch.set_num_threads(1)
    width = sum(row_sizes(HALF_CHEETAH))
    transitions = torch.from_numpy(np.random.default_rng(0).uniform(0, 0.5, (MANY_ROWS, width)))
    learners = {sampling: filled(sampling, transitions) for sampling in SAMPLING}
    times: dict[str, list[list[float]]] = {sampling: [] for sampling in SAMPLING}
    last = 0, MANY_ROWS - 2, MANY_ROWS - 1  # of member 0
    for _ in range(TURNS):
        for sampling, (learner, memory) in learners.items():
            batch, td = memory.sample(), torch.randn(1, 2, 256)
            calls: list[Callable[[], object]] = [
                lambda learner=learner: learner.run(UPDATES),
                memory.sample,
                lambda memory=memory, batch=batch, td=td: memory.feedback(batch.index, td),
                lambda memory=memory: memory.sampler.added(last),
            ]
            times[sampling].append([seconds(call) for call in calls])
    print("| | updates/s | drawing a batch, ms | setting its priorities | adding a transition |\n|---|---|---|---|---|")
    table = []
    for sampling in SAMPLING:
        update, *parts = (median(column) for column in zip(*times[sampling], strict=True))
        sample, feedback, add = (round(1e3 * part, 3) for part in parts)
        speed = round(UPDATES / update, 1)
        ms = {"sample_ms": sample, "feedback_ms": feedback, "add_ms": add}
        table.append({"sampling": sampling, "updates_per_second": speed, **ms})
        print(f"| `{sampling}` | {speed:.0f} | {sample:.2f} | {feedback:.2f} | {add:.2f} |")
    if file:
        write_results(file, rows=table)


def filled(sampling: str, transitions: torch.Tensor) -> tuple[Learner, Memory]:
    loss = {"critic_loss": "huber"} if sampling == "lap" else {}
    cfg = merge(Config(), {"total_steps": MANY_ROWS, "replay": {"sampling": sampling}, "td3": loss})
    memory = Memory(HALF_CHEETAH, cfg, "cpu")
    memory.replay.rows[0] = transitions
    memory.replay.set_added([MANY_ROWS])
    memory.sampler.added((0, 0, MANY_ROWS))
    learner = Learner(HALF_CHEETAH, TD3Config(), [0], engine="fused", source=memory)  # the same update for all
    learner.run(50)
    return learner, memory


if __name__ == "__main__":
    main()
