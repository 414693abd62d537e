"""Curves of runs: one for each seed, and the mean over seeds with its interval, with few points to draw."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from t3d.config import Config, Member
from t3d.config.sweeps import Values
from t3d.events import EpisodeEnd
from t3d.insight.statistics import Array, band, mean, on_common_steps
from t3d.store.columns import Columns
from t3d.store.metrics import Metric, Series
from t3d.types import sample_std

MOST_BANDED = 200  # points of a mean: an interval at each costs more than all the rest; chosen


class DrawnRun(NamedTuple):
    """A run that curves are wanted of."""

    name: str
    data: Columns
    started: float = 0.0  # seconds since 1970

    @property
    def cfg(self) -> Config:
        return self.data.cfg


class Window(NamedTuple):
    """What is wanted of each curve."""

    points: int = 600
    first: float = -np.inf  # step
    last: float = np.inf
    deviation: bool = False  # whether bands are one standard deviation over seeds, not the interval of their mean


class MemberCurve(NamedTuple):
    """What one member reported."""

    run: DrawnRun
    member: Member | None  # None: the whole run
    series: Series  # with seconds since the run started

    @property
    def diverged(self) -> bool:
        return self.member in self.run.data.stopped


def find(runs: Iterable[DrawnRun], name: str) -> list[Metric]:
    """Returns the metric of this name, or all its entries, as far as one of the runs reported it."""
    known = dict.fromkeys(metric for run in runs for metric in run.data.metrics())
    return [metric for metric in known if metric.is_named(name)]


def member_curves(run: DrawnRun, metric: Metric, every: int = 0) -> list[MemberCurve]:
    """Returns what each member of a run reported, or its averages over windows of so many steps."""
    series = run.data.series(metric, every).items()
    return [MemberCurve(run, member, curve._replace(times=curve.times - run.started)) for member, curve in series]


def lines(pool: Sequence[DrawnRun], metric: Metric, window: Window, only: Member | None = None) -> list[dict[str, Any]]:
    """Returns a line for each combination of a sweep, one otherwise, or that of a member.

    The seeds of several runs are pooled.
    """
    groups: dict[Values | None, list[MemberCurve]] = {}
    for run in pool:
        every = run.cfg.log.every_steps if metric.kind is EpisodeEnd and metric.is_share else 0
        for curve in member_curves(run, metric, every):
            if only is None or curve.member in (only, None):
                groups.setdefault(None if curve.member is None else curve.member.values, []).append(curve)
    return [
        {
            "runs": [run.name for run in pool],
            "values": dict(values or ()),
            "members": [_member(curve, window) for curve in curves],
            "mean": _mean([curve.series for curve in curves if not curve.diverged], window),
        }
        for values, curves in groups.items()
    ]


def thinned(values: Array, points: int) -> NDArray[np.intp]:
    """Returns which values to keep: the smallest and the largest of each of points / 2 equal parts, and both ends."""
    count, parts = len(values), max(1, points // 2 - 1)
    if count <= points:
        return np.arange(count)
    length = -(-count // parts)
    padded = np.append(values, np.full(-count % length, values[-1])).reshape(-1, length)
    starts = np.arange(len(padded)) * length
    kept = np.concatenate([[0], starts + padded.argmin(axis=1), starts + padded.argmax(axis=1), [count - 1]])
    return np.unique(np.minimum(kept, count - 1))


def _cut(series: Series, window: Window) -> Series:
    """Returns the part in a window, with one report beyond each side, so that lines reach its edges."""
    begin = max(0, int(np.searchsorted(series.steps, window.first)) - 1)
    end = int(np.searchsorted(series.steps, window.last, side="right")) + 1
    return Series(*(None if column is None else column[begin:end] for column in series))  # type: ignore[arg-type]


def _member(curve: MemberCurve, window: Window) -> dict[str, Any]:
    series, member = _cut(curve.series, window), curve.member
    kept = thinned(series.values, window.points)
    return {
        "run": curve.run.name,
        "member": member and member.name,
        "seed": member and member.seed,
        "diverged": curve.diverged,
        **_points(series.steps[kept], series.times[kept], series.values[kept]),
    }


def _mean(living: Sequence[Series], window: Window) -> dict[str, Any] | None:
    """Returns the mean over seeds at steps that all have reached, with its interval; None: there are none."""
    curves = [_cut(series, window) for series in living]
    if not curves:
        return None
    steps, values = on_common_steps(curves)
    if not len(steps):
        return None
    middle = values.mean(axis=0)
    if len(curves) > 1 and not window.deviation:
        kept = thinned(middle, min(window.points, MOST_BANDED))
        _, low, high = band(mean, values[:, kept])
        ends = {"low": low.tolist(), "high": high.tolist()}
    else:
        kept, spread = (
            thinned(middle, window.points),
            sample_std(values, axis=0) if len(curves) > 1 else curves[0].spread,
        )
        ways = {"low": -1, "high": 1}
        ends = {name: None if spread is None else (middle + way * spread)[kept].tolist() for name, way in ways.items()}
    seconds = np.mean([np.interp(steps[kept], curve.steps, curve.times) for curve in curves], axis=0)
    return {**_points(steps[kept], seconds, middle[kept]), **ends}


def _points(steps: Array, seconds: Array, y: Array) -> dict[str, list[Any]]:
    return {"steps": steps.astype(int).tolist(), "seconds": np.round(seconds, 3).tolist(), "y": y.tolist()}
