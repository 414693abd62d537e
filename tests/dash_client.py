"""What tests of the dashboard need: a client in this process, and a real server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from t3d.dash.library import Library
from t3d.dash.process import listen, serve
from t3d.dash.server import Application
from t3d.web import Access

TOKEN = "the-token"
HERE = "http://127.0.0.1:8700"
BEARER = {"authorization": f"Bearer {TOKEN}"}


def client_of(root: Path | Library, host: str = "127.0.0.1", **keywords: Any) -> TestClient:
    """A client of a server that listens on a host; what the server itself raises becomes an answer."""
    app = Application(root if isinstance(root, Library) else Library(root), Access(host, 8700, TOKEN))
    return TestClient(app, base_url=HERE, raise_server_exceptions=False, **keywords)


@contextmanager
def served(root: Path) -> Iterator[Access]:
    """A real server on a free port."""
    (opened, access), stop = listen("127.0.0.1", 0), threading.Event()
    server = threading.Thread(target=serve, args=(opened, root, access), kwargs={"stop": stop}, daemon=True)
    server.start()
    try:
        yield access
    finally:
        stop.set()
        server.join(20)
        assert not server.is_alive()
