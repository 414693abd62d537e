"""Reads events.jsonl and journal.jsonl of run folders: of live, finished, killed or copied runs, all the same."""

from __future__ import annotations

import dataclasses
import io
import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from t3d.errors import UserError
from t3d.events import KINDS, Alarm, Continued, Eval, Event, Resumed, Start, from_line
from t3d.files import CORRUPT_ERRORS, Refused, open_plain, read

LOG = logging.getLogger("t3d.runs")
LONGEST_START = 2**22  # bytes; a first line longer than this is not T3D's
TAILS = (2**14, 2**18, 2**24)  # bytes read from the end, more only where a line is longer
AT_ONCE, LONGEST_LINE = 2**22, 2**24  # bytes that read_lines takes at a time, and of a line before it is cut
LARGEST_JOURNAL = 2**26  # bytes; a larger one is not read
LONGEST_NAME = 200  # characters shown of what a file says
LARGEST = 1e300  # numbers beyond this cannot be averaged or plotted


class Unreadable(UserError):
    """A folder that is not a run, or only the remains of one."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} cannot be read as a run: {reason}; t3d runs lists the ones that can")
        self.path, self.reason = path, reason


class Position(NamedTuple):
    """How far a log has been read."""

    offset: int = 0  # bytes; the end of the last complete line
    line: bytes = b""  # that line: each says when it was written, so another one differs


START = Position()


def read_events(path: Path, kinds: Iterable[type[Event]] = ()) -> list[Event]:
    """Reads the events of a run folder, all or those of some kinds; a warning says how many lines cannot be read."""
    try:
        events, damaged = read_log(path, kinds)
    except (OSError, Refused) as error:
        raise UserError(f"{path / 'events.jsonl'} cannot be read: {error}") from None
    if damaged:
        LOG.warning("%s", damage_in_words(damaged, path / "events.jsonl"))
    return events


def read_log(path: Path, kinds: Iterable[type[Event]] = ()) -> tuple[list[Event], int]:
    """Reads events and counts complete lines that cannot be read; those of other kinds must only look like events."""
    wanted = prefixes(kinds) or (b"",)
    events, damaged, end = list[Event](), 0, START
    while True:
        lines, end, restarted = read_lines(path, end)
        if restarted:
            events, damaged = [], 0
        for line in lines:
            try:
                if not line.startswith(wanted):
                    damaged += not looks_like_event(line)
                elif (event := _parse(line)) is not None:
                    events.append(event)
            except CORRUPT_ERRORS:
                damaged += 1
        if not lines:
            return events, damaged


def read_lines(path: Path, after: Position = START) -> tuple[list[bytes], Position, bool]:
    """Reads the next few megabytes of complete lines; returns them, where the next read continues, and a flag.

    It says that the log was truncated, so these lines replace all that were read before. No lines: that is all. A last
    line that a kill cut short, or that is still being written, is left for later.
    """
    with _open_log(path) as log:
        restarted = not _still_holds(after, log)
        offset, last = START if restarted else after
        log.seek(offset)
        data = log.read(AT_ONCE)
        if len(data) == AT_ONCE and data[-1:] != b"\n":
            data += log.readline(LONGEST_LINE)
        if len(data) < AT_ONCE + LONGEST_LINE:  # otherwise it is no log of T3D's, and what it is ends somewhere
            data = data[: data.rfind(b"\n") + 1]
        *lines, rest = data.split(b"\n")
        lines += [rest] if rest else []
        line = data[-len(lines[-1]) - (not rest) :] if lines else last
        return lines, Position(offset + len(data), line), restarted


def read_part(path: Path, start: int, stop: int, end: Position) -> list[bytes] | None:
    """Reads the lines that begin between two offsets before an end; None if the log was truncated since."""
    with _open_log(path) as log:
        if not _still_holds(end, log):
            return None
        log.seek(max(0, start - 1))
        data = log.read(stop - max(0, start - 1))
        if start:
            data = data[data.find(b"\n") + 1 or len(data) :]  # the rest of a line that began before
        if data and data[-1:] != b"\n":
            data += log.readline(LONGEST_LINE)
        return data.split(b"\n")[:-1]


def read_end(path: Path) -> Position:
    """Returns where the last complete line ends, without reading what is before it."""
    with _open_log(path) as log:
        for begin, data in _tails(log):
            complete = data[: data.rfind(b"\n") + 1]
            before = complete.rfind(b"\n", 0, -1)
            if complete and (before >= 0 or begin == 0):
                return Position(begin + len(complete), complete[before + 1 :])
    return START


def read_ends(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reads the fields of a run's start event and of the last event that can be read."""
    if not (path / "events.jsonl").is_file():
        raise Unreadable(path, "it has no events.jsonl")
    with _open_log(path) as log:
        start = fields_of(log.readline(LONGEST_START))
        if not start or start["event"] != "start":
            raise Unreadable(path, "its events.jsonl does not begin with a complete start event")
        return start, _last(log) or start


def last_event(path: Path) -> dict[str, Any]:
    """Reads the fields of the last event of a run that can be read, or nothing."""
    try:
        with _open_log(path) as log:
            return _last(log)
    except (OSError, Refused):
        return {}


def journal_lines(path: Path) -> list[bytes]:
    """Returns the lines of a run's journal; runs from before 0.2 have none."""
    try:
        return read(path / "journal.jsonl", LARGEST_JOURNAL).splitlines()
    except (FileNotFoundError, Refused):
        return []


def newest_session(path: Path) -> dict[str, Any] | None:
    """Returns what the newest process of the run said of itself."""
    starts = prefixes((Start, Resumed))
    sessions = (fields_of(line) for line in reversed(journal_lines(path)) if line.startswith(starts))
    return next(filter(None, sessions), None)


def remembered_files(path: Path) -> dict[str, str]:
    """Returns the files of the user's own modules that the newest process of the run used, by their names in config."""
    files = (newest_session(path) or {}).get("files")
    return {str(name): str(file) for name, file in files.items()} if isinstance(files, dict) else {}


def pauses(path: Path) -> list[tuple[float, float]]:
    """Returns when a run went on, and for how many seconds it had stood still: before a resume, since the last line."""
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
    prefix = prefixes([Alarm])
    sounded = filter(None, (fields_of(line) for line in lines if line.startswith(prefix)))
    alarms = {
        (str(alarm.get("kind"))[:LONGEST_NAME], str(alarm["step"]), str(alarm.get("member"))) for alarm in sounded
    }
    return dict(sorted(Counter(kind for kind, _, _ in alarms).items()))


def fields_of(line: bytes) -> dict[str, Any]:
    """Returns the fields of an event as any version wrote it, or nothing if the line is torn or something else."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) and {"event", "step", "time"} <= fields.keys() else {}


def event_of(line: bytes) -> Event | None:
    """Returns the event of a line; None if it is damaged or of a kind that only a newer T3D knows."""
    try:
        return _parse(line)
    except CORRUPT_ERRORS:
        return None


def looks_like_event(line: bytes) -> bool:
    """Whether a line is complete and of some event, as far as its ends tell."""
    return line[:11] == b'{"event": "' and line[-1:] == b"}"


def prefixes(kinds: Iterable[type[Event]]) -> tuple[bytes, ...]:
    """Returns what lines with events of these kinds begin with."""
    return tuple(b'{"event": "%s"' % kind.event.encode() for kind in kinds)


def damage_in_words(lines: int, file: Path | str) -> str:
    """Says that lines could not be read."""
    return f"{lines:,} {'line' if lines == 1 else 'lines'} of {file} cannot be read and are left out"


def _open_log(path: Path) -> io.BufferedReader:
    return io.BufferedReader(open_plain(path / "events.jsonl"))  # type: ignore[arg-type]


def _still_holds(position: Position, log: io.BufferedReader) -> bool:
    """Whether the line read last is still where it was, so that no resume has truncated the log since."""
    log.seek(position.offset - len(position.line))
    return log.read(len(position.line)) == position.line


def _tails(log: io.BufferedReader) -> Iterator[tuple[int, bytes]]:
    """Yields the end of a log and where it begins, and again with more of it."""
    size = log.seek(0, os.SEEK_END)
    for length in TAILS:
        begin = max(0, size - length)
        log.seek(begin)
        yield begin, log.read(size - begin)


def _last(log: io.BufferedReader) -> dict[str, Any]:
    for _, data in _tails(log):
        for line in reversed(data.split(b"\n")):
            if fields := fields_of(line):
                return fields
    return {}


def _parse(line: bytes) -> Event | None:
    """Returns the event of a line; raises if it is damaged, or its values cannot be shown, compared and plotted."""
    event = from_line(line.decode())
    if event is not None and not all(check(getattr(event, name)) for name, check in CHECKS[type(event)]):
        raise Refused("its values are not what they should be")
    return event


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**62


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < LARGEST


def _is_metric(value: Any) -> bool:
    """A number, or None for one that is not finite or not known."""
    return value is None or _is_number(value)


TYPES: dict[str, Callable[[Any], bool]] = {  # by annotation
    "str": lambda value: type(value) is str,
    "bool": lambda value: type(value) is bool,
    "int": _is_count,
    "int | None": lambda value: value is None or _is_count(value),
    "float": _is_metric,
    "float | None": _is_metric,
    "list[int]": lambda value: type(value) is list and all(map(_is_count, value)),
    "list[float]": lambda value: type(value) is list and all(map(_is_metric, value)),
    "dict[str, int]": lambda value: type(value) is dict and all(map(_is_count, value.values())),
    "dict[str, float]": lambda value: type(value) is dict and all(map(_is_metric, value.values())),
    "dict[str, Any]": lambda value: type(value) is dict,
}
NEEDED = {"seed": _is_count, "mean_return": _is_number, "std_return": _is_number, "time": _is_number}  # of evaluations
CHECKS: dict[type[Event], list[tuple[str, Callable[[Any], bool]]]] = {  # by kind: fields and how each is checked
    kind: [
        (field.name, NEEDED[field.name] if kind is Eval and field.name in NEEDED else TYPES[str(field.type)])
        for field in dataclasses.fields(kind)
        if str(field.type) in TYPES
    ]
    for kind in KINDS.values()
}
