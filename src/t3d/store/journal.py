"""What happened to a run, as its journal.jsonl says: its processes, pauses and alarms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from t3d.events import Alarm, Continued, Resumed, Start
from t3d.files import Refused, read
from t3d.store.log import LARGEST, fields_of, prefixes

SESSIONS = prefixes((Start, Resumed))
ALARM = prefixes([Alarm])
LARGEST_JOURNAL = 2**26  # bytes; a larger one is not read
LONGEST_NAME = 200  # characters shown of what a file says


def journal_lines(path: Path) -> list[bytes]:
    """Returns the lines of a run's journal; runs from before 0.2 have none."""
    try:
        return read(path / "journal.jsonl", LARGEST_JOURNAL).splitlines()
    except (FileNotFoundError, Refused):
        return []


def newest_session(path: Path) -> dict[str, Any] | None:
    """Returns what the newest process of the run said of itself."""
    sessions = (fields_of(line) for line in reversed(journal_lines(path)) if line.startswith(SESSIONS))
    return next(filter(None, sessions), None)


def remembered_files(path: Path) -> dict[str, str]:
    """Returns the files of the user's own modules that the newest process of the run used, by their names in config."""
    files = (newest_session(path) or {}).get("files")
    return {str(name): str(file) for name, file in files.items()} if isinstance(files, dict) else {}


def pauses(path: Path) -> list[tuple[float, float]]:
    """Returns when a run went on, resumed or after a pause, and for how many seconds it had stood still.

    Those before a resume are counted from the line before it in the journal.
    """
    known, before = list[tuple[float, float]](), None
    for fields in map(fields_of, journal_lines(path)):
        time = fields.get("time")
        if not isinstance(time, int | float) or not abs(time) < LARGEST:
            continue
        paused = fields.get("paused_seconds") if fields["event"] == Continued.event else None
        if isinstance(paused, int | float) and 0 <= paused < LARGEST:
            known.append((time, paused))
        elif fields["event"] == Resumed.event and before is not None and time > before:
            known.append((time, time - before))
        before = time
    return known


def alarm_kinds(lines: Iterable[bytes]) -> dict[str, int]:
    """Counts the alarms in lines of a journal or a log by kind; one that a resumed run sounds again is the same."""
    sounded = filter(None, (fields_of(line) for line in lines if line.startswith(ALARM)))
    alarms = {
        (str(alarm.get("kind"))[:LONGEST_NAME], str(alarm["step"]), str(alarm.get("member"))) for alarm in sounded
    }
    return dict(sorted(Counter(kind for kind, _, _ in alarms).items()))
