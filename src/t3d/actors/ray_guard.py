"""A Ray cluster of our own, and what ends it: `python -m t3d.actors.ray_guard LEARNER FOLDER CPUS BYTES`.

However the learner ends, even by SIGKILL, this process sees it at once, kills all that belongs to the cluster, and
removes its folder. A second process, its child, is the head of the cluster, and prints its address.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from typing import Any

import psutil

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # of Linux's prctl
KILL_SECONDS = 5.0  # for killed processes to end; chosen
PRCTL = ctypes.CDLL(None).prctl


def guard(learner: int, folder: str, cpus: str, store_bytes: str) -> None:
    """Has a cluster run until its head ends, the learner ends, or the learner closes our stdin."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    PRCTL(PR_SET_CHILD_SUBREAPER, 1)  # whose parent has ended becomes our child, so none is lost sight of
    command = [sys.executable, "-P", "-m", "t3d.actors.ray_guard", cpus, store_bytes]
    die_with_us = partial(PRCTL, PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        with suppress(ProcessLookupError):  # the learner has ended already
            ended = os.pidfd_open(learner)
            if os.getppid() == learner:
                head = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=die_with_us)  # noqa: S603, PLW1509
                select.select([sys.stdin.fileno(), ended, os.pidfd_open(head.pid)], [], [])
    finally:
        _kill_descendants()
        shutil.rmtree(folder, ignore_errors=True)


def head(cpus: int, store_bytes: int) -> None:
    """Starts the cluster, prints its address, and waits."""
    import ray  # noqa: PLC0415

    context: Any = ray.init(
        address="local",
        num_cpus=cpus,
        num_gpus=0,
        object_store_memory=store_bytes,
        include_dashboard=False,
        log_to_driver=False,
    )
    print(f"address {context.address_info['gcs_address']}", flush=True)  # noqa: T201
    for descriptor in (1, 2):  # nobody reads them from now on
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    signal.pause()


def _kill_descendants() -> None:
    """Kills them until there are none: some may start others meanwhile."""
    deadline = time.monotonic() + KILL_SECONDS
    while (descendants := psutil.Process().children(recursive=True)) and time.monotonic() < deadline:
        for process in descendants:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(descendants, timeout=0.2)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        head(int(sys.argv[1]), int(sys.argv[2]))
    else:
        guard(int(sys.argv[1]), *sys.argv[2:])
