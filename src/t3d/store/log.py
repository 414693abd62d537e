"""Reads the logs of run folders: of live, finished, killed or copied runs, all the same."""

from __future__ import annotations

import dataclasses
import io
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from t3d.errors import UserError
from t3d.events import KINDS, Eval, Event, from_line
from t3d.files import CORRUPT_ERRORS, Refused, open_plain

LOG = logging.getLogger("t3d.runs")
LONGEST_START = 2**22  # bytes; a first line longer than this is not T3D's
TAILS = (2**14, 2**18, 2**24)  # bytes read from the end, more only where a line is longer
AT_ONCE, LONGEST_LINE = 2**22, 2**24  # bytes that read_lines takes at a time, and of a line before it is cut
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


class Chunk(NamedTuple):
    """The events that a log has grown by."""

    events: list[Event]
    end: Position  # where the next read continues
    damaged: int  # complete lines that cannot be read
    restarted: bool  # the log was truncated, so these events replace all that were read before


class Lines(NamedTuple):
    """Some complete lines of a log."""

    lines: list[bytes]  # without their ends
    end: Position  # where the next read continues
    restarted: bool  # the log was truncated, so these lines replace all that were read before


def read_events(path: Path, kinds: Iterable[type[Event]] = ()) -> list[Event]:
    """Reads the events of a run folder, all or those of some kinds; a warning says how many lines cannot be read."""
    try:
        chunk = read_log(path, kinds=kinds)
    except (OSError, Refused) as error:
        raise UserError(f"{path / 'events.jsonl'} cannot be read: {error}") from None
    if chunk.damaged:
        LOG.warning("%s", damage_in_words(chunk.damaged, path / "events.jsonl"))
    return chunk.events


def read_log(path: Path, after: Position = START, kinds: Iterable[type[Event]] = ()) -> Chunk:
    """Reads the events of a run folder, all or those after an earlier chunk's end.

    With kinds all other lines are skipped unparsed, and are damaged only if they do not even look like events.
    A last line that a kill cut short, or that is still being written, is left for later.
    """
    wanted = prefixes(kinds) or (b"",)
    events, damaged, restarted, end = list[Event](), 0, False, after
    while True:
        lines, end, has_restarted = read_lines(path, end)
        if has_restarted:
            events, damaged, restarted = [], 0, True
        for line in lines:
            try:
                if not line.startswith(wanted):
                    damaged += not looks_like_event(line)
                elif (event := _parse(line)) is not None:
                    events.append(event)
            except CORRUPT_ERRORS:
                damaged += 1
        if not lines:
            return Chunk(events, end, damaged, restarted)


def read_lines(path: Path, after: Position = START) -> Lines:
    """Reads the next few megabytes of a run's events as lines, for those who parse them in bulk; none: that is all."""
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
        place = Position(offset + len(data), data[-len(lines[-1]) - (not rest) :] if lines else last)
        return Lines(lines, place, restarted)


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
        first = log.readline(LONGEST_START)
        if not first:
            raise Unreadable(path, "its events.jsonl is empty")
        start = fields_of(first)
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


def check_values(event: Event) -> None:
    """Raises Refused if an event's values cannot be shown, compared and plotted: a file may say anything."""
    if not all(check(getattr(event, name)) for name, check in CHECKS[type(event)]):
        raise Refused("its values are not what they should be")


def _open_log(path: Path) -> io.BufferedReader:
    return io.BufferedReader(open_plain(path / "events.jsonl"))  # type: ignore[arg-type]


def _still_holds(place: Position, log: io.BufferedReader) -> bool:
    """Whether the line read last is still where it was, so that no resume has truncated the log since."""
    log.seek(place.offset - len(place.line))
    return log.read(len(place.line)) == place.line


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
    event = from_line(line.decode())
    if event is not None:
        check_values(event)
    return event


def _is_count(value: Any) -> bool:
    return type(value) is int and abs(value) < LARGEST


def _is_whole(value: Any) -> bool:
    return _is_count(value) and 0 <= value < 2**62


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < LARGEST


def _is_metric(value: Any) -> bool:
    """A number, or None for one that is not finite or not known."""
    return value is None or _is_number(value)


def _list_of(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: type(value) is list and all(map(check, value))


def _dict_of(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: type(value) is dict and all(map(check, value.values()))


TYPES: dict[str, Callable[[Any], bool]] = {  # by annotation
    "str": lambda value: type(value) is str,
    "bool": lambda value: type(value) is bool,
    "int": _is_count,
    "int | None": lambda value: value is None or _is_count(value),
    "float": _is_metric,
    "float | None": _is_metric,
    "list[int]": _list_of(_is_count),
    "list[float]": _list_of(_is_metric),
    "dict[str, float]": _dict_of(_is_metric),
}
NEEDED: dict[tuple[type[Event], str], Callable[[Any], bool]] = {  # what lists and plots cannot do without
    (Eval, "step"): _is_whole,
    (Eval, "seed"): _is_whole,
    (Eval, "updates"): _is_whole,
    **{(Eval, name): _is_number for name in ("mean_return", "std_return", "time")},
}
CHECKS: dict[type[Event], list[tuple[str, Callable[[Any], bool]]]] = {  # by kind: fields and how each is checked
    kind: [
        (field.name, NEEDED.get((kind, field.name), TYPES[str(field.type)]))
        for field in dataclasses.fields(kind)
        if str(field.type) in TYPES
    ]
    for kind in KINDS.values()
}
