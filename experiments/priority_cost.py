"""What sampling by error costs on the CPU, for docs/replay.md: `python experiments/priority_cost.py [FILE.json]`.

A million transitions of HalfCheetah's sizes, batches of 256, one thread; the kinds of sampling take turns.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch

from t3d.algo.learner import Learner
from t3d.bench.sizes import HALF_CHEETAH
from t3d.config import Config, TD3Config, merge
from t3d.data.memory import Memory
from t3d.store.folder import versions
from t3d.types import row_sizes

ROWS, ROUNDS, UPDATES = 1_000_000, 12, 40
SAMPLING = ("uniform", "proportional", "lap")


def main() -> None:
    torch.set_num_threads(1)
    rows = torch.from_numpy(np.random.default_rng(0).uniform(0, 0.5, (ROWS, sum(row_sizes(HALF_CHEETAH)))))
    learners = {sampling: filled(sampling, rows) for sampling in SAMPLING}
    speeds: dict[str, list[float]] = {sampling: [] for sampling in SAMPLING}
    pieces: dict[str, list[tuple[float, float, float]]] = {sampling: [] for sampling in SAMPLING}
    for _ in range(ROUNDS):
        for sampling, (learner, memory) in learners.items():
            speeds[sampling].append(UPDATES / seconds(lambda learner=learner: learner.run(UPDATES)))
            batch, td = memory.sample(), torch.randn(1, 2, 256)
            newest = (0, ROWS - 2, ROWS - 1)
            pieces[sampling].append(
                (
                    seconds(memory.sample),
                    seconds(lambda memory=memory, batch=batch, td=td: memory.feedback(batch.index, td)),
                    seconds(lambda memory=memory, newest=newest: memory.sampler.added(newest)),
                )
            )
    print("| | updates/s | drawing a batch, ms | setting its priorities | adding a transition |\n|---|---|---|---|---|")
    rows = []
    for sampling in SAMPLING:
        drawn, told, added = (round(1e3 * median(column), 3) for column in zip(*pieces[sampling], strict=True))
        rows.append({"sampling": sampling, "updates_per_second": round(median(speeds[sampling]), 1)})
        rows[-1] |= {"sample_ms": drawn, "feedback_ms": told, "add_ms": added}
        print(f"| `{sampling}` | {median(speeds[sampling]):.0f} | {drawn:.2f} | {told:.2f} | {added:.2f} |")
    for file in sys.argv[1:]:
        Path(file).write_text(json.dumps({"versions": versions(), "rows": rows}, indent=1) + "\n")


def filled(sampling: str, rows: torch.Tensor) -> tuple[Learner, Memory]:
    loss = {"critic_loss": "huber"} if sampling == "lap" else {}
    cfg = merge(Config(), {"total_steps": ROWS, "replay": {"sampling": sampling}, "td3": loss})
    memory = Memory(HALF_CHEETAH, cfg, "cpu")
    memory.replay.rows[0] = rows
    memory.replay.set_added([ROWS])
    memory.sampler.added((0, 0, ROWS))
    learner = Learner(HALF_CHEETAH, TD3Config(), [0], engine="fused", source=memory)  # the same update for all
    learner.run(50)
    return learner, memory


def seconds(function: object) -> float:
    started = time.perf_counter()
    function()  # type: ignore[operator]
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
