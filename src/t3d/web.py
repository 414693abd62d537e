"""What the servers of T3D share: who may ask, bodies of requests, errors as answers, and the socket."""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import json
import platform
import re
import secrets
import socket
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from t3d.errors import UserError

LOOPBACK = ("127.0.0.1", "localhost", "::1")
HOST = re.compile(r"(\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[\w.-]+))(:\d{1,5})?", re.ASCII)
BACKLOG = 1024  # connections that wait to be accepted
# Bytes beyond the limit that are read and dropped, and for how long: if a server closes a connection on which
# something is unread, the client may never see the answer.
DROPPED, DROP_SECONDS = 2**20, 5.0
CLOSE = {"connection": "close"}
FAILED = "the server failed; its terminal shows why"


class RequestRefused(Exception):
    """A request that is answered with a status and a sentence."""

    def __init__(self, status: int, sentence: str, *, closes: bool = False) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence
        self.closes = closes  # the connection: the rest of the request is not read, or its episode is lost


class Access(NamedTuple):
    """Who may ask."""

    host: str = "127.0.0.1"  # where the server listens
    port: int = 0
    token: str = ""

    @property
    def on_loopback(self) -> bool:
        return self.host in LOOPBACK

    @property
    def names(self) -> list[str]:
        others = [] if self.on_loopback else [full_name(), platform.node(), self.host]
        return [*dict.fromkeys([*others, *LOOPBACK])]

    def matches(self, token: str) -> bool:
        """Compares in a time that says nothing about the token."""
        return bool(self.token) and secrets.compare_digest(token.encode(errors="replace"), self.token.encode())

    def has_bearer(self, headers: Headers) -> bool:
        kind, _, token = headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and self.matches(token)

    def refuse_foreign(self, headers: Headers) -> None:
        """Refuses what a page of another site that the user has open could send.

        Host must be one of our names, with any port (tunnels): a site can point names of its own at this machine.
        Origin, if there is one, must be this server.
        """
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            names = ", ".join(self.names if self.on_loopback else [*self.names, "an address of the machine"])
            raise RequestRefused(400, f"open this server under one of its names: {names}")
        if headers.get("origin", f"http://{hosts[0]}") != f"http://{hosts[0]}":
            raise RequestRefused(403, "requests from pages of other origins are refused")

    def _is_ours(self, host: str) -> bool:
        match = HOST.fullmatch(host.lower())
        name = "" if match is None else match["name"] or match["v6"]
        if name in map(str.lower, self.names):
            return True
        with suppress(ValueError):
            return not self.on_loopback and bool(ipaddress.ip_address(name))
        return False


@functools.cache
def full_name() -> str:
    """Returns the name of this machine, with its domain if it has one; it may have to be asked for in the network."""
    name = socket.getfqdn()
    return platform.node() if name.startswith("localhost") else name


def new_token() -> str:
    """Returns a token that cannot be guessed."""
    return secrets.token_urlsafe(24)


def listen(host: str, ports: Sequence[int], what: str) -> socket.socket:
    """Opens a socket on the first of the ports that is free; 0 is any."""
    for port in ports:
        if not 0 <= port < 2**16:
            raise UserError(f"--port {port} is not a port; choose one from 1024 to 65535, or 0 for a free one")
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


def address_of(host: str, port: int) -> str:
    """Returns host and port as they stand in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def read_body(request: Request, max_bytes: int, seconds: float) -> bytes:
    """Reads what a request carries, up to limits on bytes and time, however long it says it is."""
    content, size = bytearray(), 0
    try:
        async with asyncio.timeout(seconds):
            async for piece in request.stream():
                size += len(piece)
                if size <= max_bytes:
                    content += piece
                elif size > max_bytes + DROPPED:
                    break
    except TimeoutError:
        raise RequestRefused(408, f"the request did not arrive within {seconds:g} s", closes=True) from None
    if size > max_bytes:
        raise RequestRefused(413, f"a request has at most {max_bytes:,} bytes", closes=size > max_bytes + DROPPED)
    return bytes(content)


def json_answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Plain values as an answer, in ASCII."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Response(text, status, headers, "application/json")


async def refuse(error: RequestRefused, scope: Scope, receive: Receive, send: Send) -> None:
    """Answers a request that may not pass, once what it carries has been read and dropped."""
    if scope["type"] == "http":
        with suppress(RequestRefused, ClientDisconnect):
            await read_body(Request(scope, receive), 0, DROP_SECONDS)
    await json_answer({"error": error.sentence}, error.status, CLOSE)(scope, receive, send)


def error_handlers(available: str) -> dict[Any, Any]:
    """Returns how an application of Starlette answers errors, where nothing is found with what is available."""
    sentences = {404: "there is nothing at this address", 405: "this method is not allowed here"}

    def http_error(_: Request, error: HTTPException) -> Response:
        sentence = sentences.get(error.status_code)
        text = error.detail if sentence is None else f"{sentence}; available: {available}"
        return json_answer({"error": text}, error.status_code, error.headers)

    def failed(_: Request, error: Exception) -> Response:
        traceback.print_exception(error)
        return json_answer({"error": FAILED}, 500)

    def refused(_: Request, error: RequestRefused) -> Response:
        return json_answer({"error": error.sentence}, error.status, CLOSE if error.closes else None)

    return {
        RequestRefused: refused,
        UserError: lambda _, error: json_answer({"error": str(error)}, 400),
        ClientDisconnect: lambda _, __: json_answer({"error": "the client left before the request was complete"}, 400),
        HTTPException: http_error,
        Exception: failed,
    }
