"""`t3d record RUN`: records an mp4 of a policy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from t3d.app.best_member import open_policy
from t3d.app.flags import PolicyFlags, read_flags
from t3d.app.terminal import PlainConsole
from t3d.errors import UserError
from t3d.files import followed
from t3d.store.videos import describe_video
from t3d.world.simulators import choose_graphics

STEPS_PER_EPISODE = 1000  # longer ones are cut; chosen


@dataclass(frozen=True, kw_only=True)
class RecordArgs(PolicyFlags):
    """Record a video of a policy of RUN."""

    episodes: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Episodes to record; default: 1, or as many as --steps needs."""
    steps: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Steps to record in total; default: 1,000 per episode."""
    env: Annotated[str | None, tyro.conf.arg(metavar="ENV")] = None
    """Environment to record; default: the one the run was trained on."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE.mp4")] = None
    """Video file; default: video.mp4 in the run's folder."""


def main(arguments: list[str]) -> int:
    """Records the video and prints the file's path."""
    args = read_flags(RecordArgs, arguments, "t3d record")
    episodes = args.episodes if args.episodes is not None else args.steps if args.steps is not None else 1
    steps = STEPS_PER_EPISODE * episodes if args.steps is None else args.steps
    if episodes < 1 or steps < 1:
        raise UserError(f"{episodes} episodes and {steps} steps are too few; record at least 1")
    choose_graphics()
    from t3d.insight.video import record  # noqa: PLC0415 (only after the graphics are chosen)

    console = PlainConsole()
    run, member, policy, env, _ = open_policy(args.run, args.root, args.seed, args.policy, args.env, console)
    out = args.out or (run.path if run.path.is_dir() else Path()) / "video.mp4"
    target = followed(args.out) if args.out else out
    mean_return = record(policy, env, target, seed=member.seed, episodes=episodes, steps=steps)
    if args.out is None:
        describe_video(run.path, member.name, policy.about["step"])
    console.print(f"recorded: {out} (mean return {mean_return:,.1f})", soft_wrap=True)
    return 0
