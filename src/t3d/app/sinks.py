"""`t3d sinks RUN...`: writes runs for other tools."""

from __future__ import annotations

import shlex
import threading
from dataclasses import dataclass
from typing import Annotated

import tyro

from t3d.app.flags import RootFlag, read_flags
from t3d.config.settings import SinkName
from t3d.errors import UserError, check_installed
from t3d.files import Refused, display_path, error_text, printable
from t3d.store.reader import locate

SHOWN_BY = {  # a run written for other tools
    "tensorboard": ("tensorboard --logdir {path}", "its curves in TensorBoard"),
    "wandb": ("wandb sync {path}/wandb/offline-run-*", "upload it to W&B"),
}


@dataclass(frozen=True, kw_only=True)
class SinksArgs(RootFlag):
    """Write runs for TensorBoard or W&B, from their logs; t3d train --sinks does so while it trains."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN...")]
    """Folders of runs, or their names under --root."""
    to: tuple[SinkName, ...] = ("tensorboard",)
    """For which tools."""


def main(arguments: list[str]) -> int:
    """Writes all runs for all tools; what was written before is replaced."""
    args = read_flags(SinksArgs, arguments, "t3d sinks")
    if not args.runs:
        raise UserError("name one or more runs to write; t3d runs lists them")
    for name in args.to:
        check_installed("t3d sinks", [name], name)
    from t3d.sinks.process import follow  # noqa: PLC0415

    over = threading.Event()
    over.set()  # to the end of the log, and no further
    for path in [locate(run, args.root) for run in args.runs]:
        problems: list[str] = []
        try:
            if not follow(path, args.to, over, problems.append):
                raise UserError(f"{display_path(path)} is being written by its own training, or by another t3d sinks")
        except (OSError, Refused) as error:
            raise UserError(
                f"{display_path(path)} cannot be written for {', '.join(args.to)}: {error_text(error)}"
            ) from None
        if problems:
            raise UserError("; ".join(problems))
        for name in args.to:
            command, about = SHOWN_BY[name]
            print(printable(f"{command.format(path=shlex.quote(display_path(path)))}  # {about}"))  # noqa: T201
    return 0
