"""This process among others: its priority, and its standard streams."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

MAX_TRIES = 50  # chosen


def lower_priority(niceness: int) -> None:
    """Lowers that of a process with its own session: where Linux schedules sessions, only their niceness counts."""
    os.nice(niceness)
    for _ in range(MAX_TRIES):
        try:
            Path("/proc/self/autogroup").write_text(str(niceness), encoding="ascii")
            return
        except BlockingIOError:  # without root, one change per tenth of a second is allowed
            time.sleep(0.1)
        except OSError:  # sessions are not scheduled here
            return


class StandardStreams:
    """Descriptors 0 to 2 as they are now, to put back what an environment closes."""

    def __init__(self) -> None:
        open_closed_descriptors()
        self._copies = [os.dup(number) for number in range(3)]

    def restore(self) -> None:
        """Opens those that are closed: the next file would get their number, and what is printed."""
        for number, copy in enumerate(self._copies):
            try:
                os.fstat(number)
            except OSError:
                os.dup2(copy, number)

    def close(self) -> None:
        self.restore()
        for copy in self._copies:
            with suppress(OSError):  # an environment closed it
                os.close(copy)


def open_closed_descriptors() -> None:
    """Opens /dev/null for closed standard streams: the next opened file would get their number, and the output."""
    for number in range(3):
        with suppress(OSError):
            os.fstat(number)
            continue
        os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
