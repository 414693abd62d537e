"""Writes files atomically; anything in a run folder but a regular file is refused, even a link: it may be anyone's."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import safetensors

# What reading a corrupt file raises: whatever else is raised meanwhile is a bug of ours, or the machine's memory.
CORRUPT_ERRORS = (OSError, ValueError, LookupError, OverflowError, safetensors.SafetensorError)
try:
    STARTED_IN = Path.cwd()
except OSError:  # the working directory was removed
    STARTED_IN = Path("/")


TEMPORARY = re.compile(r"\.[0-9a-f]{8}\.tmp$")  # the names that replace writes under
LEFT_SECONDS = 60.0  # after which nobody is writing such a file any more; chosen
CHANGED = "its content has changed: the SHA-256 is another"


class Refused(ValueError):
    """A file must not be used; the message says what is wrong with it."""


def open_plain(path: Path, flags: int = os.O_RDONLY) -> BinaryIO:
    """Opens a regular file, unbuffered; raises Refused if it is anything else."""
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Refused("it is a link") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Refused("it is not a plain file")
    return os.fdopen(descriptor, "rb" if flags == os.O_RDONLY else "r+b", buffering=0)


def open_log(path: Path) -> BinaryIO:
    """Opens a regular file to append to, and creates it if it does not exist."""
    return open_plain(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)


def write_new(path: Path, content: bytes) -> str:
    """Writes a new file and waits until it is on disk; returns its SHA-256."""
    with open_plain(path, os.O_RDWR | os.O_CREAT | os.O_EXCL) as file:
        rest = memoryview(content)
        while rest:
            rest = rest[file.write(rest) :]
        os.fsync(file.fileno())
    return hashlib.sha256(content).hexdigest()


def replace(path: Path, content: bytes) -> None:
    """Replaces a file atomically: whatever happens, whoever else writes it, the old or a new one exists, complete."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        write_new(temporary, content)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def clear_leftovers(folder: Path) -> None:
    """Removes what killed processes have left half written; what others are writing just now is younger."""
    with suppress(OSError):
        for left in () if folder.is_symlink() else folder.iterdir():
            status = left.lstat()
            is_old = status.st_mtime < time.time() - LEFT_SECONDS
            if is_old and stat.S_ISREG(status.st_mode) and TEMPORARY.search(left.name):
                left.unlink()


def sync_folder(path: Path) -> None:
    """Waits until the names in a folder are on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(path: Path, most: int, sha256: str | None = None) -> bytes:
    """Reads a regular file; raises Refused if it is too long or its hash is wrong."""
    with open_plain(path) as file:
        bytes_there = os.fstat(file.fileno()).st_size
        if bytes_there > most:
            raise Refused(f"it holds {bytes_there:,} bytes, more than the limit of {most:,}")
        content = file.read()
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise Refused(CHANGED)
    return content


def to_count(value: Any, least: int = 0) -> int:
    """Checks a count from a file: an int, not a bool or a float, within sane bounds."""
    if type(value) is not int or not least <= value < 2**62:
        raise ValueError(f"{value!r:.60} is not a count")
    return value


def to_number(value: Any) -> float:
    """Checks a number from a file, which is not a bool or a text."""
    if type(value) not in (int, float):
        raise ValueError(f"a {type(value).__name__} stands where a number belongs")
    return float(value)


def to_list(value: Any) -> list[Any]:
    """Checks a list from a file, or what becomes one in a file."""
    if not isinstance(value, list | tuple):
        raise ValueError(f"a {type(value).__name__} stands where a list belongs")
    return [*value]


def to_fields(value: Any) -> dict[str, Any]:
    """Checks values by name from a file."""
    if not isinstance(value, dict):
        raise ValueError(f"a {type(value).__name__} stands where values by name belong")
    return value


def fields_in(content: bytes | str) -> dict[str, Any]:
    """Reads JSON, which must hold values by name."""
    try:
        return to_fields(json.loads(content))
    except RecursionError:
        raise ValueError("its brackets are nested too deeply") from None


def display_path(path: Path) -> str:
    """A path as users would type it where the program was started, even if its working directory has changed since."""
    return str(path.relative_to(STARTED_IN)) if path.is_relative_to(STARTED_IN) else str(path)


def readable(name: str) -> str:
    """A name as anything can show and store it: bytes that are not UTF-8 are escaped."""
    return name.encode(errors="backslashreplace").decode()


def printable(text: str) -> str:
    """Escapes the characters that would control the terminal instead of being shown."""
    return "".join(char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1] for char in text)


def to_json(value: Any, indent: int | None = None) -> bytes:
    """Deterministic JSON, as short as possible unless it is indented for people."""
    separators = (",", ":") if indent is None else (",", ": ")
    return json.dumps(value, allow_nan=False, sort_keys=True, indent=indent, separators=separators).encode()


def sealed(name: str, fields: dict[str, Any], indent: int | None = None) -> bytes:
    """Formats fields as JSON under a name, together with their SHA-256."""
    return to_json({name: fields, "sha256": hashlib.sha256(to_json(fields)).hexdigest()}, indent)


def unsealed(name: str, content: bytes, indent: int | None = None) -> dict[str, Any]:
    """Returns the fields that sealed was given; raises Refused if a single bit of the content differs."""
    fields = to_fields(fields_in(content)[name])
    if sealed(name, fields, indent) != content:
        raise Refused(CHANGED)
    return fields


def refuse_link(path: Path) -> None:
    """Refuses a folder that is a link: writing into it would write somewhere else."""
    if path.is_symlink():
        raise Refused(f"{path} is a link")


def followed(path: Path) -> Path:
    """Resolves links; only for a path that the user gave, not for one found in a run folder."""
    return Path(os.path.realpath(path))


def error_text(error: BaseException) -> str:
    """The message of an error, without its number."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
