"""How many alarms of which kinds the runs of a list have sounded, also where their journals do not say."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from t3d.files import Refused, read
from t3d.store.catalogue import ALARM, ALIVE, Entry, alarm_kinds

SECONDS = 0.3  # that a request may spend on reading logs; chosen
LARGEST = 2**24  # bytes of a log that is read for a list; chosen

Kinds = dict[str, int]  # how many alarms of each kind


class AlarmCounts:
    """Counts once for each log; journals did not have alarms at first, and copies of runs may have no journal."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[int, Kinds]] = {}  # by log: time of its last change, and what it has

    def of(self, entries: Iterable[Entry]) -> list[Kinds | None]:
        """Returns how many alarms of each kind a run has sounded; None if time was up: the next request counts on."""
        until = time.monotonic() + SECONDS
        return [
            entry.alarm_kinds
            if entry.alarm_kinds or entry.status in ALIVE
            else self._in_log(entry.path / "events.jsonl", until)
            for entry in entries
        ]

    def _in_log(self, log: Path, until: float) -> Kinds | None:
        """Counts in a log; one that cannot be read, or would take too long, has none."""
        try:
            found = log.lstat()
            if found.st_size > LARGEST:
                return {}
            changed, kinds = self._known.get(log, (-1, {}))
            if changed != found.st_mtime_ns:
                if time.monotonic() > until:
                    return None
                content = read(log, LARGEST)
                kinds = alarm_kinds(content.split(b"\n")) if ALARM[0] in content else {}
                self._known[log] = found.st_mtime_ns, kinds
        except (OSError, Refused):
            return {}
        return kinds
