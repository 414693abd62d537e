"""Metrics, the numbers that a run reports: fields of its events, or entries of those that have several."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from t3d.events import ActingEvent, Diagnosed, EpisodeEnd, Eval, Event, Update

Array = NDArray[np.float64]
KINDS: tuple[type[Event], ...] = (Eval, Update, Diagnosed, EpisodeEnd, ActingEvent)
RETURN = "return"  # mean_return of evaluations
NOT_METRICS = {"step", "member", "seed", "time", "env", "episode", "since", "summary"}
LISTED = {  # what the entries of lists are called; those of others are numbered
    "td_quantiles": ("p5", "p25", "p50", "p75", "p95"),
    "sampled_age": ("p5", "p50", "p95"),
    "reward_range": ("low", "high"),
}


class Metric(NamedTuple):
    """A field of an event, and the name of an entry if it is a list or has names."""

    kind: type[Event]
    field: str
    entry: str = ""

    @property
    def name(self) -> str:
        """As --metric takes it: q_mean, or gradient_norms.actor; with the event if another one has the same field."""
        if self == MEAN_RETURN:
            return RETURN
        name = f"{self.field}.{self.entry}" if self.entry else self.field
        return name if _owner(self.field) is self.kind else f"{self.kind.event}.{name}"

    def is_named(self, name: str) -> bool:
        """Whether a name means this metric, or all entries of its field."""
        return parse_metric(name) in (self, self._replace(entry=""))


MEAN_RETURN, STD_RETURN = Metric(Eval, "mean_return"), Metric(Eval, "std_return")


class Series(NamedTuple):
    """What one member, or the whole run, reported of a metric."""

    steps: Array  # (T,), increasing
    values: Array  # (T,)
    times: Array  # (T,), seconds, without those between a stop and a resume
    spread: Array | None = None  # (T,): of an evaluation's return, its standard deviation over episodes


def parse_metric(name: str) -> Metric:
    """Returns the metric that a name means, whether or not a run has it."""
    kind_name, _, rest = name.partition(".")
    kinds = [kind for kind in KINDS if kind.event == kind_name and rest]
    field, _, entry = (rest if kinds else name).partition(".")
    field = "mean_return" if field == RETURN else field
    return Metric(kinds[0] if kinds else _owner(field), field, entry)


def listing(metrics: Iterable[Metric]) -> str:
    """Lists metrics, the ones of each event in a line; of numbered entries only the first and the last."""
    names: dict[str, list[str]] = {}
    for (kind, _), group in groupby(metrics, lambda metric: (metric.kind, metric.field)):
        of_field = [*group]
        numbered = len(of_field) > 1 and all(metric.entry.isdecimal() for metric in of_field)
        short = [f"{of_field[0].name} to {of_field[-1].entry}"] if numbered else [metric.name for metric in of_field]
        names.setdefault(kind.event, []).extend(short)
    return "\n".join(f"  {kind}: {', '.join(of_kind)}" for kind, of_kind in names.items()) or "  it has none yet"


def entries(value: object, field: str) -> dict[str, Any]:
    """Returns the values of a field by the names of its entries; a plain one has no name."""
    if isinstance(value, Mapping):
        return {str(key): item for key, item in value.items()}
    if isinstance(value, list):
        names = LISTED.get(field, ())
        return dict(zip(names if len(names) == len(value) else map(str, range(len(value))), value, strict=True))
    return {"": value}


def series_of(steps: Array, values: Array, times: Array, spreads: Array) -> Series:
    """Returns a series of reports in their order; those of one step are averaged."""
    if (np.diff(steps) <= 0).any():  # several environments of a member ended an episode in one step
        steps, where = np.unique(steps, return_inverse=True)
        values, times, spreads = (
            np.bincount(where, column) / np.bincount(where) for column in (values, times, spreads)
        )
    return Series(steps, values, times, None if np.isnan(spreads).any() else spreads)


def without_pauses(times: Array, pauses: Sequence[tuple[float, float]]) -> Array:
    """Leaves out the time between a stop and a resume."""
    return times - sum((seconds * (times >= resumed) for resumed, seconds in pauses), np.zeros_like(times))


def _owner(field: str) -> type[Event]:
    return next((kind for kind in KINDS if field in {known.name for known in dataclasses.fields(kind)}), Eval)
