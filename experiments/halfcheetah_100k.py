"""HalfCheetah-v5, preset default, three seeds in one run, 100,000 steps each.

    python experiments/halfcheetah_100k.py [--device cpu|cuda] [--threads N]

Trains into runs/halfcheetah-100k (about half an hour on two cores), or takes the run that is there, and prints the rows
of docs/results.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import t3d
from t3d.config import Config, merge

FOLDER = Path("runs/halfcheetah-100k")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    cfg = merge(
        Config(),
        {
            "env": {"id": "HalfCheetah-v5"},
            "seeds": [0, 1, 2],
            "total_steps": 100_000,
            "device": args.device,
            "threads": args.threads,
            "run": {"root": str(FOLDER.parent), "name": FOLDER.name},
        },
    )
    for event in t3d.train(cfg):
        if event.event in ("eval", "end"):
            print(event, flush=True)


if __name__ == "__main__":
    main()
