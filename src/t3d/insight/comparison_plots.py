"""Draws a comparison: curves, scores and performance profiles, each with 95 % intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from t3d.config.sweeps import counted
from t3d.insight.comparison import Comparison, Row, Seed
from t3d.insight.drawing import STEPS, VALUES, drawing, save
from t3d.insight.plots import COLOURS, LINES
from t3d.insight.statistics import (
    Array,
    band,
    interquartile_mean,
    interval,
    on_common_steps,
    performance_profile,
    resample,
)
from t3d.store.metrics import RETURN

ACROSS = 3  # panels in a row
RESAMPLES = 2_000  # of bands, at each of up to hundreds of steps; the table has more
LEVELS = 200  # thresholds of a profile
LONGEST = 50  # characters of a name in a panel


def draw_comparison(comparison: Comparison, out: Path) -> None:
    """Draws a panel of curves for each task, then the scores and the performance profiles of all tasks together."""
    with drawing() as plt:
        count = len(comparison.tasks) + 2
        down = -(-count // ACROSS)
        size = (5.2 * ACROSS, 4.2 * down)
        figure, grid = plt.subplots(down, ACROSS, figsize=size, squeeze=False, layout="constrained")
        panels, unused = [*grid.flat][:count], [*grid.flat][count:]
        for task, axes in enumerate(panels[:-2]):
            _draw_curves(axes, comparison, task)
        _draw_scores(panels[-2], comparison)
        _draw_profiles(panels[-1], comparison)
        for axes in panels:
            axes.grid(alpha=0.3)
        for axes in unused:
            axes.remove()
        lines, names = panels[-1].get_legend_handles_labels()
        figure.legend(lines, names, loc="outside lower center", ncols=ACROSS, frameon=False)
        save(figure, out)
        plt.close(figure)


def _look(index: int) -> dict[str, Any]:
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": LINES[index // len(COLOURS) % len(LINES)]}


def _draw_curves(axes: Any, comparison: Comparison, task: int) -> None:
    for index, row in enumerate(comparison.rows):
        steps, values = _on_common_steps(row.scored.tasks[task])
        curve = band(interquartile_mean, values, RESAMPLES)
        marker = "o" if len(steps) == 1 else ""
        axes.plot(steps, curve.value, **_look(index), linewidth=2, marker=marker)
        if len(values) > 1:
            axes.fill_between(steps, curve.low, curve.high, color=_look(index)["color"], alpha=0.2, linewidth=0)
    if comparison.threshold is not None:
        axes.axhline(comparison.threshold, color="#999999", linewidth=0.8, linestyle=":")
    name = "return" if comparison.metric == RETURN else comparison.metric
    relative = f", relative to {comparison.rows[0].name}" if comparison.relative else ""
    axes.set(title=comparison.tasks[task], xlabel="environment steps per seed", ylabel=f"{name}, IQM{relative}")
    axes.xaxis.set_major_formatter(STEPS)
    axes.yaxis.set_major_formatter(VALUES)


def _on_common_steps(seeds: list[Seed]) -> tuple[Array, Array]:
    return on_common_steps([seed.curve.steps for seed in seeds], [seed.curve.values for seed in seeds])


def _draw_scores(axes: Any, comparison: Comparison) -> None:
    """Draws the interquartile means with their intervals, and every seed."""
    for height, row in enumerate(comparison.rows):
        colour = _look(height)["color"]
        if row.iqm.interval is not None:
            axes.plot(row.iqm.interval, [height, height], color=colour, linewidth=6, alpha=0.4, solid_capstyle="butt")
        for scores in row.scored.scores:
            axes.plot(scores, [height] * len(scores), "|", color=colour, markersize=11)
        axes.plot([row.iqm.value], [height], "o", color=colour)
        above = {"xytext": (0, 14), "textcoords": "offset points"}
        axes.annotate(shortened(row.name), (0.02, height), xycoords=("axes fraction", "data"), **above)
    axes.axvline(comparison.rows[0].iqm.value, color="black", linewidth=0.8, linestyle=":")
    axes.set_yticks([])
    axes.set_ylim(len(comparison.rows) - 0.5, -0.5)
    axes.set(title="IQM with its 95 % interval; strokes: seeds", xlabel=_score(comparison))
    axes.xaxis.set_major_formatter(VALUES)


def _draw_profiles(axes: Any, comparison: Comparison) -> None:
    """Draws which share of the seeds scores at least so much."""
    scores = np.concatenate([of_task for row in comparison.rows for of_task in row.scored.scores])
    margin = 0.05 * (scores.max() - scores.min()) or 1.0
    levels = np.linspace(scores.min() - margin, scores.max() + margin, LEVELS)
    for index, row in enumerate(comparison.rows):
        axes.plot(
            levels, performance_profile(row.scored.scores, levels), **_look(index), linewidth=2, label=_label(row)
        )
        if row.iqm.interval is not None:
            rng = np.random.default_rng(0)
            drawn = [resample(of_task, rng, RESAMPLES) for of_task in row.scored.scores]
            low, high = np.array([interval(shares) for shares in performance_profile(drawn, levels)]).T
            axes.fill_between(levels, low, high, color=_look(index)["color"], alpha=0.15, linewidth=0)
    if comparison.threshold is not None:
        axes.axvline(comparison.threshold, color="#999999", linewidth=0.8, linestyle=":")
    axes.set(title="performance profile", xlabel=_score(comparison), ylabel="share of seeds that score at least this")
    axes.set_ylim(-0.02, 1.02)
    axes.xaxis.set_major_formatter(VALUES)


def _label(row: Row) -> str:
    return f"{row.name} ({counted(len(row.scored.seeds), 'seed')})"


def shortened(name: str) -> str:
    """Returns a name that fits into a panel."""
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


def _score(comparison: Comparison) -> str:
    name = "score" if comparison.metric == RETURN else comparison.metric
    return f"{name}, relative to {comparison.rows[0].name}" if comparison.relative else name
