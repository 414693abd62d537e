"""`t3d plot RUN...`: learning curves in one picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console

from t3d.errors import UserError
from t3d.insight.plots import plot_curves
from t3d.insight.runs import open_run


@dataclass(frozen=True)
class Plot:
    """Draw evaluation return against steps: the mean over seeds with a band of one standard deviation, run by run."""

    runs: tyro.conf.Positional[tuple[str, ...]]
    """Run folders."""
    seed: int | None = None
    """Draw this seed alone."""
    out: Path | None = None
    """The picture; curve.png in the run's folder, or curves.png here for several runs."""


def main(arguments: list[str]) -> int:
    """Parses and draws."""
    args = tyro.cli(Plot, args=arguments, prog="t3d plot")
    if not args.runs:
        raise UserError("name at least one run, e.g. t3d plot runs/<name>")
    runs = [open_run(text) for text in args.runs]
    for run in runs:
        run.best_seed()  # says so if there is nothing to draw
    out = args.out or (runs[0].path / "curve.png" if len(runs) == 1 else Path("curves.png"))
    try:
        plot_curves(runs, out, args.seed)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot write the picture {out}: {error}") from None
    Console().print(f"drawn: {out}", highlight=False, soft_wrap=True)
    return 0
