"""Allows one process at a time to write a run folder, or to change a small file in it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from t3d.errors import UserError
from t3d.files import CORRUPT_ERRORS, Refused, error_text, fields_in, open_log, to_count

LONGEST = 1000  # bytes of the file that are read
CHANGES = "changes.lock"  # held while one of the small files that several processes change is replaced
WAIT_SECONDS = 10.0  # for another process to finish that; chosen


class Lock:
    """Held as long as this process lives: the kernel releases it however the process ends.

    Two things are locked: a file, which other machines see on a network file system and which says who holds it; and
    the folder itself, because anyone may remove the file.
    """

    def __init__(self, folder: Path) -> None:
        try:
            self._file = open_log(folder / "lock")
            self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (OSError, Refused) as error:
            raise UserError(f"cannot lock {folder}: {error_text(error)}") from None
        before = _holder(self._file)
        try:
            for descriptor in (self._file.fileno(), self._folder):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._close()
            raise UserError(
                f"{folder} is in use by {before or 'another process'}; stop that run first, or choose another name"
            ) from None
        except OSError as error:
            self.note = f"no locks work here ({error.strerror}): see to it that only one process writes this run"
        else:
            self.note = f"{before} ended without releasing the run's folder; its lock is taken over" if before else ""
        _held.add(self)
        with suppress(OSError):  # only says who holds it; a full disk must not stop a run
            self._file.truncate(0)
            self._file.write(json.dumps({"pid": os.getpid(), "host": platform.node()}).encode())

    def close(self) -> None:
        with suppress(OSError):
            self._file.truncate(0)
            for descriptor in (self._file.fileno(), self._folder):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        _held.discard(self)
        self._close()

    def _close(self) -> None:
        self._file.close()
        os.close(self._folder)


_held: set[Lock] = set()


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Lets one process at a time read and replace the small files of a folder."""
    until = time.monotonic() + WAIT_SECONDS
    with open_log(folder / CHANGES) as file:
        while not try_lock(file):
            if time.monotonic() > until:
                raise OSError(errno.EBUSY, "another process is changing it; try again")
            time.sleep(0.005)
        yield


def try_lock(file: BinaryIO) -> bool:
    """Locks an open file; returns whether that worked, also where a file system has no locks."""
    with suppress(OSError):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _holder(file: BinaryIO) -> str:
    try:
        file.seek(0)
        fields = fields_in(file.read(LONGEST))
        pid, host = to_count(fields["pid"]), str(fields["host"])[:60]
        return "this program" if (pid, host) == (os.getpid(), platform.node()[:60]) else f"process {pid} on {host}"
    except CORRUPT_ERRORS:
        return ""


def _forget_in_child() -> None:
    """A forked worker of an environment must not keep the folder locked when the run itself is dead."""
    for lock in _held:
        lock._close()
    _held.clear()


os.register_at_fork(after_in_child=_forget_in_child)
