"""Requests to a run from outside: control.json in its folder, which names the process that should obey.

It says what is wanted, not what to do next, so that no request is lost: whoever asks replaces the whole file, one at a
time.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from t3d.errors import UserError
from t3d.files import CORRUPT_ERRORS, Refused, error_text, read, replace, sealed, to_count, unsealed
from t3d.store.lock import one_at_a_time

FILE = "control.json"
LARGEST = 2**12  # bytes
ACTIONS = ("pause", "continue", "save", "stop")


class ControlRequest(NamedTuple):
    """What a run is asked."""

    pause: bool = False
    stop: bool = False
    save: int = 0  # how often a checkpoint was asked for


def read_request(path: Path, session: Mapping[str, Any]) -> ControlRequest:
    """Reads what a process is asked; nothing if the file is meant for another one. Raises Refused if it is damaged.

    A session is what the process said of itself when it started: the fields of its start or resumed event.
    """
    try:
        fields = unsealed("control", read(path / FILE, LARGEST))
        whose = (to_count(fields["pid"]), fields["host"], fields["started"])
        request = ControlRequest(_flag(fields["pause"]), _flag(fields["stop"]), to_count(fields["save"]))
    except FileNotFoundError:
        return ControlRequest()
    except CORRUPT_ERRORS as error:
        raise Refused(error_text(error)) from None
    return request if whose == (session.get("pid"), session.get("host"), session.get("time")) else ControlRequest()


def request_of(path: Path, session: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a process is asked as plain values; a damaged file asks nothing."""
    try:
        return read_request(path, session)._asdict()
    except Refused:
        return ControlRequest()._asdict()


def add_request(path: Path, session: Mapping[str, Any], action: str) -> ControlRequest:
    """Adds a request to those that a process has, and returns them."""
    if action not in ACTIONS:
        raise UserError(f"the actions are {', '.join(ACTIONS)}")
    whose = {"pid": session.get("pid"), "host": session.get("host"), "started": session.get("time")}
    try:
        with one_at_a_time(path):
            now = ControlRequest(**request_of(path, session))
            match action:
                case "save":
                    now = now._replace(save=now.save + 1)
                case "stop":
                    now = now._replace(stop=True)
                case _:
                    now = now._replace(pause=action == "pause")
            replace(path / FILE, sealed("control", {**whose, **now._asdict()}))
    except (OSError, ValueError) as error:
        raise UserError(f"the request could not be written: {error_text(error)}") from None
    return now


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Refused(f"{value!r:.60} is not true or false")
    return value
