"""What a list shows of runs that only their logs tell: a small curve of returns, and alarms that no journal has."""

from __future__ import annotations

import threading
import time
from array import array
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from t3d.events import Alarm, Eval
from t3d.files import Refused
from t3d.insight.curves import thinned
from t3d.store.columns import PART
from t3d.store.journal import alarm_kinds
from t3d.store.log import START, event_of, prefixes, read_end, read_lines, read_part
from t3d.store.summary import ALIVE, Summary

SECONDS = 0.15  # that a request may spend on reading logs; chosen
LARGEST = 2**24  # bytes of a log that are read for a list; of a longer one parts from all over, for its curve; chosen
POINTS = 40  # of a curve; chosen
WANTED = prefixes([Eval, Alarm])

Kinds = dict[str, int]  # how many alarms of each kind


class Glance(NamedTuple):
    """What a list shows of a run; None: time was up, and the next request reads on."""

    alarm_kinds: Kinds | None
    curve: list[float] | None  # mean returns of evaluations


class Glances:
    """Reads each log once, and then what it has grown by."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logs: dict[Path, _Log] = {}

    def of(self, runs: Iterable[Summary]) -> list[Glance]:
        """Looks at runs; journals did not have alarms at first, and copies of runs may have no journal."""
        until = time.monotonic() + SECONDS
        with self._lock:
            return [self._glance(run, until) for run in runs]

    def _glance(self, run: Summary, until: float) -> Glance:
        log = self._logs.setdefault(run.path, _Log())
        is_known = log.read_on(run.path, until)
        if run.alarm_kinds or run.status in ALIVE:
            return Glance(run.alarm_kinds, log.curve if is_known else None)
        return Glance(log.alarms, log.curve) if is_known else Glance(None, None)


class _Log:
    """What was read of a log."""

    def __init__(self) -> None:
        self.changed = -1  # when it was, in nanoseconds, as of the last look
        self._begin()

    def _begin(self) -> None:
        self.place, self.in_parts = START, False
        self.alarms: Kinds = {}
        self.curve: list[float] = []
        self.steps, self.returns = array("d"), array("d")  # of evaluations of all members

    def read_on(self, path: Path, until: float) -> bool:
        """Reads what is new; returns false if time was up. A log that cannot be read has nothing new."""
        try:
            found = (path / "events.jsonl").lstat()
            if self.changed == found.st_mtime_ns:
                return True
            lines = [b""]
            while lines and time.monotonic() < until:
                lines = self._next_lines(path, found.st_size)
                self._take(lines)
        except (OSError, Refused):
            return True
        if lines:
            return False
        self.changed = found.st_mtime_ns
        _, places, counts = np.unique(self.steps, return_inverse=True, return_counts=True)
        means = np.bincount(places, self.returns) / counts
        self.curve = [float(f"{mean:.4g}") for mean in means[thinned(means, POINTS)]]
        return True

    def _next_lines(self, path: Path, size: int) -> list[bytes]:
        if self.place == START and not self.in_parts and size > LARGEST:
            self.place, self.in_parts, parts = read_end(path), True, LARGEST // PART
            starts = [(self.place.offset - PART) * number // (parts - 1) for number in range(parts)]
            return [line for start in starts for line in read_part(path, start, start + PART, self.place) or []]
        lines, place, restarted = read_lines(path, self.place)
        if restarted:
            self._begin()
        self.place = place
        return lines

    def _take(self, lines: list[bytes]) -> None:
        lines = [line for line in lines if line.startswith(WANTED)]
        if not self.in_parts:  # else they would not be all
            self.alarms = dict(Counter(self.alarms) + Counter(alarm_kinds(lines)))
        evaluations = [event for event in map(event_of, lines) if isinstance(event, Eval)]
        self.steps.extend(event.step for event in evaluations)
        self.returns.extend(event.mean_return for event in evaluations)
