"""Where a worker process starts: `python -m t3d.actors.launch CHANNEL PARENT`, a descriptor and a process id.

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
from typing import NoReturn

PR_SET_PDEATHSIG = 1  # of Linux's prctl


def main() -> None:
    """Makes sure that this process and all that it will start end with its parent; then does what the parent asks."""
    channel, parent = map(int, sys.argv[1:])
    for descriptor in _descriptors():  # handed on to us, but for no program that an environment starts
        with suppress(OSError):
            os.set_inheritable(descriptor, False)
    _die_with(parent)
    _fork_guard()
    from t3d.actors.worker import work  # noqa: PLC0415 (imports numpy and Gymnasium)

    work(channel)


def _descriptors() -> list[int]:
    """All that are open, but for stdin, stdout and stderr; one was only open to list the others."""
    return [int(path.name) for path in Path("/proc/self/fd").iterdir() if int(path.name) > 2]


def _die_with(parent: int) -> None:
    """Linux ends this process when its parent ends, or the thread of it that has started us, however that happens."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended already
        sys.exit(1)


def _fork_guard() -> None:
    """Forks a process that kills this one's whole group once this one has ended, however it has ended.

    The parent does so too, but it may be gone; and whoever is killed cannot end what it has started. The guard is no
    child of ours: an environment that waits for all its children must not wait for it.
    """
    worker = os.getpid()
    middle = os.fork()
    if middle:
        os.waitpid(middle, 0)
        return
    if not os.fork():
        _guard(worker)
    os._exit(0)


def _guard(worker: int) -> NoReturn:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    for descriptor in [0, 1, 2, *_descriptors()]:
        with suppress(OSError):
            os.close(descriptor)
    with suppress(ProcessLookupError):  # it has ended already, or led no group, because somebody else has started it
        select.select([os.pidfd_open(worker)], [], [])
        os.killpg(worker, signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    main()
