"""What a claim's run shows: a picture, and sentences with its figures."""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from t3d.config.sweeps import by_values, counted
from t3d.errors import UserError
from t3d.events import Diagnosed, Eval
from t3d.insight.claims import CLAIMS, Claim
from t3d.insight.comparison import FEW
from t3d.insight.drawing import STEPS, drawing, save
from t3d.insight.statistics import Scores, estimate, mean
from t3d.store.columns import read_columns
from t3d.store.metrics import Metric
from t3d.store.reader import Run

COLOURS = ("#d95f02", "#1f77b4")
LATE = 0.7  # the share of training after which values are compared: Pendulum's returns are known then; chosen


class KindCurves(NamedTuple):
    """A metric of the members of one kind over training, at the steps that all of them have."""

    steps: NDArray[np.float64]  # (T,)
    values: NDArray[np.float64]  # (seeds, T)

    def end(self, total: int) -> KindCurves:
        """The end of training; before it, the returns are those of policies that are gone."""
        late = self.steps >= LATE * total
        return KindCurves(self.steps[late], self.values[:, late])

    def late(self, total: int) -> NDArray[np.float64]:
        """Each seed's mean over the end of training."""
        means: NDArray[np.float64] = self.end(total).values.mean(axis=1)
        return means


def curves(run: Run, name: str) -> list[KindCurves]:
    """The metric of both kinds of members, from their diagnostics or, for mean_return, their evaluations."""
    metric = Metric(Eval if name == "mean_return" else Diagnosed, name)
    known = read_columns(run.path, [metric.kind]).series(metric)
    found = []
    for members in by_values(run.cfg.members).values():
        living = [member for member in members if member not in run.stopped]
        told = [known[member] for member in living if member in known]
        if not living:
            raise UserError(f"all members of one kind have diverged in {run.path}, so that nothing can be compared")
        if not told:
            raise UserError(f"{run.path} has reported no {name} yet: no discounted return is known")
        steps = reduce(np.intersect1d, [one.steps for one in told])
        if len(told) < len(living) or not len(steps) or steps[-1] < LATE * run.cfg.total_steps:
            raise UserError(f"{run.path} stopped too early to show the claim; t3d resume {run.path} goes on")
        found.append(KindCurves(steps, np.array([np.interp(steps, one.steps, one.values) for one in told])))
    return found


def findings(run: Run, name: str) -> list[str]:
    """What both kinds of members came to, and whether the run shows the claim."""
    claim, total = CLAIMS[name], run.cfg.total_steps
    off = [one.late(total) for one in curves(run, "q_bias")]
    returns = [one.late(total) for one in curves(run, "mean_return")]
    lines = [f"From step {round(LATE * total):,} on:"]
    for kind, bias, reached in zip(claim.names, off, returns, strict=True):
        side = "above" if bias.mean() > 0 else "below"
        lines.append(
            f"  {kind}: values are {abs(bias.mean()):.1f} {side} the returns that followed ({bias.min():+.1f} to "
            f"{bias.max():+.1f} over {counted(len(bias), 'seed')}); mean return in evaluation {reached.mean():,.1f}"
        )
    return [*lines, verdict(claim, run.cfg.env.title, *off)]


def verdict(claim: Claim, env: str, first: NDArray[np.float64], second: NDArray[np.float64]) -> str:
    """Whether the biases of both kinds, with a value for each seed, show the claim by more than chance."""
    if (fewest := min(len(first), len(second))) < FEW:
        return f"That decides nothing: {counted(fewest, 'seed')} of a kind left, and it takes {FEW} of each."
    value, interval = estimate(_apart, [claim.measure(first)], [claim.measure(second)])
    low, high = interval or (-np.inf, np.inf)
    answer, lies = f"The claim is not seen on {env}", "contains 0"
    if low > 0:
        answer, lies = f"The claim is seen on {env}", "is above 0"
    elif high < 0:
        answer, lies = f"The opposite of the claim is seen on {env}", "is below 0"
    what = f"the {claim.measured} of {claim.names[0]} minus that of {claim.names[1]}"
    return f"{answer}: {what} is {value:+.3g}, and its 95 % interval [{low:+.3g}, {high:+.3g}] {lies}."


def _apart(x: Scores, y: Scores) -> NDArray[np.float64]:
    """Returns how far the mean of x lies above that of y."""
    return mean(x) - mean(y)


def plot_claim(run: Run, name: str, out: Path) -> None:
    """Draws both kinds of members: means over seeds, with bands from the lowest to the highest seed."""
    with drawing() as plt:
        figure = _figure(plt, run, CLAIMS[name].names)
        save(figure, out)
        plt.close(figure)


def _figure(plt: Any, run: Run, names: tuple[str, str]) -> Any:
    figure, panels = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained")
    values, bias, evaluations = panels
    _plot(values, curves(run, "q_predicted"), names, suffix=": predicted")
    _plot(values, curves(run, "q_return"), names, "--", ": followed")
    values.set(title="Values of visited states and actions", ylabel="predicted value, discounted return")
    _plot(bias, [one.end(run.cfg.total_steps) for one in curves(run, "q_bias")], names)
    bias.axhline(0, color="#888888", linewidth=1, linestyle="--")
    bias.set(title="Predicted minus followed, at the end", ylabel="above 0: values are too high")
    _plot(evaluations, curves(run, "mean_return"), names)
    evaluations.set(title="Evaluation", ylabel="mean return, no noise")
    for axes in panels:
        axes.set_xlabel("environment steps per seed")
        axes.xaxis.set_major_formatter(STEPS)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    title = f"{names[0]} against {names[1]} on {run.cfg.env.title}, {len(run.cfg.seeds)} seeds each; bands: all seeds"
    figure.suptitle(title[0].upper() + title[1:])
    return figure


def _plot(axes: Any, kinds: list[KindCurves], names: tuple[str, str], style: str = "-", suffix: str = "") -> None:
    for one, name, colour in zip(kinds, names, COLOURS, strict=True):
        axes.plot(one.steps, one.values.mean(axis=0), style, color=colour, linewidth=2, label=name + suffix)
        if style == "-":
            low, high = one.values.min(axis=0), one.values.max(axis=0)
            axes.fill_between(one.steps, low, high, color=colour, alpha=0.15, linewidth=0)
