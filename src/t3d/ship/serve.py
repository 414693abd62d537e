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
from http import HTTPStatus
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from t3d.ship.serve_app import Application
from t3d.ship.serve_errors import JSON, encoded
from t3d.ship.serve_websocket import WebSocketConnection

PATIENCE = 60.0  # seconds after which a connection that has had no answer is closed; chosen
MOST_AROUND_BODY = 2**19  # bytes of a request that are not its body: headers, trailers, lengths of chunks; chosen


class Connection(HttpToolsProtocol):
    """Limits the number of connections, how long they may be idle, and headers, so that no client keeps others out."""

    _alarm: asyncio.TimerHandle | None = None
    _around_body = 0

    @property
    def application(self) -> Application:
        assert isinstance(self.config.app, Application)  # noqa: S101 (see serve)
        return self.config.app

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts the clock, or refuses one too many."""
        super().connection_made(transport)
        if len(self.connections) > self.application.limits.connections:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections are open")
            return
        self._start_clock()

    def data_received(self, data: bytes) -> None:
        """Refuses headers that do not end; the application has its own limit on bodies."""
        super().data_received(data)
        self._around_body += len(data)
        if self._around_body > MOST_AROUND_BODY and not self.transport.is_closing():
            self.send_400_response("the request has too many headers")

    def on_message_begin(self) -> None:
        """Starts to count, and the clock again: an idle connection has all its time for the next request."""
        self._around_body = 0
        self._start_clock()
        super().on_message_begin()

    def on_body(self, body: bytes) -> None:
        """Does not count the body."""
        self._around_body -= len(body)
        super().on_body(body)

    def on_response_complete(self) -> None:
        """Starts the clock again."""
        self._start_clock()
        super().on_response_complete()

    def handle_websocket_upgrade(self) -> None:
        """Leaves the connection to the WebSocket, which has pings."""
        self._stop_clock()
        super().handle_websocket_upgrade()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops the clock."""
        self._stop_clock()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuses a request that is not valid HTTP."""
        self._refuse(HTTPStatus.BAD_REQUEST, msg)

    def _refuse(self, status: HTTPStatus, sentence: str) -> None:
        """Answers without the application, and closes the connection."""
        self.application.metrics.count("other", status)
        body = encoded({"error": sentence})
        head = f"HTTP/1.1 {status} {status.phrase}\r\ncontent-type: {JSON}\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()

    def _start_clock(self) -> None:
        self._stop_clock()
        self._alarm = self.loop.call_later(PATIENCE, self.transport.abort)

    def _stop_clock(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()


class Server(uvicorn.Server):
    """Says when it is there; when it is stopped, finishes what it has and leaves the rest to its caller."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self.announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts, and says so only now that signals are handled."""
        await super().startup(sockets)
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
        assert isinstance(self.config.app, Application)  # noqa: S101 (see serve)
        await self.config.app.finish()
        await super().shutdown(sockets)


def serve(opened: socket.socket, application: Application, announce: Callable[[], None]) -> None:
    """Calls `announce`, and answers requests until Ctrl-C or SIGTERM."""
    gc.collect()
    gc.freeze()  # what is here now stays: the collector need not look through it again and again
    asyncio.run(Server(_config(application), announce).serve([opened]))


def _config(application: Application) -> uvicorn.Config:
    settings: dict[str, Any] = {
        "http": Connection,
        "ws": WebSocketConnection,
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
    return uvicorn.Config(application, **settings)
