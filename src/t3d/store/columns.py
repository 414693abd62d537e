"""The events of a run as columns of numbers, and what they say in words; read on from where it was as a log grows."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from t3d.config import Config, Member, load_config
from t3d.errors import UserError, did_you_mean
from t3d.events import (
    NEW_TASK,
    ActorEvent,
    Alarm,
    BadValueFound,
    Eval,
    Event,
    Logged,
    Note,
    SeedStopped,
    SettingsChanged,
    TraceSummary,
)
from t3d.files import CORRUPT_ERRORS, Refused, error_text
from t3d.store import log
from t3d.store.metrics import (
    KINDS,
    MEAN_RETURN,
    Metric,
    Series,
    StoredEvaluation,
    listing,
    member_of,
    parse_metric,
    without_pauses,
)
from t3d.store.tables import NEEDED, WHOLE, Table

MESSAGES: tuple[type[Event], ...] = (Alarm, Note, ActorEvent, BadValueFound, SeedStopped, SettingsChanged)
BEST = Metric(Eval, "best")
MOST_MESSAGES = 200  # of each kind, the newest
PART = 2**20  # bytes of a long log that are read at a time: larger parts are slower, they do not fit into caches
BEGINNING = 16  # bytes of a line that tell the kind of its event
BY_BEGINNING = {start[:BEGINNING]: kind for kind in (*KINDS, *MESSAGES, TraceSummary) for start in log.prefixes([kind])}


class Columns:
    """One run; every method may be called by several threads at once."""

    def __init__(
        self,
        path: Path,
        kinds: Iterable[type[Event]] = KINDS,
        members: Sequence[Member] = (),
        most_messages: int = MOST_MESSAGES,
    ) -> None:
        """Keeps numbers of these kinds, and so many messages of each; members are given where config.toml may lack."""
        self.path, self.kinds, self._known, self._most_messages = path, tuple(kinds), tuple(members), most_messages
        self.lock = threading.Lock()
        self._cfg: Config | None = None
        self.pauses: list[tuple[float, float]] = []
        self._position: log.Position = log.START  # up to here the log is read, but for the parts that are missing
        self._parts: list[tuple[int, int]] = []  # missing ones, the next one last
        self._begin()

    @property
    def cfg(self) -> Config:
        if self._cfg is None:
            self._cfg = load_config(self.path / "config.toml")
        return self._cfg

    @property
    def members(self) -> tuple[Member, ...]:
        return self._known or self.cfg.members

    @property
    def size(self) -> int:
        return self._position.offset - sum(stop - start for start, stop in self._parts)

    @property
    def nbytes(self) -> int:
        return sum(table.nbytes for table in self.tables.values())

    def refresh(self, seconds: float) -> bool:
        """Reads what has come since, for about this long; returns whether that is all there is."""
        until = time.monotonic() + seconds  # others who wait for the lock have no more than that either
        with self.lock:
            while (more := self._read_on()) and time.monotonic() < until:
                pass
            for table in self.tables.values():
                table.put_in_order()
            self.pauses = log.pauses(self.path)
            return not more

    def thin(self) -> bool:
        """Halves what is kept of the kind of event that takes most memory; returns whether that is less."""
        with self.lock:
            return max(self.tables.values(), key=lambda table: table.nbytes).thin()

    def metrics(self) -> list[Metric]:
        return [metric for table in self.tables.values() for metric in table.metrics()]

    def series(self, metric: Metric, every: int = 0) -> dict[Member | None, Series]:
        """Returns what each member, or None for the run, reported of a metric, or averages over so many steps each."""
        table = self.tables[metric.kind]
        reported = {number: table.series(number, metric, every) for number in table.members()}
        return {
            None if number == WHOLE else self.members[number]: series._replace(
                times=without_pauses(series.times, self.pauses)
            )
            for number, series in reported.items()
            if series is not None
        }

    @property
    def other_sets(self) -> dict[str, dict[Member, list[StoredEvaluation]]]:
        """The evaluations in sets besides the one that chooses the best."""
        return {name: self.evaluations(name) for name in self._other_sets}

    @property
    def _other_sets(self) -> list[str]:
        returns = (metric for metric in self.tables[Eval].columns if metric[:2] == MEAN_RETURN[:2])
        return [metric.entry for metric in returns if metric.entry]

    def evaluations(self, set_name: str = "") -> dict[Member, list[StoredEvaluation]]:
        """Returns the evaluations that choose the best, or those of another set."""
        table, evals = self.tables[Eval], dict[Member, list[StoredEvaluation]]()
        of_sets = tuple(f".{name}" for name in self._other_sets)
        extra = [
            metric for metric in table.metrics() if metric.is_named("metrics") and not metric.entry.endswith(of_sets)
        ]
        for number in table.members():
            rows = table.reports(number, *(metric.in_set(set_name) for metric in (*NEEDED, BEST, *extra)))
            rows = rows[:, ~np.isnan(rows[: 2 + len(NEEDED)]).any(axis=0)].T.tolist()  # one that was thinned has gaps
            if number != WHOLE and rows:
                evals[self.members[number]] = [
                    StoredEvaluation(int(step), time, int(updates), mean, std, best == 1, known)
                    for step, time, mean, std, updates, best, *values in rows
                    for known in [{m.entry: v for m, v in zip(extra, values, strict=True) if np.isfinite(v)}]
                ]
        return evals

    @property
    def task_began(self) -> float:
        """When the task has last changed, in seconds since 1970; -inf: never."""
        notes = (event for _, event in self._messages[Note] if isinstance(event, Note) and NEW_TASK in event.text)
        return max((note.time for note in notes), default=-math.inf)

    def newest_update(self, member: Member) -> TraceSummary | None:
        trace = self._traces.get(self.members.index(member))
        event = None if trace is None else log.event_of(trace[1])
        return event if isinstance(event, TraceSummary) else None

    @property
    def messages(self) -> dict[type[Event], list[Event]]:
        return {kind: [event for _, event in placed] for kind, placed in self._messages.items()}

    @property
    def alarms(self) -> list[Alarm]:
        return [event for _, event in self._messages[Alarm] if isinstance(event, Alarm)]

    def _read_on(self) -> bool:
        """Reads a part that is missing or, if none is, what the log has grown by; returns whether there was any."""
        if self._parts:
            part = log.read_part(self.path, *self._parts[-1], self._position)
            if part is None:
                self._begin()
            else:
                self._take(part, self._parts.pop()[0])
            return True
        lines, end, restarted = log.read_lines(self.path, self._position)
        if restarted:
            self._begin()
        else:
            self._take(lines, self._position.offset)
            self._position = end
        return restarted or bool(lines)

    def _begin(self) -> None:
        """Starts from nothing; a long log is read in parts from all over, so that curves soon show all of the run."""
        self._cfg = None
        end = log.read_end(self.path)
        self._position = end if end.offset > PART else log.START
        size, count = self._position.offset, -(-self._position.offset // PART)
        order = sorted(range(count - 1), key=lambda part: f"{part:032b}"[::-1])  # first, middle, quarters, eighths
        self._parts = [(part * PART, min(size, part * PART + PART)) for part in (*order[::-1], *range(count)[-1:])]
        self.tables = {kind: Table(kind, self.members) for kind in self.kinds}
        self._messages: dict[type[Event], list[tuple[int, Event]]] = {kind: [] for kind in MESSAGES}
        self.stopped: dict[Member, SeedStopped] = {}
        self._traces: dict[int, tuple[int, bytes]] = {}  # by member: offset and line of the newest
        self.damaged = 0

    def _take(self, lines: Sequence[bytes], offset: int) -> None:
        groups: dict[bytes, list[bytes]] = defaultdict(list)
        for line in lines:
            groups[line[:BEGINNING]].append(line)
        for beginning, group in groups.items():
            kind = BY_BEGINNING.get(beginning)
            if kind in self.tables:
                self._tabulate(self.tables[kind], group, offset)
            elif kind is TraceSummary:
                self._keep_traces(group, offset)
            elif kind in self._messages:
                self._add_messages(kind, group, offset)
            else:
                self.damaged += sum(not log.looks_like_event(line) for line in group)

    def _tabulate(self, table: Table, lines: Sequence[bytes], offset: int) -> None:
        """Adds lines to a table all at once or, if one of them is damaged, one by one."""
        try:
            self.damaged += table.add(lines, offset)
        except CORRUPT_ERRORS:
            for line in lines:
                try:
                    self.damaged += table.add([line], offset)
                except CORRUPT_ERRORS:
                    self.damaged += 1

    def _keep_traces(self, lines: Sequence[bytes], offset: int) -> None:
        for number, member in enumerate(self.members):
            if offset < self._traces.get(number, (0, b""))[0]:
                continue
            about = b'"member": %d, "seed": %d, ' % (number, member.seed)
            newest = next((line for line in reversed(lines) if about in line[:200]), None)
            if newest is not None:
                self._traces[number] = offset, newest

    def _add_messages(self, kind: type[Event], lines: Sequence[bytes], offset: int) -> None:
        events = [event for event in map(log.event_of, lines) if event is not None]
        self.damaged += len(lines) - len(events)
        for event in events:
            member = member_of(event, self.members)
            if isinstance(event, SeedStopped) and member is not None:
                self.stopped[member] = event
        placed = [*self._messages[kind], *((offset, event) for event in events)]
        self._messages[kind] = sorted(placed, key=lambda pair: pair[0])[-self._most_messages :]


def read_columns(path: Path, kinds: Iterable[type[Event]] = KINDS, members: Sequence[Member] = ()) -> Columns:
    """Reads all of a run's log, with all its messages."""
    try:
        columns = Columns(path, kinds, members, most_messages=sys.maxsize)
        columns.refresh(math.inf)
    except (OSError, Refused) as error:
        raise log.Unreadable(path, f"its events.jsonl: {error_text(error)}") from None
    return columns


def read_metric(paths: Sequence[Path], name: str) -> tuple[list[Metric], dict[Path, Columns]]:
    """Returns the metric of this name, or all its entries, and the runs' numbers; raises if a run does not have it."""
    kind = parse_metric(name).kind
    runs = {path: read_columns(path, {kind, Logged}) for path in paths}
    metrics: list[Metric] | None = None
    for path, columns in runs.items():
        own = [metric for metric in columns.metrics() if metric.is_named(name)]
        own = [metric for metric in own if metric == parse_metric(name)] or own  # without those of other sets
        own = own or [metric for metric in columns.metrics() if metric.is_named(f"{Logged.event}.{name}")]
        metrics = own if metrics is None else [metric for metric in metrics if metric in own]
        if not metrics:
            known = read_columns(path).metrics()
            error = UserError(f"{path} has no metric {name}{did_you_mean(name, [metric.name for metric in known])}")
            error.add_note(f"It has, by the event that reports them (docs/metrics.md explains each):\n{listing(known)}")
            raise error
        if columns.damaged and kind is not Eval:  # of evaluations it was said when the run was opened
            log.LOG.warning("%s", log.damage_in_words(columns.damaged, path / "events.jsonl"))
    return metrics or [], runs
