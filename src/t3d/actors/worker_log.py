"""What worker processes print: a pipe that a thread drains into a log of limited size.

Python, C code and programs that an environment starts can print into it: they never see a full disk, and wait neither
for the disk nor for the learner.
"""

from __future__ import annotations

import errno
import os
import select
import threading
from pathlib import Path

from t3d.actors.shared_memory import Wakeup
from t3d.files import Refused, error_text, open_log

MAX_BYTES = 2**23  # of the log; then it is renamed to .1, replacing the one before; chosen
PIPE_BYTES = 2**16  # the capacity of a Linux pipe


class WorkerLog:
    """Prints to stderr until it is given a file; must outlive the processes that print."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._problem, self._reported = "", False  # why output was dropped, and whether that was reported
        self._read_end, self.fd = os.pipe()  # processes print to fd
        self._closing = Wakeup()
        self._thread = threading.Thread(target=self._drain, name="worker log", daemon=True)
        self._thread.start()

    def print_to(self, path: Path) -> None:
        """Sends what is printed from now on to this file."""
        self._path = path

    def news(self) -> list[str]:
        """Reports once that output was dropped."""
        if self._reported or not self._problem:
            return []
        self._reported = True
        return [f"what environments print is dropped, because it cannot be written: {self._problem}"]

    def close(self) -> None:
        """Writes what is left and ends the thread."""
        self._closing.wake()
        self._thread.join()
        self._closing.close()
        os.close(self._read_end)
        os.close(self.fd)

    def _drain(self) -> None:
        poll = select.poll()
        poll.register(self._read_end, select.POLLIN)
        poll.register(self._closing.fd, select.POLLIN)
        while True:
            ready = dict(poll.poll())
            if self._read_end in ready:
                self._write(os.read(self._read_end, PIPE_BYTES))
            if self._closing.fd in ready:  # a stray process may keep printing; nobody waits for it
                return

    def _write(self, printed: bytes) -> None:
        """Appends to the file, opened each time: it may have been moved or removed meanwhile."""
        try:
            if self._path is None:
                os.write(2, printed)
                return
            if self._path.exists() and self._path.stat().st_size + len(printed) > MAX_BYTES:
                self._path.replace(self._path.with_name(f"{self._path.name}.1"))
            with open_log(self._path) as log:
                if log.write(printed) < len(printed):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except (OSError, Refused) as error:
            self._problem = error_text(error)
