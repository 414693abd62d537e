"""The dashboard as a server: alone, or in a process of its own beside a training, which it must not hold up."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from t3d import web
from t3d.dash.guard import Access, full_name
from t3d.run.child import Child, Deadline, begin

PORT = 8700
LAST_LOOK = 2.0  # seconds in which open pages see how a run ended; chosen
SECONDS_TO_END = 5.0
MOST_CONNECTIONS = 512  # open at once, twice the streams of live.py; chosen
LOOK_SECONDS = 0.1  # between two looks whether the server ends
NICE = 10  # so that trainings come first
EVERYWHERE = ("0.0.0.0", "::", "")  # noqa: S104 (to listen on; nobody can open them)


def listen(host: str, port: int | None) -> socket.socket:
    """Opens the socket; without a port the usual one or, if that is taken, a free one."""
    return web.listen(host, [PORT, 0] if port is None else [port], "the dashboard")


def access_to(opened: socket.socket, host: str) -> Access:
    """Returns who may ask, with a new token."""
    access = Access(web.new_token(), host, opened.getsockname()[1])
    if not access.on_loopback:
        full_name()  # now, because it may take a while
    return access


def address_of(access: Access) -> str:
    """Returns what to open in a browser, of another machine too if that can reach it."""
    host = full_name() if access.host in EVERYWHERE else access.host
    return f"http://{web.address_of(host, access.port)}/?token={access.token}"


def serve(opened: socket.socket, root: Path, access: Access, *, stop: threading.Event | None = None) -> None:
    """Answers requests until Ctrl-C, SIGTERM or `stop`."""
    import uvicorn  # noqa: PLC0415 (an extra)
    from uvicorn.protocols.http.auto import AutoHTTPProtocol  # noqa: PLC0415

    from t3d.dash.library import Library  # noqa: PLC0415
    from t3d.dash.server import Application  # noqa: PLC0415 (imports starlette)

    app = Application(Library(root), access)
    connections = web.Connections(app.asgi(), opened, MOST_CONNECTIONS)
    config = uvicorn.Config(
        connections,
        http=connections.wrap(AutoHTTPProtocol),  # type: ignore[arg-type]  # it calls it
        backlog=web.ACCEPTED_AT_ONCE,
        log_level=logging.ERROR,  # what clients send must not fill the terminal
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
        ws="none",
        lifespan="off",
    )
    server = uvicorn.Server(config)
    if stop is not None:
        _end_with(server, stop)
    with suppress(KeyboardInterrupt):
        asyncio.run(_serving(server, connections, app.live))


async def _serving(server: Any, connections: web.Connections, live: Any) -> None:
    """Answers requests; when the server ends it lets go of pages that listen for changes, or it would wait for them."""
    task = asyncio.create_task(server.serve([connections.opened]))
    while not server.started and not task.done():
        await asyncio.sleep(0)
    if not server.should_exit:
        connections.start()
    while not server.should_exit and not task.done():
        await asyncio.sleep(LOOK_SECONDS)
    live.end()
    await task


@contextmanager
def beside(root: Path) -> Iterator[str]:
    """Serves in a process of its own for as long as the context lasts; provides the address."""
    opened = listen("127.0.0.1", None)
    access = access_to(opened, "127.0.0.1")
    task = {"root": str(root.absolute()), "descriptor": opened.fileno(), **access._asdict()}
    child = Child("t3d.dash.process", task, inherited=[opened.fileno()], shows_errors=True)
    opened.close()
    try:
        yield address_of(access)
        time.sleep(LAST_LOOK)
    finally:
        child.end()
        child.wait(Deadline(SECONDS_TO_END, threading.Event()))
        if child.code is None:
            child.kill()
        child.close()


def main() -> None:
    """Serves as the first line of standard input says, until that is closed."""
    stop = threading.Event()
    task = begin(NICE, stop.set)
    opened = socket.socket(fileno=task["descriptor"])
    serve(opened, Path(task["root"]), Access(task["token"], task["host"], task["port"]), stop=stop)


def _end_with(server: Any, stop: threading.Event) -> None:
    def wait() -> None:
        stop.wait()
        server.should_exit = True

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    main()
