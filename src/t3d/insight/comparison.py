"""Compares groups of trainings: scores at the same steps for all, intervals, what they say in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from t3d.config import Member
from t3d.config.sweeps import counted
from t3d.errors import UserError
from t3d.files import readable
from t3d.insight.groups import Group, Training, joined
from t3d.insight.statistics import (
    Array,
    Estimate,
    Reached,
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
from t3d.store.columns import Columns, read_metric
from t3d.store.metrics import RETURN, Metric, Series
from t3d.types import sample_std

LAST = 3  # evaluations whose mean is a seed's score


class Window(NamedTuple):
    """How far before its end each training is scored: where the one that reports most rarely has its last reports."""

    before: Array  # (up to LAST,), steps
    shortest: float  # interval between reports
    longest: float


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


def window(curves: Sequence[Series], at: int | None) -> Window:
    """Returns the window for trainings that are compared, which may report at different intervals."""
    used = [curve.steps[: max(1, _count(curve, at))] for curve in curves]
    intervals = [float(np.median(np.diff(steps))) if len(steps) > 1 else 0.0 for steps in used]
    trained = [_trained(steps)[-LAST:] for steps in used]
    rarest = max(range(len(used)), key=lambda number: (intervals[number], len(trained[number])))
    known = [interval for interval in intervals if interval] or [0.0]
    return Window(trained[rarest][-1] - trained[rarest], min(known), max(known))


def seed_of(training: Training, curve: Series, longest: Array, window: Window, at: int | None) -> Seed:
    """Scores a training: the mean over its end, of a diverged one the last value."""
    stopped = training.run.stopped.get(training.member)
    diverged = stopped is not None and (at is None or stopped.step <= at)
    if at is not None and (at < curve.steps[0] or (at > curve.steps[-1] and stopped is None)):
        raise UserError(
            f"--at {at} is outside what is known of {training.member.title} in {training.run.path}, "
            f"which is from step {curve.steps[0]:,.0f} to {curve.steps[-1]:,.0f}"
        )
    steps = curve.steps[: _count(curve, at)]
    points = steps[-1] - (0 if diverged else window.before)
    points = np.maximum(points, _trained(steps)[0])  # before training: there is nothing else
    score = np.interp(np.unique(points), curve.steps, curve.values).mean()
    held = _held(curve, longest) if stopped is not None else curve
    return Seed(training, held, float(score), float(steps[-1]), diverged)


def _count(curve: Series, at: int | None) -> int:
    return int((curve.steps <= (np.inf if at is None else at)).sum())


def _trained(steps: Array) -> Array:
    """Returns the steps after step 0, if there are any."""
    later = steps[steps > 0]
    return later if len(later) else steps


def _held(curve: Series, longest: Array) -> Series:
    """Returns a diverged seed's curve as if it stayed at its last value, for as long as another went on."""
    later = longest[longest > curve.steps[-1]]
    values, times = (np.append(column, np.full(len(later), column[-1])) for column in (curve.values, curve.times))
    return Series(np.append(curve.steps, later), values, times)


FEW = 5  # seeds; with fewer, intervals are too narrow (docs/many-seeds.md)


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


@dataclass(frozen=True)
class Row:
    """What is known of one group; the differences are to the first."""

    scored: Scored
    mean: Estimate
    iqm: Estimate
    difference: Estimate | None
    improvement: Estimate | None
    first_reached: tuple[Reached, Reached] | None  # the threshold, in steps and in minutes
    verdict: str

    @property
    def name(self) -> str:
        return self.scored.group.name


@dataclass(frozen=True)
class Comparison:
    """Everything that is printed and drawn."""

    metric: str
    score: str  # what it is, in a sentence
    tasks: list[str]
    threshold: float | None
    rows: list[Row]
    notes: list[str]

    @property
    def relative(self) -> bool:
        return len(self.tasks) > 1


def compare(
    groups: Sequence[Group], metric: str = RETURN, threshold: float | None = None, at: int | None = None
) -> Comparison:
    """Compares the first group with each of the others; at: scores are those of this step instead of the end."""
    runs = {training.run.path: training.run for group in groups for training in group.trainings}
    metrics, columns = read_metric([*runs], metric)
    if len(metrics) > 1:
        raise UserError(
            f"{metric} has several entries; compare one of them: {', '.join(entry.name for entry in metrics)}"
        )
    compared = metrics[0]
    tasks = [*groups[0].tasks]
    if threshold is not None and len(tasks) > 1:
        raise UserError(f"--threshold is for one task, and these are {len(tasks)}: {joined(tasks)}")
    by_task = [_seeds(groups, task, columns, compared, at) for task in tasks]
    scored = [Scored(group, [seeds[number] for seeds, _ in by_task]) for number, group in enumerate(groups)]
    if len(tasks) > 1:
        scored = [_relative(group, scored[0], tasks) for group in scored]
    rows = [_row(group, scored[0], threshold, compared.name) for group in scored]
    windows = [shared for _, shared in by_task]
    notes = [*_interval_notes(windows, compared), *_notes(scored)]
    score = _score_text(tasks, compared, scored[0], max(len(shared.before) for shared in windows), at)
    return Comparison(compared.name, score, tasks, threshold, rows, notes)


def _seeds(
    groups: Sequence[Group], task: str, columns: dict[Path, Columns], metric: Metric, at: int | None
) -> tuple[list[list[Seed]], Window]:
    """Scores the trainings of one task, group by group."""
    known = {path: of_run.series(metric) for path, of_run in columns.items()}
    trainings = [group.tasks[task] for group in groups]
    curves = [[_series_of(training, known[training.run.path], metric) for training in ours] for ours in trainings]
    both = [*zip(chain(*trainings), chain(*curves), strict=True)]
    living = [curve for training, curve in both if training.member not in training.run.stopped]
    shared = window(living or [curve for _, curve in both], at)
    seeds = []
    for ours, mine in zip(trainings, curves, strict=True):
        longest = max((curve.steps for curve in mine), key=lambda steps: float(steps[-1]))
        pairs = zip(ours, mine, strict=True)
        seeds.append([seed_of(training, curve, longest, shared, at) for training, curve in pairs])
    return seeds, shared


def _series_of(training: Training, known: dict[Member | None, Series], metric: Metric) -> Series:
    if training.member not in known:
        why = "it is one of the whole run" if None in known else "its log has none"
        raise UserError(f"{training.run.path} has no {metric.name} of {training.member.title}: {why}")
    return known[training.member]


def _relative(scored: Scored, base: Scored, tasks: list[str]) -> Scored:
    for task, scores in zip(tasks, base.scores, strict=True):
        middle, spread = float(scores.mean()), float(sample_std(scores))
        if abs(middle) <= spread or middle == 0:
            raise UserError(
                f"{base.group.name} has a mean of {middle:.3g} on {task} with a deviation of {spread:.3g} over seeds, "
                "too close to 0 for scores relative to it; put another group first, or compare task by task"
            )
    relative = []
    for seeds, scores in zip(scored.tasks, base.scores, strict=True):
        values = [relative_to([seed.curve.values, np.array([seed.score])], [scores, scores]) for seed in seeds]
        relative.append(
            [
                seed._replace(curve=seed.curve._replace(values=curve, spread=None), score=float(score[0]))
                for seed, (curve, score) in zip(seeds, values, strict=True)
            ]
        )
    return Scored(scored.group, relative)


def _row(scored: Scored, base: Scored, threshold: float | None, metric: str) -> Row:
    first = scored is base
    apart = None if first else estimate(difference, scored.scores, base.scores)
    wins = None if first else estimate(probability_of_improvement, scored.scores, base.scores)
    when = None
    if threshold is not None:
        curves = [seed.curve for seed in scored.seeds]
        steps = reached([first_reaching(curve.steps, curve.values, threshold) for curve in curves])
        minutes = reached(
            [first_reaching((curve.times - curve.times[0]) / 60, curve.values, threshold) for curve in curves]
        )
        when = steps, minutes
    verdict = "" if apart is None else _verdict(scored.group.name, base.group.name, apart, metric)
    middles = estimate(mean, scored.scores), estimate(interquartile_mean, scored.scores)
    return Row(scored, *middles, apart, wins, when, verdict)


def _verdict(name: str, base: str, apart: Estimate, metric: str) -> str:
    better, worse = ("better", "worse") if metric == RETURN else ("higher", "lower")
    if apart.interval is None:
        return f"{name} and {base} cannot be told apart: a single seed says nothing about others; train at least five"
    if apart.interval.low > 0:
        return f"{name} is {better} than {base}: the whole interval of the difference lies above 0"
    if apart.interval.high < 0:
        return f"{name} is {worse} than {base}: the whole interval of the difference lies below 0"
    return f"These seeds cannot tell {name} and {base} apart: the interval of the difference contains 0"


def _score_text(tasks: list[str], metric: Metric, base: Scored, count: int, at: int | None) -> str:
    what = "evaluation" if metric.kind.event == "eval" else "report"
    of = "mean return" if metric.name == RETURN else metric.name
    which = f"mean of its last {count} {what}s" if count > 1 else f"its last {what}"
    until = "" if at is None else f" up to step {at:,}"
    text = f"Score of a seed: {which}{until} ({of})"
    if len(tasks) == 1:
        return f"{text}."
    return (
        f"{text}, on each of {len(tasks)} tasks relative to the mean of {base.group.name} there: "
        "1 is that mean, 2 is higher by as much again."
    )


def _interval_notes(windows: list[Window], metric: Metric) -> list[str]:
    what = "Evaluations" if metric.kind.event == "eval" else "Reports"
    return [
        f"{what} are {shared.shortest:,.0f} to {shared.longest:,.0f} steps apart; all seeds are scored at the steps of "
        "the rarest, the others interpolated there."
        for shared in windows
        if differ([shared.shortest, shared.longest])
    ]


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
