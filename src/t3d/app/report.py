"""`t3d report RUN...`: one HTML file about runs that opens anywhere, offline: also the card of a policy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from t3d.app.explain import check_folder, write_page
from t3d.app.flags import RootFlag, read_flags
from t3d.app.terminal import PlainConsole
from t3d.errors import UserError
from t3d.files import display_path
from t3d.insight.comparison import compare
from t3d.insight.groups import read_groups, run_paths
from t3d.insight.report import report
from t3d.insight.wording import size_text

MOST_RUNS = 30  # in one report; chosen


@dataclass(frozen=True, kw_only=True)
class ReportArgs(RootFlag):
    """Write a report of one or more runs: one HTML file with everything in it, to keep, mail or print.

    It has the verdict in words, curves, diagnostics, alarms, settings, machine, a video if there is one, and how the
    best policy did on fresh episodes, if t3d train or t3d eval has played them. Several runs are compared as t3d
    compare does. It reads files, and runs no code of the run.
    """

    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN...")]
    """Runs, folders of runs, or patterns in quotes such as 'quick-*', also under --root."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE.html")] = None
    """The file; default: report.html in the run's folder, or here for several runs."""


def main(arguments: list[str]) -> int:
    """Writes the report and prints its path."""
    args, console = read_flags(ReportArgs, arguments, "t3d report"), PlainConsole()
    if not args.runs:
        raise UserError("name at least one run, e.g. t3d report runs/<name>")
    check_folder(args.out)
    paths = [*dict.fromkeys(path for word in args.runs for path in run_paths(word, args.root))]
    if len(paths) > MOST_RUNS:
        raise UserError(f"these are {len(paths)} runs, and a report has at most {MOST_RUNS}; name fewer")
    comparison, refused = None, ""
    try:
        groups = read_groups(args.runs, args.root)
        comparison = compare(groups) if len(groups) > 1 else None
    except UserError as error:
        refused = str(error) if len(paths) > 1 else ""
    content = report(paths, comparison, refused).encode(errors="replace")
    out = write_page(content, args.out, paths[0] / "report.html" if len(paths) == 1 else Path("report.html"))
    console.print(f"report: {display_path(out)} ({size_text(len(content))})", soft_wrap=True)
    return 0
