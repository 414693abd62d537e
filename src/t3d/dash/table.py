"""What a run reported in one kind of event, as columns of numbers that grow."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from t3d.config import Member
from t3d.dash.plain_lines import ALWAYS, read_plain
from t3d.events import Event
from t3d.files import fields_in, to_fields
from t3d.insight.figures import NOT_FIGURES, Figure, Series, entries, series_of
from t3d.insight.statistics import Array
from t3d.store.values import LARGEST

STEP, TIME, MEMBER, OFFSET = range(4)  # the first columns; member is -1 where an event is about the whole run
FIRST = 4
MOST_COLUMNS = 400  # of one kind of event; a file that has more is not T3D's
WHOLE = -1


class Table:
    """One row for each event, one column for each figure; NaN where an event does not have it."""

    def __init__(self, kind: type[Event], members: Sequence[Member]) -> None:
        self.kind = kind
        self.fields = [one.name for one in dataclasses.fields(kind) if one.name not in NOT_FIGURES]
        self.columns: dict[Figure, int] = {}
        self.rows = 0
        self._seeds = np.array([member.seed for member in members], np.float64)
        self._numbers = np.empty((FIRST, 64), np.float64)

    @property
    def nbytes(self) -> int:
        return self._numbers.nbytes

    def add(self, lines: Sequence[bytes], offset: int) -> int:
        """Adds the events of lines, which begin at this offset of the log; returns how many cannot be used.

        Raises if one holds something unheard of.
        """
        plain = read_plain(self.kind, lines)
        if plain is not None:
            found = {Figure(self.kind, name): _drawable(plain[name]) for name in self.fields if name in plain}
            return self._append(plain, found, plain.get("summary", np.zeros(len(lines))) == 1, offset)
        events = [to_fields(one) for one in fields_in(b'{"events": [%s]}' % b",".join(lines))["events"]]
        found = {}
        for name in self.fields:
            found |= self._figures(events, name)
        first = {name: _array([event.get(name) for event in events]) for name in ALWAYS}
        return self._append(first, found, np.array([event.get("summary") is True for event in events]), offset)

    def put_in_order(self) -> None:
        """Sorts rows as they are in the log, whose parts may have been read in any order."""
        offsets = self._numbers[OFFSET, : self.rows]
        if (np.diff(offsets) < 0).any():
            order = np.argsort(offsets, kind="stable")
            for column in self._numbers:
                column[: self.rows] = column[order]

    def thin(self) -> bool:
        """Halves the rows: of every four in a row of a member, each figure keeps its smallest and its largest value.

        They stay in their order, at most three rows from where they were; the newest row stays as it is. Returns
        whether there was anything to leave out.
        """
        self.put_in_order()
        numbers = self._numbers[:, : self.rows]
        mine = [np.flatnonzero(numbers[MEMBER] == member) for member in self.members()]
        whole = [rows[: (len(rows) - 1) // 4 * 4] for rows in mine]
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

    def reports(self, member: int, *figures: Figure) -> Array:
        """Returns steps, times and figures of what one member, or the whole run, reported of the first: (2 + F, T)."""
        values = [self._of(figure) for figure in figures]
        kept = (self._numbers[MEMBER, : self.rows] == member) & ~np.isnan(values[0])
        return np.stack([one[kept] for one in (*self._numbers[:MEMBER, : self.rows], *values)])

    def series(self, member: int, figure: Figure, spread: Figure) -> Series | None:
        """Returns what one member, or the whole run, reported of a figure."""
        steps, times, values, spreads = self.reports(member, figure, spread)
        return series_of(steps, values, times, spreads) if len(steps) else None

    def members(self) -> list[int]:
        """Returns which members have reported, by number; WHOLE stands for the whole run."""
        return [int(member) for member in np.unique(self._numbers[MEMBER, : self.rows])]

    def _of(self, figure: Figure) -> Array:
        if figure not in self.columns:
            return np.full(self.rows, np.nan)
        return self._numbers[self.columns[figure], : self.rows]

    def _figures(self, events: Sequence[Mapping[str, Any]], name: str) -> dict[Figure, Array]:
        """Returns the columns of a field: one, or one for each of its entries."""
        values = [event.get(name) for event in events]
        if not any(isinstance(value, dict | list) for value in values):
            return {Figure(self.kind, name): _numbers(values)}
        if len({tuple(value) if isinstance(value, dict) else _length(value) for value in values}) == 1:
            rows = _numbers([[*value.values()] if isinstance(value, dict) else value for value in values])
            return {Figure(self.kind, name, entry): rows[:, at] for at, entry in enumerate(entries(values[0], name))}
        named = [entries(value, name) for value in values]
        names = dict.fromkeys(chain.from_iterable(named))
        return {Figure(self.kind, name, entry): _numbers([one.get(entry) for one in named]) for entry in names}

    def _known(self, members: Array, seeds: Array) -> Any:
        """Which events name a member of the run by its number and its seed."""
        inside = (members >= 0) & (members < len(self._seeds)) & (members == np.floor(members))
        return inside & (self._seeds[np.where(inside, members, 0).astype(int)] == seeds)

    def _append(self, first: Mapping[str, Array], found: Mapping[Figure, Array], repeated: Any, offset: int) -> int:
        steps, times, members = first["step"], first["time"], first["member"]
        whole = np.isnan(members)
        members = np.where(whole, WHOLE, members)
        valid = (steps >= 0) & (steps < 2**62) & (steps == np.floor(steps)) & (np.abs(times) < LARGEST)
        valid &= whole | self._known(members, first["seed"])
        kept = valid & ~repeated
        added = [one for one, values in found.items() if one not in self.columns and not np.isnan(values[kept]).all()]
        if len(self.columns) + len(added) > MOST_COLUMNS:
            raise ValueError(f"it has more than {MOST_COLUMNS} figures of one kind")
        self.columns |= {figure: FIRST + column for column, figure in enumerate(added, len(self.columns))}
        new = int(kept.sum())
        self._make_room(self.rows + new)
        block = self._numbers[:, self.rows : self.rows + new]
        block[:OFFSET] = np.stack([steps, times, members])[:, kept]
        block[OFFSET] = offset
        block[FIRST:] = np.nan
        for figure, values in found.items():
            if figure in self.columns:
                block[self.columns[figure]] = values[kept]
        self.rows += new
        return int((~valid).sum())

    def _make_room(self, rows: int) -> None:
        columns, capacity = FIRST + len(self.columns), self._numbers.shape[1]
        if columns == self._numbers.shape[0] and rows <= capacity:
            return
        larger = np.empty((columns, max(rows + rows // 2, capacity)))
        larger[: self._numbers.shape[0], : self.rows] = self._numbers[:, : self.rows]
        larger[self._numbers.shape[0] :, : self.rows] = np.nan
        self._numbers = larger


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list) else -1


def _numbers(values: Sequence[Any]) -> Array:
    return _drawable(_array(values))


def _array(values: Sequence[Any]) -> Array:
    try:
        return np.array(values, np.float64)
    except TypeError:
        raise ValueError("not all of them are numbers") from None


def _drawable(values: Array) -> Array:
    """Replaces numbers that are not finite, or too large to be drawn, by NaN."""
    return np.where(np.abs(values) < LARGEST, values, np.nan)
