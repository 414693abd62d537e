"""Draws a comparison: curves, scores and performance profiles, each with 95 % intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from t3d.config.sweeps import counted
from t3d.insight.comparison import Comparison
from t3d.insight.drawing import STEPS, VALUES, drawing, look
from t3d.insight.statistics import (
    DRAWN_RESAMPLES,
    band,
    interquartile_mean,
    interval,
    on_common_steps,
    performance_profile,
    resample,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ACROSS = 3  # panels in a row
LEVELS = 200  # thresholds of a profile
LONGEST = 50  # characters of a name in a panel
THRESHOLD = {"color": "#999999", "linewidth": 0.8, "linestyle": ":"}


def draw_comparison(comparison: Comparison) -> Figure:
    """Draws a panel of curves for each task, then the scores and the performance profiles of all tasks together."""
    relative = f", relative to {comparison.rows[0].name}" if len(comparison.tasks) > 1 else ""
    score = comparison.metric + relative
    count = len(comparison.tasks) + 2
    down = -(-count // ACROSS)
    with drawing((5.2 * ACROSS, 4.2 * down)) as figure:
        grid = figure.subplots(down, ACROSS, squeeze=False).flat
        panels = grid[:count]
        for task, axes in enumerate(panels[:-2]):
            _draw_curves(axes, comparison, task, score)
        _draw_scores(panels[-2], comparison, score)
        _draw_profiles(panels[-1], comparison, score)
        for axes in panels:
            axes.grid(alpha=0.3)
        for axes in grid[count:]:
            axes.remove()
        lines, names = panels[-1].get_legend_handles_labels()
        figure.legend(lines, names, loc="outside lower center", ncols=ACROSS, frameon=False)
    return figure


def _draw_curves(axes: Any, comparison: Comparison, task: int, score: str) -> None:
    for index, row in enumerate(comparison.rows):
        steps, values = on_common_steps([seed.curve for seed in row.scored.tasks[task]])
        middle, low, high = band(interquartile_mean, values)
        axes.plot(steps, middle, **look(index), linewidth=2, marker="o" if len(steps) == 1 else "")
        if len(values) > 1:
            axes.fill_between(steps, low, high, color=look(index)["color"], alpha=0.2, linewidth=0)
    if comparison.threshold is not None:
        axes.axhline(comparison.threshold, **THRESHOLD)
    axes.set(title=comparison.tasks[task], xlabel="environment steps per seed", ylabel=f"IQM of seeds: {score}")
    axes.xaxis.set_major_formatter(STEPS)
    axes.yaxis.set_major_formatter(VALUES)


def _draw_scores(axes: Any, comparison: Comparison, score: str) -> None:
    for height, row in enumerate(comparison.rows):
        colour = look(height)["color"]
        if row.iqm.interval is not None:
            axes.plot(row.iqm.interval, [height, height], color=colour, linewidth=6, alpha=0.4, solid_capstyle="butt")
        for scores in row.scored.scores:
            axes.plot(scores, [height] * len(scores), "|", color=colour, markersize=11)
        axes.plot([row.iqm.value], [height], "o", color=colour)
        above = {"xytext": (0, 14), "textcoords": "offset points"}
        name = row.name if len(row.name) <= LONGEST else f"{row.name[: LONGEST - 1]}…"
        axes.annotate(name, (0.02, height), xycoords=("axes fraction", "data"), **above)
    axes.axvline(comparison.rows[0].iqm.value, color="black", linewidth=0.8, linestyle=":")
    axes.set_yticks([])
    axes.set_ylim(len(comparison.rows) - 0.5, -0.5)
    axes.set(title="IQM with its 95 % interval; strokes: seeds", xlabel=score)
    axes.xaxis.set_major_formatter(VALUES)


def _draw_profiles(axes: Any, comparison: Comparison, score: str) -> None:
    scores = np.concatenate([of_task for row in comparison.rows for of_task in row.scored.scores])
    margin = 0.05 * (scores.max() - scores.min()) or 1.0
    levels = np.linspace(scores.min() - margin, scores.max() + margin, LEVELS)
    for index, row in enumerate(comparison.rows):
        shares, label = (
            performance_profile(row.scored.scores, levels),
            f"{row.name} ({counted(len(row.scored.seeds), 'seed')})",
        )
        axes.plot(levels, shares, **look(index), linewidth=2, label=label)
        if row.iqm.interval is not None:
            rng = np.random.default_rng(0)
            drawn = [resample(of_task, rng, DRAWN_RESAMPLES) for of_task in row.scored.scores]
            low, high = np.array([interval(shares) for shares in performance_profile(drawn, levels)]).T
            axes.fill_between(levels, low, high, color=look(index)["color"], alpha=0.15, linewidth=0)
    if comparison.threshold is not None:
        axes.axvline(comparison.threshold, **THRESHOLD)
    axes.set(title="performance profile", xlabel=score, ylabel="share of seeds that score at least this")
    axes.set_ylim(-0.02, 1.02)
    axes.xaxis.set_major_formatter(VALUES)
