"""What a run reported in one kind of event, as columns of numbers that grow."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from t3d.config import Member
from t3d.config.settings import SET_NAME
from t3d.events import Eval, Event
from t3d.files import fields_in, to_fields
from t3d.store.log import LARGEST
from t3d.store.metrics import MEAN_RETURN, NOT_METRICS, STD_RETURN, Array, Metric, Series, entries, series_of

MEMBER, OFFSET = 2, 3  # after step and time; member is -1 where an event is about the whole run
FIRST = 4  # the first column of a metric
MOST_COLUMNS = 400  # of one kind of event; a file that has more is not T3D's
MOST_ENTRIES = 150  # of a field; one with more, such as the returns of very many episodes, is left out; chosen
WHOLE = -1
NO_METRIC = Metric(Event, "")
ALWAYS = ("step", "time", "member", "seed")
NEEDED = MEAN_RETURN, STD_RETURN, Metric(Eval, "updates")  # log.py refuses evaluations without them too
NUMBERS: set[type] = {int, float, type(None)}
FLAGS: set[type] = {bool, type(None)}


class Table:
    """One row for each event, one column for each metric; NaN where an event does not have it."""

    def __init__(self, kind: type[Event], members: Sequence[Member]) -> None:
        self.kind = kind
        fields = [field for field in dataclasses.fields(kind) if field.name not in NOT_METRICS]
        self.fields = [field.name for field in fields]
        self._types = {field.name: FLAGS if str(field.type) == "bool" else NUMBERS for field in fields}
        self.columns: dict[Metric, int] = {}
        self.rows = 0
        self._seeds = np.array([member.seed for member in members], np.float64)
        self._numbers = np.empty((FIRST, 64), np.float64)

    @property
    def nbytes(self) -> int:
        return self._numbers.nbytes

    def metrics(self) -> list[Metric]:
        return sorted(self.columns, key=lambda metric: self.fields.index(metric.field))

    def add(self, lines: Sequence[bytes], offset: int) -> int:
        """Adds the events of lines, which begin at this offset; returns how many cannot be used, or raises."""
        events = [to_fields(fields) for fields in fields_in(b'{"events": [%s]}' % b",".join(lines))["events"]]
        sets = [*map(_set_of, events)] if self.kind is Eval else [""]
        metrics: dict[Metric, Array] = {}
        for which in dict.fromkeys(["", *sets]):
            own = events
            if any(sets):
                own = [event if of == which else {} for event, of in zip(events, sets, strict=True)]
            for metric, values in (pair for name in self.fields for pair in self._columns_of(own, name).items()):
                if not (which and metric.entry.isdecimal()):  # of another set, numbers without a name are left out
                    metrics[metric.in_set(which)] = values
        first = {name: _array([event.get(name) for event in events]) for name in ALWAYS}
        return self._append(first, metrics, np.array([event.get("summary") is True for event in events]), offset)

    def put_in_order(self) -> None:
        """Sorts rows as they are in the log, whose parts may have been read in any order."""
        offsets = self._numbers[OFFSET, : self.rows]
        if (np.diff(offsets) < 0).any():
            order = np.argsort(offsets, kind="stable")
            for column in self._numbers:
                column[: self.rows] = column[order]

    def thin(self) -> bool:
        """Halves the rows: of every four of a member, each metric keeps its smallest and its largest value, in order.

        The newest row stays as it is. Returns whether there was anything to leave out.
        """
        self.put_in_order()
        numbers = self._numbers[:, : self.rows]
        rows_of = [np.flatnonzero(numbers[MEMBER] == member) for member in self.members()]
        whole = [rows[: (len(rows) - 1) // 4 * 4] for rows in rows_of]
        fours = np.concatenate([np.empty(0, np.intp), *whole]).reshape(-1, 4)
        for column in numbers[FIRST:]:
            values = column[fours]
            low, high = (np.where(np.isnan(values), fill, values) for fill in (np.inf, -np.inf))
            ends = np.sort(np.stack([low.argmin(axis=1), high.argmax(axis=1)], axis=1), axis=1)
            kept = np.take_along_axis(values, ends, axis=1)
            kept[ends[:, 0] == ends[:, 1], 1] = np.nan  # there is only one
            column[fours[:, [0, 2]]] = kept
        stays = np.ones(self.rows, bool)
        stays[fours[:, [1, 3]]] = False
        self._numbers = numbers[:, stays]
        self.rows = self._numbers.shape[1]
        return len(fours) > 0

    def reports(self, member: int, *metrics: Metric) -> Array:
        """Returns steps, times and metrics of what one member, or the whole run, reported of the first: (2 + F, T)."""
        missing = np.full(self.rows, np.nan)
        values = [self._numbers[at, : self.rows] if (at := self.columns.get(metric)) else missing for metric in metrics]
        kept = (self._numbers[MEMBER, : self.rows] == member) & ~np.isnan(values[0])
        return np.stack([column[kept] for column in (*self._numbers[:MEMBER, : self.rows], *values)])

    def series(self, member: int, metric: Metric, every: int = 0) -> Series | None:
        """Returns what one member, or the whole run, reported of a metric, or its averages over windows of steps."""
        spread = STD_RETURN.in_set(metric.entry) if metric[:2] == MEAN_RETURN[:2] else NO_METRIC
        steps, times, values, spreads = self.reports(member, metric, spread)
        if not len(steps):
            return None
        if every:
            steps = np.minimum(np.ceil(steps / every) * every, steps.max())
        return series_of(steps, values, times, spreads)

    def members(self) -> list[int]:
        """Returns which members have reported, by number; WHOLE stands for the whole run."""
        return [int(member) for member in np.unique(self._numbers[MEMBER, : self.rows])]

    def _columns_of(self, events: Sequence[Mapping[str, Any]], name: str) -> dict[Metric, Array]:
        values = [event.get(name) for event in events]
        if name == "args":  # of which some may be words
            values = [
                {key: item for key, item in to_fields(each or {}).items() if type(item) in NUMBERS} for each in values
            ]
        if Metric(self.kind, name) in NEEDED or {dict, list}.isdisjoint(map(type, values)):
            return {Metric(self.kind, name): _drawable(_array(values, self._types[name]))}
        if not any(values):
            return {}
        if max(_length(value) for value in values) > MOST_ENTRIES:
            return {}
        if len({tuple(value) if isinstance(value, dict) else _length(value) for value in values}) == 1:
            rows: list[Any] = [value.values() if isinstance(value, dict) else value for value in values]
            columns = _drawable(_array([*chain.from_iterable(rows)])).reshape(len(rows), len(rows[0])).T
            return {Metric(self.kind, name, entry): columns[at] for at, entry in enumerate(entries(values[0], name))}
        named = [entries(value, name) for value in values]
        names = dict.fromkeys(chain.from_iterable(named))
        return {
            Metric(self.kind, name, entry): _drawable(_array([each.get(entry) for each in named])) for entry in names
        }

    def _append(self, first: Mapping[str, Array], metrics: Mapping[Metric, Array], repeated: Any, offset: int) -> int:
        steps, times, members = first["step"], first["time"], first["member"]
        whole = np.isnan(members)
        members = np.where(whole, WHOLE, members)
        valid = (steps >= 0) & (steps < 2**62) & (steps == np.floor(steps)) & (np.abs(times) < LARGEST)
        inside = (members >= 0) & (members < len(self._seeds)) & (members == np.floor(members))
        valid &= whole | inside & (self._seeds[np.where(inside, members, 0).astype(int)] == first["seed"])
        for metric in NEEDED:
            if metric.kind is self.kind:
                of_sets = [values for known, values in metrics.items() if known[:2] == metric[:2]]
                valid &= ~np.isnan(of_sets).all(axis=0)
        kept = valid & ~repeated
        unknown = {metric: values for metric, values in metrics.items() if metric not in self.columns}
        new = [metric for metric, values in unknown.items() if not np.isnan(values[kept]).all()]
        if len(self.columns) + len(new) > MOST_COLUMNS:
            raise ValueError(f"it has more than {MOST_COLUMNS} metrics of one kind")
        self.columns |= {metric: FIRST + column for column, metric in enumerate(new, len(self.columns))}
        count = int(kept.sum())
        if FIRST + len(self.columns) > len(self._numbers) or self.rows + count > self._numbers.shape[1]:
            larger = np.empty((FIRST + len(self.columns), max((self.rows + count) * 3 // 2, self._numbers.shape[1])))
            larger[: len(self._numbers), : self.rows] = self._numbers[:, : self.rows]
            larger[len(self._numbers) :, : self.rows] = np.nan
            self._numbers = larger
        block = self._numbers[:, self.rows : self.rows + count]
        block[:OFFSET] = np.stack([steps, times, members])[:, kept]
        block[OFFSET] = offset
        block[FIRST:] = np.nan
        for metric, values in metrics.items():
            if metric in self.columns:
                block[self.columns[metric]] = values[kept]
        self.rows += count
        return int((~valid).sum())


def _set_of(event: Mapping[str, Any]) -> str:
    """Returns the set of an evaluation that chooses nothing."""
    if event.get("chooses") is not False:
        return ""
    if not SET_NAME.fullmatch(name := event["set"]):
        raise ValueError("its set has no name")
    return str(name)


def _length(value: Any) -> int:
    return len(value) if isinstance(value, dict | list) else -1


def _array(values: Sequence[Any], types: set[type] = NUMBERS) -> Array:
    if not types.issuperset(map(type, values)):  # NumPy would take "5" and True for numbers
        raise ValueError("not all of them are numbers")
    return np.array(values, np.float64)


def _drawable(values: Array) -> Array:
    """Replaces numbers that are not finite, or too large to be drawn, by NaN."""
    return np.where(np.abs(values) < LARGEST, values, np.nan)
