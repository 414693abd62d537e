"""The dashboard as a server: alone, or in a process of its own beside a training, which it must not hold up."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from t3d.dash.guard import Access, new_token
from t3d.errors import UserError
from t3d.files import STARTED_IN

PORT = 8700
BACKLOG = 512
SECONDS_TO_END = 5.0
NICE = 10  # of the process beside a training


def listen(host: str, port: int | None) -> socket.socket:
    """Opens the socket; without a port the usual one or, if that is taken, a free one."""
    tries = [PORT, 0] if port is None else [port]
    for number in tries:
        try:
            family, _, _, _, address = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0]
            return socket.create_server(address[:2], family=family, backlog=BACKLOG)
        except OSError as error:
            problem = getattr(error, "strerror", None) or str(error)
    where = f"{host}:{port}" if port is not None else host
    raise UserError(f"the dashboard cannot listen on {where}: {problem}; choose another --port or --host")


def access_to(opened: socket.socket, host: str) -> Access:
    """Returns who may ask, with a new token."""
    return Access(new_token(), host, opened.getsockname()[1])


def address_of(access: Access) -> str:
    """Returns what to open in a browser."""
    host = f"[{access.host}]" if ":" in access.host else access.host
    return f"http://{host}:{access.port}/?token={access.token}"


def serve(opened: socket.socket, root: Path, access: Access, *, stop: threading.Event | None = None) -> None:
    """Answers requests until Ctrl-C, SIGTERM or `stop`."""
    import uvicorn  # noqa: PLC0415 (an extra)

    from t3d.dash.library import Library  # noqa: PLC0415
    from t3d.dash.server import Application  # noqa: PLC0415 (imports starlette)

    config = uvicorn.Config(
        Application(Library(root), access).asgi(),
        log_level=logging.WARNING,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
        ws="none",
        lifespan="off",
    )
    server = uvicorn.Server(config)
    if stop is not None:
        _end_with(server, stop)
    with suppress(KeyboardInterrupt):
        asyncio.run(server.serve([opened]))


@contextmanager
def beside(root: Path) -> Iterator[str]:
    """Serves in a process of its own for as long as the context lasts; provides the address.

    That process ends when its standard input is closed, and so with this one, however that ends.
    """
    opened = listen("127.0.0.1", None)
    access = access_to(opened, "127.0.0.1")
    task = {"root": str(root.absolute()), "descriptor": opened.fileno(), **access._asdict()}
    command = [sys.executable, "-m", "t3d.dash.process"]
    process = subprocess.Popen(  # noqa: S603
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=[opened.fileno()], cwd=STARTED_IN,
        start_new_session=True,
    )  # fmt: skip
    try:
        with suppress(OSError):  # it has died already, and said why
            _send(process, task)
        opened.close()
        yield address_of(access)
    finally:
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
        try:
            process.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main() -> None:
    """Serves as the first line of standard input says, until that is closed."""
    with suppress(OSError):
        os.nice(NICE)
    task = json.loads(sys.stdin.readline())
    opened = socket.socket(fileno=task["descriptor"])
    stop = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=wait, daemon=True).start()
    serve(opened, Path(task["root"]), Access(task["token"], task["host"], task["port"]), stop=stop)


def _send(process: subprocess.Popen[bytes], task: dict[str, Any]) -> None:
    assert process.stdin is not None  # noqa: S101 (it is a pipe)
    process.stdin.write(json.dumps(task).encode() + b"\n")
    process.stdin.flush()


def _end_with(server: Any, stop: threading.Event) -> None:
    def wait() -> None:
        stop.wait()
        server.should_exit = True

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    main()
