"""Files that appear whole or not at all, and reading that trusts nothing it finds."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path


class Refused(ValueError):
    """A file that is not what it should be; the message says what is wrong with it."""


def write_new(path: Path, content: bytes) -> str:
    """Writes a file and waits until it is on the disk; returns its SHA-256."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return hashlib.sha256(content).hexdigest()


def replace(path: Path, content: bytes) -> None:
    """Puts a file in the place of another; whatever happens, one of the two is there, whole."""
    temporary = path.with_name(path.name + ".tmp")
    write_new(temporary, content)
    temporary.replace(path)


def sync_folder(path: Path) -> None:
    """Waits until the names in a folder are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(path: Path, most: int, size: int | None = None, sha256: str | None = None) -> bytes:
    """A plain file's content, if its length and hash are right; links, pipes and devices are refused unread."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise Refused("it is not a plain file")
        if found.st_size > most:
            raise Refused(f"it holds {found.st_size:,} bytes, more than the {most:,} that are read")
        if size is not None and found.st_size != size:
            raise Refused(f"it holds {found.st_size:,} bytes instead of {size:,}")
        content = file.read()
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise Refused("its content has changed: the SHA-256 is another")
    return content
