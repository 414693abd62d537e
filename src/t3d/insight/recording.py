"""Records the policies of one evaluation, in a process beside the training."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from t3d.config import load_config
from t3d.config.networks import own_network
from t3d.errors import UserError
from t3d.modules import find_again
from t3d.policy.files import read_policy
from t3d.run.child import begin
from t3d.store.journal import remembered_files
from t3d.world.graphics import choose_graphics
from t3d.world.make import own_names

STEPS = 300  # of a video, as of the one after training
NICE = 19


def main() -> int:
    """Records what the first line of standard input says; ends at once when that is closed."""
    task = begin(NICE, lambda: os._exit(1))
    try:
        record_all(Path(task["path"]), task["step"])
    except UserError as error:
        print(f"error: {error}")  # noqa: T201
        return 2
    return 0


def record_all(path: Path, step: int) -> None:
    """Writes videos/MEMBER-step-N.mp4 for every member whose policy of this step is there."""
    choose_graphics()
    from t3d.insight.video import record  # noqa: PLC0415 (only after the graphics are chosen)

    cfg = load_config(path / "config.toml")
    find_again(own_names(cfg), remembered_files(path), path)
    for member in cfg.members:
        stem = path / "videos" / ".policies" / member.name
        if not stem.with_name(f"{stem.name}.safetensors").exists():
            continue
        policy = read_policy(stem, own_network(cfg.td3))
        if policy.about["step"] == step:  # otherwise it has diverged since
            out = path / "videos" / f"{member.name}-step-{step}.mp4"
            record(policy, cfg.env, out, seed=member.seed, episodes=STEPS, steps=STEPS)


if __name__ == "__main__":
    sys.exit(main())
