"""Serves a policy over HTTP and WebSocket until it is stopped."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from t3d import web
from t3d.ship.serve_app import Application

PATIENCE = 60.0  # seconds after which an idle connection is closed; chosen


class Server(uvicorn.Server):
    """Says when it is there; when it is stopped, finishes what it has and leaves the rest to its caller."""

    def __init__(self, application: Application, connections: web.Connections, announce: Callable[[], None]) -> None:
        super().__init__(_config(application, connections))
        self.application, self.connections, self.announce = application, connections, announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts, and says so only now that signals are handled."""
        await super().startup(sockets)
        self.connections.start()
        self.announce()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stops on Ctrl-C and SIGTERM; the original raises the signal again afterwards, which ends the process."""
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Takes no more connections, finishes what has arrived, then closes all."""
        for server in self.servers:
            server.close()
        await self.application.finish()
        await super().shutdown(sockets)


def serve(opened: socket.socket, application: Application, announce: Callable[[], None]) -> None:
    """Calls `announce`, and answers requests until Ctrl-C or SIGTERM."""
    gc.collect()
    gc.freeze()  # what is here now stays: the collector need not look through it again and again
    connections = web.Connections(application, opened, application.limits.connections, application.most_bytes)
    application.connections = connections
    asyncio.run(Server(application, connections, announce).serve([opened]))


def _config(application: Application, connections: web.Connections) -> uvicorn.Config:
    settings: dict[str, Any] = {
        "http": connections.wrap(HttpToolsProtocol),
        "backlog": web.ACCEPTED_AT_ONCE,
        "ws": "websockets-sansio",
        "ws_max_size": application.most_bytes,
        "ws_per_message_deflate": False,  # a small message could become a large one
        "loop": "asyncio",
        "interface": "asgi3",
        "lifespan": "off",
        "log_level": logging.CRITICAL,  # what clients send must not fill the terminal; errors of ours print themselves
        "access_log": False,
        "server_header": False,
        "date_header": False,
        "proxy_headers": False,
        "timeout_keep_alive": math.ceil(PATIENCE),
        "timeout_graceful_shutdown": math.ceil(application.limits.seconds),
    }
    return uvicorn.Config(connections, **settings)
