"""Plots learning curves from run folders."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from t3d.config import Member
from t3d.config.sweeps import by_values, setting
from t3d.files import replace
from t3d.store.reader import Run

COLOURS = ["#1f77b4", "#d95f02", "#1b9e77", "#7570b3", "#e7298a", "#666666"]
LINES = ["-", "--", ":", "-."]  # the next one when all colours are taken
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
    name: str  # of the run, where there are several
    label: str
    show_each: bool = False  # each member too, as a thin line


def plot_curves(
    runs: Sequence[Run],
    out: Path,
    *,
    seed: int | str | None = None,
    x: Literal["steps", "time"] = "steps",
    smooth: int = 1,
) -> None:
    """Plots evaluation returns: each run's mean over seeds, a band of one standard deviation, seeds as thin lines.

    A sweep has such a line for each combination of its values, without thin ones. A link at out is replaced, not
    followed.
    """
    import matplotlib as mpl  # noqa: PLC0415 (0.5 s, and only plots need it)

    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(7.5, 4.5), layout="constrained")
    for index, line in enumerate(line for run in runs for line in _lines(run, seed, several=len(runs) > 1)):
        colour, style = COLOURS[index % len(COLOURS)], LINES[index // len(COLOURS) % len(LINES)]
        _plot_diverged(axes, line, colour, x, smooth)
        if line.members:
            _plot_line(axes, line, colour, style, x, smooth)
    if x == "steps" and len(runs) == 1:
        axes.axvline(runs[0].cfg.random_steps, color="#999999", linewidth=0.8, linestyle=":", label="learning starts")
    averaged = f", averaged over {smooth} evaluations" if smooth > 1 else ""
    titles = dict.fromkeys(f"{run.cfg.rule_title} on {run.cfg.env.title}" for run in runs)
    axes.set_title(" and ".join(titles) + averaged)
    axes.set_xlabel(LABELS[x])
    axes.set_ylabel("mean return in evaluation, no noise")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.6g}" if x == "time" else f"{value:,.0f}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    axes.grid(alpha=0.3)
    axes.legend(loc="best", frameon=False, title=_legend_title(runs, seed))
    image = io.BytesIO()
    figure.savefig(image, format=out.suffix[1:] or "png", dpi=130)
    plt.close(figure)
    replace(out, image.getvalue())


def _lines(run: Run, seed: int | str | None, *, several: bool) -> list[Line]:
    """Returns one line for a run, in a sweep one for each combination of values; or that of one member."""
    name = f"{run.path.name}: " if several else ""
    if seed is not None:
        member = run.member(seed)
        return [Line(run, [member], [], name, _in_words([member]))]
    lines = []
    for values, members in by_values(run.evals).items():
        living = [member for member in members if member not in run.stopped]
        diverged = [member for member in members if member in run.stopped]
        label = setting(values) or _in_words(living)
        lines.append(Line(run, living, diverged, name, label, show_each=not run.cfg.sweep))
    return lines


def _plot_line(axes: Any, line: Line, colour: str, style: str, x: str, smooth: int) -> None:
    curves = _curves(line.run, line.members, x, smooth)
    mean = curves.returns.mean(axis=0)
    marker = "o" if len(mean) == 1 else ""  # a line of one point cannot be seen
    label = f"{line.name}{line.label}"
    axes.plot(curves.x, mean, color=colour, linestyle=style, linewidth=2, marker=marker, label=label)
    axes.fill_between(curves.x, mean - curves.band, mean + curves.band, color=colour, alpha=0.2, linewidth=0)
    for one in curves.returns if line.show_each and len(line.members) > 1 else []:
        axes.plot(curves.x, one, color=colour, linewidth=0.6, alpha=0.5)


def _plot_diverged(axes: Any, line: Line, colour: str, x: str, smooth: int) -> None:
    """Draws each member that has diverged up to where it stopped."""
    for member in line.diverged:
        curves = _curves(line.run, [member], x, smooth)
        label = f"{line.name}{member.title}: diverged"
        axes.plot(curves.x, curves.returns[0], color=colour, linewidth=0.6)
        axes.plot(curves.x[-1:], curves.returns[0, -1:], "x", color=colour, markersize=9, label=label)


def _legend_title(runs: Sequence[Run], seed: int | str | None) -> str | None:
    """Says what the lines of sweeps are."""
    counts = {len(run.cfg.seeds) for run in runs if run.cfg.sweep}
    if seed is not None or not counts:
        return None
    most = max(counts)
    return "one seed each, ± std of its episodes" if most == 1 else f"mean of {most} seeds, ± std over seeds"


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
