"""`t3d compare A B...` and `t3d plot RUN...`: groups of runs with intervals, and curves of any metric."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from t3d.api.groups import compare
from t3d.app.flags import RootFlag, read_flags
from t3d.app.tables import fits, table, write_json
from t3d.app.terminal import PlainConsole, draw_picture, standard_output
from t3d.config.metrics import RETURN
from t3d.errors import UserError
from t3d.files import followed
from t3d.insight.comparison import Comparison, Row
from t3d.insight.drawing import save
from t3d.insight.groups import read_groups
from t3d.insight.plots import plot_curves
from t3d.insight.wording import number_text
from t3d.store.columns import read_columns
from t3d.store.metrics import listing
from t3d.store.reader import open_run

PIPED_WIDTH = 200  # characters, so that a file gets one line per group


@dataclass(frozen=True, kw_only=True)
class CompareArgs(RootFlag):
    """Compare groups of trainings: mean and interquartile mean (IQM) with 95 % intervals, the difference to the first
    group, and how probably a seed of one group beats a seed of the other.

    A group is a run, a folder of runs, a pattern in quotes such as 'quick-*', or several of these joined by commas;
    their seeds are pooled. If their settings differ, each setting becomes a group, and so does each value of a sweep.
    """

    groups: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="GROUP...")]
    """Runs, folders of runs, or patterns, also under --root; the others are compared with the first."""
    names: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME...")] = ()
    """What to call the groups, in their order."""
    metric: Annotated[str, tyro.conf.arg(metavar="NAME")] = RETURN
    """The metric to compare; help lists those that the first group has."""
    threshold: Annotated[float | None, tyro.conf.arg(metavar="X")] = None
    """Also say when seeds first reached this, in steps and in minutes."""
    at: Annotated[int | None, tyro.conf.arg(metavar="STEP")] = None
    """Score the last three evaluations up to this step; default: the last three."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Image file, .png or .svg; default: compare.png here, or none with --json."""
    json: bool = False
    """Print everything as JSON."""


def main(arguments: list[str]) -> int:
    """Prints tables, writes the picture and says in words what they show."""
    args, console = read_flags(CompareArgs, arguments, "t3d compare"), PlainConsole(piped_width=PIPED_WIDTH)
    if args.metric == "help" and args.groups:
        return _list_metrics(read_groups(args.groups, args.root)[0].trainings[0].run.path)
    about: dict[str, Any] = {"names": args.names, "metric": args.metric, "threshold": args.threshold, "at": args.at}
    comparison = compare(*args.groups, root=args.root, **about)
    if args.json:
        write_json(comparison.fields, standard_output())
    else:
        print_comparison(comparison, console)
    if args.out is not None or not args.json:
        out = args.out or Path("compare.png")
        draw_picture(lambda: save(comparison.plot(), followed(out)), out, PlainConsole(stderr=args.json))
    return 0


def _list_metrics(path: Path) -> int:
    PlainConsole().print(listing(read_columns(path).metrics()), soft_wrap=True)
    return 0


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Prints the table, in two parts where it does not fit, what it means, and what to know about it."""
    rows, tasks, heads = comparison.rows, comparison.tasks, comparison.heads
    where = tasks[0] if len(tasks) == 1 else f"{len(tasks)} tasks ({', '.join(tasks)})"
    title = f"{'Return' if comparison.metric == RETURN else comparison.metric} on {where}, with 95 % intervals"
    whole = _table(comparison, title, heads, lambda row: row.cells)
    if len(rows) == 1 or fits(whole, console):
        console.print(whole)
    else:
        console.print(_table(comparison, title, heads[:3], lambda row: row.cells))
        console.print(_table(comparison, "", heads[3:], lambda row: row.cells[3:]))
    if comparison.threshold is not None:
        title = f"First at {number_text(comparison.threshold)} or above, median over seeds"
        console.print(_table(comparison, title, ("steps", "minutes", "reached by"), _reached_cells))
        if any(math.isinf(row.first_reached["steps"].median) for row in rows):
            console.print("-: half of the seeds or more never did, so that the median is not known.", style="dim")
    console.print()
    for row in rows[1:]:
        console.print(f"{row.verdict}.", style="bold", soft_wrap=True)
    for text in comparison.legend:
        console.print(text, style="dim", soft_wrap=True)
    for note in comparison.notes:
        console.print(note, style="yellow", soft_wrap=True)


def _table(comparison: Comparison, title: str, heads: Sequence[str], cells: Callable[[Row], list[str]]) -> Table:
    rows = table(title, "group", *heads, words=["group"])
    for row in comparison.rows:
        rows.add_row(row.name, *cells(row)[: len(heads)])
    return rows


def _reached_cells(row: Row) -> list[str]:
    steps, minutes = row.first_reached["steps"], row.first_reached["minutes"]
    medians = ["-", "-"] if math.isinf(steps.median) else [f"{steps.median:,.0f}", f"{minutes.median:,.1f}"]
    return [*medians, f"{steps.reached} of {steps.seeds} seeds"]


@dataclass(frozen=True, kw_only=True)
class PlotArgs(RootFlag):
    """Plot evaluation returns: the mean and standard deviation over seeds (over episodes for a single seed).

    Runs that differ only in their seeds are one line. A sweep has a line for each of its values.
    """

    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN...")]
    """The runs' folders, or their names under --root."""
    seed: Annotated[str | None, tyro.conf.arg(metavar="SEED")] = None
    """Plot only this seed, in a sweep the member of this name, e.g. gamma-0.98-seed-0."""
    metric: Annotated[str, tyro.conf.arg(metavar="NAME")] = RETURN
    """The metric to plot, e.g. q_mean or gradient_norms.actor; help lists those that the first run has."""
    pool: bool = True
    """Draw the seeds of runs with the same settings as one line; --no-pool: a line for each run."""
    x: Literal["steps", "time"] = "steps"
    """Plot against environment steps, or against minutes since the first evaluation or report."""
    smooth: int = 1
    """Average each evaluation with the ones before it, this many in total."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Image file, .png or .svg; default: curve.png or curve-METRIC.png in the run's folder, or curves.png."""


def plot(arguments: list[str]) -> int:
    """Plots the curves and prints the file's path."""
    args = read_flags(PlotArgs, arguments, "t3d plot")
    if not args.runs:
        raise UserError("name at least one run, e.g. t3d plot runs/<name>")
    runs = [open_run(text, args.root) for text in args.runs]
    if args.metric == "help":
        return _list_metrics(runs[0].path)
    name = "curve.png" if args.metric == RETURN else f"curve-{args.metric.replace('/', '-')}.png"
    out = args.out or (runs[0].path / name if len(runs) == 1 else Path("curves.png"))
    file = followed(args.out) if args.out else out
    keywords: dict[str, Any] = {"seed": args.seed, "x": args.x, "smooth": args.smooth, "pool": args.pool}
    drawn = draw_picture(lambda: plot_curves(runs, file, metric=args.metric, **keywords), out, PlainConsole())
    return 0 if drawn else 2
