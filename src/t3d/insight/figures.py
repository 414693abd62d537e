"""Any figure that a run reports, for each of its members: a field of an event, or an entry of one that has several."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from t3d.config import Member
from t3d.errors import UserError, did_you_mean
from t3d.events import ActingEvent, Diagnosed, EpisodeEnd, Eval, Event, Update
from t3d.files import to_count
from t3d.insight.statistics import Array
from t3d.store.catalogue import pauses
from t3d.store.members import member_of
from t3d.store.reader import Run, read_events
from t3d.store.values import LARGEST

KINDS: tuple[type[Event], ...] = (Eval, Update, Diagnosed, EpisodeEnd, ActingEvent)
RETURN = "return"  # mean_return of evaluations
NOT_FIGURES = {"step", "member", "seed", "time", "env", "episode", "since", "summary"}
LISTED = {  # what the entries of lists are called; those of others are numbered
    "td_quantiles": ("p5", "p25", "p50", "p75", "p95"),
    "sampled_age": ("p5", "p50", "p95"),
    "reward_range": ("low", "high"),
}


class Figure(NamedTuple):
    """A field of an event, and the name of an entry if it is a list or has names."""

    kind: type[Event]
    field: str
    entry: str = ""

    @property
    def name(self) -> str:
        """As --metric takes it: q_mean, or gradient_norms.actor; with the event if another one has the same field."""
        if (self.kind, self.field) == (Eval, "mean_return"):
            return RETURN
        name = f"{self.field}.{self.entry}" if self.entry else self.field
        return name if _owner(self.field) is self.kind else f"{self.kind.event}.{name}"


class Series(NamedTuple):
    """What one member, or the whole run, reported of a figure."""

    steps: Array  # (T,), increasing
    values: Array  # (T,)
    times: Array  # (T,), seconds, without those between a stop and a resume
    spread: Array | None = None  # (T,): of an evaluation's return, its standard deviation over episodes


def find_figures(runs: Sequence[Run], name: str) -> list[Figure]:
    """Returns the figure of this name, or all entries if it has several; raises if one of the runs does not have it."""
    asked, found = parsed(name), list[Figure]()
    for place, run in enumerate(runs):
        known = [asked] if asked == parsed(RETURN) and run.evals else reported(run)
        mine = [one for one in known if asked in (one, one._replace(entry=""))]
        found = [one for one in mine if not place or one in found]
        if not found:
            error = UserError(f"{run.path} has no figure {name}{did_you_mean(name, [one.name for one in known])}")
            error.add_note(f"It has, by the event that reports them (docs/metrics.md explains each):\n{listing(known)}")
            raise error
    return found


def reported(run: Run) -> list[Figure]:
    """Returns all figures that a run has reported, event by event."""
    found: dict[Figure, None] = {}
    for event in read_events(run.path, kinds=KINDS):
        for field in dataclasses.fields(event):
            for entry, value in entries(getattr(event, field.name), field.name).items():
                if field.name not in NOT_FIGURES and _number(value) is not None:
                    found[Figure(type(event), field.name, entry)] = None
    return sorted(found, key=lambda one: KINDS.index(one.kind))


def listing(figures: Iterable[Figure]) -> str:
    """Lists figures, the ones of each event in a line; of numbered entries only the first and the last."""
    names: dict[str, list[str]] = {}
    for (kind, _), entries in groupby(figures, lambda one: (one.kind, one.field)):
        found = [*entries]
        numbered = len(found) > 1 and all(one.entry.isdecimal() for one in found)
        texts = [f"{found[0].name} to {found[-1].entry}"] if numbered else [one.name for one in found]
        names.setdefault(kind.event, []).extend(texts)
    return "\n".join(f"  {kind}: {', '.join(of_kind)}" for kind, of_kind in names.items()) or "  it has none yet"


def series(run: Run, figure: Figure) -> dict[Member | None, Series]:
    """Returns a figure of each member; under None what is reported of the whole run."""
    events: dict[Member | None, list[Event]] = {}
    if figure.kind is Eval:
        events = {member: [*evals] for member, evals in run.evals.items()}
    else:
        for event in read_events(run.path, kinds=[figure.kind]):
            whole = event.member is None and not getattr(event, "summary", False)
            member = member_of(event, run.cfg.members)
            if whole or member is not None:
                events.setdefault(member, []).append(event)
    found = {member: _series(mine, figure) for member, mine in events.items()}
    stood = pauses(run.path)
    return {
        member: one._replace(times=without_pauses(one.times, stood)) for member, one in found.items() if one is not None
    }


def without_pauses(times: Array, stood: Sequence[tuple[float, float]]) -> Array:
    """Leaves out the time between a stop and a resume."""
    lost = sum((seconds * (times >= resumed) for resumed, seconds in stood), np.zeros_like(times))
    trained: Array = times - lost
    return trained


def _series(events: list[Event], figure: Figure) -> Series | None:
    """Returns what can be used of it: a file may say anything."""
    rows = []
    for event in events:
        value = _number(entries(getattr(event, figure.field, None), figure.field).get(figure.entry))
        spread = event.std_return if isinstance(event, Eval) and figure.field == "mean_return" else math.nan
        if value is not None and _is_count(event.step) and _number(event.time) is not None:
            rows.append((event.step, value, event.time, spread))
    if not rows:
        return None
    return series_of(*np.array(rows, np.float64).T)


def series_of(steps: Array, values: Array, times: Array, spreads: Array) -> Series:
    """Returns a series of reports in their order; those of one step are averaged."""
    if (np.diff(steps) <= 0).any():  # several environments of a member ended an episode in one step
        steps, where = np.unique(steps, return_inverse=True)
        values, times, spreads = (np.bincount(where, one) / np.bincount(where) for one in (values, times, spreads))
    return Series(steps, values, times, None if np.isnan(spreads).any() else spreads)


def parsed(name: str) -> Figure:
    """Returns the figure that a name means, whether or not a run has it."""
    kind_name, _, rest = name.partition(".")
    kinds = [kind for kind in KINDS if kind.event == kind_name and rest]
    field, _, entry = (rest if kinds else name).partition(".")
    field = "mean_return" if field == RETURN else field
    return Figure(kinds[0] if kinds else _owner(field), field, entry)


def _owner(field: str) -> type[Event]:
    """Returns the first kind of event that has a field."""
    return next((kind for kind in KINDS if field in {one.name for one in dataclasses.fields(kind)}), Eval)


def entries(value: object, field: str) -> dict[str, Any]:
    """Returns the values of a field by the names of its entries; a plain one has no name."""
    if isinstance(value, Mapping):
        return {str(key): one for key, one in value.items()}
    if isinstance(value, list):
        names = LISTED.get(field, ())
        return dict(zip(names if len(names) == len(value) else map(str, range(len(value))), value, strict=True))
    return {"": value}


def _number(value: object) -> float | None:
    is_number = isinstance(value, int | float) and abs(value) < LARGEST
    return float(value) if is_number else None  # type: ignore[arg-type]


def _is_count(value: object) -> bool:
    try:
        to_count(value)
    except ValueError:
        return False
    return True
