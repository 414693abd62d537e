"""The history of a run's evaluations in a terminal: a line for each step."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from t3d.config import Member
from t3d.config.sweeps import by_values, short, swept, value_text
from t3d.events import Eval
from t3d.files import Refused
from t3d.insight.wording import metric_text, number_text
from t3d.store.log import read_log
from t3d.store.metrics import member_of
from t3d.types import sample_std

NARROWEST = 9  # characters of a column
Evals = defaultdict[int, dict[tuple[str, int | None], Eval]]  # by step, and by set and number of the member
FEWEST_LINES = 8  # below the names of the columns


class EvalRow(NamedTuple):
    """The evaluations at one step, by the numbers of their members; and the mean returns in other sets."""

    step: int
    evals: Mapping[int | None, Eval]
    others: Mapping[str, float] = MappingProxyType({})

    @classmethod
    def of(cls, step: int, evals: Mapping[tuple[str, int | None], Eval]) -> EvalRow:
        by_set = {name: {number: event for (of, number), event in evals.items() if of == name} for name, _ in evals}
        main = by_set.pop("", {})
        means = {name: fmean(event.mean_return for event in of_set.values()) for name, of_set in by_set.items()}
        return cls(step, main, means)

    def mean(self, numbers: Iterable[int]) -> float | None:
        """Averages the returns of some members, as far as they were evaluated."""
        known = [self.evals[number].mean_return for number in numbers if number in self.evals]
        return fmean(known) if known else None

    def mean_of(self, metric: str) -> float | None:
        """Averages a metric of info over the members that have it."""
        known = [value for event in self.evals.values() if (value := event.metrics.get(metric)) is not None]
        return fmean(known) if known else None


class HistoryLines:
    """Formats rows as lines of equal columns that fit the terminal: each seed if they all fit, or their spread."""

    def __init__(self, members: Sequence[Member], width: int, sets: Sequence[str] = ()) -> None:
        self.sets = sets  # besides the one that chooses the best
        self.groups, self.fields = groups_of(members), [short(field) for field in swept(members)]
        named = {name if self.fields else f"seed {name}": numbers for name, numbers in self.groups.items()}
        others = 2 if self.fields else 4  # step and speed; of seeds also mean and change
        fits = sum(map(_width, named)) + others * _width("") <= width
        self.each = named if fits and len(named) > 1 else {}
        if self.fields:
            between = [*self.each] or ["lowest", "highest", "which".rjust(max(map(len, self.groups)))]
        elif len(self.groups) == 1:
            between = ["return", "± std", "change"]
        else:
            between = ["mean", "change", *(self.each or ["± std", "lowest", "highest"])]
        columns = ["step", *between, *sets, "steps/s"]
        ends = accumulate(map(_width, columns))
        self.columns = [column for column, end in zip(columns, ends, strict=True) if end <= width]
        self._room = width - sum(map(_width, self.columns))
        self.metrics: list[str] = []  # of info: those of the first row, as far as they fit
        self._printed = 0
        self.since: tuple[int, float] | None = None  # step and time of the row before, for the speed
        self._before: float | None = None  # the mean of the row before
        self._best: dict[str, float] = {}  # by column
        self.arriving = Evals(dict)

    def take(self, living: Collection[int]) -> list[EvalRow]:
        """Returns the arrived rows that are complete, and older ones; with nobody living, all."""
        wanted = {(name, number) for name in ("", *self.sets) for number in living}
        complete = [step for step, evals in self.arriving.items() if evals.keys() >= wanted]
        steps = sorted(step for step in self.arriving if complete and step <= max(complete))
        return [EvalRow.of(step, self.arriving.pop(step)) for step in steps]

    def print(self, rows: Iterable[EvalRow], console: Console, at_most: int = sys.maxsize) -> None:
        """Prints the last of these rows, and now and then the names of the columns, so that a screen shows them."""
        rows = [*rows]
        if not self._printed and rows:
            self._add_metrics(rows[0])
        for line in [self.line(row) for row in rows][-at_most:]:
            if not self._printed:
                by = f" by {', '.join(self.fields)}" if self.fields else ""
                seeds = len(next(iter(self.groups.values())))
                over = f", mean over {seeds} seeds" if self.fields and seeds > 1 else ""
                title = f"Mean return in each evaluation{by}{over} (* best so far)"
                console.print(title, style="bold", soft_wrap=True)
            if self._printed % max(FEWEST_LINES, console.height // 2) == 0:
                console.print(self.head, style="dim", no_wrap=True)
            console.print(line, no_wrap=True)
            self._printed += 1

    def _add_metrics(self, row: EvalRow) -> None:
        for name in dict.fromkeys(name for event in row.evals.values() for name in event.metrics):
            if (left := self._room - _width(name)) >= 0:
                self._room, self.columns, self.metrics = left, [*self.columns, name], [*self.metrics, name]

    @property
    def head(self) -> str:
        return "".join(f"{column} ".rjust(_width(column)) for column in self.columns)

    def line(self, row: EvalRow) -> Text:
        """Formats one row; rows must come in order."""
        others = [_number(row.others[name]) if name in row.others else "-" for name in self.sets]
        cells = [f"{row.step:,}", *self._cells(row), *others, self._speed(row)]
        cells = cells[: len(self.columns) - len(self.metrics)]
        cells += [metric_text(name, mean) if (mean := row.mean_of(name)) is not None else "-" for name in self.metrics]
        line = Text()
        for column, cell in zip(self.columns, cells, strict=False):
            is_best = cell.endswith("*")
            line.append((cell if is_best else f"{cell} ").rjust(_width(column)), "bold" if is_best else "")
        return line

    def _cells(self, row: EvalRow) -> list[str]:
        each = [self._marked(column, row.mean(numbers)) for column, numbers in self.each.items()]
        if self.fields and each:
            return each
        if self.fields:
            means = {name: mean for name, numbers in self.groups.items() if (mean := row.mean(numbers)) is not None}
            which = max(means, key=means.__getitem__)
            return [_number(min(means.values())), self._marked("highest", means[which]), which]
        evals = [*row.evals.values()]
        returns = [event.mean_return for event in evals]
        mean, before = fmean(returns), self._before
        self._before, marked = mean, self._marked("mean", mean)
        change = "-" if before is None else _number(mean - before, "+")
        if len(self.groups) == 1:
            return [marked, f"± {_number(evals[0].std_return)}", change]
        spread = [f"± {_number(sample_std(returns))}", _number(min(returns)), _number(max(returns))]
        return [marked, change, *(each or spread)]

    def _marked(self, column: str, mean: float | None) -> str:
        """Formats a mean with a mark if it is the best of its column, but not the first."""
        if mean is None:
            return "-"
        best = self._best.get(column)
        self._best[column] = mean if best is None else max(best, mean)
        return _number(mean) + ("*" if best is not None and mean > best else "")

    def _speed(self, row: EvalRow) -> str:
        """Formats the steps of one seed per second since the last row."""
        now = row.step, max(event.time for event in row.evals.values())
        step, time = self.since or now
        self.since = now
        return f"{(now[0] - step) / (now[1] - time):,.0f}" if now[0] > step and now[1] > time else "-"


def earlier_rows(folder: Path, members: Sequence[Member]) -> list[EvalRow]:
    """Reads the evaluations that a run folder holds; none if it cannot be read."""
    evals = Evals(dict)
    with suppress(OSError, Refused):
        events, _ = read_log(folder, [Eval])
        for event in events:
            if isinstance(event, Eval) and member_of(event, members) is not None:
                evals[event.step]["" if event.chooses else event.set, event.member] = event
    return [EvalRow.of(step, evals[step]) for step in sorted(evals)]


def groups_of(members: Sequence[Member]) -> dict[str, list[int]]:
    """Returns what has a row or column of its own, with the numbers of its members: seeds, or values of a sweep."""
    if not swept(members):
        return {str(member.seed): [number] for number, member in enumerate(members)}
    numbers = {member: number for number, member in enumerate(members)}
    return {
        ", ".join(value_text(value) for _, value in values): [numbers[member] for member in group]
        for values, group in by_values(members).items()
    }


def _width(column: str) -> int:
    return max(NARROWEST, len(column)) + 2


def _number(value: float, sign: str = "") -> str:
    """Formats a return in at most nine characters."""
    if abs(value) < 1e5:
        return f"{sign if value > 0 else ''}{number_text(value)}"
    return f"{value:{sign},.0f}" if abs(value) < 1e6 else f"{value:{sign}.2e}"
