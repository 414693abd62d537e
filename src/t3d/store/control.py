"""What people say to a run and of it: control.json and notes.json in its folder, changed by one process at a time.

control.json names the process that should obey. It says what is wanted, not what to do next, so no request is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from t3d.errors import UserError
from t3d.files import CORRUPT_ERRORS, Refused, error_text, fields_in, read, replace, sealed, to_count, to_json, unsealed
from t3d.store.lock import one_at_a_time

CONTROL, NOTES = "control.json", "notes.json"
ACTIONS = ("pause", "continue", "save", "stop")
MOST_TAGS, LONGEST_TAG, LONGEST_NOTE = 20, 40, 10_000  # tags, and characters; chosen
LARGEST = 2**17  # bytes of either file


class ControlRequest(NamedTuple):
    """Requests to a run."""

    pause: bool = False
    stop: bool = False
    save: int = 0  # how often a checkpoint was asked for


class Notes(NamedTuple):
    """What people say of a run."""

    tags: tuple[str, ...] = ()
    note: str = ""


def read_request(path: Path, session: Mapping[str, Any]) -> ControlRequest:
    """Reads what a process, known by the fields of its start or resumed event, is asked; raises Refused if damaged."""
    try:
        fields = unsealed("control", read(path / CONTROL, LARGEST))
        whose = (to_count(fields["pid"]), fields["host"], fields["started"])
        request = ControlRequest(fields["pause"], fields["stop"], to_count(fields["save"]))
        if not all(isinstance(flag, bool) for flag in request[:2]):
            raise Refused("it has a flag that is not true or false")
    except FileNotFoundError:
        return ControlRequest()
    except CORRUPT_ERRORS as error:
        raise Refused(error_text(error)) from None
    return request if whose == (session.get("pid"), session.get("host"), session.get("time")) else ControlRequest()


def request_of(path: Path, session: Mapping[str, Any]) -> ControlRequest:
    """The same, but a damaged file asks nothing."""
    try:
        return read_request(path, session)
    except Refused:
        return ControlRequest()


def add_request(path: Path, session: Mapping[str, Any], action: str) -> ControlRequest:
    """Adds a request to those that a process has, and returns them."""
    if action not in ACTIONS:
        raise UserError(f"the actions are {', '.join(ACTIONS)}")
    whose = {"pid": session.get("pid"), "host": session.get("host"), "started": session.get("time")}
    try:
        with one_at_a_time(path):
            now = request_of(path, session)
            if action == "save":
                now = now._replace(save=now.save + 1)
            elif action == "stop":
                now = now._replace(stop=True)
            else:
                now = now._replace(pause=action == "pause")
            replace(path / CONTROL, sealed("control", {**whose, **now._asdict()}))
    except (OSError, ValueError) as error:
        raise UserError(f"the request could not be written: {error_text(error)}") from None
    return now


def checked_notes(fields: Any) -> Notes:
    """Returns notes as they may be stored; raises if they are not."""
    if not isinstance(fields, dict) or fields.keys() != {"tags", "note"}:
        raise UserError('notes are {"tags": [...], "note": "..."}')
    tags, note = fields["tags"], fields["note"]
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags) or not isinstance(note, str):
        raise UserError("tags are a list of texts, and the note is a text")
    tags = [*dict.fromkeys(tag.strip() for tag in tags)]
    if len(tags) > MOST_TAGS or not all(0 < len(tag) <= LONGEST_TAG for tag in tags):
        raise UserError(f"a run has at most {MOST_TAGS} tags, each of 1 to {LONGEST_TAG} characters")
    if len(note) > LONGEST_NOTE:
        raise UserError(f"the note has {len(note):,} characters, and the limit is {LONGEST_NOTE:,}")
    letters = "".join([*tags, note.replace("\n", "").replace("\t", "")])
    if not all(letter.isprintable() or letter in "\u200d\ufe0f" for letter in letters):  # nor half of a character
        raise UserError("tags and notes have no control characters")
    return Notes(tuple(tags), note)


def read_notes(path: Path) -> Notes:
    """Reads the notes of a run folder; none if there are none that can be used."""
    try:
        return checked_notes(fields_in(read(path / NOTES, LARGEST)))
    except (UserError, *CORRUPT_ERRORS):
        return Notes()


def write_notes(path: Path, notes: Notes, before: Notes | None = None) -> None:
    """Replaces the notes of a run folder, if they are still those that the writer has seen."""
    try:
        with one_at_a_time(path):
            if before is not None and read_notes(path) != before:
                raise UserError(f"the notes of {path.name} were changed meanwhile; look at them and edit them again")
            replace(path / NOTES, to_json({"tags": list(notes.tags), "note": notes.note}))
    except (OSError, ValueError) as error:
        raise UserError(f"the notes of {path.name} could not be written: {error_text(error)}") from None
