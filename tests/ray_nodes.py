"""Ray nodes for tests, started by Ray's own command as users start them, and killed with everything they started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

STORE = "--object-store-memory=80000000"
SMALL = ["--num-cpus=2", STORE, "--disable-usage-stats", "--block"]
ON_LOOPBACK = ["--node-ip-address=127.0.0.2", "--include-dashboard=false"]  # Ray replaces 127.0.0.1
VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS")


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def clean(**variables: str) -> dict[str, str]:
    """This process's environment without Ray's variables and without a token in the home folder, and with these."""
    kept = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    return {**kept, "HOME": "/nonexistent", **variables}


@contextmanager
def node(*options: str, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """Runs `ray start` until it is left."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", *SMALL, *options]
    with tempfile.TemporaryFile() as log:
        running = subprocess.Popen(command, env=clean(**variables), stdout=log, stderr=log, start_new_session=True)
        try:
            deadline = time.monotonic() + 60
            while b"will now block" not in _said(log):
                assert running.poll() is None and time.monotonic() < deadline, _said(log).decode()
                time.sleep(0.1)
            yield running
        finally:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()


@contextmanager
def head(*options: str, **variables: str) -> Iterator[str]:
    """Runs the head of a cluster, and gives its address."""
    port = free_port()
    with (
        tempfile.TemporaryDirectory(prefix="ray-") as folder,
        node("--head", *ON_LOOPBACK, f"--port={port}", f"--temp-dir={folder}", *options, **variables),
    ):
        yield f"127.0.0.2:{port}"


def _said(log: object) -> bytes:
    return Path(f"/proc/self/fd/{log.fileno()}").read_bytes()  # type: ignore[attr-defined]
