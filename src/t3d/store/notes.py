"""Tags and a note that people attach to a run: notes.json in its folder, which training never reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from t3d.errors import UserError
from t3d.files import CORRUPT_ERRORS, error_text, fields_in, read, replace, to_json
from t3d.store.lock import one_at_a_time

FILE = "notes.json"
MOST_TAGS, LONGEST_TAG, LONGEST_NOTE = 20, 40, 10_000  # tags, and characters; chosen
LARGEST = 2**17  # bytes of the file


class Notes(NamedTuple):
    """What people say of a run."""

    tags: tuple[str, ...] = ()
    note: str = ""


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
    if not all(_is_text(text) for text in [*tags, note.replace("\n", "").replace("\t", "")]):
        raise UserError("tags and notes have no control characters")
    return Notes(tuple(tags), note)


def read_notes(path: Path) -> Notes:
    """Reads the notes of a run folder; none if there are none that can be used."""
    try:
        return checked_notes(fields_in(read(path / FILE, LARGEST)))
    except (UserError, *CORRUPT_ERRORS):
        return Notes()


def write_notes(path: Path, notes: Notes, before: Notes | None = None) -> None:
    """Replaces the notes of a run folder, if they are still those that the writer has seen."""
    try:
        with one_at_a_time(path):
            if before is not None and read_notes(path) != before:
                raise UserError(f"the notes of {path.name} were changed meanwhile; look at them and edit them again")
            replace(path / FILE, to_json({"tags": list(notes.tags), "note": notes.note}))
    except (OSError, ValueError) as error:
        raise UserError(f"the notes of {path.name} could not be written: {error_text(error)}") from None


def _is_text(text: str) -> bool:
    """Whether a text can be printed and written, e.g. has no half of a character that was cut in two."""
    return all(letter.isprintable() or letter in "\u200d\ufe0f" for letter in text)
