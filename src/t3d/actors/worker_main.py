"""Entry point of a worker process: `python -m t3d.actors.worker_main CHANNEL PARENT`, a descriptor and a process id.

Nothing heavy is imported before the guard is forked, so it stays small; and no environment exists yet that could start
other programs or threads.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG = 1  # of Linux's prctl


def main() -> None:
    """Makes sure that this process and everything it starts end with its parent, then does the parent's task."""
    channel, parent = map(int, sys.argv[1:])
    for descriptor in _descriptors():  # passed to us; programs of environments must not inherit them
        with suppress(OSError):
            os.set_inheritable(descriptor, False)
    # Linux kills us when our parent, or its thread that started us, ends for any reason.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has already ended
        sys.exit(1)
    _fork_guard()
    from t3d.actors.worker import work  # noqa: PLC0415 (imports numpy and Gymnasium)

    work(channel)


def _descriptors() -> list[int]:
    """Lists the open ones above stderr, including the one that was open only to list them."""
    return [int(path.name) for path in Path("/proc/self/fd").iterdir() if int(path.name) > 2]


def _fork_guard() -> None:
    """Forks a guard that kills this worker's process group once the worker has ended, for whatever reason.

    The parent does so too, but it may be gone; and a killed worker cannot end what it has started. The guard is not a
    child of the worker: an environment that waits for all its children must not wait for it.
    """
    worker = os.getpid()
    middle = os.fork()
    if middle:
        os.waitpid(middle, 0)
        return
    if os.fork():
        os._exit(0)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    for descriptor in [0, 1, 2, *_descriptors()]:
        with suppress(OSError):
            os.close(descriptor)
    with suppress(ProcessLookupError):  # it has already ended, or leads no group: started by hand
        select.select([os.pidfd_open(worker)], [], [])
        os.killpg(worker, signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    main()
