"""The dashboard's server: at the command line, or in a process beside a training that it never holds up."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from t3d import web
from t3d.run.background import Child, Deadline, begin
from t3d.web import Access, full_name

PORT = 8700
LAST_LOOK = 2.0  # seconds in which open pages see how a run ended; chosen
SECONDS_TO_END = 5.0
MOST_CONNECTIONS = 512  # open at once; chosen
IDLE_SECONDS = 5.0  # after which an idle connection is closed: pages ask every second
NICE = 10  # so that trainings come first
EVERYWHERE = ("0.0.0.0", "::", "")  # noqa: S104 (to listen on; nobody can open them)


def listen(host: str, port: int | None) -> tuple[socket.socket, Access]:
    """Opens the socket, without a port on the usual one or, if that is taken, a free one; and says who may ask."""
    opened = web.listen(host, [PORT, 0] if port is None else [port], "the dashboard")
    access = Access(host, opened.getsockname()[1], web.new_token())
    if not access.on_loopback:
        full_name()  # now, because it may take a while
    return opened, access


def address_of(access: Access) -> str:
    """Returns what to open in a browser, of another machine too if that can reach it."""
    host = full_name() if access.host in EVERYWHERE else access.host
    return f"http://{web.address_of(host, access.port)}/?token={access.token}"


def serve(opened: socket.socket, root: Path, access: Access, *, stop: threading.Event | None = None) -> None:
    """Answers requests until Ctrl-C, SIGTERM or `stop`."""
    from t3d.dash.library import Library  # noqa: PLC0415 (a training beside needs none of this)
    from t3d.dash.server import Application  # noqa: PLC0415
    from t3d.web_server import Server  # noqa: PLC0415

    application = Application(Library(root), access)
    Server(application, opened, MOST_CONNECTIONS, idle_seconds=IDLE_SECONDS, stop=stop).answer()


@contextmanager
def beside(root: Path) -> Iterator[str]:
    """Serves in a process of its own for as long as the context lasts; provides the address."""
    opened, access = listen("127.0.0.1", None)
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
    serve(opened, Path(task["root"]), Access(task["host"], task["port"], task["token"]), stop=stop)


if __name__ == "__main__":
    main()
