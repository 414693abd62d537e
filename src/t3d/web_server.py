"""The server below `t3d serve` and `t3d dash`: uvicorn, with limits on what clients can hold."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import resource
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from t3d.web import BACKLOG

# Limits on connections; all chosen.
ACCEPTED_AT_ONCE = 32  # before anything else is done; uvicorn takes it as its backlog
HEADER_SECONDS = 10.0  # in which the headers of a request must arrive
UNREAD_SECONDS = 10.0  # after which a client that reads nothing of its answers is dropped
REFUSAL_SECONDS = 1.0  # for which a refused connection stays open: closed at once, its client may never see why
MOST_AROUND = 2**18  # bytes that are no body and no message: headers, trailers, pings, requests without an answer yet
TICKS = 5  # tenths of a second between two looks at connections
FORGOTTEN = 2**6  # of them each time that connections are looked at: a quiet WebSocket may ping for months
BYTES_A_TURN = 2**15  # read from all connections together before other work has its turn
LEAST_READ = 2**9  # bytes from one connection at once
FULL = json.dumps({"error": "too many connections are open; try again later"}).encode()
REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(FULL), FULL)
)


class Server(uvicorn.Server):
    """Answers requests until Ctrl-C, SIGTERM or `stop`."""

    def __init__(
        self,
        app: ASGIApp,
        opened: socket.socket,
        max_connections: int,
        *,
        idle_seconds: float = 60.0,
        max_message_bytes: int = 0,
        stop: threading.Event | None = None,
    ) -> None:
        """Limits connections, how long they are idle, and messages over WebSockets; of 0 bytes: there are none."""
        self.stop = stop or threading.Event()
        self.opened, self.connections = opened, Connections(app, max_connections, max_message_bytes)
        config = uvicorn.Config(
            self.connections,
            http=self.connections.protocol,  # type: ignore[arg-type]  # it calls it
            ws="websockets-sansio" if max_message_bytes else "none",
            ws_max_size=max_message_bytes,
            ws_per_message_deflate=False,  # a small message could become a large one
            backlog=ACCEPTED_AT_ONCE,
            loop="asyncio",
            lifespan="off",
            log_config=None,  # which would close every handler of the process
            log_level=logging.CRITICAL,  # what clients send must not fill the terminal; errors of ours print themselves
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=math.ceil(idle_seconds),
            timeout_graceful_shutdown=1,
        )
        super().__init__(config)

    def answer(
        self, begun: Callable[[], object] = lambda: None, finish: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Answers requests; calls `begun` when it listens, and `finish` before it closes what is open."""
        self._begun, self._finish = begun, finish
        if threading.current_thread() is threading.main_thread():  # uvicorn raises a signal again when it has ended
            signal.signal(signal.SIGTERM, signal.default_int_handler)
        with suppress(KeyboardInterrupt):
            self.run([self.opened])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.opened.listen(BACKLOG)  # uvicorn has lowered it to ACCEPTED_AT_ONCE
        asyncio.get_running_loop().set_exception_handler(self.connections.warn)
        logging.getLogger("asyncio").setLevel(logging.ERROR)  # not a line for each write to a client that has left
        self._begun()

    async def on_tick(self, counter: int) -> bool:
        """Looks after connections, and says whether to exit; called ten times a second."""
        if counter % TICKS == 0:
            self.connections.watch()
        return await super().on_tick(counter) or self.stop.is_set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Takes no more connections, finishes, then closes all."""
        for server in self.servers:
            server.close()
        if self._finish is not None:
            await self._finish()
        await super().shutdown(sockets)


class Connections:
    """Limits what clients can hold: connections, time for headers, unread answers, and the server's attention.

    uvicorn limits none of them. It calls this as its application, and the protocol objects that it makes are wrapped
    one by one, so for each connection it is known whether a request has arrived.
    """

    def __init__(self, app: ASGIApp, max_connections: int, max_message_bytes: int) -> None:
        self.app, self.max_message_bytes = app, max_message_bytes
        self.max_connections = min(max_connections, _descriptors(2 * max_connections) // 2)
        self.open: dict[Any, _Connection] = {}  # by the client's address, as uvicorn says it too
        self.refusals: dict[_Connection, None] = {}  # that are still open, the oldest first
        self.refused = 0
        self.buffer = memoryview(bytearray(BYTES_A_TURN))
        self._has_warned = False

    def protocol(self, **settings: Any) -> asyncio.BaseProtocol:
        return _Connection(self, AutoHTTPProtocol(**settings))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = self.open.get(scope["client"])
        if connection is None:  # it has been dropped
            return
        connection.begin(is_socket=scope["type"] == "websocket")

        async def noted() -> Any:
            connection.read(is_on=True)
            message = await receive()
            connection.around = 0
            connection.read(is_on=False)
            return message

        try:
            await self.app(scope, noted, send)
        finally:
            connection.is_answering = False
            connection.read(is_on=True)

    def watch(self) -> None:
        for connection in [*self.open.values(), *self.refusals]:
            connection.check(time.monotonic())

    def admits(self, connection: _Connection, now: float) -> bool:
        """Takes a connection if there is room, if need be that of one that has long waited for headers."""
        if len(self.open) >= self.max_connections:
            longest = min(self.open.values(), key=lambda other: other.waits_since)
            if now - longest.waits_since < REFUSAL_SECONDS:
                self.refused += 1
                if len(self.refusals) >= self.max_connections // 2:
                    next(iter(self.refusals)).drop()
                self.refusals[connection] = None
                return False
            longest.drop()
        self.open[connection.client] = connection
        return True

    def warn(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Says once that no file can be opened, where asyncio writes a traceback for every attempt to accept."""
        if "socket.accept()" not in context["message"]:
            loop.default_exception_handler(context)
        elif not self._has_warned:
            self._has_warned = True
            logging.getLogger("t3d").warning("no more files can be opened (ulimit -n), so new connections wait")


class _Connection(asyncio.BufferedProtocol):
    """Stands between a socket and the protocol object that speaks HTTP, or later WebSocket, over it."""

    def __init__(self, connections: Connections, inner: Any) -> None:
        self.connections, self.inner = connections, inner
        self.client: Any = None
        self.is_answering = self.is_socket = False  # a request is being answered; it is a WebSocket
        self.waits_since = math.inf  # for the headers of a request
        self.around = 0  # bytes since the last part of a body or message
        self.unread, self.unread_since = 0, 0.0  # bytes of answers
        self.was_reading = True

    def connection_made(self, transport: Any) -> None:
        self.transport, now = transport, time.monotonic()
        self.client = transport.get_extra_info("peername")[:2]
        self.waits_since = self.unread_since = now
        if not self.connections.admits(self, now):
            self.inner = asyncio.Protocol()  # which ignores what is sent
            transport.write(REFUSAL)
            with suppress(OSError):  # it has left
                transport.write_eof()
        self.inner.connection_made(transport)

    def begin(self, *, is_socket: bool) -> None:
        self.is_answering, self.is_socket, self.waits_since, self.around = True, is_socket, math.inf, 0
        self.read(is_on=False)

    def read(self, *, is_on: bool) -> None:
        """Reads on or not: a client that does not wait for answers is not read, or uvicorn would pile up requests."""
        if not self.is_socket:
            (self.transport.resume_reading if is_on else self.transport.pause_reading)()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Returns room for its share of what is read in a turn, so that many eager clients hold up nobody."""
        return self.connections.buffer[: max(LEAST_READ, BYTES_A_TURN // max(1, len(self.connections.open)))]

    def buffer_updated(self, nbytes: int) -> None:
        if not self.is_answering:
            self.waits_since = min(self.waits_since, time.monotonic())
        self.around += nbytes
        if self.around > MOST_AROUND + self.is_socket * self.connections.max_message_bytes:
            self.drop()
            return
        self.inner.data_received(bytes(self.connections.buffer[:nbytes]))
        if self.transport.get_protocol() is not self:  # it has become a WebSocket
            self.inner = self.transport.get_protocol()
            self.transport.set_protocol(self)

    def eof_received(self) -> bool | None:
        return self.inner.eof_received()  # type: ignore[no-any-return]

    def pause_writing(self) -> None:
        """Stops reading too: a client that does not read its answers asks no more, and gets no answers to pings."""
        self.was_reading = self.transport.is_reading()
        self.transport.pause_reading()
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self.unread = 0
        if self.was_reading:
            self.transport.resume_reading()
        self.inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        self.inner.connection_lost(exc)

    def check(self, now: float) -> None:
        """Drops the client if it has kept the server waiting for too long."""
        size = self.transport.get_write_buffer_size()
        if size == 0 or self.unread == 0 or size < self.unread:  # it reads
            self.unread_since = now
        self.unread, self.around = size, max(0, self.around - FORGOTTEN)
        patience = REFUSAL_SECONDS if self in self.connections.refusals else HEADER_SECONDS
        if now - self.waits_since > patience or now - self.unread_since > UNREAD_SECONDS:
            self.drop()

    def drop(self) -> None:
        """Closes the connection without a word; its place is free at once."""
        self._forget()
        self.transport.abort()

    def _forget(self) -> None:
        self.connections.refusals.pop(self, None)
        if self.connections.open.get(self.client) is self:
            del self.connections.open[self.client]


def _descriptors(wanted: int) -> int:
    """Returns how many files this process may have open, after asking for as many as are wanted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < wanted:  # -1: there is no limit
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard) if hard >= 0 else wanted, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return soft if soft >= 0 else wanted
