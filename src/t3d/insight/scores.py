"""The score of one training: its mean over the end, at the same steps for all that are compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from t3d.errors import UserError
from t3d.files import readable
from t3d.insight.groups import Training
from t3d.insight.statistics import Array
from t3d.store.metrics import Series

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
    rarest = max(range(len(used)), key=lambda place: (intervals[place], len(trained[place])))
    known = [one for one in intervals if one] or [0.0]
    return Window(trained[rarest][-1] - trained[rarest], min(known), max(known))


def seed_of(one: Training, curve: Series, longest: Array, window: Window, at: int | None) -> Seed:
    """Scores a training: the mean over its end, of a diverged one the last value."""
    stopped = one.run.stopped.get(one.member)
    diverged = stopped is not None and (at is None or stopped.step <= at)
    if at is not None and (at < curve.steps[0] or (at > curve.steps[-1] and stopped is None)):
        raise UserError(
            f"--at {at} is outside what is known of {one.member.title} in {one.run.path}, "
            f"which is from step {curve.steps[0]:,.0f} to {curve.steps[-1]:,.0f}"
        )
    steps = curve.steps[: _count(curve, at)]
    points = steps[-1] - (0 if diverged else window.before)
    points = np.maximum(points, _trained(steps)[0])  # before training: there is nothing else
    score = np.interp(np.unique(points), curve.steps, curve.values).mean()
    held = _held(curve, longest) if stopped is not None else curve
    return Seed(one, held, float(score), float(steps[-1]), diverged)


def _count(curve: Series, at: int | None) -> int:
    return int((curve.steps <= (np.inf if at is None else at)).sum())


def _trained(steps: Array) -> Array:
    """Returns the steps after step 0, if there are any."""
    later = steps[steps > 0]
    return later if len(later) else steps


def _held(curve: Series, longest: Array) -> Series:
    """Returns a diverged seed's curve as if it stayed at its last value, for as long as another went on."""
    later = longest[longest > curve.steps[-1]]
    values, times = (np.append(one, np.full(len(later), one[-1])) for one in (curve.values, curve.times))
    return Series(np.append(curve.steps, later), values, times)
