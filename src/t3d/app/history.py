"""The history of a run's evaluations: what was measured at each step, and small curves of it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from t3d.config import Member
from t3d.config.sweeps import by_values, swept, value_text
from t3d.events import Eval
from t3d.files import Refused
from t3d.store.log import read_log
from t3d.store.members import evals_by_member

BARS = "▁▂▃▄▅▆▇█"


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
        return max(one.time for one in self.evals.values())

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


def earlier_evals(folder: Path, members: Sequence[Member]) -> list[Eval]:
    """Reads the evaluations that a run folder holds; none if it cannot be read."""
    with suppress(OSError, Refused):
        evals = evals_by_member(read_log(folder, kinds=(Eval,)).events, members)
        return [event for column in evals.values() for event in column]
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
