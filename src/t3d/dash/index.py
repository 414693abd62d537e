"""What the dashboard keeps of one run in memory: figures as columns, and the news; read on from where it was."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t3d.config import Config, Member, load_config
from t3d.dash.table import Table
from t3d.events import ActorEvent, Alarm, BadValueMet, Eval, Event, Note, SeedStopped, StepsTaken
from t3d.files import CORRUPT_ERRORS
from t3d.insight.figures import KINDS, Figure
from t3d.store.members import member_of
from t3d.store.reader import START, Place, event_of, prefixes, read_end, read_lines, read_part

TELLING: tuple[type[Event], ...] = (Alarm, Note, ActorEvent, BadValueMet, SeedStopped)
MOST_TOLD = 200  # of each kind of news, the newest
PART = 2**20  # bytes of a long log that are read at a time: larger parts are slower, they do not fit into caches
BEGINNING = 16  # bytes of a line that tell the kind of its event
BY_BEGINNING = {start[:BEGINNING]: kind for kind in (*KINDS, *TELLING, StepsTaken) for start in prefixes([kind])}


class RunIndex:
    """One run; every method may be called by several threads at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.Lock()
        self._place: Place = START  # up to here the log is read, but for the parts that are missing
        self._parts: list[tuple[int, int]] = []  # missing ones, the next one last
        self._begin()

    @property
    def members(self) -> tuple[Member, ...]:
        return self.cfg.members

    @property
    def size(self) -> int:
        """Bytes of the log that are read."""
        return self._place.offset - sum(stop - start for start, stop in self._parts)

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
            return not more

    def thin(self) -> bool:
        """Halves what is kept of the kind of event that takes most memory; returns whether that is less."""
        with self.lock:
            return max(self.tables.values(), key=lambda one: one.nbytes).thin()

    def figures(self) -> list[Figure]:
        """Returns all figures that were reported."""
        return [figure for kind in KINDS for figure in self.tables[kind].columns]

    def newest_update(self, member: Member) -> StepsTaken | None:
        """Returns the newest trace of an update of a member that can be read."""
        found = self._traces.get(self.members.index(member))
        event = None if found is None else event_of(found[1])
        return event if isinstance(event, StepsTaken) else None

    @property
    def told(self) -> dict[type[Event], list[Event]]:
        """What events say in words: of each kind the newest."""
        return {kind: [event for _, event in found] for kind, found in self._told.items()}

    @property
    def alarms(self) -> list[Alarm]:
        """The newest alarms, oldest first."""
        return [event for _, event in self._told[Alarm] if isinstance(event, Alarm)]

    def _read_on(self) -> bool:
        """Reads a part that is missing or, if none is, what the log has grown by; returns whether there was any."""
        if self._parts:
            start, stop = self._parts[-1]
            part = read_part(self.path, start, stop, self._place)
            if part is None:
                self._begin()
                return True
            self._parts.pop()
            self._take(part, start)
            return True
        lines, end, restarted = read_lines(self.path, self._place)
        if restarted:
            self._begin()
            return True
        self._take(lines, self._place.offset)
        self._place = end
        return bool(lines)

    def _begin(self) -> None:
        """Starts from nothing; a long log is read in parts from all over, so that curves soon show all of the run."""
        self.cfg: Config = load_config(self.path / "config.toml")
        end = read_end(self.path)
        self._place = end if end.offset > PART else START
        self._parts = spread_parts(self._place.offset)[::-1]
        self.tables = {kind: Table(kind, self.members) for kind in KINDS}
        self._told: dict[type[Event], list[tuple[int, Event]]] = {kind: [] for kind in TELLING}
        self.stopped: dict[Member, SeedStopped] = {}
        self._traces: dict[int, tuple[int, bytes]] = {}  # by member: offset and line of the newest
        self.damaged = 0

    def _take(self, lines: Sequence[bytes], offset: int) -> None:
        groups: dict[bytes, list[bytes]] = defaultdict(list)
        for line in lines:
            groups[line[:BEGINNING]].append(line)
        for beginning, mine in groups.items():
            kind = BY_BEGINNING.get(beginning)
            if kind in self.tables:
                self._tabulate(self.tables[kind], mine, offset)
            elif kind is StepsTaken:
                self._keep_traces(mine, offset)
            elif kind in self._told:
                self._tell(kind, mine, offset)
            else:
                self.damaged += sum(line[:11] != b'{"event": "' or line[-1:] != b"}" for line in mine)

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
            mine = b'"member": %d, "seed": %d, ' % (number, member.seed)
            newest = next((line for line in reversed(lines) if mine in line[:200]), None)
            if newest is not None:
                self._traces[number] = offset, newest

    def _tell(self, kind: type[Event], lines: Sequence[bytes], offset: int) -> None:
        new = []
        for line in lines:
            event = event_of(line)
            if event is None:
                self.damaged += 1
                continue
            new.append((offset, event))
            member = member_of(event, self.members)
            if isinstance(event, SeedStopped) and member is not None:
                self.stopped[member] = event
        self._told[kind] = sorted([*self._told[kind], *new], key=lambda one: one[0])[-MOST_TOLD:]


def spread_parts(size: int) -> list[tuple[int, int]]:
    """Cuts a log into parts in the order to read them: the last, the first, the middle, the quarters, the eighths."""
    count = -(-size // PART)
    order = sorted(range(count - 1), key=lambda part: f"{part:032b}"[::-1])
    return [(part * PART, min(size, part * PART + PART)) for part in ([count - 1] if count else []) + order]


def evaluations(index: RunIndex, member: Member) -> list[dict[str, Any]]:
    """Returns what is listed of a member's evaluations, in order."""
    figures = [Figure(Eval, name) for name in ("mean_return", "std_return", "updates")]
    rows = index.tables[Eval].reports(index.members.index(member), *figures)
    return [
        {"step": int(step), "updates": int(updates), "mean": mean, "std": std}
        for step, _, mean, std, updates in np.nan_to_num(rows).T.tolist()
    ]
