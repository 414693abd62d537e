"""Plots learning curves from run folders."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from t3d.config import Member
from t3d.config.sweeps import Values, by_values, counted, short, swept, value_text
from t3d.files import replace
from t3d.store.reader import Run

COLOURS = ["#1f77b4", "#d95f02", "#1b9e77", "#7570b3", "#e7298a", "#666666"]
LINES = ["-", "--", ":", "-."]  # the next one when all colours are taken
MOST_INSIDE = 6  # lines whose legend and bands fit into the axes; chosen
MOST_DRAWN, DRAWN_OF_MORE = len(COLOURS) * len(LINES), 12  # combinations of a sweep; the second is chosen
LABELS = {"steps": "environment steps per seed", "time": "minutes since the first evaluation"}


class Curves(NamedTuple):
    """The evaluations of some members of a run, at the steps that all of them have reached."""

    x: NDArray[np.float64]  # (T,)
    returns: NDArray[np.float64]  # (members, T)
    band: NDArray[np.float64]  # (T,): deviation over members, or over the episodes of a single one


class Line(NamedTuple):
    """A line of the plot: the mean of some members of a run."""

    run: Run
    members: list[Member]
    diverged: list[Member]  # drawn one by one, up to where they stopped
    label: str
    label_diverged: str = ""
    of_sweep: bool = False  # else each member is drawn too, as a thin line


def plot_curves(
    runs: Sequence[Run],
    out: Path,
    *,
    seed: int | str | None = None,
    x: Literal["steps", "time"] = "steps",
    smooth: int = 1,
) -> None:
    """Plots evaluation returns: each run's mean over seeds, a band of one standard deviation, seeds as thin lines.

    A sweep has a line for each combination of its values, without thin ones, and bands only where they can be told
    apart. A link at out is replaced, not followed.
    """
    import matplotlib as mpl  # noqa: PLC0415 (0.5 s, and only plots need it)

    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    lines = [line for run in runs for line in _lines(run, seed, runs)]
    banded = len(lines) <= MOST_INSIDE
    figure, axes = plt.subplots(figsize=_size(lines), layout="constrained")
    for index, line in enumerate(lines):
        colour, style = COLOURS[index % len(COLOURS)], LINES[index // len(COLOURS) % len(LINES)]
        if line.members:
            _plot_line(axes, line, colour, style, x, smooth, banded=banded)
        _plot_diverged(axes, line, colour, x, smooth)
    if x == "steps" and len(runs) == 1:
        axes.axvline(runs[0].cfg.random_steps, color="#999999", linewidth=0.8, linestyle=":", label="learning starts")
    axes.set_title(_title(runs, seed, smooth))
    axes.set_xlabel(LABELS[x])
    axes.set_ylabel("mean return in evaluation, no noise")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.6g}" if x == "time" else f"{value:,.0f}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    axes.grid(alpha=0.3)
    title = None if seed is not None else _legend_title(runs, banded=banded)
    if banded:
        axes.legend(loc="best", frameon=False, title=title)
    else:
        beside: dict[str, Any] = {"loc": "outside right upper", "fontsize": "small", "title_fontsize": "small"}
        figure.legend(**beside, frameon=False, handlelength=3, alignment="left", title=title)
    image = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of letters that the font lacks, e.g. in a name
        figure.savefig(image, format=out.suffix[1:] or "png", dpi=130)
    plt.close(figure)
    replace(out, image.getvalue())


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


def _lines(run: Run, seed: int | str | None, runs: Sequence[Run]) -> list[Line]:
    """Returns one line for a run, in a sweep one for each combination of values; or that of one member."""
    name = f"{run.path.name}: " if len(runs) > 1 else ""
    if seed is not None:
        member = run.member(seed)
        return [Line(run, [member], [], name + _in_words([member]))]
    groups = by_values(run.evals)
    lines = []
    for values in _drawn(run, groups):
        living = [member for member in groups[values] if member not in run.stopped]
        diverged = [member for member in groups[values] if member in run.stopped]
        lost = f"seed{'s' if len(diverged) > 1 else ''} {', '.join(str(one.seed) for one in diverged)} diverged"
        label, prefix = _in_words(living), ""
        if values:
            label = _combination(values) + _count(len(living), len(run.cfg.seeds), runs)
            prefix = f"{_combination(values)}: "
        lines.append(Line(run, living, diverged, name + label, f"{name}{prefix}{lost}", of_sweep=bool(values)))
    return lines


def _combination(values: Values) -> str:
    """Formats values: gamma=0.98, or only the values of several settings, whose names the legend's title has."""
    if len(values) > 1:
        return ", ".join(value_text(value) for _, value in values)
    return ", ".join(f"{short(field)}={value_text(value)}" for field, value in values)


def _count(living: int, seeds: int, runs: Sequence[Run]) -> str:
    """Says how many seeds a line is the mean of, where it is not what the legend's title says."""
    if living < seeds:
        return f" ({living} of {counted(seeds, 'seed')})"
    return "" if len(_seed_counts(runs)) == 1 else f" ({counted(seeds, 'seed')})"


def _seed_counts(runs: Sequence[Run]) -> set[int]:
    return {len(run.cfg.seeds) for run in runs if swept(run.cfg.members)}


def _drawn(run: Run, groups: dict[Values, list[Member]]) -> list[Values]:
    """Returns the combinations to draw: all, or of very many those with the highest last evaluations."""
    if len(groups) <= MOST_DRAWN:
        return [*groups]

    def last(values: Values) -> float:
        living = [member for member in groups[values] if member not in run.stopped]
        return fmean(run.evals[member][-1].mean_return for member in living) if living else -np.inf

    best = sorted(groups, key=last, reverse=True)[:DRAWN_OF_MORE]
    return [values for values in groups if values in best]


def _plot_line(axes: Any, line: Line, colour: str, style: str, x: str, smooth: int, *, banded: bool) -> None:
    curves = _curves(line.run, line.members, x, smooth)
    mean = curves.returns.mean(axis=0)
    marker = "o" if len(mean) == 1 else ""  # a line of one point cannot be seen
    axes.plot(curves.x, mean, color=colour, linestyle=style, linewidth=2, marker=marker, label=line.label)
    if not line.of_sweep or (banded and len(line.members) > 1):
        axes.fill_between(curves.x, mean - curves.band, mean + curves.band, color=colour, alpha=0.2, linewidth=0)
    for one in curves.returns if not line.of_sweep and len(line.members) > 1 else []:
        axes.plot(curves.x, one, color=colour, linewidth=0.6, alpha=0.5)


def _plot_diverged(axes: Any, line: Line, colour: str, x: str, smooth: int) -> None:
    """Draws each member that has diverged up to where it stopped."""
    for place, member in enumerate(line.diverged):
        curves = _curves(line.run, [member], x, smooth)
        label = "" if place else line.label_diverged
        axes.plot(curves.x, curves.returns[0], color=colour, linewidth=0.6)
        axes.plot(curves.x[-1:], curves.returns[0, -1:], "x", color=colour, markersize=9, label=label)


def _legend_title(runs: Sequence[Run], *, banded: bool) -> str | None:
    """Says what the lines of sweeps are."""
    sweeps = [run for run in runs if swept(run.cfg.members)]
    if not sweeps:
        return None
    grids = dict.fromkeys(", ".join(map(short, swept(run.cfg.members))) for run in sweeps)
    names = [names for names in grids if ", " in names]
    counts = _seed_counts(runs)
    seeds = f"{max(counts)} seeds" if len(counts) == 1 else "seeds"
    what = "one seed each" if max(counts) == 1 else f"mean of {seeds}{', ± std over seeds' if banded else ''}"
    return "\n".join([*names, what])


def _curves(run: Run, members: list[Member], x: str, smooth: int) -> Curves:
    shortest = min(len(run.evals[member]) for member in members)
    evals = [run.evals[member][:shortest] for member in members]
    returns = np.array([[one.mean_return for one in column] for column in evals])
    episodes = np.array([one.std_return for one in evals[0]])
    band = returns.std(axis=0) if len(members) > 1 else episodes
    started = evals[0][0].time
    positions = [one.step if x == "steps" else (one.time - started) / 60 for one in evals[0]]
    smoothed = np.array([_average(row, smooth) for row in returns])
    return Curves(np.array(positions, np.float64), smoothed, _average(band, smooth))


def _average(row: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Averages each value with the ones before it, at most width in total."""
    return np.array([row[max(0, end - width) : end].mean() for end in range(1, len(row) + 1)])


def _in_words(members: list[Member]) -> str:
    if len(members) == 1:
        return f"{members[0].title}, ± std of its episodes"
    return f"mean of {len(members)} seeds, ± std over seeds; thin: single seeds"
