"""Checks that two revisions compute the same bits: `python experiments/same_bits.py REVISION [REVISION]`.

Both run the same short trainings (the second is the working tree if not given) on this machine, with one thread, and
the hashes of all weights, targets, moments, statistics and rows of the replay are compared. Moving and renaming code
must change none of them.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import safetensors.numpy

ROOT = Path(__file__).resolve().parents[1]
DIFFER = {"time", "seconds", "steps_per_second", "save_seconds", "acting_share"}  # columns that differ each time
SMALL = "--td3.actor-hidden 32 32 --td3.critic-hidden 32 32 --td3.batch-size 32 --random-steps 150 --threads 1"
SMALL += " --eval.episodes 1 --eval.every-steps 300 --checkpoint.every-steps 200 --no-video --run.name run"
TRAININGS = {  # name: environment and flags; after "|" the total steps of a resume
    "Pendulum, eager": "Pendulum-v1 --engine eager --total-steps 600",
    "Pendulum, fused, three seeds": "Pendulum-v1 --engine fused --seeds 0 1 2 --total-steps 600",
    "Pendulum, fused, three environments": "Pendulum-v1 --engine fused --env.num-envs 3 --total-steps 600",
    "Pendulum, eager, three seeds and environments, normalised": (
        "Pendulum-v1 --engine eager --seeds 0 1 2 --env.num-envs 3 --normalise-observations --total-steps 450"
    ),
    "Pendulum, fused, three seeds, resumed": "Pendulum-v1 --engine fused --seeds 0 1 2 --total-steps 350 | 600",
    "HalfCheetah, fused": "HalfCheetah-v5 --engine fused --total-steps 500",
    "HalfCheetah, fused, three seeds, normalised": (
        "HalfCheetah-v5 --engine fused --seeds 0 1 2 --normalise-observations --total-steps 400"
    ),
    "HalfCheetah, eager, three environments, resumed": (
        "HalfCheetah-v5 --engine eager --env.num-envs 3 --total-steps 250 | 450"
    ),
    "Pendulum, an actor process that takes turns": (
        "Pendulum-v1 --engine fused --actors local:1 --max-ahead 1 --total-steps 600"
    ),
    "Pendulum, two actors that take turns, two seeds, resumed": (
        "Pendulum-v1 --engine fused --seeds 0 1 --actors local:2 --max-ahead 1 --total-steps 350 | 600"
    ),
    "Pendulum, 3-step returns, three environments": "Pendulum-v1 --replay.n-step 3 --env.num-envs 3 --total-steps 600",
    "Pendulum, LAP": "Pendulum-v1 --replay.sampling lap --td3.critic-loss huber --total-steps 500",
    "Pendulum, proportional, 3-step, resumed": (
        "Pendulum-v1 --replay.sampling proportional --replay.n-step 3 --total-steps 350 | 500"
    ),
    "Pendulum, categorical critics, scaled rewards": (
        "Pendulum-v1 --td3.critic-loss categorical --scale-rewards --seeds 0 1 --total-steps 450"
    ),
    "Pendulum, sweep of gamma, fused": "Pendulum-v1 --seeds 0 1 --sweep td3.gamma=0.9,0.99 --total-steps 450",
    "Pendulum, sweep of learning rates, eager, resumed": (
        "Pendulum-v1 --engine eager --sweep td3.critic_lr=3e-4,1e-3 td3.actor_lr=3e-4,1e-3 --total-steps 350 | 450"
    ),
    "Hopper, plus, two seeds": "Hopper-v5 --preset plus --engine eager --seeds 0 1 --total-steps 450",
    "Hopper, plus, resumed": "Hopper-v5 --preset plus --engine eager --total-steps 350 | 450",
    "Hopper, residual networks, pink noise, weight decay": (
        "Hopper-v5 --td3.actor-network residual --td3.critic-network residual --noise.kind pink --total-steps 400 "
        "--td3.weight-decay 1e-3"
    ),
    "Pendulum, limited changes of actions": "Pendulum-v1 --env.max-action-change 0.1 --total-steps 500",
    "Pendulum from images": "Pendulum-v1 --preset pixels --env.pixels 32 --seeds 0 1 --total-steps 260",
    "Pendulum from images, resumed": "Pendulum-v1 --preset pixels --env.pixels 32 --total-steps 220 | 300",
}


def main() -> int:
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("before")
    args.add_argument("after", nargs="?", help="the working tree if not given")
    given = args.parse_args()
    with checked_out(given.before) as before, checked_out(given.after) as after:
        differing = 0
        for name, words in TRAININGS.items():
            old, new = (hashes(source, words) for source in (before, after))
            changed = sorted(key for key in {*old, *new} if old.get(key) != new.get(key))
            differing += bool(changed)
            print(f"{'EQUAL' if not changed else 'DIFFERENT'}  {name}: {len(old)} arrays  {' '.join(changed[:4])}")
    print(f"{len(TRAININGS) - differing} of {len(TRAININGS)} equal")
    return differing


@contextmanager
def checked_out(revision: str | None) -> Iterator[Path]:
    """Provides the sources of a revision."""
    if revision is None:
        yield ROOT / "src"
        return
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "-C", ROOT, "worktree", "add", "--quiet", "--detach", tree, revision], check=True)
        try:
            yield tree / "src"
        finally:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", tree], check=True)


def hashes(source: Path, words: str) -> dict[str, str]:
    """Returns the SHA-256 of everything that a training has learned and stored, by name."""
    first, _, resume_to = words.partition(" | ")
    with tempfile.TemporaryDirectory() as folder:
        run(source, folder, f"train {first} {SMALL}")
        if resume_to:
            run(source, folder, f"resume runs/run --no-video --total-steps {resume_to}")
        return hashed(Path(folder) / "runs" / "run" / "checkpoints")


def run(source: Path, folder: str, words: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(source)}
    command = [sys.executable, "-m", "t3d", *words.split()]
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(f"{' '.join(command)} failed in {source}:\n{ended.stdout}\n{ended.stderr}")


def hashed(checkpoints: Path) -> dict[str, str]:
    newest = max(checkpoints.glob("*-step-*"))
    arrays = safetensors.numpy.load_file(newest / "state.safetensors")
    manifest = json.loads((newest / "manifest.json").read_bytes())["manifest"]
    for seed in {seed for seed, *_ in manifest["segments"]}:
        files = sorted((first, file[0]) for owner, first, _, file in manifest["segments"] if owner == seed)
        rows = [safetensors.numpy.load_file(checkpoints / "replay" / file)["rows"] for _, file in files]
        arrays[f"replay of {seed}"] = np.concatenate(rows)
    hashes = {name: f"{array.dtype} {array.shape} {digest(array.tobytes())}" for name, array in arrays.items()}
    with (checkpoints.parent / "metrics.csv").open(newline="") as file:
        # a later version may have more columns, which are empty here
        rows = [
            {key: value for key, value in row.items() if value and key not in DIFFER} for row in csv.DictReader(file)
        ]
    lines = sorted(map(json.dumps, rows))  # evaluations in another process arrive when they are ready
    return {**hashes, "metrics.csv": digest("\n".join(lines).encode())}


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
