"""Plots learning curves, and any other metric, from run folders: what is a line, what it is called, how it looks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple

import numpy as np

from t3d.config import Member
from t3d.config.sweeps import Values, by_values, counted, short, swept, value_text
from t3d.errors import UserError
from t3d.files import readable
from t3d.insight.curves import DrawnRun, MemberCurve, member_curves
from t3d.insight.drawing import STEPS, VALUES, drawing, save
from t3d.insight.groups import joined, pooled
from t3d.insight.statistics import Array, differ, on_common_steps
from t3d.store.columns import read_metric
from t3d.store.metrics import RETURN, Metric, Series
from t3d.store.reader import Run
from t3d.types import sample_std

MOST_DRAWN, DRAWN_OF_MORE = 24, 12  # combinations of a sweep: one for each colour and style; the second is chosen
COLOURS = ["#1f77b4", "#d95f02", "#1b9e77", "#7570b3", "#e7298a", "#666666"]
LINES = ["-", "--", ":", "-."]  # the next one when all colours are taken
MOST_INSIDE = 6  # lines whose legend and bands fit into the axes; chosen
LABELS = {"steps": "environment steps per seed", "time": "minutes since the first evaluation"}

Pool = Sequence[Run]  # runs of the same settings, whose seeds are drawn as one line


class Line(NamedTuple):
    """A line of the plot: the mean of some members."""

    members: list[Series]
    diverged: list[Series]  # drawn one by one, up to where they stopped
    label: str
    label_diverged: str = ""
    of_sweep: bool = False  # else each member is drawn too, as a thin line


class PlottedCurves(NamedTuple):
    """A metric of some members, at the steps that all of them have reached."""

    x: Array  # (T,)
    values: Array  # (members, T)
    band: Array | None  # (T,): deviation over members, or over the episodes of a single one


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
    """Plots evaluation returns or another metric: the mean over seeds, a band of one standard deviation, thin seeds.

    Runs that differ only in their seeds are one line, unless pool is False or one seed is asked for. A sweep has a line
    for each combination of its values, without thin ones, and bands only where they can be told apart. A link at out is
    replaced, not followed.
    """
    pools: list[Pool] = [*pooled(runs)] if pool and seed is None else [[run] for run in runs]
    lines = _lines(pools, metric, seed)
    with drawing() as plt:
        figure = _figure(plt, lines, pools, runs, seed=seed, x=x, smooth=smooth, metric=metric)
        save(figure, out)
        plt.close(figure)


def _lines(pools: Sequence[Pool], name: str, seed: int | str | None) -> list[Line]:
    """Returns one line for each pool of runs, in a sweep one for each combination of values; or those of one member."""
    runs = [run for pool in pools for run in pool]
    metrics, columns = read_metric([run.path for run in runs], name)
    chosen = {} if seed is None else {run.path: run.member(seed) for run in runs}
    lines = []
    for pool in pools:
        drawn = [DrawnRun(readable(run.path.name), columns[run.path]) for run in pool]
        of_run = f"{joined([run.name for run in drawn])}: " if len(pools) > 1 else ""
        for metric in metrics:
            prefix = of_run + (f"{metric.entry}: " if len(metrics) > 1 else "")
            curves = [curve for run in drawn for curve in member_curves(run, metric)]
            lines += _lines_of_pool(curves, metric, prefix, pools, _seeds_of(pool), chosen)
    if len(metrics) > 1 and len(lines) > MOST_DRAWN:
        names = joined([metric.name for metric in metrics])
        raise UserError(f"{name} would make {len(lines)} lines; choose one of its entries: {names}")
    return lines


def _lines_of_pool(
    curves: Sequence[MemberCurve],
    metric: Metric,
    prefix: str,
    pools: Sequence[Pool],
    seeds: int,
    chosen: Mapping[Path, Member],
) -> list[Line]:
    whole = [curve.series for curve in curves if curve.member is None]
    if whole:
        return [Line(whole, [], prefix + (f"mean of {len(whole)} runs, ± std" if len(whole) > 1 else "the whole run"))]
    if chosen:
        curves = [curve for curve in curves if curve.member == chosen[curve.run.data.path]]
        return [Line([curve.series for curve in curves], [], prefix + _members_in_words(curves, metric))]
    lines = []
    for values, members in _drawn(curves).items():
        living, diverged = ([curve for curve in members if curve.diverged is gone] for gone in (False, True))
        label = _combination(values) + _count(len(living), seeds, pools) if values else ""
        label = (label or _members_in_words(living, metric)) + _cut(living)
        numbers = ", ".join(str(curve.member.seed) for curve in diverged if curve.member)
        lost = f"seed{'s' if len(diverged) > 1 else ''} {numbers} diverged"
        lost = f"{_combination(values)}: {lost}" if values else lost
        columns = [curve.series for curve in living], [curve.series for curve in diverged]
        lines.append(Line(*columns, prefix + label, prefix + lost, of_sweep=bool(values)))
    return lines


def _legend_title(pools: Sequence[Pool], *, banded: bool) -> str | None:
    """Says what the lines of sweeps are."""
    sweeps = [pool[0] for pool in pools if swept(pool[0].cfg.members)]
    if not sweeps:
        return None
    grids = dict.fromkeys(", ".join(map(short, swept(run.cfg.members))) for run in sweeps)
    names = [names for names in grids if ", " in names]
    counts = _seed_counts(pools)
    seeds = f"{max(counts)} seeds" if len(counts) == 1 else "seeds"
    mean = "one seed each" if max(counts) == 1 else f"mean of {seeds}{', ± std over seeds' if banded else ''}"
    return "\n".join([*names, mean])


def _seeds_of(pool: Pool) -> int:
    return sum(len(run.cfg.seeds) for run in pool)


def _seed_counts(pools: Sequence[Pool]) -> set[int]:
    return {_seeds_of(pool) for pool in pools if swept(pool[0].cfg.members)}


def _combination(values: Values) -> str:
    """Formats values: gamma=0.98, or only the values of several settings, whose names the legend's title has."""
    if len(values) > 1:
        return ", ".join(value_text(value) for _, value in values)
    return ", ".join(f"{short(field)}={value_text(value)}" for field, value in values)


def _count(living: int, seeds: int, pools: Sequence[Pool]) -> str:
    """Says how many seeds a line is the mean of, where it is not what the legend's title says."""
    if living < seeds:
        return f" ({living} of {counted(seeds, 'seed')})"
    return "" if len(_seed_counts(pools)) == 1 else f" ({counted(seeds, 'seed')})"


def _cut(living: Sequence[MemberCurve]) -> str:
    """Says where a mean ends, if some of its seeds went on."""
    ends = [float(curve.series.steps[-1]) for curve in living]
    if not differ(ends):
        return ""
    first = living[ends.index(min(ends))].member
    return f"; to step {min(ends):,.0f}, where {first and first.title} ends"


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
    title = None if seed is not None else _legend_title(pools, banded=banded)
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


def _curves_of(members: list[Series], x: str, smooth: int) -> PlottedCurves:
    steps, values = on_common_steps([series.steps for series in members], [series.values for series in members])
    band = sample_std(values, axis=0) if len(members) > 1 else members[0].spread
    minutes = [np.interp(steps, series.steps, series.times - series.times[0]) / 60 for series in members]
    positions = steps if x == "steps" else np.mean(minutes, axis=0)
    smoothed = np.array([_average(row, smooth) for row in values])
    return PlottedCurves(positions, smoothed, None if band is None else _average(band, smooth))


def _average(row: Array, width: int) -> Array:
    """Averages each value with the ones before it, at most width in total."""
    return np.array([row[max(0, end - width) : end].mean() for end in range(1, len(row) + 1)])


def _plot_line(axes: Any, line: Line, colour: str, style: str, x: str, smooth: int, *, banded: bool) -> None:
    curves = _curves_of(line.members, x, smooth)
    mean = curves.values.mean(axis=0)
    marker = "o" if len(mean) == 1 else ""  # a line of one point cannot be seen
    axes.plot(curves.x, mean, color=colour, linestyle=style, linewidth=2, marker=marker, label=line.label)
    if curves.band is not None and (not line.of_sweep or (banded and len(line.members) > 1)):
        axes.fill_between(curves.x, mean - curves.band, mean + curves.band, color=colour, alpha=0.2, linewidth=0)
    for member in line.members if not line.of_sweep and len(line.members) > 1 else []:
        own = _curves_of([member], x, smooth)  # over its own length, which may be more than all have
        axes.plot(own.x, own.values[0], color=colour, linewidth=0.6, alpha=0.5)


def _plot_diverged(axes: Any, line: Line, colour: str, x: str, smooth: int) -> None:
    """Draws each member that has diverged up to where it stopped."""
    for number, member in enumerate(line.diverged):
        curves = _curves_of([member], x, smooth)
        label = "" if number else line.label_diverged
        axes.plot(curves.x, curves.values[0], color=colour, linewidth=0.6)
        axes.plot(curves.x[-1:], curves.values[0, -1:], "x", color=colour, markersize=9, label=label)
