"""Curves for the pages: one for each seed, and the mean over seeds with its interval, with few points to draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from t3d.config import Member
from t3d.config.sweeps import Values
from t3d.dash.index import RunIndex
from t3d.dash.table import WHOLE, Table
from t3d.events import EpisodeEnd, Eval
from t3d.insight.figures import Figure, Series, parsed, series_of, without_pauses
from t3d.insight.groups import pooled
from t3d.insight.statistics import Array, band, mean, on_common_steps
from t3d.store.reader import Run

RESAMPLES = 2_000  # of an interval that is drawn, not quoted; chosen
MOST_BANDED = 200  # points of a mean: an interval at each costs more than all the rest; chosen
RETURN, SPREAD = Figure(Eval, "mean_return"), Figure(Eval, "std_return")
TERMINATED = Figure(EpisodeEnd, "terminated")


class DrawnRun(NamedTuple):
    """A run that curves are wanted of."""

    name: str
    data: RunIndex
    started: float  # seconds since 1970
    pauses: Sequence[tuple[float, float]]  # when it went on, and how long it had stood still


class Window(NamedTuple):
    """What is wanted of each curve."""

    points: int = 600
    first: float = -np.inf  # step
    last: float = np.inf


class MemberCurve(NamedTuple):
    """What one member reported."""

    run: DrawnRun
    member: Member | None  # None: the whole run
    series: Series

    @property
    def diverged(self) -> bool:
        return self.member in self.run.data.stopped


def pools_of(runs: Sequence[DrawnRun]) -> list[list[DrawnRun]]:
    """Puts runs together that differ only in their seeds."""
    by_path = {run.data.path: run for run in runs}
    pools = pooled([Run(run.data.path, run.data.cfg, {}) for run in runs])
    return [[by_path[one.path] for one in together] for together in pools]


def find(runs: Sequence[DrawnRun], name: str) -> list[Figure]:
    """Returns the figure of this name, or all its entries, as far as one of the runs reported it."""
    asked = parsed(name)
    known = dict.fromkeys(figure for run in runs for figure in run.data.figures())
    return [figure for figure in known if asked in (figure, figure._replace(entry=""))]


def lines(pool: Sequence[DrawnRun], figure: Figure, window: Window) -> list[dict[str, Any]]:
    """Returns a line for each combination of a sweep, one otherwise; the seeds of several runs are pooled."""
    groups: dict[Values | None, list[MemberCurve]] = {}
    for one in (one for run in pool for one in _reported(run, figure)):
        groups.setdefault(None if one.member is None else one.member.values, []).append(one)
    return [
        {
            "runs": [run.name for run in pool],
            "values": dict(values or ()),
            "members": [_curve(one, window) for one in mine],
            "mean": _mean([one for one in mine if not one.diverged], figure, window),
        }
        for values, mine in groups.items()
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


def _reported(run: DrawnRun, figure: Figure) -> list[MemberCurve]:
    table, members = run.data.tables[figure.kind], run.data.members
    found = []
    for number in table.members():
        if figure == TERMINATED:
            series = _share(table, number, run.data.cfg.log.every_steps)
        else:
            series = table.series(number, figure, SPREAD)
        if series is not None:
            seconds = without_pauses(series.times, run.pauses) - run.started
            found.append(MemberCurve(run, None if number == WHOLE else members[number], series._replace(times=seconds)))
    return found


def _share(table: Table, member: int, every: int) -> Series | None:
    """Returns the share of a member's episodes that terminated, in each log window; the newest may not be over yet."""
    steps, times, ended = table.reports(member, TERMINATED)
    if not len(steps):
        return None
    windows = np.minimum(np.ceil(steps / every) * every, steps.max())
    return series_of(windows, ended, times, np.full_like(ended, np.nan))


def _cut(series: Series, window: Window) -> Series:
    """Returns the part in a window, with one report beyond each side, so that lines reach its edges."""
    begin = max(0, int(np.searchsorted(series.steps, window.first)) - 1)
    end = int(np.searchsorted(series.steps, window.last, side="right")) + 1
    return Series(*(None if one is None else one[begin:end] for one in series))  # type: ignore[arg-type]


def _curve(one: MemberCurve, window: Window) -> dict[str, Any]:
    series = _cut(one.series, window)
    kept = thinned(series.values, window.points)
    return {
        "run": one.run.name,
        "member": one.member and one.member.name,
        "seed": one.member and one.member.seed,
        "diverged": one.diverged,
        "steps": series.steps[kept].astype(int).tolist(),
        "seconds": np.round(series.times[kept], 3).tolist(),
        "y": series.values[kept].tolist(),
    }


def _mean(living: Sequence[MemberCurve], figure: Figure, window: Window) -> dict[str, Any] | None:
    """Returns the mean over seeds at steps that all have reached, with its interval."""
    curves = [_cut(one.series, window) for one in living]
    if not curves:
        return None
    steps, values = on_common_steps([one.steps for one in curves], [one.values for one in curves])
    if not len(steps):
        return None
    middle = values.mean(axis=0)
    kept = thinned(middle, min(window.points, MOST_BANDED) if len(curves) > 1 else window.points)
    low: list[float] | None
    low = high = None
    if len(curves) > 1:
        _, lows, highs = band(mean, values[:, kept], RESAMPLES)
        low, high = lows.tolist(), highs.tolist()
    elif figure == RETURN and curves[0].spread is not None:
        spread = np.interp(steps, curves[0].steps, curves[0].spread)[kept]
        low, high = (middle[kept] - spread).tolist(), (middle[kept] + spread).tolist()
    seconds = np.mean([np.interp(steps[kept], one.steps, one.times) for one in curves], axis=0)
    return {
        "steps": steps[kept].astype(int).tolist(),
        "seconds": np.round(seconds, 3).tolist(),
        "y": middle[kept].tolist(),
        "low": low,
        "high": high,
    }
