"""What a row of the replay costs: `PYTHONPATH=src python experiments/row_cost.py [--device cuda]`.

Prints bytes a row, microseconds to add one (alone, and in blocks of 32 for ten members), and microseconds to sample a
batch of 256 for one member, with one-step and with three-step returns where this revision has them. Compare revisions
with git worktree and their own src.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np
import torch

from t3d.bench.sizes import HALF_CHEETAH
from t3d.config import Config, merge
from t3d.data import replay as replays
from t3d.data.memory import Memory
from t3d.types import Rollout, row_sizes

ROWS, ROUNDS = 200_000, 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    device = parser.parse_args().device
    figures: dict[str, Any] = {"device": device, "bytes": replays.bytes_needed(HALF_CHEETAH, 1, 1)}
    figures["add one"] = best(lambda: adding(device, members=1, block=1, blocks=3000))
    figures["add 10 x 32"] = best(lambda: adding(device, members=10, block=32, blocks=100))
    figures["sample"] = best(lambda: sampling(device, {}))
    if "origins" in Rollout._fields:
        figures["sample, 3 steps"] = best(lambda: sampling(device, {"n_step": 3}))
    print(json.dumps(figures))


def best(measure: Any) -> float:
    return round(min(measure() for _ in range(ROUNDS)), 2)


def memory_of(device: str, members: int, replay: dict[str, Any]) -> Memory:
    cfg = merge(Config(), {"total_steps": ROWS, "seeds": list(range(members)), "replay": replay})
    return Memory(HALF_CHEETAH, cfg, device)


def block_of(member: int, number: int, size: int) -> Rollout:
    """Transitions of episodes of 1,000 steps."""
    rows = np.random.default_rng(0).normal(size=(size, sum(row_sizes(HALF_CHEETAH)))).astype(np.float32)
    steps = np.arange(number * size, (number + 1) * size)
    origins = np.column_stack([np.zeros(size), steps // 1000, steps % 1000, 2 * (steps % 1000 == 999)]).astype(np.int32)
    extra = {"origins": origins} if "origins" in Rollout._fields else {}
    return Rollout(member=member, rows=rows, s_size=17, episodes=[], faults=[], **extra)


def adding(device: str, members: int, block: int, blocks: int) -> float:
    memory = memory_of(device, members, {})
    made = [[block_of(member, number, block) for member in range(members)] for number in range(blocks)]
    started = time.perf_counter()
    for rollouts in made:
        memory.add(*rollouts)
    wait(device)
    return 1e6 * (time.perf_counter() - started) / (blocks * block * members)


def sampling(device: str, replay: dict[str, Any], batches: int = 300) -> float:
    memory = memory_of(device, 1, replay)
    for number in range(100):
        memory.add(block_of(0, number, 1000))
    wait(device)
    started = time.perf_counter()
    for _ in range(batches):
        memory.sample()
    wait(device)
    return 1e6 * (time.perf_counter() - started) / batches


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
