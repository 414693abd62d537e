"""Compares groups of trainings: scores at the same steps for all, intervals, what they say in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from t3d.config import Member
from t3d.config.metrics import RETURN
from t3d.config.sweeps import counted
from t3d.errors import UserError
from t3d.events import Eval
from t3d.files import readable
from t3d.insight.groups import Group, Training, joined
from t3d.insight.html import Html, element, listed, table
from t3d.insight.statistics import (
    Array,
    Estimate,
    Reached,
    at_least_newcombe,
    at_least_wilson,
    differ,
    difference,
    estimate,
    first_reaching,
    interquartile_mean,
    mean,
    probability_of_improvement,
    reached,
    relative_to,
)
from t3d.insight.wording import estimated, number_text
from t3d.store.columns import read_metric
from t3d.store.metrics import Metric, Series
from t3d.types import sample_std

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LAST = 3  # evaluations whose mean is a seed's score
FEW = 5  # seeds; with fewer, intervals are too narrow (docs/many-seeds.md)


class Seed(NamedTuple):
    """What counts of one training."""

    training: Training
    curve: Series
    score: float
    end: float  # the step of the last report that counts
    diverged: bool  # then score is the last value, and the curve stays there

    @property
    def name(self) -> str:
        return f"{self.training.member.title} of {readable(self.training.run.path.name)}"


class Scored(NamedTuple):
    """A group and its seeds, task by task."""

    group: Group
    tasks: list[list[Seed]]

    @property
    def scores(self) -> list[Array]:
        return [np.array([seed.score for seed in seeds]) for seeds in self.tasks]

    @property
    def seeds(self) -> list[Seed]:
        return [seed for seeds in self.tasks for seed in seeds]


class Row(NamedTuple):
    """What is known of one group; the differences are to the first."""

    scored: Scored
    mean: Estimate
    iqm: Estimate
    difference: Estimate | None
    improvement: Estimate | None
    first_reached: dict[str, Reached]  # the threshold, in steps and in minutes; empty: there is none
    verdict: str

    @property
    def name(self) -> str:
        return self.scored.group.name

    @property
    def cells(self) -> list[str]:
        """How many seeds, and each estimate with its interval."""
        difference = estimated(self.difference, lambda value: ("+" if value > 0 else "") + number_text(value))
        improvement = estimated(self.improvement, "{:.2f}".format)
        return [str(len(self.scored.seeds)), estimated(self.mean), estimated(self.iqm), difference, improvement]

    def fields(self, tasks: Sequence[str]) -> dict[str, Any]:
        """Returns everything as plain values; the tasks are those of the comparison."""
        estimates = {"mean": self.mean, "iqm": self.iqm, "difference": self.difference}
        return {
            "name": self.name,
            "runs": list(dict.fromkeys(str(training.run.path) for training in self.scored.group.trainings)),
            "scores": {
                task: {seed.name: seed.score for seed in seeds}
                for task, seeds in zip(tasks, self.scored.tasks, strict=True)
            },
            "diverged": [seed.name for seed in self.scored.seeds if seed.diverged],
            **{name: each and each.fields for name, each in estimates.items()},
            "probability_of_improvement": self.improvement and self.improvement.fields,
            "first_reached": {
                # an infinite median becomes null
                unit: {"median": when.median, "seeds": when.reached, "of": when.seeds}
                for unit, when in self.first_reached.items()
            },
            "verdict": self.verdict,
        }


class Comparison(NamedTuple):
    """Everything that is printed and drawn."""

    metric: str
    score: str  # what it is, in a sentence
    tasks: list[str]
    threshold: float | None
    rows: list[Row]
    notes: list[str]

    @property
    def heads(self) -> list[str]:
        """The names of cells; one group alone has no difference."""
        word = "better" if self.metric == RETURN else "higher"
        return ["seeds", "mean", "IQM", "difference", word][: 5 if len(self.rows) > 1 else 3]

    @property
    def legend(self) -> list[str]:
        """What the cells are."""
        base, word = self.rows[0].name, self.heads[-1]
        text = f"Difference: of the IQMs, to {base}; {word}: how probably a seed scores higher than one of {base}."
        return [self.score, text] if len(self.rows) > 1 else [self.score]

    @property
    def sentences(self) -> list[str]:
        """What the numbers say, and what to know about them."""
        return [*(f"{row.verdict}." for row in self.rows[1:]), *self.notes]

    @property
    def fields(self) -> dict[str, Any]:
        """Everything as plain values, as t3d compare --json prints it."""
        return {
            "metric": self.metric,
            "score": self.score,
            "relative": len(self.tasks) > 1,  # whether scores are relative to the first group's mean on each task
            "tasks": self.tasks,
            "threshold": self.threshold,
            "groups": [row.fields(self.tasks) for row in self.rows],
            "notes": self.notes,
        }

    def plot(self) -> Figure:
        """Draws curves, scores and performance profiles."""
        from t3d.insight.comparison_plots import draw_comparison  # noqa: PLC0415 (it draws what is computed here)

        return draw_comparison(self)

    def __repr__(self) -> str:
        return f"<comparison of {', '.join(row.name for row in self.rows)}: {' '.join(self.sentences)}>"

    def _repr_html_(self) -> str:
        return element("div", None, score_table(self), listed(self.sentences))


def score_table(comparison: Comparison) -> Html:
    """Returns a row for each group, and what its cells are."""
    heads, (score, *apart) = comparison.heads, comparison.legend
    meaning = " ".join([score, "In brackets 95 % intervals over seeds. IQM: interquartile mean.", *apart])
    rows = [[row.name, *row.cells[: len(heads)]] for row in comparison.rows]
    return element("div", None, table(("group", *heads), rows), element("p", {"class": "quiet"}, meaning))


def compare(
    groups: Sequence[Group], metric: str = RETURN, threshold: float | None = None, at: int | None = None
) -> Comparison:
    """Compares the first group with each of the others; at: scores are those of this step instead of the end."""
    runs = {training.run.path: training.run for group in groups for training in group.trainings}
    metrics, columns = read_metric([*runs], metric)
    compared, tasks = metrics[0], [*groups[0].tasks]
    if len(metrics) > 1:
        raise UserError(
            f"{metric} has several entries; compare one of them: {', '.join(entry.name for entry in metrics)}"
        )
    if threshold is not None and len(tasks) > 1:
        raise UserError(f"--threshold is for one task, and these are {len(tasks)}: {joined(tasks)}")
    noun = "evaluation" if compared.kind.event == "eval" else "report"
    known = {path: of_run.series(compared) for path, of_run in columns.items()}
    by_task, notes, count = [], list[str](), 0
    for task in tasks:
        seeds, before, intervals = _seeds([group.tasks[task] for group in groups], known, compared, at)
        by_task.append(_relative(seeds, groups[0].name, task) if len(tasks) > 1 else seeds)
        count = max(count, len(before))
        if differ(intervals):
            notes.append(
                f"{noun.capitalize()}s are {min(intervals):,.0f} to {max(intervals):,.0f} steps apart; all seeds are "
                "scored at the steps of the rarest, the others interpolated there."
            )
    scored = [Scored(group, [*seeds]) for group, *seeds in zip(groups, *by_task, strict=True)]
    which = f"mean of its last {count} {noun}s" if count > 1 else f"its last {noun}"
    until, value = "" if at is None else f" up to step {at:,}", "mean return" if compared.name == RETURN else metric
    score = f"Score of a seed: {which}{until} ({value})"
    if len(tasks) > 1:
        score += f", on each of {len(tasks)} tasks relative to the mean of {groups[0].name} there: "
        score += "1 is that mean, 2 is higher by as much again"
    rows = [_row(group, scored[0], threshold, compared) for group in scored]
    return Comparison(compared.name, f"{score}.", tasks, threshold, rows, [*notes, *_notes(scored)])


def _seeds(
    groups: list[list[Training]], known: Mapping[Path, Mapping[Member | None, Series]], metric: Metric, at: int | None
) -> tuple[list[list[Seed]], Array, list[float]]:
    """Scores the trainings of one task, group by group.

    Also returns how many steps before its end each is scored, where the one that reports most rarely has its last
    reports, and the intervals between reports.
    """
    curves = [[_curve(training, known[training.run.path], metric) for training in group] for group in groups]
    pairs = [pair for group, of_group in zip(groups, curves, strict=True) for pair in zip(group, of_group, strict=True)]
    living = [curve for training, curve in pairs if training.member not in training.run.stopped]
    used = [curve.steps[: max(1, _count(curve, at))] for curve in living or [curve for _, curve in pairs]]
    intervals = [float(np.median(np.diff(steps))) if len(steps) > 1 else 0.0 for steps in used]
    ends = [_trained(steps)[-LAST:] for steps in used]
    _, _, rarest = max(zip(intervals, map(len, ends), range(len(ends)), strict=True), key=lambda each: each[:2])
    before = ends[rarest][-1] - ends[rarest]
    seeds = []
    for group, of_group in zip(groups, curves, strict=True):
        longest = max((curve.steps for curve in of_group), key=lambda steps: float(steps[-1]))
        both = zip(group, of_group, strict=True)
        seeds.append([_seed(training, curve, longest, before, at) for training, curve in both])
    return seeds, before, list(filter(None, intervals))


def _curve(training: Training, known: Mapping[Member | None, Series], metric: Metric) -> Series:
    if training.member not in known:
        why = "it is one of the whole run" if None in known else "its log has none"
        raise UserError(f"{training.run.path} has no {metric.name} of {training.member.title}: {why}")
    return known[training.member]


def _seed(training: Training, curve: Series, longest: Array, before: Array, at: int | None) -> Seed:
    """Scores a training: the mean over its end, of a diverged one the last value."""
    stopped = training.run.stopped.get(training.member)
    diverged = stopped is not None and (at is None or stopped.step <= at)
    if at is not None and (at < curve.steps[0] or (at > curve.steps[-1] and stopped is None)):
        raise UserError(
            f"--at {at} is outside what is known of {training.member.title} in {training.run.path}, "
            f"which is from step {curve.steps[0]:,.0f} to {curve.steps[-1]:,.0f}"
        )
    steps = curve.steps[: _count(curve, at)]
    points = steps[-1] - (0 if diverged else before)
    points = np.maximum(points, _trained(steps)[0])  # before training: there is nothing else
    score = float(np.interp(np.unique(points), curve.steps, curve.values).mean())
    if stopped is not None:  # it stays at its last value for as long as another seed went on
        later = longest[longest > curve.steps[-1]]
        held = [np.append(column, np.full(len(later), column[-1])) for column in (curve.values, curve.times)]
        curve = Series(np.append(curve.steps, later), *held)
    return Seed(training, curve, score, float(steps[-1]), diverged)


def _count(curve: Series, at: int | None) -> int:
    return int((curve.steps <= (np.inf if at is None else at)).sum())


def _trained(steps: Array) -> Array:
    """Returns the steps after step 0, if there are any."""
    later = steps[steps > 0]
    return later if len(later) else steps


def _relative(groups: list[list[Seed]], base: str, task: str) -> list[list[Seed]]:
    scores, relative = np.array([seed.score for seed in groups[0]]), list[list[Seed]]()
    middle, spread = float(scores.mean()), float(sample_std(scores))
    if abs(middle) <= spread or middle == 0:
        raise UserError(
            f"{base} has a mean of {middle:.3g} on {task} with a deviation of {spread:.3g} over seeds, "
            "too close to 0 for scores relative to it; put another group first, or compare task by task"
        )
    for seeds in groups:
        relative.append([])
        for seed in seeds:
            values, (score,) = relative_to([seed.curve.values, np.array([seed.score])], [scores, scores])
            curve = seed.curve._replace(values=values, spread=None)
            relative[-1].append(seed._replace(curve=curve, score=float(score)))
    return relative


def _row(scored: Scored, base: Scored, threshold: float | None, metric: Metric) -> Row:
    middles, first_reached = _middles(scored, metric), dict[str, Reached]()
    if threshold is not None:
        curves = [seed.curve for seed in scored.seeds]
        minutes = [first_reaching((curve.times - curve.times[0]) / 60, curve.values, threshold) for curve in curves]
        steps = [first_reaching(curve.steps, curve.values, threshold) for curve in curves]
        first_reached = {"steps": reached(steps), "minutes": reached(minutes)}
    if scored is base:
        return Row(scored, *middles, None, None, first_reached, "")
    apart = estimate(difference, scored.scores, base.scores)
    wins = estimate(probability_of_improvement, scored.scores, base.scores)
    if metric.is_share and len(scored.tasks) == 1:
        apart = at_least_newcombe(apart, middles[1], _middles(base, metric)[1])
    verdict = _verdict(scored.group.name, base.group.name, apart, metric.name)
    return Row(scored, *middles, apart, wins, first_reached, verdict)


def _middles(scored: Scored, metric: Metric) -> tuple[Estimate, Estimate]:
    """Returns the mean and the interquartile mean; of rates each seed counts with the episodes of one evaluation."""
    both = estimate(mean, scored.scores), estimate(interquartile_mean, scored.scores)
    if not metric.is_share or len(scored.tasks) > 1:  # scores of several tasks are relative
        return both
    episodes = sum(seed.training.run.cfg.eval.episodes if metric.kind is Eval else LAST for seed in scored.seeds)
    return at_least_wilson(both[0], episodes), at_least_wilson(both[1], episodes)


def _verdict(name: str, base: str, apart: Estimate, metric: str) -> str:
    better, worse = ("better", "worse") if metric == RETURN else ("higher", "lower")
    if apart.interval is None:
        return f"{name} and {base} cannot be told apart: a single seed says nothing about others; train at least five"
    if apart.interval.low > 0:
        return f"{name} is {better} than {base}: the whole interval of the difference lies above 0"
    if apart.interval.high < 0:
        return f"{name} is {worse} than {base}: the whole interval of the difference lies below 0"
    return f"These seeds cannot tell {name} and {base} apart: the interval of the difference contains 0"


def _notes(groups: list[Scored]) -> list[str]:
    titles = dict.fromkeys(training.run.cfg.env.title for scored in groups for training in scored.group.trainings)
    tasks = {training.task for scored in groups for training in scored.group.trainings}
    notes = []
    if len(titles) > len(tasks):
        notes.append(f"Arguments differ, so these are returns in different tasks: {joined([*titles])}.")
    for of_task in zip(*(scored.tasks for scored in groups), strict=True):
        ends = [seed.end for seeds in of_task for seed in seeds if not seed.diverged]
        if differ(ends):
            steps = f"{min(ends):,.0f} to {max(ends):,.0f}"
            at = f"t3d compare --at {min(ends):.0f}"
            notes.append(f"Scores are from different steps, {steps}; {at} compares at the same one.")
    for scored in groups:
        lost = [seed.name for seed in scored.seeds if seed.diverged]
        if lost:
            counts = "counts with its last value" if len(lost) == 1 else "count with their last values"
            notes.append(f"{scored.group.name}: {joined(lost)} diverged and {counts}.")
        fewest = min(map(len, scored.tasks))
        if fewest < FEW:
            few = "no interval is possible" if fewest == 1 else "its intervals are too narrow"
            notes.append(f"{scored.group.name} has {counted(fewest, 'seed')}: {few}; train at least {FEW}.")
    return notes
