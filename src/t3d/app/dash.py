"""`t3d dash [RUNS_DIR]`: shows runs in a browser, live."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from t3d.app.flags import read_flags
from t3d.app.terminal import printable
from t3d.errors import UserError, check_installed

NEEDED = "the dashboard", ("starlette", "uvicorn", "plotly"), "dash"


@dataclass(frozen=True)
class DashArgs:
    """Show the runs in a folder in a browser, while they train and afterwards. Prints the address to open."""

    root: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUNS_DIR")] = Path("runs")
    """Folder that contains the runs."""
    port: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Port to listen on; default: 8700, or a free one if that is taken."""
    host: Annotated[str, tyro.conf.arg(metavar="ADDRESS")] = "127.0.0.1"
    """Address to listen on; with any other than this machine's own, everything needs the token."""


def main(arguments: list[str]) -> int:
    """Serves until Ctrl-C."""
    args = read_flags(DashArgs, arguments, "t3d dash")
    check_installed(*NEEDED)
    if not os.path.isdir(args.root):  # noqa: PTH112 (Path.is_dir raises where this says no)
        raise UserError(f"there is no folder {args.root}; t3d train writes runs to runs/, or name their folder")
    if (args.root / "events.jsonl").exists():
        raise UserError(f"{args.root} is a run itself; t3d dash {args.root.parent} shows it among the others")
    from t3d.dash.process import NICE, access_to, address_of, listen, serve  # noqa: PLC0415 (needs the extra)

    opened = listen(args.host, args.port)
    access = access_to(opened, args.host)
    print(printable(f"dashboard: {address_of(access)}   (Ctrl-C ends it)"), flush=True)  # noqa: T201
    os.nice(NICE)  # not lower_priority: the session is that of a terminal, whose shell would be lowered too
    serve(opened, args.root, access)
    return 0
