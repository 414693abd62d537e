"""A process beside the training, which it never holds up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from t3d.files import STARTED_IN
from t3d.priority import lower_priority

MOST_SAID = 2**16  # bytes that are read of what it prints at a time
HURRY = 1.0  # seconds that they have left, all together, once the run was told to stop; chosen


class Deadline:
    """Until when processes are waited for: so many seconds from now, or HURRY from a request to stop."""

    def __init__(self, seconds: float, stop: threading.Event) -> None:
        self._until, self._stop = time.monotonic() + seconds, stop

    def is_over(self) -> bool:
        if self._stop.is_set():
            self._until = min(self._until, time.monotonic() + HURRY)
        return time.monotonic() >= self._until


def begin(nice: int, end: Callable[[], object]) -> Any:
    """In such a process: lowers its priority, returns its task, and calls `end` when its standard input is closed."""

    def wait() -> None:
        os.read(0, 1)
        end()

    lower_priority(nice)
    task = json.loads(sys.stdin.readline())
    threading.Thread(target=wait, daemon=True).start()
    return task


class Child:
    """A process that ends when its standard input is closed, and so with this one, however that ends.

    What it prints goes to a temporary file, so that nobody ever waits for a reader; its errors are shown if it says so.
    """

    def __init__(
        self, module: str, task: dict[str, Any], *, inherited: Sequence[int] = (), shows_errors: bool = False
    ) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        self._read = 0
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=self._output,
            stderr=None if shows_errors else self._output, pass_fds=inherited, cwd=STARTED_IN, start_new_session=True,
        )  # fmt: skip
        assert self._process.stdin is not None  # noqa: S101 (it is a pipe)
        self._input = self._process.stdin
        with suppress(OSError):  # it has died already, and said why
            self._input.write(json.dumps(task).encode() + b"\n")
            self._input.flush()

    @property
    def code(self) -> int | None:
        """Its exit code; None: it is running."""
        return self._process.poll()

    def lines(self) -> list[str]:
        """Returns the complete lines that it has printed since the last call."""
        said = os.pread(self._output.fileno(), MOST_SAID, self._read)
        said = said[: said.rfind(b"\n") + 1]
        self._read += len(said)
        return said.decode(errors="replace").splitlines()

    def wait(self, deadline: Deadline) -> None:
        """Waits until it has ended, or until the deadline."""
        while self.code is None and not deadline.is_over():
            time.sleep(0.05)

    def end(self) -> None:
        """Asks it to finish, without waiting."""
        with suppress(OSError):
            self._input.close()

    def kill(self) -> None:
        """Ends it and what it has started."""
        with suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):  # it hangs in the kernel
            self._process.wait(HURRY)

    def close(self) -> None:
        """Lets go of it."""
        self.end()
        self._output.close()
