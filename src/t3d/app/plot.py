"""`t3d plot RUN...`: plots learning curves, or any other metric of runs, in one image."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from t3d.app.flags import RootFlag, read_flags
from t3d.app.terminal import PlainConsole
from t3d.errors import UserError
from t3d.files import error_text, followed
from t3d.insight.plots import plot_curves
from t3d.store.columns import read_columns
from t3d.store.metrics import RETURN, listing
from t3d.store.reader import open_run


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


def main(arguments: list[str]) -> int:
    """Plots the curves and prints the file's path."""
    args = read_flags(PlotArgs, arguments, "t3d plot")
    if not args.runs:
        raise UserError("name at least one run, e.g. t3d plot runs/<name>")
    if args.smooth < 1:
        raise UserError(f"smooth={args.smooth} is too small; 1 plots every evaluation as it is")
    runs = [open_run(text, args.root) for text in args.runs]
    if args.metric == "help":
        PlainConsole().print(listing(read_columns(runs[0].path).metrics()), soft_wrap=True)
        return 0
    for run in runs if args.metric == RETURN else ():
        run.best_member()  # raises if there is nothing to plot
    name = "curve.png" if args.metric == RETURN else f"curve-{args.metric}.png"
    out = args.out or (runs[0].path / name if len(runs) == 1 else Path("curves.png"))
    file = followed(args.out) if args.out else out
    try:
        plot_curves(runs, file, seed=args.seed, x=args.x, smooth=args.smooth, metric=args.metric, pool=args.pool)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot write the image {out}: {error_text(error)}") from None
    except ImportError as error:
        raise UserError(f"plots need matplotlib ({error}); pip install matplotlib") from None
    PlainConsole().print(f"plotted: {out}", soft_wrap=True)
    return 0
