"""How many alarms the runs of a list have sounded, also where their journals do not say."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from t3d.events import Alarm
from t3d.files import CORRUPT_ERRORS, read
from t3d.store.catalogue import ALIVE, Entry
from t3d.store.reader import prefixes

LINE = b"\n" + prefixes([Alarm])[0]  # what an alarm in a log begins with
SECONDS = 0.3  # that a request may spend on reading logs; chosen
LARGEST = 2**24  # bytes of a log that is read for a list; chosen


class AlarmCounts:
    """Counts once for each log; journals did not have alarms at first, and copies of runs may have no journal."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[int, int]] = {}  # by log: time of its last change, and how many it has

    def of(self, entries: Iterable[Entry]) -> list[int | None]:
        """Returns how many alarms each run has sounded; None if time was up: the next request counts on."""
        until = time.monotonic() + SECONDS
        return [
            entry.alarms if entry.alarms or entry.status in ALIVE else self._in_log(entry.path / "events.jsonl", until)
            for entry in entries
        ]

    def _in_log(self, log: Path, until: float) -> int | None:
        """Counts in a log; one that cannot be read, or would take too long, has none."""
        try:
            found = log.lstat()
            if found.st_size > LARGEST:
                return 0
            changed, count = self._known.get(log, (-1, 0))
            if changed != found.st_mtime_ns:
                if time.monotonic() > until:
                    return None
                count = read(log, LARGEST).count(LINE)
                self._known[log] = found.st_mtime_ns, count
        except CORRUPT_ERRORS:
            return 0
        return count
