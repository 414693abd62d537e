"""Creates the run folder that tests keep for each checkpoint format: python experiments/make_fixture.py FOLDER.

Run it once when t3d.store.checkpoint.FORMAT changes, into tests/fixtures/checkpoint-format-N, and never again: later
versions must read what this one wrote.
"""

from __future__ import annotations

import sys
from pathlib import Path

import t3d


def main(folder: Path) -> None:
    tiny = {"actor_hidden": [4], "critic_hidden": [4], "batch_size": 4, "random_steps": 20}
    cfg = t3d.merge(
        t3d.Config(),
        {
            "env": {"id": "Pendulum-v1", "num_envs": 2},
            "seeds": [3, 1],
            "total_steps": 60,
            "threads": 1,
            "td3": {**tiny, "normalise_observations": True},
            "noise": {"kind": "ou"},
            "eval": {"episodes": 1, "max_steps": 5},
            "log": {"every_steps": 10},
            "checkpoint": {"every_steps": 25},
            "run": {"root": str(folder.parent), "name": folder.name},
        },
    )
    for event in t3d.train(cfg):
        if event.step >= 40:
            break
    (folder / "lock").unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
