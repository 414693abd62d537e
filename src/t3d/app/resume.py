"""`t3d resume RUN`: continues a run exactly where it was."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from t3d.app.flags import RunFlags, ShowFlags, read_flags
from t3d.app.session import show
from t3d.app.terminal import SignalRequests
from t3d.events import Event
from t3d.store.reader import locate


@dataclass(frozen=True, kw_only=True)
class ResumeArgs(RunFlags, ShowFlags):
    """Continue a run from its newest complete checkpoint, as if it had never stopped.

    A run that was killed before its first checkpoint starts over. Other settings stay as they are; a new run with some
    of them changed is t3d train --config RUN/config.toml, then the flags.
    """

    total_steps: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Train up to this many steps per seed instead of the run's original number."""
    actors: Annotated[str | None, tyro.conf.arg(metavar="local:N|ray:N")] = None
    """Change how many actors there are, and where (for runs that had some); environments per seed stay the same."""
    ray_address: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS")] = None
    """Join this Ray cluster from now on; with "" T3D starts one on this machine."""
    ray_cpus: Annotated[float | None, tyro.conf.arg(metavar="CPUS")] = None
    """From now on: CPUs of the cluster that each of its actors reserves; may be a fraction."""
    bad_values: Annotated[Literal["raise", "skip", "clip"] | None, tyro.conf.arg(metavar="raise|skip|clip")] = None
    """From now on: end the run, end the episode, or fix the value when the environment returns an invalid one."""
    hang_seconds: Annotated[float | None, tyro.conf.arg(metavar="SECONDS")] = None
    """From now on: how long an actor's environment may take for one step or reset."""


def main(arguments: list[str]) -> int:
    """Resumes the run."""
    args = read_flags(ResumeArgs, arguments, "t3d resume")
    path = locate(args.run, args.root)

    def events(requested: SignalRequests) -> Iterator[Event]:
        from t3d.run.live import resume  # noqa: PLC0415 (imports torch)

        return resume(
            path,
            total_steps=args.total_steps,
            actors=args.actors,
            ray_address=args.ray_address,
            ray_cpus=args.ray_cpus,
            bad_values=args.bad_values,
            hang_seconds=args.hang_seconds,
            stop=requested.stop,
            save=requested.save,
        )

    return show(events, video=args.video, quiet=args.quiet, json=args.json)
