"""The history of a run's evaluations in a terminal: a line for each step, and small curves."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from t3d.config import Member
from t3d.config.sweeps import by_values, short, swept, value_text
from t3d.events import Eval
from t3d.files import Refused
from t3d.insight.wording import number_text
from t3d.store.log import read_log
from t3d.store.members import member_of
from t3d.types import sample_std

BARS = "▁▂▃▄▅▆▇█"
NARROWEST = 9  # characters of a column
FEWEST_LINES = 8  # below the names of the columns


class MemberGroup(NamedTuple):
    """What has a column or a row of its own: a seed, or in a sweep the seeds with the same values."""

    name: str
    places: list[int]  # of its members


class EvalRow(NamedTuple):
    """The evaluations at one step, by the place of their members."""

    step: int
    evals: Mapping[int, Eval]

    @property
    def time(self) -> float:
        """When the last of them was made."""
        return max(event.time for event in self.evals.values())

    @property
    def returns(self) -> list[float]:
        """The mean returns of all members that were evaluated."""
        return [event.mean_return for event in self.evals.values()]

    def mean(self, places: Iterable[int]) -> float | None:
        """Averages the returns of some members, as far as they were evaluated."""
        known = [self.evals[place].mean_return for place in places if place in self.evals]
        return fmean(known) if known else None


class EvalHistory:
    """Collects evaluations until all members that are still trained have theirs of a step."""

    def __init__(self, earlier: Iterable[Eval] = ()) -> None:
        self.rows: list[EvalRow] = []
        self._arriving: dict[int, dict[int, Eval]] = {}  # by step and place
        for event in earlier:
            self._note(event)
        self.take(())

    def add(self, event: Eval, living: Collection[int]) -> list[EvalRow]:
        """Returns the rows that this evaluation completes."""
        self._note(event)
        return self.take(living)

    def take(self, living: Collection[int]) -> list[EvalRow]:
        """Returns the rows that are complete, and older ones; with nobody living, all."""
        complete = [step for step, evals in self._arriving.items() if evals.keys() >= set(living)]
        steps = sorted(step for step in self._arriving if complete and step <= max(complete))
        rows = [EvalRow(step, self._arriving.pop(step)) for step in steps]
        self.rows += rows
        return rows

    def curve(self, places: Collection[int]) -> list[float]:
        """Returns the mean return of some members at each step."""
        means = (row.mean(places) for row in self.rows)
        return [mean for mean in means if mean is not None]

    def _note(self, event: Eval) -> None:
        if event.member is not None:
            self._arriving.setdefault(event.step, {})[event.member] = event


class Column(NamedTuple):
    """A column of the history, and whose mean it shows."""

    name: str
    places: Sequence[int] = ()

    @property
    def width(self) -> int:
        """Its width with a mark and a gap."""
        return max(NARROWEST, len(self.name)) + 2


class HistoryLines:
    """Formats rows as lines of equal columns that fit the terminal: each seed if they all fit, or their spread."""

    def __init__(self, members: Sequence[Member], width: int) -> None:
        self.groups, self.fields = groups_of(members), [short(field) for field in swept(members)]
        named = [Column(group.name if self.fields else f"seed {group.name}", group.places) for group in self.groups]
        others = 2 if self.fields else 4  # step and speed; of seeds also mean and change
        fits = sum(column.width for column in named) + others * Column("").width <= width
        self.each = named if fits and len(named) > 1 else []
        columns = self._columns()
        ends = accumulate(column.width for column in columns)
        self.columns = [column for column, end in zip(columns, ends, strict=True) if end <= width]
        self._printed = 0
        self._since: tuple[int, float] | None = None  # step and time of the row before, for the speed
        self._before: float | None = None  # the mean of the row before
        self._best: dict[str, float] = {}  # by column

    def print(self, rows: Iterable[EvalRow], console: Console, at_most: int = sys.maxsize) -> None:
        """Prints the last of these rows, and now and then the names of the columns, so that a screen shows them."""
        for line in [self.line(row) for row in rows][-at_most:]:
            if not self._printed:
                console.print(self.title, style="bold", soft_wrap=True)
            if self._printed % max(FEWEST_LINES, console.height // 2) == 0:
                console.print(self.head, style="dim", no_wrap=True)
            console.print(line, no_wrap=True)
            self._printed += 1

    @property
    def title(self) -> str:
        """What the lines are about."""
        by = f" by {', '.join(self.fields)}" if self.fields else ""
        seeds = len(self.groups[0].places)
        over = f", mean over {seeds} seeds" if self.fields and seeds > 1 else ""
        return f"Mean return in each evaluation{by}{over} (* best so far)"

    @property
    def head(self) -> str:
        """The names of the columns."""
        return "".join(f"{column.name} ".rjust(column.width) for column in self.columns)

    def line(self, row: EvalRow) -> Text:
        """Formats one row; rows must come in order."""
        cells = [f"{row.step:,}", *self._cells(row), self._speed(row)]
        line = Text()
        for column, cell in zip(self.columns, cells, strict=False):
            is_best = cell.endswith("*")
            line.append((cell if is_best else f"{cell} ").rjust(column.width), "bold" if is_best else "")
        return line

    def count_from(self, step: int, time: float) -> None:
        """Measures the speed of the next row from here."""
        self._since = step, time

    def _columns(self) -> list[Column]:
        if self.fields:
            longest = max(len(group.name) for group in self.groups)
            between = self.each or [Column("lowest"), Column("highest"), Column("which".rjust(longest))]
        elif len(self.groups) == 1:
            between = [Column("return"), Column("± std"), Column("change")]
        else:
            between = [Column("mean"), Column("change")]
            between += self.each or [Column("± std"), Column("lowest"), Column("highest")]
        return [Column("step"), *between, Column("steps/s")]

    def _cells(self, row: EvalRow) -> list[str]:
        each = [self._marked(column.name, row.mean(column.places)) for column in self.each]
        if self.fields:
            return each or self._extremes(row)
        mean, before, returns = fmean(row.returns), self._before, row.returns
        self._before = mean
        change = "-" if before is None else _number(mean - before, "+")
        whole = self._marked("mean", mean)
        if len(self.groups) == 1:
            return [whole, f"± {_number(next(iter(row.evals.values())).std_return)}", change]
        return [
            whole,
            change,
            *(each or [f"± {_number(sample_std(returns))}", _number(min(returns)), _number(max(returns))]),
        ]

    def _extremes(self, row: EvalRow) -> list[str]:
        means = {group.name: mean for group in self.groups if (mean := row.mean(group.places)) is not None}
        which = max(means, key=means.__getitem__)
        return [_number(min(means.values())), self._marked("highest", means[which]), which]

    def _marked(self, column: str, mean: float | None) -> str:
        """Formats a mean with a mark if it is the best of its column, but not the first."""
        if mean is None:
            return "-"
        best = self._best.get(column)
        self._best[column] = mean if best is None else max(best, mean)
        return _number(mean) + ("*" if best is not None and mean > best else "")

    def _speed(self, row: EvalRow) -> str:
        """Formats the steps of one seed per second since the last row."""
        step, time = self._since or (row.step, row.time)
        self._since = row.step, row.time
        return f"{(row.step - step) / (row.time - time):,.0f}" if row.step > step and row.time > time else "-"


def earlier_evals(folder: Path, members: Sequence[Member]) -> list[Eval]:
    """Reads the evaluations that a run folder holds; none if it cannot be read."""
    with suppress(OSError, Refused):
        events = read_log(folder, kinds=(Eval,)).events
        return [event for event in events if isinstance(event, Eval) and member_of(event, members) is not None]
    return []


def groups_of(members: Sequence[Member]) -> list[MemberGroup]:
    """Returns the seeds of a run, or the combinations of a sweep."""
    if not swept(members):
        return [MemberGroup(str(member.seed), [place]) for place, member in enumerate(members)]
    places = {member: place for place, member in enumerate(members)}
    return [
        MemberGroup(", ".join(value_text(value) for _, value in values), [places[member] for member in group])
        for values, group in by_values(members).items()
    ]


def sparkline(values: Sequence[float], width: int) -> str:
    """Draws a curve in one line of at most this many characters, from its lowest to its highest value."""
    finite = [value for value in values if math.isfinite(value)]
    means = [fmean(some) for some in _parts(finite, min(width, len(finite)))]
    if not means:
        return ""
    low, reach = min(means), max(means) - min(means)
    heights = [(value - low) / reach if reach > 0 else 0.5 for value in means]
    return "".join(BARS[min(int(height * len(BARS)), len(BARS) - 1)] for height in heights)


def _parts(values: Sequence[float], count: int) -> Iterator[Sequence[float]]:
    """Cuts a list into parts of nearly equal length."""
    for part in range(count):
        yield values[part * len(values) // count : (part + 1) * len(values) // count]


def _number(value: float, sign: str = "") -> str:
    """Formats a return in at most nine characters."""
    if abs(value) < 1e5:
        return f"{sign if value > 0 else ''}{number_text(value)}"
    return f"{value:{sign},.0f}" if abs(value) < 1e6 else f"{value:{sign}.2e}"
