"""The manifest of a checkpoint: its files with their sizes and SHA-256, and a hash of the manifest itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from t3d.errors import UserError
from t3d.files import Refused, read, sealed, to_count, to_list, to_number, unsealed, write_new
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
    found = to_number(fields["format"])
    if found > FORMAT:
        raise UserError(f"{path.parent} has checkpoint format {found:g}, this T3D reads {FORMAT}; update T3D")
    if found < FORMAT:
        raise UserError(
            f"{path.parents[2]} was written by an early version of T3D (checkpoint format {found:g}), which this one "
            "does not read; resume it with the version that wrote it, or train again"
        )
    files = tuple(_file(entry) for entry in to_list(fields["files"]))
    segments = tuple(
        Segment(stored_name(member), to_count(first), to_count(stop), _file(entry))
        for member, first, stop, entry in map(to_list, to_list(fields["segments"]))
    )
    return Manifest(to_count(fields["step"]), files, segments)


def write_file(path: Path, content: bytes, written: list[Path]) -> File:
    """Writes a file, which is added to `written` before it exists."""
    path.unlink(missing_ok=True)  # from an interrupted attempt
    written.append(path)
    return File(path.name, len(content), write_new(path, content))


def _file(entry: Any) -> File:
    name, size, sha256 = to_list(entry)
    if not isinstance(name, str) or not FILE_NAME.fullmatch(name):
        raise Refused(f"it names a file {name!r:.80}, which is not a plain name")
    return File(name, to_count(size), str(sha256))
