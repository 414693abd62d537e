"""Plots learning curves, and any other metric, from run folders: what is a line, what it is called, how it looks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from t3d.config.metrics import RETURN
from t3d.config.sweeps import Values, by_values, counted, short, swept, value_text
from t3d.errors import UserError
from t3d.files import readable
from t3d.insight.curves import DrawnRun, MemberCurve, member_curves
from t3d.insight.drawing import STEPS, VALUES, drawing, look, save
from t3d.insight.groups import joined, pooled
from t3d.insight.statistics import Array, differ, on_common_steps
from t3d.store.columns import read_metric
from t3d.store.metrics import Metric, Series, parse_metric
from t3d.store.reader import Run
from t3d.types import sample_std

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_DRAWN, DRAWN_OF_MORE = 24, 12  # combinations of a sweep: one for each colour and style; the second is chosen
MOST_INSIDE = 6  # lines whose legend and bands fit into the axes; chosen
LABELS = {"steps": "environment steps per seed", "time": "minutes since the first evaluation or report"}


class Line(NamedTuple):
    """A line of the plot: the mean of some members."""

    members: list[Series]
    diverged: list[Series]  # drawn one by one, up to where they stopped
    label: str
    label_diverged: str = ""
    of_sweep: bool = False  # else each member is drawn too, as a thin line


def plot_curves(runs: Sequence[Run], out: Path, **how: Any) -> None:
    """Draws curves into a file; a link at out is replaced, not followed."""
    save(draw_curves(runs, **how), out)


def draw_curves(
    runs: Sequence[Run],
    *,
    seed: int | str | None = None,
    x: Literal["steps", "time"] = "steps",
    smooth: int = 1,
    metric: str = RETURN,
    pool: bool = True,
) -> Figure:
    """Draws evaluation returns or another metric: the mean over seeds, a band of one standard deviation, thin seeds.

    Runs that differ only in their seeds are one line, unless pool is False or one seed is asked for. A sweep has a line
    for each combination of its values, without thin ones, and bands only where they can be told apart.
    """
    if smooth < 1:
        raise UserError(f"smooth={smooth} is too small; 1 plots every evaluation as it is")
    for run in runs if metric == RETURN else ():
        run.best_member()  # raises if there is nothing to plot
    pools = pooled(runs) if pool and seed is None else [[run] for run in runs]
    lines = _lines(pools, metric, seed)
    banded = len(lines) <= MOST_INSIDE
    with drawing(_size(lines)) as figure:
        axes = figure.subplots()
        for index, line in enumerate(lines):
            _plot_line(axes, line, look(index), x, smooth, banded=banded)
        if x == "steps" and len(pools) == 1:
            start = runs[0].cfg.steps_before_learning
            axes.axvline(start, color="#999999", linewidth=0.8, linestyle=":", label="learning starts")
        axes.set_title(_title(runs, seed, smooth))
        axes.set_xlabel(LABELS[x])
        axes.set_ylabel("mean return in evaluation, no noise" if metric == RETURN else metric)
        axes.xaxis.set_major_formatter(VALUES if x == "time" else STEPS)
        axes.yaxis.set_major_formatter(VALUES)
        axes.grid(alpha=0.3)
        if parse_metric(metric).is_share:
            axes.set_ylim(-0.04, 1.04)  # where a band of one deviation may go beyond
        title = None if seed is not None else _legend_title(pools, banded=banded)
        if banded:
            axes.legend(loc="best", frameon=False, title=title)
        else:
            beside: dict[str, Any] = {"loc": "outside right upper", "fontsize": "small", "title_fontsize": "small"}
            figure.legend(**beside, frameon=False, handlelength=3, alignment="left", title=title)
    return figure


def _lines(pools: Sequence[Sequence[Run]], name: str, seed: int | str | None) -> list[Line]:
    """Returns one line for each pool of runs, in a sweep one for each combination of values; or those of one member."""
    runs = [run for pool in pools for run in pool]
    metrics, columns = read_metric([run.path for run in runs], name)
    lines = []
    for pool in pools:
        drawn = [DrawnRun(readable(run.path.name), columns[run.path]) for run in pool]
        of_run = f"{joined([run.name for run in drawn])}: " if len(pools) > 1 else ""
        for metric in metrics:
            prefix = of_run + (f"{metric.entry}: " if len(metrics) > 1 else "")
            curves = [curve for run in drawn for curve in member_curves(run, metric)]
            whole = [curve.series for curve in curves if curve.member is None]
            if whole:
                label = f"mean of {len(whole)} runs, ± std" if len(whole) > 1 else "the whole run"
                lines.append(Line(whole, [], prefix + label))
            else:
                chosen = None if seed is None else pool[0].member(seed)
                groups = {(): [curve for curve in curves if curve.member == chosen]} if chosen else _drawn(curves)
                seeds = sum(len(run.cfg.seeds) for run in pool)
                lines += [_line(prefix, values, group, metric, seeds) for values, group in groups.items()]
    if len(metrics) > 1 and len(lines) > MOST_DRAWN:
        names = joined([metric.name for metric in metrics])
        raise UserError(f"{name} would make {len(lines)} lines; choose one of its entries: {names}")
    return lines


def _line(prefix: str, values: Values, members: Sequence[MemberCurve], metric: Metric, seeds: int) -> Line:
    """Returns the line of members of the same values, and says how many seeds it is the mean of and where it ends."""
    living, diverged = ([curve for curve in members if curve.diverged is gone] for gone in (False, True))
    numbers = ", ".join(str(curve.member.seed) for curve in diverged if curve.member)
    lost, label = f"seed{'s' if len(diverged) > 1 else ''} {numbers} diverged", _members_in_words(living, metric)
    if values:
        # of several settings only the values: the legend's title has their names
        names = [f"{short(field)}={value_text(value)}" for field, value in values]
        combination = names[0] if len(values) == 1 else ", ".join(value_text(value) for _, value in values)
        count = f"{len(living)} of {seeds} seeds" if len(living) < seeds else counted(seeds, "seed")
        lost, label = f"{combination}: {lost}", f"{combination} ({count})"
    ends = [float(curve.series.steps[-1]) for curve in living]
    if differ(ends):  # some of its seeds went on
        first = living[ends.index(min(ends))].member
        label += f"; to step {min(ends):,.0f}, where {first and first.title} ends"
    columns = [curve.series for curve in living], [curve.series for curve in diverged]
    return Line(*columns, prefix + label, prefix + lost, of_sweep=bool(values))


def _legend_title(pools: Sequence[Sequence[Run]], *, banded: bool) -> str | None:
    grids = dict.fromkeys(", ".join(map(short, swept(pool[0].cfg.members))) for pool in pools)
    mean = [f"mean over seeds{', ± std' if banded else ''}"] if any(grids) else []
    return "\n".join([*(names for names in grids if ", " in names), *mean]) or None


def _drawn(curves: Sequence[MemberCurve]) -> dict[Values, list[MemberCurve]]:
    """Returns the combinations to draw: all, or of very many those with the highest last values."""
    groups: dict[Values, list[MemberCurve]] = {}
    for curve in curves:
        groups.setdefault(curve.member.values if curve.member else (), []).append(curve)
    if len(groups) <= MOST_DRAWN:
        return groups

    def last(values: Values) -> float:
        living = [curve.series.values[-1] for curve in groups[values] if not curve.diverged]
        return fmean(living) if living else -np.inf

    best = sorted(groups, key=last, reverse=True)[:DRAWN_OF_MORE]
    return {values: members for values, members in groups.items() if values in best}


def _members_in_words(curves: Sequence[MemberCurve], metric: Metric) -> str:
    if len(curves) == 1 and curves[0].member:
        return f"{curves[0].member.title}{', ± std of its episodes' if metric.name == RETURN else ''}"
    return f"mean of {len(curves)} seeds, ± std over seeds; thin: single seeds"


def _size(lines: Sequence[Line]) -> tuple[float, float]:
    """The size of the figure in inches, with room for a legend beside the axes if there are many lines."""
    if len(lines) <= MOST_INSIDE:
        return 7.5, 4.5
    entries = len(lines) + sum(bool(line.diverged) for line in lines)
    longest = max(len(line.label_diverged if line.diverged else line.label) for line in lines)
    return 8.2 + 0.075 * longest, max(4.5, 1.2 + 0.19 * entries)


def _title(runs: Sequence[Run], seed: int | str | None, smooth: int) -> str:
    title = " and ".join(dict.fromkeys(f"{run.cfg.rule_title} on {run.cfg.env.title}" for run in runs))
    title += f", averaged over {smooth} reports" if smooth > 1 else ""
    for run in runs if seed is None else ():
        count = len(by_values(run.evals))
        if count > MOST_DRAWN:
            title += f"\nthe {DRAWN_OF_MORE} of {count} combinations with the highest means of last evaluations"
    return title


def _plot_line(axes: Any, line: Line, style: dict[str, Any], x: str, smooth: int, *, banded: bool) -> None:
    """Draws the mean, its members thinly, and each member that has diverged up to where it stopped."""
    colour = style["color"]
    if line.members:
        positions, values, band = _curves_of(line.members, x, smooth)
        mean = values.mean(axis=0)
        marker = "o" if len(mean) == 1 else ""  # a line of one point cannot be seen
        axes.plot(positions, mean, **style, linewidth=2, marker=marker, label=line.label)
        if band is not None and (not line.of_sweep or (banded and len(line.members) > 1)):
            axes.fill_between(positions, mean - band, mean + band, color=colour, alpha=0.2, linewidth=0)
    for member in line.members if not line.of_sweep and len(line.members) > 1 else []:
        positions, values, _ = _curves_of([member], x, smooth)  # over its own length, which may be more than all have
        axes.plot(positions, values[0], color=colour, linewidth=0.6, alpha=0.5)
    for number, member in enumerate(line.diverged):
        positions, values, _ = _curves_of([member], x, smooth)
        label = "" if number else line.label_diverged
        axes.plot(positions, values[0], color=colour, linewidth=0.6)
        axes.plot(positions[-1:], values[0, -1:], "x", color=colour, markersize=9, label=label)


def _curves_of(members: list[Series], x: str, smooth: int) -> tuple[Array, Array, Array | None]:
    """Returns positions (T,) that all members have reached, values (members, T) and their deviation (T,)."""
    steps, values = on_common_steps(members)
    band = sample_std(values, axis=0) if len(members) > 1 else members[0].spread
    minutes = [np.interp(steps, series.steps, series.times - series.times[0]) / 60 for series in members]
    positions = steps if x == "steps" else np.mean(minutes, axis=0)
    smoothed = np.array([_average(row, smooth) for row in values])
    return positions, smoothed, None if band is None else _average(band, smooth)


def _average(row: Array, width: int) -> Array:
    """Averages each value with the ones before it, at most width in total."""
    return np.array([row[max(0, end - width) : end].mean() for end in range(1, len(row) + 1)])
