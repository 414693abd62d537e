"""Statistics of trainings: what a few seeds on one or several tasks can say, with bootstrap intervals.

Scores are one array for each task, with the seeds on its last axis; resampled ones have the resamples before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from t3d.store.metrics import Series

Array = NDArray[np.float64]
Scores = Sequence[Array]  # for each task (..., seeds)
Statistic = Callable[..., Array]  # of one or several groups' scores

RESAMPLES = 10_000
DRAWN_RESAMPLES = 2_000  # of an interval that is drawn at each of hundreds of steps, not quoted; chosen
LEVEL = 0.95
APART = 1.05  # ratio of steps above which they are said to differ; chosen


class Interval(NamedTuple):
    """Where a statistic lies in 95 % of the resamples."""

    low: float
    high: float


class Estimate(NamedTuple):
    """A statistic and its bootstrap interval."""

    value: float
    interval: Interval | None  # None: a task has one seed, which says nothing about others

    @property
    def fields(self) -> dict[str, float | None]:
        low, high = self.interval or (None, None)
        return {"value": self.value, "low": low, "high": high}


class Reached(NamedTuple):
    """When seeds first reached a threshold, in the unit asked for."""

    median: float  # over all seeds, those that never did counted as infinitely late; infinite: half or more did not
    reached: int
    seeds: int


def mean(scores: Scores) -> Array:
    """Averages over seeds, then over tasks, so that each task counts the same."""
    over_tasks: Array = np.mean([of_task.mean(axis=-1) for of_task in scores], axis=0)
    return over_tasks


def interquartile_mean(scores: Scores) -> Array:
    """Averages the middle half of the scores of all tasks together: a quarter is left out on each side, rounded down.

    Less noisy than the median, and less moved by one lucky or failed seed than the mean; it is the mean of up to three.
    """
    pooled = np.sort(np.concatenate([*scores], axis=-1), axis=-1)
    cut = pooled.shape[-1] // 4
    middle: Array = pooled[..., cut : pooled.shape[-1] - cut].mean(axis=-1)
    return middle


def difference(x: Scores, y: Scores) -> Array:
    """Returns how far x's interquartile mean lies above y's."""
    return interquartile_mean(x) - interquartile_mean(y)


def probability_of_improvement(x: Scores, y: Scores) -> Array:
    """Returns how probably a random seed of x scores higher than one of y on the same task, on average over tasks.

    Ties count half, so that this is Mann and Whitney's U / (n m).
    """
    over_tasks: Array = np.mean([_wins(ours, theirs) for ours, theirs in zip(x, y, strict=True)], axis=0)
    return over_tasks


def performance_profile(scores: Scores, thresholds: Array) -> Array:
    """Returns which share of the seeds scores at least each threshold, on average over tasks: (thresholds, ...)."""
    reached = [[(of_task >= threshold).astype(np.float64) for of_task in scores] for threshold in thresholds]
    return np.stack([mean(shares) for shares in reached])


def estimate(statistic: Statistic, *groups: Scores, resamples: int = RESAMPLES, seed: int = 0) -> Estimate:
    """Returns a statistic of groups and its stratified bootstrap interval; the same seed gives the same interval.

    In each resample every group draws, within each of its tasks, as many seeds as it has, with replacement.
    """
    value = float(statistic(*groups))
    if any(of_task.shape[-1] < 2 for scores in groups for of_task in scores):
        return Estimate(value, None)
    rng = np.random.default_rng(seed)
    samples = statistic(*([resample(of_task, rng, resamples) for of_task in scores] for scores in groups))
    return Estimate(value, interval(samples))


def rate_interval(successes: float, count: int) -> Interval:
    """Returns Wilson's interval of a rate, which a bootstrap would make too narrow near 0 and 1."""
    z = 1.96  # of 95 %
    rate, spread = successes / count, z * z / count
    middle = rate + spread / 2
    half = z * np.sqrt(rate * (1 - rate) / count + spread / (4 * count))
    return Interval(*(float(end / (1 + spread)) for end in (middle - half, middle + half)))


def at_least_wilson(rate: Estimate, episodes: int) -> Estimate:
    """Widens a bootstrap interval over seeds, which vanishes where all succeed, to Wilson's over their episodes."""
    wilson = rate_interval(rate.value * episodes, episodes)
    return rate if rate.interval is None else rate._replace(interval=_wider(rate.interval, *wilson))


def at_least_newcombe(apart: Estimate, x: Estimate, y: Estimate) -> Estimate:
    """Widens the interval of a difference of rates, x - y, to Newcombe's, from the intervals of both."""
    if apart.interval is None or x.interval is None or y.interval is None:
        return apart
    below = np.hypot(x.value - x.interval.low, y.interval.high - y.value)
    above = np.hypot(x.interval.high - x.value, y.value - y.interval.low)
    return apart._replace(interval=_wider(apart.interval, apart.value - below, apart.value + above))


def _wider(interval: Interval, low: float, high: float) -> Interval:
    return Interval(min(interval.low, low), max(interval.high, high))


def resample(values: Array, rng: np.random.Generator, resamples: int = RESAMPLES) -> Array:
    """Draws from the values of seeds with replacement, as many as there are: (resamples, seeds)."""
    drawn: Array = values[rng.integers(len(values), size=(resamples, len(values)))]
    return drawn


def interval(samples: Array) -> Interval:
    """Returns the middle 95 % of resampled statistics."""
    low, high = np.percentile(samples, [50 * (1 - LEVEL), 50 * (1 + LEVEL)])
    return Interval(float(low), float(high))


def differ(steps: Sequence[float]) -> bool:
    """Whether steps are further apart than those of reports that come a little late."""
    return bool(steps) and max(steps) > APART * min(steps)


def on_common_steps(curves: Sequence[Series]) -> tuple[Array, Array]:
    """Returns steps that all curves cover and the values there, (T,) and (curves, T).

    They are the first, the last and between them those of the curve with the fewest; the others are interpolated
    linearly between their own.
    """
    steps = [curve.steps for curve in curves]
    first, last, fewest = max(each[0] for each in steps), min(each[-1] for each in steps), min(steps, key=len)
    common = np.unique([first, *fewest[(first < fewest) & (fewest < last)], last]) if first <= last else np.empty(0)
    return common, np.array([np.interp(common, curve.steps, curve.values) for curve in curves])


def band(statistic: Statistic, values: Array, resamples: int = DRAWN_RESAMPLES) -> tuple[Array, Array, Array]:
    """Returns a statistic of values (seeds, steps) at each step, and both ends of its interval: (steps,) each."""
    draws = np.random.default_rng(0).integers(len(values), size=(resamples, len(values)))
    ends = [interval(statistic([at_step[draws]])) for at_step in values.T]
    low, high = np.array(ends).reshape(-1, 2).T
    return np.array([statistic([at_step]) for at_step in values.T]), low, high


def first_reaching(x: Array, values: Array, threshold: float) -> float:
    """Returns the x of the first value that is at least the threshold; infinity if there is none."""
    there = np.flatnonzero(values >= threshold)
    return float(x[there[0]]) if len(there) else np.inf


def reached(firsts: Sequence[float]) -> Reached:
    """Summarises when each seed reached a threshold; infinity: it never did."""
    return Reached(float(np.median(firsts)), int(np.isfinite(firsts).sum()), len(firsts))


def relative_to(scores: Scores, base: Scores) -> list[Array]:
    """Makes the scores of several tasks comparable: 1 is the mean of base on a task, 2 one such mean above it, 0 below.

    Where that mean is positive, this is the score divided by it; where it is 0, it raises ZeroDivisionError.
    """
    means = [float(of_task.mean()) for of_task in base]
    if 0 in means:
        raise ZeroDivisionError("a mean of 0 cannot be compared with")
    return [1 + (of_task - middle) / abs(middle) for of_task, middle in zip(scores, means, strict=True)]


def _wins(x: Array, y: Array) -> Array:
    """Returns the share of pairs in which x is higher; one of x at a time, because resamples make large arrays."""
    each = [(seed > y).mean(axis=-1) + (seed == y).mean(axis=-1) / 2 for seed in np.moveaxis(x[..., None], -2, 0)]
    share: Array = np.mean(each, axis=0)
    return share
