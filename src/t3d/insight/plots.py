"""Plots learning curves, and any other figure, from run folders."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from t3d.config.sweeps import by_values
from t3d.files import replace
from t3d.insight.figures import RETURN
from t3d.insight.lines import DRAWN_OF_MORE, MOST_DRAWN, Line, Pool, curves_of, legend_title, lines_of, pools_of
from t3d.store.reader import Run

COLOURS = ["#1f77b4", "#d95f02", "#1b9e77", "#7570b3", "#e7298a", "#666666"]
LINES = ["-", "--", ":", "-."]  # the next one when all colours are taken
STEPS, VALUES = "{x:,.0f}", "{x:,.6g}"  # how the numbers at axes are written
MOST_INSIDE = 6  # lines whose legend and bands fit into the axes; chosen
LABELS = {"steps": "environment steps per seed", "time": "minutes since the first evaluation"}


def plot_curves(
    runs: Sequence[Run],
    out: Path,
    *,
    seed: int | str | None = None,
    x: Literal["steps", "time"] = "steps",
    smooth: int = 1,
    metric: str = RETURN,
    pool: bool = True,
) -> None:
    """Plots evaluation returns or another figure: the mean over seeds, a band of one standard deviation, thin seeds.

    Runs that differ only in their seeds are one line, unless pool is False or one seed is asked for. A sweep has a line
    for each combination of its values, without thin ones, and bands only where they can be told apart. A link at out is
    replaced, not followed.
    """
    pools = pools_of(runs, pool=pool and seed is None)
    lines = lines_of(pools, metric, seed)
    with drawing() as plt:
        figure = _figure(plt, lines, pools, runs, seed=seed, x=x, smooth=smooth, metric=metric)
        save(figure, out)
        plt.close(figure)


@contextmanager
def drawing(style: dict[Any, Any] | None = None) -> Iterator[Any]:
    """Provides pyplot, for files only, and without reading names that contain a $ as formulas."""
    import matplotlib as mpl  # noqa: PLC0415 (0.5 s, and only plots need it)

    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    with mpl.rc_context({"text.parse_math": False, **(style or {})}):
        yield plt


def save(figure: Any, out: Path) -> None:
    """Writes a figure to a file, in the format of its name."""
    image = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of letters that the font lacks, e.g. in a name
        figure.savefig(image, format=out.suffix[1:] or "png", dpi=130)
    replace(out, image.getvalue())


def _figure(
    plt: Any,
    lines: Sequence[Line],
    pools: Sequence[Pool],
    runs: Sequence[Run],
    *,
    seed: int | str | None,
    x: str,
    smooth: int,
    metric: str,
) -> Any:
    banded = len(lines) <= MOST_INSIDE
    figure, axes = plt.subplots(figsize=_size(lines), layout="constrained")
    for index, line in enumerate(lines):
        colour, style = COLOURS[index % len(COLOURS)], LINES[index // len(COLOURS) % len(LINES)]
        if line.members:
            _plot_line(axes, line, colour, style, x, smooth, banded=banded)
        _plot_diverged(axes, line, colour, x, smooth)
    if x == "steps" and len(pools) == 1:
        axes.axvline(runs[0].cfg.random_steps, color="#999999", linewidth=0.8, linestyle=":", label="learning starts")
    axes.set_title(_title(runs, seed, smooth))
    _label(axes, x, metric)
    title = None if seed is not None else legend_title(pools, banded=banded)
    if banded:
        axes.legend(loc="best", frameon=False, title=title)
    else:
        beside: dict[str, Any] = {"loc": "outside right upper", "fontsize": "small", "title_fontsize": "small"}
        figure.legend(**beside, frameon=False, handlelength=3, alignment="left", title=title)
    return figure


def _label(axes: Any, x: str, metric: str) -> None:
    is_return = metric == RETURN
    axes.set_xlabel(LABELS[x] if is_return else LABELS[x].replace("evaluation", "report"))
    axes.set_ylabel("mean return in evaluation, no noise" if is_return else metric)
    axes.xaxis.set_major_formatter(VALUES if x == "time" else STEPS)
    axes.yaxis.set_major_formatter(VALUES)
    axes.grid(alpha=0.3)


def _size(lines: Sequence[Line]) -> tuple[float, float]:
    """The size of the figure in inches, with room for a legend beside the axes if there are many lines."""
    if len(lines) <= MOST_INSIDE:
        return 7.5, 4.5
    entries = len(lines) + sum(bool(line.diverged) for line in lines)
    longest = max(len(line.label_diverged if line.diverged else line.label) for line in lines)
    return 8.2 + 0.075 * longest, max(4.5, 1.2 + 0.19 * entries)


def _title(runs: Sequence[Run], seed: int | str | None, smooth: int) -> str:
    title = " and ".join(dict.fromkeys(f"{run.cfg.rule_title} on {run.cfg.env.title}" for run in runs))
    title += f", averaged over {smooth} evaluations" if smooth > 1 else ""
    for run in runs if seed is None else ():
        count = len(by_values(run.evals))
        if count > MOST_DRAWN:
            title += f"\nthe {DRAWN_OF_MORE} of {count} combinations with the highest means of last evaluations"
    return title


def _plot_line(axes: Any, line: Line, colour: str, style: str, x: str, smooth: int, *, banded: bool) -> None:
    curves = curves_of(line.members, x, smooth)
    mean = curves.values.mean(axis=0)
    marker = "o" if len(mean) == 1 else ""  # a line of one point cannot be seen
    axes.plot(curves.x, mean, color=colour, linestyle=style, linewidth=2, marker=marker, label=line.label)
    if curves.band is not None and (not line.of_sweep or (banded and len(line.members) > 1)):
        axes.fill_between(curves.x, mean - curves.band, mean + curves.band, color=colour, alpha=0.2, linewidth=0)
    for member in line.members if not line.of_sweep and len(line.members) > 1 else []:
        one = curves_of([member], x, smooth)  # over its own length, which may be more than all have
        axes.plot(one.x, one.values[0], color=colour, linewidth=0.6, alpha=0.5)


def _plot_diverged(axes: Any, line: Line, colour: str, x: str, smooth: int) -> None:
    """Draws each member that has diverged up to where it stopped."""
    for place, member in enumerate(line.diverged):
        curves = curves_of([member], x, smooth)
        label = "" if place else line.label_diverged
        axes.plot(curves.x, curves.values[0], color=colour, linewidth=0.6)
        axes.plot(curves.x[-1:], curves.values[0, -1:], "x", color=colour, markersize=9, label=label)
