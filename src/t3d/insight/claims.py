"""The paper's claims as small comparisons: two runs that differ in one setting, and what they show."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from t3d.config import Config, merge
from t3d.config.presets import preset
from t3d.config.sweeps import counted
from t3d.errors import UserError
from t3d.events import Diagnosed, Eval
from t3d.insight.comparison import FEW
from t3d.insight.drawing import STEPS, drawing, save
from t3d.insight.statistics import Array, estimate, mean
from t3d.store.columns import read_columns
from t3d.store.metrics import Metric
from t3d.store.reader import Run

SETTINGS: dict[str, Any] = {
    "seeds": range(5, 13),  # seeds 0 to 4 were used to choose the comparison
    "log": {"diagnose_every_steps": 500},
}
LATE = 0.7  # the share of training after which values are compared: Pendulum's returns are known then; chosen
COLOURS = ("#d95f02", "#1f77b4")


class Claim(NamedTuple):
    """What is compared: the paper improves on the first value, so the bias, or its size, should be larger there."""

    says: str
    setting: str  # of td3
    values: tuple[float, float]
    names: tuple[str, str]
    of_size: bool = False  # values are wrong, whether too high or too low; else they are too high


CLAIMS = {
    "overestimation": Claim(
        "One critic believes its own errors and values actions too highly; the smaller of two does so less.",
        *("critics", (1, 2), ("one critic", "two critics")),
    ),
    "smoothing": Claim(
        "Noise on the target's action keeps the critics from believing in narrow peaks.",
        *("target_noise", (0.0, 0.2), ("no smoothing", "smoothing")),
    ),
    "delay": Claim(
        "An actor that moves only every second update follows values that are less wrong.",
        *("policy_delay", (1, 2), ("delay 1", "delay 2")),
        of_size=True,
    ),
}


def claim_configs(name: str, env_id: str, root: str) -> list[Config]:
    """The two runs that show a claim; their names are always the same, so that they can be found again."""
    claim, small = CLAIMS[name], merge(preset("quick"), SETTINGS)
    env = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(env_id).name)
    configs = []
    for value in claim.values:
        run = {"root": root, "name": f"{name}-{env}-{claim.setting}-{value:g}"}
        configs.append(merge(small, {"env": {"id": env_id}, "run": run, "td3": {claim.setting: value}}))
    return configs


def seed_curves(run: Run, name: str, since: float = 0.0) -> tuple[Array, Array]:
    """Returns the steps (T,) and values (seeds, T) of a metric of the diagnostics or, for mean_return, the evaluations.

    They are those that all seeds have, from a share of the training on.
    """
    metric = Metric(Eval if name == "mean_return" else Diagnosed, name)
    series = read_columns(run.path, [metric.kind]).series(metric)
    living = [member for member in run.cfg.members if member not in run.stopped]
    known = [series[member] for member in living if member in series]
    if not living:
        raise UserError(f"all seeds of {run.path} have diverged, so that nothing can be compared")
    steps = reduce(np.intersect1d, [curve.steps for curve in known]) if len(known) == len(living) else np.empty(0)
    if not len(steps) or steps[-1] < LATE * run.cfg.total_steps:
        raise UserError(f"{run.path} stopped too early to show the claim; t3d resume {run.path} continues it")
    steps = steps[steps >= since * run.cfg.total_steps]
    return steps, np.array([np.interp(steps, curve.steps, curve.values) for curve in known])


def findings(runs: Sequence[Run], name: str) -> list[str]:
    """What both runs came to, and whether they show the claim."""
    claim, biases = CLAIMS[name], list[Array]()
    lines = [f"From step {round(LATE * runs[0].cfg.total_steps):,} on:"]
    for kind, run in zip(claim.names, runs, strict=True):
        bias, returns = (seed_curves(run, metric, LATE)[1].mean(axis=1) for metric in ("q_bias", "mean_return"))
        biases.append(bias)
        side = "above" if bias.mean() > 0 else "below"
        lines.append(
            f"  {kind}: values are {abs(bias.mean()):.1f} {side} the returns that followed ({bias.min():+.1f} to "
            f"{bias.max():+.1f} over {counted(len(bias), 'seed')}); mean return in evaluation {returns.mean():,.1f}"
        )
    return [*lines, verdict(claim, runs[0].cfg.env.title, *biases)]


def verdict(claim: Claim, env: str, first: Array, second: Array) -> str:
    """Whether the biases of both runs, with a value for each seed, show the claim by more than chance."""
    if (fewest := min(len(first), len(second))) < FEW:
        return f"That decides nothing: {counted(fewest, 'seed')} of a kind left, and it takes {FEW} of each."
    sizes = [np.abs(bias) if claim.of_size else bias for bias in (first, second)]
    value, interval = estimate(lambda x, y: mean(x) - mean(y), *([size] for size in sizes))
    low, high = interval or (-np.inf, np.inf)
    answer, lies = f"The claim is not seen on {env}", "contains 0"
    if low > 0:
        answer, lies = f"The claim is seen on {env}", "is above 0"
    elif high < 0:
        answer, lies = f"The opposite of the claim is seen on {env}", "is below 0"
    measured = "size of the bias" if claim.of_size else "bias"
    compared = f"the {measured} of {claim.names[0]} minus that of {claim.names[1]}"
    return f"{answer}: {compared} is {value:+.3g}, and its 95 % interval [{low:+.3g}, {high:+.3g}] {lies}."


def plot_claim(runs: Sequence[Run], name: str, out: Path) -> None:
    """Draws both runs: means over seeds, with bands from the lowest to the highest seed."""
    names, cfg = CLAIMS[name].names, runs[0].cfg
    with drawing((13, 4.2)) as figure:
        panels = values, bias, evaluations = figure.subplots(1, 3)
        _plot(values, [seed_curves(run, "q_predicted") for run in runs], names, suffix=": predicted")
        _plot(values, [seed_curves(run, "q_return") for run in runs], names, "--", ": followed")
        values.set(title="Values of visited states and actions", ylabel="predicted value, discounted return")
        _plot(bias, [seed_curves(run, "q_bias", LATE) for run in runs], names)
        bias.axhline(0, color="#888888", linewidth=1, linestyle="--")
        bias.set(title="Predicted minus followed, at the end", ylabel="above 0: values are too high")
        _plot(evaluations, [seed_curves(run, "mean_return") for run in runs], names)
        evaluations.set(title="Evaluation", ylabel="mean return, no noise")
        for axes in panels:
            axes.set_xlabel("environment steps per seed")
            axes.xaxis.set_major_formatter(STEPS)
            axes.grid(alpha=0.3)
            axes.legend(frameon=False)
        title = f"{names[0]} against {names[1]} on {cfg.env.title}, {len(cfg.seeds)} seeds each; bands: all seeds"
        figure.suptitle(title[0].upper() + title[1:])
    save(figure, out)


def _plot(
    axes: Any, runs: list[tuple[Array, Array]], names: tuple[str, str], style: str = "-", suffix: str = ""
) -> None:
    for (steps, values), name, colour in zip(runs, names, COLOURS, strict=True):
        axes.plot(steps, values.mean(axis=0), style, color=colour, linewidth=2, label=name + suffix)
        if style == "-":
            axes.fill_between(steps, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, linewidth=0)
