"""What the dashboard keeps of one run in memory: figures as columns, and the news; read on from where it was."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t3d.config import Config, Member, load_config
from t3d.dash.table import Table
from t3d.events import ActorEvent, Alarm, BadValueMet, Eval, Event, Note, SeedStopped, StepsTaken, from_line
from t3d.files import CORRUPT_ERRORS
from t3d.insight.figures import KINDS, Figure
from t3d.store.members import member_of
from t3d.store.reader import START, Place, prefixes, read_lines
from t3d.store.values import check_values

TELLING: tuple[type[Event], ...] = (Alarm, Note, ActorEvent, BadValueMet, SeedStopped)
MOST_TOLD = 200  # of each kind of news, the newest
BEGINNING = 16  # bytes of a line that tell the kind of its event
BY_BEGINNING = {start[:BEGINNING]: kind for kind in (*KINDS, *TELLING, StepsTaken) for start in prefixes([kind])}


class RunIndex:
    """One run; every method may be called by several threads at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cfg: Config = load_config(path / "config.toml")
        self.lock = threading.Lock()
        self._place: Place = START
        self._forget()

    @property
    def members(self) -> tuple[Member, ...]:
        return self.cfg.members

    @property
    def size(self) -> int:
        """Bytes of the log that are read."""
        return self._place.offset

    @property
    def nbytes(self) -> int:
        return sum(table.nbytes for table in self.tables.values())

    def refresh(self, seconds: float) -> bool:
        """Reads what has come since, for about this long; returns whether that is all there is."""
        until = time.monotonic() + seconds  # others who wait for the lock have no more than that either
        with self.lock:
            while True:
                lines, end, restarted = read_lines(self.path, self._place)
                if restarted:
                    self.cfg = load_config(self.path / "config.toml")
                    self._forget()
                self._take(lines)
                self._place = end
                if not lines or time.monotonic() > until:
                    return not lines

    def figures(self) -> list[Figure]:
        """Returns all figures that were reported."""
        return [figure for kind in KINDS for figure in self.tables[kind].columns]

    def newest_update(self, member: Member) -> StepsTaken | None:
        """Returns the newest trace of an update of a member that can be read."""
        line = self._traces.get(self.members.index(member))
        event = None if line is None else _event(line)
        return event if isinstance(event, StepsTaken) else None

    def _forget(self) -> None:
        self._place = START
        self.tables = {kind: Table(kind, self.members) for kind in KINDS}
        self.told: dict[type[Event], deque[Event]] = {kind: deque(maxlen=MOST_TOLD) for kind in TELLING}
        self.stopped: dict[Member, SeedStopped] = {}
        self._traces: dict[int, bytes] = {}  # by member: the line of the newest
        self.damaged = 0

    def _take(self, lines: Sequence[bytes]) -> None:
        groups: dict[bytes, list[bytes]] = defaultdict(list)
        for line in lines:
            groups[line[:BEGINNING]].append(line)
        for beginning, mine in groups.items():
            kind = BY_BEGINNING.get(beginning)
            if kind in self.tables:
                self._tabulate(self.tables[kind], mine)
            elif kind is StepsTaken:
                self._keep_traces(mine)
            elif kind in self.told:
                self._tell(kind, mine)
            else:
                self.damaged += sum(line[:11] != b'{"event": "' or line[-1:] != b"}" for line in mine)

    def _tabulate(self, table: Table, lines: Sequence[bytes]) -> None:
        """Adds lines to a table all at once or, if one of them is damaged, one by one."""
        try:
            self.damaged += table.add(lines)
        except CORRUPT_ERRORS:
            for line in lines:
                try:
                    self.damaged += table.add([line])
                except CORRUPT_ERRORS:
                    self.damaged += 1

    def _keep_traces(self, lines: Sequence[bytes]) -> None:
        for place, member in enumerate(self.members):
            mine = b'"member": %d, "seed": %d, ' % (place, member.seed)
            newest = next((line for line in reversed(lines) if mine in line[:200]), None)
            if newest is not None:
                self._traces[place] = newest

    def _tell(self, kind: type[Event], lines: Sequence[bytes]) -> None:
        for line in lines:
            event = _event(line)
            if event is None:
                self.damaged += 1
                continue
            self.told[kind].append(event)
            member = member_of(event, self.members)
            if isinstance(event, SeedStopped) and member is not None:
                self.stopped[member] = event


def _event(line: bytes) -> Event | None:
    try:
        event = from_line(line.decode())
        if event is not None:
            check_values(event)
    except CORRUPT_ERRORS:
        return None
    return event


def evaluations(index: RunIndex, member: Member) -> list[dict[str, Any]]:
    """Returns what is listed of a member's evaluations, in order."""
    figures = [Figure(Eval, name) for name in ("mean_return", "std_return", "updates")]
    rows = index.tables[Eval].reports(index.members.index(member), *figures)
    return [
        {"step": int(step), "updates": int(updates), "mean": mean, "std": std}
        for step, _, mean, std, updates in np.nan_to_num(rows).T.tolist()
    ]
