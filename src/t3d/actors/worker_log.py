"""What worker processes print: a pipe that a thread of ours empties into a log of limited size.

Whoever prints into it (Python, C code, a program that an environment has started) never meets a full disk, and waits
for the disk as little as for the learner.
"""

from __future__ import annotations

import errno
import os
import select
import threading
from pathlib import Path

from t3d.actors.shared_memory import Wakeup
from t3d.files import Refused, in_words, open_log

MOST_BYTES = 2**23  # of the log; then it becomes the older one, in place of the one before; chosen
PIPE_BYTES = 2**16  # all that a pipe of Linux holds


class WorkerLog:
    """Prints to our stderr until it is told a file; must outlive the processes that print."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._problem, self._told = "", False  # why something was dropped, and whether that was told
        self._reads, self.fd = os.pipe()  # processes print to fd
        self._closing = Wakeup()
        self._thread = threading.Thread(target=self._drain, name="worker log", daemon=True)
        self._thread.start()

    def print_to(self, path: Path) -> None:
        """What is printed from now on goes to this file."""
        self._path = path

    def news(self) -> list[str]:
        """That something was dropped, once."""
        if self._told or not self._problem:
            return []
        self._told = True
        return [f"what environments print is dropped, because it cannot be written: {self._problem}"]

    def close(self) -> None:
        """Writes what is left and ends the thread."""
        self._closing.wake()
        self._thread.join()
        self._closing.close()
        os.close(self._reads)
        os.close(self.fd)

    def _drain(self) -> None:
        poll = select.poll()
        poll.register(self._reads, select.POLLIN)
        poll.register(self._closing.fd, select.POLLIN)
        while True:
            ready = dict(poll.poll())
            if self._reads in ready:
                self._write(os.read(self._reads, PIPE_BYTES))
            if self._closing.fd in ready:  # a process that has got away may go on printing; nobody waits for it
                return

    def _write(self, printed: bytes) -> None:
        """Appends to the file. It is opened each time: nothing is remembered that may be wrong by now."""
        try:
            if self._path is None:
                os.write(2, printed)
                return
            if self._path.exists() and self._path.stat().st_size + len(printed) > MOST_BYTES:
                self._path.replace(self._path.with_name(f"{self._path.name}.1"))
            with open_log(self._path) as log:
                if log.write(printed) < len(printed):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except (OSError, Refused) as error:
            self._problem = in_words(error)
