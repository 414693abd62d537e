"""Lets processes give way to the training."""

from __future__ import annotations

import os
import time
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
