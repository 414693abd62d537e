"""Whether two revisions are equally fast: `python experiments/same_speed.py REVISION [REVISION]`.

In each round the first is measured, then the second (the working tree if not given), then the first again, with
`t3d bench update` and `t3d bench train`. The second counts as slower where its median ratio lies below
what the first shows against itself in three of four rounds, and below 0.98. Nothing else may run on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from same_bits import checked_out

TOLERATED = 0.98  # of the speed, where the first revision repeats itself that well
SMALL = "--engines fused --threads 1 --hidden 64 64 --batch 128"
SPEEDS = {  # what is measured: flags of t3d bench, and the field of its row, larger if faster
    "update": ("update --engines fused --threads 1 --seconds 3", lambda row: 1 / row["ms_median"]),
    "train": ("train --engines fused --threads 1 --turns 4", lambda row: row["steps_per_second"]),
    "update, 64-64": (f"update {SMALL} --seconds 3", lambda row: 1 / row["ms_median"]),
    "train, 64-64": (f"train {SMALL} --env Pendulum-v1 --turns 8", lambda row: row["steps_per_second"]),
}


def main() -> int:
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("before")
    args.add_argument("after", nargs="?", help="the working tree if not given")
    args.add_argument("--rounds", type=int, default=7)
    given = args.parse_args()
    slower = 0
    with checked_out(given.before) as before, checked_out(given.after) as after:
        for name in SPEEDS:
            rounds = [[speed(source, name) for source in (before, after, before)] for _ in range(given.rounds)]
            ratios = [second / statistics.mean((first, again)) for first, second, again in rounds]
            against_itself = [again / first for first, _, again in rounds]
            ratio, (low, _, high) = statistics.median(ratios), statistics.quantiles(against_itself, n=4)
            slower += ratio < min(low, TOLERATED)
            print(
                f"{name}: median {ratio:.3f} ({min(ratios):.3f} to {max(ratios):.3f}); the first against itself "
                f"{statistics.median(against_itself):.3f} (half of the rounds: {low:.3f} to {high:.3f})"
            )
    return slower


def speed(source: Path, name: str) -> float:
    words, speed_of = SPEEDS[name]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "t3d", "bench", *words.split(), "--json", "rows.json"]
        environment = {**os.environ, "PYTHONPATH": str(source)}
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
        (row,) = json.loads((Path(folder) / "rows.json").read_bytes())["rows"]
        return float(speed_of(row))


if __name__ == "__main__":
    sys.exit(main())
