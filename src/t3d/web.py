"""What the servers of T3D share: names of this machine in Host, tokens, the socket, and limits on connections."""

from __future__ import annotations

import asyncio
import contextvars
import importlib.util
import ipaddress
import json
import logging
import platform
import re
import resource
import secrets
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from t3d.errors import UserError

LOOPBACK = ("127.0.0.1", "localhost", "::1")
HOST = re.compile(r"(\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[\w.-]+))(:\d{1,5})?", re.ASCII)
BACKLOG = 1024  # connections that wait to be accepted

# Limits on connections; all chosen.
ACCEPTED_AT_ONCE = 32  # before anything else is done; uvicorn takes it as its backlog
HEADER_SECONDS = 10.0  # in which the headers of a request must arrive
UNREAD_SECONDS = 10.0  # after which a client that reads nothing of its answers is dropped
REFUSAL_SECONDS = 1.0  # for which a refused connection stays open: closed at once, its client may never see why
PIECE = 2**16  # bytes of an answer that are written at once; the next ones wait until the client has read
MOST_AROUND = (
    2**18
)  # bytes that are no body and no message: headers, trailers, pings, requests before there are answers
FORGOTTEN = 2**6  # of them each time that connections are looked at: a quiet WebSocket may ping for months
BYTES_A_TURN = 2**15  # read from all connections together before other work has its turn
LEAST_READ = 2**9  # bytes from one connection at once
FULL = json.dumps({"error": "too many connections are open; try again later"}).encode()
REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(FULL), FULL)
)


def check_installed(what: str, packages: Sequence[str], extra: str) -> None:
    """Refuses if packages of an extra are missing."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        *others, last = missing
        names = f"{', '.join(others)} and {last}, which are" if others else f"{last}, which is"
        raise UserError(f'{what} needs {names} not installed: pip install "t3d[{extra}]"')


def names_this_machine(names: Sequence[str], listens_on: str) -> bool:
    """Whether Host is a name that nobody else can point at this machine, or the one it listens on; any port (tunnels).

    Otherwise a page of another site that the user has open could reach the server under a name of its own.
    """
    if len(names) != 1:
        return False
    said = HOST.fullmatch(names[0].lower())
    name = "" if said is None else said["name"] or said["v6"]
    if name in LOOPBACK:
        return True
    return listens_on not in LOOPBACK and (name in (platform.node().lower(), listens_on.lower()) or _is_address(name))


def same_secret(given: str, secret: str) -> bool:
    """Compares in a time that says nothing about the secret."""
    return secrets.compare_digest(given.encode(errors="replace"), secret.encode())


def bearer_token(authorization: str) -> str:
    """Returns the token in `Authorization: Bearer TOKEN`; empty if there is none."""
    kind, _, token = authorization.partition(" ")
    return token if kind.lower() == "bearer" else ""


def new_token() -> str:
    """Returns a token that cannot be guessed."""
    return secrets.token_urlsafe(24)


def listen(host: str, ports: Sequence[int], what: str) -> socket.socket:
    """Opens a socket on the first of the ports that is free; 0 is any."""
    for port in ports:
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            opened = socket.create_server(address[:2], family=family, backlog=BACKLOG)
        except OSError as error:
            problem = getattr(error, "strerror", None) or str(error)
        else:
            # Its connections inherit this; asyncio does it only for sockets that name their protocol. Without it an
            # answer in two pieces takes 40 ms, because the second waits until the client has confirmed the first.
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return opened
    where = f"{host}:{ports[0]}" if len(ports) == 1 else host
    raise UserError(f"{what} cannot listen on {where}: {problem}; choose another --port or --host")


def check_port(port: int | None) -> None:
    """Refuses a number that is no port."""
    if port is not None and not 0 <= port < 2**16:
        raise UserError(f"--port {port} is not a port; choose one from 1024 to 65535, or 0 for a free one")


def address_of(host: str, port: int) -> str:
    """Returns host and port as they stand in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Connections:
    """Limits what clients can hold: connections, time for headers, unread answers, and the server's attention.

    uvicorn limits none of them. It calls this as its ASGI application, and `wrap` limits the protocol objects that it
    makes, so for each connection it is known whether a request has arrived.
    """

    def __init__(self, app: Any, opened: socket.socket, most: int, message_bytes: int = 0) -> None:
        self.app, self.opened = app, opened
        self.message_bytes = message_bytes  # of the largest message of a WebSocket
        self.most = min(most, _descriptors(2 * most) // 2)
        self.open: set[_Connection] = set()
        self.refusals: set[_Connection] = set()  # that are still open
        self.refused = 0
        self.buffer = memoryview(bytearray(BYTES_A_TURN))
        self._has_warned = False

    def wrap(self, make: Callable[..., Any]) -> Callable[..., asyncio.BaseProtocol]:
        """Returns a function that makes protocol objects as `make` does, with limits."""
        return lambda **settings: _Connection(self, lambda: make(**settings))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handles a request or a WebSocket, whose headers have arrived."""
        connection = _CURRENT.get()
        connection.is_socket = scope["type"] == "websocket"
        connection.is_asked, connection.waits_since, connection.around = True, None, 0

        async def noted() -> Any:
            connection.read(is_on=True)
            message = await receive()
            connection.around = 0
            connection.read(is_on=False)
            return message

        async def in_pieces(message: dict[str, Any]) -> None:
            body = message.get("body", b"")
            last = max(0, len(body) - 1) // PIECE * PIECE
            for start in range(0, last, PIECE):
                await send({**message, "body": body[start : start + PIECE], "more_body": True})
            await send({**message, "body": body[last:]} if last else message)

        connection.read(is_on=False)
        try:
            await self.app(scope, noted, in_pieces)
        finally:
            connection.is_asked = False
            connection.read(is_on=True)

    def start(self) -> None:
        """Begins to watch, once the server listens."""
        self.opened.listen(BACKLOG)  # uvicorn has lowered it to ACCEPTED_AT_ONCE
        asyncio.get_running_loop().set_exception_handler(self._warn)
        logging.getLogger("asyncio").setLevel(logging.ERROR)  # not a line for each write to a client that has left
        self._watch()

    def makes_room(self, now: float) -> bool:
        """Whether there is room for another connection, if need be that of one that has long waited for headers."""
        if len(self.open) >= self.most:
            waiting = [(one.waits_since, one) for one in self.open if one.waits_since is not None]
            since, longest = min(waiting, key=lambda pair: pair[0], default=(now, None))
            if longest is None or now - since < REFUSAL_SECONDS:
                return False
            longest.drop()
        return True

    def _watch(self) -> None:
        """Drops the clients that are beyond a limit, now and from time to time."""
        loop = asyncio.get_running_loop()
        for connection in [*self.open, *self.refusals]:
            connection.check(loop.time())
        loop.call_later(REFUSAL_SECONDS / 2, self._watch)

    def _warn(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Says once that no file can be opened, where asyncio writes a traceback for every attempt to accept."""
        if "socket.accept()" not in context["message"]:
            loop.default_exception_handler(context)
        elif not self._has_warned:
            self._has_warned = True
            logging.getLogger("t3d").warning("no more files can be opened (ulimit -n), so new connections wait")


class _Connection(asyncio.BufferedProtocol):
    """Stands between a socket and the protocol object that speaks HTTP, or later WebSocket, over it."""

    def __init__(self, connections: Connections, make: Callable[[], Any]) -> None:
        self.connections, self.make = connections, make
        self.inner: Any = asyncio.Protocol()  # the protocol object; this one ignores what a refused client sends
        self.is_asked = False  # a request is being answered
        self.waits_since: float | None = None  # for the headers of a request
        self.is_socket = False  # a WebSocket
        self.is_ahead = False  # the client sends requests without waiting for answers
        self.around = 0  # bytes since the last part of a body or message
        self.unread, self.unread_since = 0, 0.0  # bytes of answers
        self.was_reading = True
        self.context = contextvars.copy_context()
        self.context.run(_CURRENT.set, self)  # the tasks that answer its requests inherit it

    def connection_made(self, transport: Any) -> None:
        self.transport, now = transport, asyncio.get_running_loop().time()
        self.waits_since = self.unread_since = now
        if self.connections.makes_room(now):
            self.connections.open.add(self)
            self.inner = self.make()
            self.inner.connection_made(transport)
        else:
            self._refuse()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Returns room for its share of what is read in a turn, so that many eager clients hold up nobody."""
        return self.connections.buffer[: max(LEAST_READ, BYTES_A_TURN // max(1, len(self.connections.open)))]

    def buffer_updated(self, nbytes: int) -> None:
        if not self.is_asked and self.waits_since is None:
            self.waits_since = asyncio.get_running_loop().time()
        self.around += nbytes
        if self.around > MOST_AROUND + self.is_socket * self.connections.message_bytes:
            self.drop()
            return
        self.context.run(self.inner.data_received, bytes(self.connections.buffer[:nbytes]))
        if self.transport.get_protocol() is not self:  # it has become a WebSocket
            self.inner = self.transport.get_protocol()
            self.transport.set_protocol(self)
        self.is_ahead = not self.transport.is_reading()  # then uvicorn has paused

    def read(self, is_on: bool) -> None:
        """Reads or pauses, if the client is ahead: uvicorn reads more of its requests after each answer."""
        if self.is_ahead and not self.is_socket:
            (self.transport.resume_reading if is_on else self.transport.pause_reading)()

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
        self.connections.open.discard(self)
        self.connections.refusals.discard(self)
        self.inner.connection_lost(exc)

    def check(self, now: float) -> None:
        """Drops the client if it has kept the server waiting for too long."""
        size = self.transport.get_write_buffer_size()
        if size == 0 or self.unread == 0 or size < self.unread:  # it reads
            self.unread_since = now
        self.unread, self.around = size, max(0, self.around - FORGOTTEN)
        patience = REFUSAL_SECONDS if self in self.connections.refusals else HEADER_SECONDS
        is_slow = self.waits_since is not None and now - self.waits_since > patience
        if is_slow or now - self.unread_since > UNREAD_SECONDS:
            self.drop()

    def drop(self) -> None:
        """Closes the connection without a word; its place is free at once."""
        self.connections.open.discard(self)
        self.connections.refusals.discard(self)
        self.transport.abort()

    def _refuse(self) -> None:
        refusals = self.connections.refusals
        self.connections.refused += 1
        if len(refusals) >= self.connections.most // 2:
            min(refusals, key=lambda one: one.waits_since or 0.0).drop()
        refusals.add(self)
        self.transport.write(REFUSAL)
        with suppress(OSError):  # it has left
            self.transport.write_eof()


_CURRENT: contextvars.ContextVar[_Connection] = contextvars.ContextVar("connection")


def _descriptors(wanted: int) -> int:
    """Returns how many files this process may have open, after asking for as many as are wanted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < wanted:  # -1: there is no limit
        soft = min(wanted, hard) if hard >= 0 else wanted
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return soft if soft >= 0 else wanted


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
