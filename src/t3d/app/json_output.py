"""JSON on standard output: a run's events as they happen, or one value."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from t3d.app.terminal import Output
from t3d.config import Member
from t3d.errors import UserError
from t3d.events import Event, Resumed, Start, finite, to_line
from t3d.files import Refused, open_plain
from t3d.store.log import fields_of

TAIL = 2**20  # bytes read of a log that a failing run wrote to


class EventStream:
    """Writes events to an output as the lines that are in the run's logs, each as soon as it happens."""

    def __init__(self, output: Output) -> None:
        self.output = output
        self._folder: Path | None = None
        self._newest = 0.0  # when the newest event happened

    def write(self, event: Event) -> None:
        if isinstance(event, Start | Resumed):
            self._folder = Path(event.folder)
        self._newest = max(self._newest, event.time)
        self._write_line(to_line(event))

    def write_rest(self) -> None:
        """Writes what a run that failed logged last, which no longer reached us: how it ended."""
        if self._folder is None:
            return
        times: dict[str, float] = {}
        for name in ("journal.jsonl", "events.jsonl"):
            for line in _tail(self._folder / name):
                time = fields_of(line).get("time")
                if isinstance(time, float) and time > self._newest:
                    times[line.decode()] = time
        for text in sorted(times, key=times.__getitem__):
            self._write_line(text)

    def _write_line(self, text: str) -> None:
        self.output.write(f"{text}\n")
        self.output.flush()


def write_json(value: Any, output: Output) -> None:
    """Writes one value, in ASCII, so that no name can control a terminal; non-finite numbers become null."""
    try:
        output.write(f"{json.dumps(finite(value), allow_nan=False)}\n")
    except RecursionError:
        raise UserError("its settings are nested too deeply to be written as JSON") from None
    output.flush()


def member_fields(member: Member) -> dict[str, Any]:
    """Returns who a member is: its name, seed and, in a sweep, values."""
    return {"member": member.name, "seed": member.seed, "values": dict(member.values)}


def _tail(path: Path) -> list[bytes]:
    with suppress(OSError, Refused), open_plain(path) as log:
        log.seek(max(0, os.fstat(log.fileno()).st_size - TAIL))
        return log.read(TAIL).split(b"\n")
    return []
