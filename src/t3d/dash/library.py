"""The runs of one folder: listed without reading again what has not changed, and the metrics of those looked at."""

from __future__ import annotations

import os
import threading
import time
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from t3d.events import Eval
from t3d.files import CORRUPT_ERRORS, Refused, error_text
from t3d.insight.curves import thinned
from t3d.store.columns import PART, Columns
from t3d.store.control import NOTES, read_notes
from t3d.store.log import START, Unreadable, event_of, prefixes, read_end, read_lines, read_part
from t3d.store.summary import ALIVE, Summary, peek, read_summary
from t3d.web import RequestRefused

WATCHED = (
    *("events.jsonl", "journal.jsonl", "best", "checkpoints", NOTES, "config.toml", "control.json"),
    *("videos", "video.mp4", "video.json"),
)
MOST_BYTES = 80 * 2**20  # of metrics in memory, so that the server stays below 300 MB; chosen
SLOW = 0.04  # seconds
REREAD_AFTER = 20  # times what reading took, a run that grows is read again: a long sweep takes a while; chosen
SOON, PATIENCE = 0.25, 2.0  # seconds that a request reads long logs before it answers with what it has; chosen
KEPT_SECONDS = 4.0  # for which the metrics of a run are kept after a page has asked about it; chosen
ENOUGH = 1 / 4  # of a log; until that much is read answers come soon, so that the page does not stay empty; chosen
CURVE_SECONDS = 0.15  # that a request for the list may spend on reading logs; chosen
LARGEST = 2**24  # bytes of a log that are read for the list; of a longer one parts from all over; chosen
POINTS = 40  # of a curve in the list; chosen
EVALS = prefixes([Eval])

Stamp = tuple[tuple[int, int, int], ...]  # of each watched file: inode, size and time of its last change


class SmallCurve:
    """The mean returns of a run's evaluations: reads the log once, and then what it has grown by."""

    def __init__(self) -> None:
        self.changed, self.position = -1, START  # of the log: when, in nanoseconds, and how far it is read
        self.values: list[float] = []
        self.steps, self.returns = array("d"), array("d")  # of evaluations of all members

    def read_on(self, path: Path, until: float) -> bool:
        """Reads what is new; returns false if time was up. A log that cannot be read has nothing new."""
        try:
            log = (path / "events.jsonl").lstat()
            if self.changed == log.st_mtime_ns:
                return True
            lines = [b""]
            while lines:
                if time.monotonic() >= until:
                    return False
                lines = self._next_lines(path, log.st_size)
                evaluations = (event_of(line) for line in lines if line.startswith(EVALS))
                for event in evaluations:
                    if isinstance(event, Eval) and event.chooses:
                        self.steps.append(event.step)
                        self.returns.append(event.mean_return)
        except (OSError, Refused):
            return True
        self.changed = log.st_mtime_ns
        _, numbers, counts = np.unique(self.steps, return_inverse=True, return_counts=True)
        means = np.bincount(numbers, self.returns) / counts
        self.values = [float(f"{mean:.4g}") for mean in means[thinned(means, POINTS)]]
        return True

    def _next_lines(self, path: Path, size: int) -> list[bytes]:
        if self.position == START and size > LARGEST:
            self.position, parts = read_end(path), LARGEST // PART
            starts = [(self.position.offset - PART) * number // (parts - 1) for number in range(parts)]
            starts = starts if self.position.offset > PART else []  # a file without lines is no log
            return [line for start in starts for line in read_part(path, start, start + PART, self.position) or []]
        lines, self.position, restarted = read_lines(path, self.position)
        if restarted:
            del self.steps[:], self.returns[:]
        return lines


class Cached(NamedTuple):
    """What was read of a folder, and what that took."""

    stamp: Stamp
    run: Summary | Unreadable
    read_at: float
    seconds: float

    def peeked(self, path: Path) -> Summary | Unreadable:
        if isinstance(self.run, Unreadable):
            return self.run
        try:
            status, step = peek(path)
        except Unreadable as error:
            return error
        return self.run._replace(status=status, step=step, notes=read_notes(path))


class Library:
    """What is known of the runs in a folder; every method may be called by several threads at once."""

    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.realpath(root))
        self._lock, self._curves_lock = threading.Lock(), threading.Lock()
        self._curves: dict[Path, SmallCurve] = {}
        self._cache: dict[str, Cached] = {}
        self._columns: OrderedDict[str, Columns] = OrderedDict()  # those looked at last come last
        self._shown: dict[str, float] = {}  # when a page has last asked about a run

    def runs(self) -> tuple[list[Summary], list[Unreadable]]:
        """Lists the runs, and the folders that are none."""
        folders = self._folders()
        runs = [self._read(path, stamp_of(path)) for path in folders.values()]
        with self._lock:
            self._cache = {name: cached for name, cached in self._cache.items() if name in folders}
        readable = [run for run in runs if isinstance(run, Summary)]
        return readable, [run for run in runs if isinstance(run, Unreadable)]

    def curves(self, runs: Iterable[Summary]) -> list[list[float] | None]:
        """Returns a small curve of each run; None: time was up, and the next request reads on."""
        until = time.monotonic() + CURVE_SECONDS
        with self._curves_lock:
            curves = {run.path: self._curves.setdefault(run.path, SmallCurve()) for run in runs}
            return [curve.values if curve.read_on(path, until) else None for path, curve in curves.items()]

    def look(self, names: Sequence[str]) -> list[tuple[str, Stamp, Summary | Unreadable]]:
        """Returns what changes when runs do, or without names the list: files, and the status after a kill."""
        self.keep(names)
        if names:
            return [(name, stamp_of(self.path(name)), self.run(name)) for name in names]
        stamps = {path: stamp_of(path) for path in self._folders().values()}
        return [(path.name, stamp, self._read(path, stamp)) for path, stamp in stamps.items()]

    def path(self, name: str) -> Path:
        """Returns the folder of a run: one that is really in the folder of runs, whatever the name is."""
        folder = self._folders().get(name)
        if folder is None:
            raise RequestRefused(404, "there is no run of this name")
        return folder

    def run(self, name: str) -> Summary:
        path = self.path(name)
        run = self._read(path, stamp_of(path))
        if isinstance(run, Unreadable):
            raise RequestRefused(404, f"it cannot be read as a run: {run.reason}")
        return run

    def columns(self, name: str) -> tuple[Columns, bool]:
        """Returns the metrics of a run, read on from where they were, and whether that is all there is."""
        self.run(name)
        self.keep([name])
        try:
            columns = self._columns.get(name) or Columns(self.root / name)
            with self._lock:
                columns = self._columns.setdefault(name, columns)
                self._columns.move_to_end(name)
            is_empty = columns.size < ENOUGH * os.path.getsize(columns.path / "events.jsonl")  # noqa: PTH202
            complete = columns.refresh((SOON if is_empty else PATIENCE) / max(1, len(self._shown)))
        except CORRUPT_ERRORS as error:
            raise RequestRefused(404, f"it cannot be read as a run: {error_text(error)}") from None
        while (largest := self._largest_if_too_many()) is not None and largest.thin():
            pass
        return columns, complete

    def keep(self, names: Iterable[str]) -> None:
        """Keeps the metrics of runs in memory for a while, because a page shows them."""
        now = time.monotonic()
        with self._lock:
            shown = {name: since for name, since in self._shown.items() if now - since < KEPT_SECONDS}
            self._shown = shown | dict.fromkeys(names, now)

    def _largest_if_too_many(self) -> Columns | None:
        """Drops the metrics that no page shows, those looked at longest ago first."""
        with self._lock:
            for name in [name for name in self._columns if name not in self._shown]:
                if self._bytes() > MOST_BYTES:
                    del self._columns[name]
            too_many = self._bytes() > MOST_BYTES
            return max(self._columns.values(), key=lambda columns: columns.nbytes) if too_many else None

    def _bytes(self) -> int:
        return sum(columns.nbytes for columns in self._columns.values())

    def _read(self, path: Path, stamp: Stamp) -> Summary | Unreadable:
        started = time.monotonic()
        with self._lock:
            known = self._cache.get(path.name)
        if known is not None and known.stamp == stamp:
            is_alive = isinstance(known.run, Summary) and known.run.status in ALIVE
            return known.peeked(path) if is_alive else known.run
        if known is not None and known.seconds > SLOW and started < known.read_at + REREAD_AFTER * known.seconds:
            return known.peeked(path)
        run: Summary | Unreadable
        try:
            run = read_summary(path)
        except Unreadable as error:
            run = error
        now = time.monotonic()
        with self._lock:
            self._cache[path.name] = Cached(stamp, run, now, now - started)
        return run

    def _folders(self) -> dict[str, Path]:
        """Returns the folders that may be runs by name, without links and what cannot be part of an address."""
        names = []
        with suppress(OSError), os.scandir(self.root) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        return {name: self.root / name for name in sorted(names) if name.encode(errors="replace").decode() == name}


def stamp_of(path: Path) -> Stamp:
    """Returns inode, size and time of the files that a run's state is read from."""
    folder, stamps = str(path), []
    for name in WATCHED:
        try:
            stat = os.lstat(f"{folder}/{name}")  # quicker than a Path, and every page asks for all of them every second
        except (OSError, ValueError):
            stamps.append((0, 0, 0))
        else:
            stamps.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return tuple(stamps)
