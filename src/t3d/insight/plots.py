"""Learning curves from run folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from t3d.insight.runs import Run

COLOURS = ["#1f77b4", "#d95f02", "#1b9e77", "#7570b3", "#e7298a", "#666666"]


def plot_curves(runs: Sequence[Run], out: Path, seed: int | None = None) -> None:
    """Evaluation return against steps: a run's mean over seeds, a band of one standard deviation, seeds drawn thin."""
    import matplotlib as mpl  # noqa: PLC0415 (0.5 s, and only pictures need it)

    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(7.5, 4.5), layout="constrained")
    for run, colour in zip(runs, _cycle(len(runs)), strict=True):
        seeds = list(run.evals) if seed is None else [run.choose_seed(seed)]
        steps, returns = _table(run, seeds)
        mean, std = returns.mean(axis=0), returns.std(axis=0)
        label = run.path.name if len(runs) > 1 else _seeds_in_words(seeds)
        axes.plot(steps, mean, color=colour, linewidth=2, label=label)
        if len(seeds) > 1:
            axes.plot(steps, returns.T, color=colour, linewidth=0.6, alpha=0.5)
            axes.fill_between(steps, mean - std, mean + std, color=colour, alpha=0.2, linewidth=0)
    environments = " and ".join(dict.fromkeys(run.cfg.env.id for run in runs))
    axes.set_title(f"TD3 on {environments}")
    axes.set_xlabel("environment steps per seed")
    axes.set_ylabel("mean return in evaluation, no noise")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    axes.grid(alpha=0.3)
    axes.legend(loc="best", frameon=False)
    figure.savefig(out, dpi=130)
    plt.close(figure)


def _table(run: Run, seeds: list[int]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Steps (T,) and mean returns (seeds, T), at the steps that all these seeds have reached."""
    shortest = min(len(run.evals[seed]) for seed in seeds)
    steps = np.array([one.step for one in run.evals[seeds[0]][:shortest]])
    returns = np.array([[one.mean_return for one in run.evals[seed][:shortest]] for seed in seeds])
    return steps, returns


def _seeds_in_words(seeds: list[int]) -> str:
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    return f"mean of {len(seeds)} seeds, ± one standard deviation"


def _cycle(count: int) -> list[str]:
    return [COLOURS[number % len(COLOURS)] for number in range(count)]
