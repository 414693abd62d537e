"""Files that appear whole or not at all, and a way of opening them that trusts nothing it finds.

A run folder may come from anywhere. So links are not followed and pipes and devices are not touched: whatever is not a
plain file is refused before a byte of it is read or written.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

import safetensors

CORRUPT_ERRORS = (  # what reading and using a file raises that is not what it should be
    OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError, MemoryError,
    safetensors.SafetensorError,
)  # fmt: skip
try:
    STARTED_IN = Path.cwd()
except OSError:  # it was removed
    STARTED_IN = Path("/")


CHANGED = "its content has changed: the SHA-256 is another"


class Refused(ValueError):
    """A file that is not what it should be; the message says what is wrong with it."""


def open_plain(path: Path, flags: int = os.O_RDONLY) -> BinaryIO:
    """Opens a plain file, unbuffered; Refused if it is anything else."""
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Refused("it is a link") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Refused("it is not a plain file")
    mode = "rb" if flags == os.O_RDONLY else "r+b"
    return os.fdopen(descriptor, mode, buffering=0)  # type: ignore[return-value]


def open_log(path: Path) -> BinaryIO:
    """Opens a plain file to append to, and makes it where there is none."""
    return open_plain(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)


def write_new(path: Path, content: bytes) -> str:
    """Writes a file that was not there and waits until it is on the disk; returns its SHA-256."""
    with open_plain(path, os.O_RDWR | os.O_CREAT | os.O_EXCL) as file:
        rest = memoryview(content)
        while rest:
            rest = rest[file.write(rest) :]
        os.fsync(file.fileno())
    return hashlib.sha256(content).hexdigest()


def replace(path: Path, content: bytes) -> None:
    """Puts a file in the place of another; whatever happens, one of the two is there, whole."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    write_new(temporary, content)
    temporary.replace(path)


def sync_folder(path: Path) -> None:
    """Waits until the names in a folder are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(path: Path, most: int, size: int | None = None, sha256: str | None = None) -> bytes:
    """A plain file's content, if its length and hash are right."""
    with open_plain(path) as file:
        found = os.fstat(file.fileno()).st_size
        if found > most:
            raise Refused(f"it holds {found:,} bytes, more than the {most:,} that are read")
        if size is not None and found != size:
            raise Refused(f"it holds {found:,} bytes instead of {size:,}")
        content = file.read()
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise Refused(CHANGED)
    return content


def whole(value: Any, least: int = 0) -> int:
    """A count from a file: a whole number that is neither absurd nor a disguised something else."""
    if type(value) is not int or not least <= value < 2**62:
        raise ValueError(f"{value!r:.60} is not a count")
    return value


def shown(path: Path) -> str:
    """A path as people would type it where the program was started, whatever has changed its working directory."""
    return str(path.relative_to(STARTED_IN)) if path.is_relative_to(STARTED_IN) else str(path)


def to_json(value: Any, indent: int | None = None) -> bytes:
    """JSON, always the same for the same value; the shortest unless it is indented for people."""
    separators = (",", ":") if indent is None else (",", ": ")
    return json.dumps(value, allow_nan=False, sort_keys=True, indent=indent, separators=separators).encode()


def sealed(name: str, fields: dict[str, Any], indent: int | None = None) -> bytes:
    """Fields as JSON under a name, beside the SHA-256 of them."""
    return to_json({name: fields, "sha256": hashlib.sha256(to_json(fields)).hexdigest()}, indent)


def unsealed(name: str, content: bytes, indent: int | None = None) -> dict[str, Any]:
    """The fields that sealed was given; Refused if one bit of the content is another."""
    fields: dict[str, Any] = json.loads(content)[name]
    if sealed(name, fields, indent) != content:
        raise Refused(CHANGED)
    return fields


def refuse_link(path: Path) -> None:
    """Whoever writes into a folder that is a link writes somewhere else."""
    if path.is_symlink():
        raise Refused(f"{path} is a link")


def followed(path: Path) -> Path:
    """Where a path leads; only for one that the user has named, not for one found in a run folder."""
    return Path(os.path.realpath(path))


def in_words(error: BaseException) -> str:
    """What an error says, without its number."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
