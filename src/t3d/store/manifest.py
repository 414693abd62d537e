"""The manifest of a checkpoint: its files with their sizes and SHA-256, and a hash of the manifest itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from t3d.errors import UserError
from t3d.files import Refused, read, sealed, unsealed, write_new
from t3d.store.members import stored_name

FORMAT = 2
MAX_MANIFEST_BYTES = 2**26  # a longer one is refused unread; chosen
FILE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,254}")


class File(NamedTuple):
    """A file of a checkpoint, as its manifest lists it."""

    name: str
    size: int
    sha256: str


class Segment(NamedTuple):
    """A file with the rows of one member's transitions first to stop, counted from the start of the run."""

    member: str  # its name
    first: int
    stop: int
    file: File


class Manifest(NamedTuple):
    """The contents of a checkpoint."""

    step: int
    files: tuple[File, ...]
    segments: tuple[Segment, ...]


def packed(manifest: Manifest) -> bytes:
    """Returns the content of manifest.json."""
    return sealed("manifest", {"format": FORMAT, **manifest._asdict()})


def read_manifest(path: Path) -> Manifest:
    """Reads a manifest and checks its hash and file names; another format is an error for the user."""
    fields = unsealed("manifest", read(path, MAX_MANIFEST_BYTES))
    found = fields["format"]
    if found > FORMAT:
        raise UserError(f"{path.parent} has checkpoint format {found}, this T3D reads {FORMAT}; update T3D")
    if found < FORMAT:
        raise UserError(
            f"{path.parents[2]} was written by an early version of T3D (checkpoint format {found}), which this one "
            "does not read; resume it with the version that wrote it, or train again"
        )
    files = tuple(_file(*entry) for entry in fields["files"])
    segments = tuple(
        Segment(stored_name(member), int(first), int(stop), _file(*entry))
        for member, first, stop, entry in fields["segments"]
    )
    return Manifest(int(fields["step"]), files, segments)


def write_file(path: Path, content: bytes, written: list[Path]) -> File:
    """Writes a file, which is added to `written` before it exists."""
    path.unlink(missing_ok=True)  # from an interrupted attempt
    written.append(path)
    return File(path.name, len(content), write_new(path, content))


def _file(name: str, size: int, sha256: str) -> File:
    if not FILE_NAME.fullmatch(name):
        raise Refused(f"it names a file {name!r:.80}, which is not a plain name")
    return File(name, int(size), str(sha256))
