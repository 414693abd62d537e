"""Decides which requests reach the dashboard, and what every answer says to browsers.

A page of another site that the user has open must be able neither to read runs nor to change them: so the name in Host
must be this machine's, Origin must be this server, and what changes something needs the token.
"""

from __future__ import annotations

import asyncio
import functools
import platform
import socket
from contextlib import suppress
from typing import NamedTuple

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from t3d.web import LOOPBACK, bearer_token, names_this_machine, same_secret

LARGEST_BODY = 2**16  # bytes
# Of a body that is refused, bytes that are read and dropped, and for how many seconds: if a server closes a connection
# on which something is unread, the client may never see the answer.
DROPPED, PATIENCE = 2**20, 5.0
READING = ("GET", "HEAD")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "media-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


class Refusal(NamedTuple):
    """Why a request goes no further."""

    status: int
    text: str


class Access(NamedTuple):
    """Who may ask for what."""

    token: str
    host: str = "127.0.0.1"  # where the server listens
    port: int = 0

    @property
    def on_loopback(self) -> bool:
        return self.host in LOOPBACK

    @property
    def cookie(self) -> str:
        """Its name; browsers keep one jar for all ports of a machine."""
        return f"t3d-{self.port}"

    def has_token(self, headers: Headers) -> bool:
        """Whether a request has the token, in whatever way."""
        return self._by_header(headers) or self._by_cookie(headers)

    def matches(self, token: str) -> bool:
        """Whether this is the token."""
        return same_secret(token, self.token)

    def refusal(self, method: str, headers: Headers, *, shows_token: bool) -> Refusal | None:
        """Returns why a request is refused; None if it is not."""
        own = [self.host] if self.on_loopback else [self.host, full_name()]
        if not any(names_this_machine(headers.getlist("host"), name) for name in own):
            return Refusal(400, f"open the dashboard under one of its names: {', '.join(self._names)}")
        origin = headers.get("origin")
        if origin is not None and origin != f"http://{headers['host']}":
            return Refusal(403, "requests from pages of other origins are refused")
        changes = method not in READING
        if (changes or not self.on_loopback) and not shows_token and not self.has_token(headers):
            return Refusal(401, "the token is missing or wrong: open the address that t3d dash printed")
        if changes and origin is None and not self._by_header(headers):
            return Refusal(403, "a change with the cookie needs an Origin")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 18 or int(length) > LARGEST_BODY:
            return Refusal(413, f"a request has at most {LARGEST_BODY:,} bytes")
        return None

    @property
    def _names(self) -> list[str]:
        """What may stand in Host."""
        if self.on_loopback:
            return [*LOOPBACK]
        return [*dict.fromkeys([full_name(), platform.node(), self.host, "an address of the machine", *LOOPBACK])]

    def _by_header(self, headers: Headers) -> bool:
        return self.matches(bearer_token(headers.get("authorization", "")))

    def _by_cookie(self, headers: Headers) -> bool:
        return self.matches(cookie_parser(headers.get("cookie", "")).get(self.cookie, ""))


@functools.cache
def full_name() -> str:
    """Returns the name of this machine, with its domain if it has one; it may have to be asked for in the network."""
    name = socket.getfqdn()
    return platform.node() if name.startswith("localhost") else name


class Guard:
    """Answers what may not pass, limits bodies, and adds the headers that make browsers strict."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # nothing here speaks WebSocket
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = Headers(scope=scope)
        shows_token = scope["path"] == "/" and self.access.matches(_token_in(scope["query_string"]))
        refused = self.access.refusal(scope["method"], headers, shows_token=shows_token)
        app = self.app
        if refused is not None:
            app = JSONResponse({"error": refused.text}, refused.status, CLOSE)
            await _drop_body(receive)

        async def strict(message: Message) -> None:
            if message["type"] == "http.response.start":
                answered = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    answered.setdefault(name, value)
            await send(message)

        await app(scope, receive, strict)


CLOSE = {"connection": "close"}  # what else the client sends is not read


async def _drop_body(receive: Receive) -> None:
    """Reads what a request carries, as far as there is patience for it."""
    size = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE):
            while size <= DROPPED:
                message = await receive()
                size += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return


def _token_in(query: bytes) -> str:
    """Returns the token of an address like /?token=TOKEN."""
    words = [part.partition(b"=") for part in query.split(b"&")]
    return next((value.decode("ascii", "replace") for name, _, value in words if name == b"token"), "")
