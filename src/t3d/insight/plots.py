"""Plots learning curves from run folders."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from t3d.files import replace
from t3d.store.reader import Run

COLOURS = ["#1f77b4", "#d95f02", "#1b9e77", "#7570b3", "#e7298a", "#666666"]
LINES = ["-", "--", ":", "-."]  # the next one when all colours are taken
LABELS = {"steps": "environment steps per seed", "time": "minutes since the first evaluation"}


class Curves(NamedTuple):
    """The evaluations of some seeds of a run, at the steps that all of them have reached."""

    x: NDArray[np.float64]  # (T,)
    returns: NDArray[np.float64]  # (seeds, T)
    band: NDArray[np.float64]  # (T,): deviation over seeds, or over the episodes of a single seed


def plot_curves(
    runs: Sequence[Run], out: Path, *, seed: int | None = None, x: Literal["steps", "time"] = "steps", smooth: int = 1
) -> None:
    """Plots evaluation returns: each run's mean over seeds, a band of one standard deviation, seeds as thin lines.

    A link at out is replaced, not followed.
    """
    import matplotlib as mpl  # noqa: PLC0415 (0.5 s, and only plots need it)

    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(7.5, 4.5), layout="constrained")
    for index, run in enumerate(runs):
        colour, line = COLOURS[index % len(COLOURS)], LINES[index // len(COLOURS) % len(LINES)]
        seeds = [run.known_seed(seed)] if seed is not None else [one for one in run.evals if one not in run.stopped]
        name = f"{run.path.name}: " if len(runs) > 1 else ""
        for one in [one for one in run.evals if one in run.stopped and seed is None]:
            _plot_diverged(axes, _curves(run, [one], x, smooth), colour, f"{name}seed {one}: diverged")
        if not seeds:
            continue
        curves = _curves(run, seeds, x, smooth)
        mean = curves.returns.mean(axis=0)
        marker = "o" if len(mean) == 1 else ""  # a line of one point cannot be seen
        axes.plot(
            curves.x, mean, color=colour, linestyle=line, linewidth=2, marker=marker, label=f"{name}{_in_words(seeds)}"
        )
        axes.fill_between(curves.x, mean - curves.band, mean + curves.band, color=colour, alpha=0.2, linewidth=0)
        for one in curves.returns if len(seeds) > 1 else []:
            axes.plot(curves.x, one, color=colour, linewidth=0.6, alpha=0.5)
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
    axes.legend(loc="best", frameon=False)
    image = io.BytesIO()
    figure.savefig(image, format=out.suffix[1:] or "png", dpi=130)
    plt.close(figure)
    replace(out, image.getvalue())


def _plot_diverged(axes: Any, curves: Curves, colour: str, label: str) -> None:
    """Draws a seed up to where it stopped."""
    axes.plot(curves.x, curves.returns[0], color=colour, linewidth=0.6)
    axes.plot(curves.x[-1:], curves.returns[0, -1:], "x", color=colour, markersize=9, label=label)


def _curves(run: Run, seeds: list[int], x: str, smooth: int) -> Curves:
    shortest = min(len(run.evals[seed]) for seed in seeds)
    evals = [run.evals[seed][:shortest] for seed in seeds]
    returns = np.array([[one.mean_return for one in column] for column in evals])
    episodes = np.array([one.std_return for one in evals[0]])
    band = returns.std(axis=0) if len(seeds) > 1 else episodes
    started = evals[0][0].time
    positions = [one.step if x == "steps" else (one.time - started) / 60 for one in evals[0]]
    smoothed = np.array([_average(row, smooth) for row in returns])
    return Curves(np.array(positions, np.float64), smoothed, _average(band, smooth))


def _average(row: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Averages each value with the ones before it, at most width in total."""
    return np.array([row[max(0, end - width) : end].mean() for end in range(1, len(row) + 1)])


def _in_words(seeds: list[int]) -> str:
    if len(seeds) == 1:
        return f"seed {seeds[0]}, ± std of its episodes"
    return f"mean of {len(seeds)} seeds, ± std over seeds; thin: single seeds"
