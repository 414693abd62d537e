"""Decides which requests reach the dashboard, and what every answer says to browsers.

A page of another site that the user has open must be able neither to read runs nor to change them: so the name in Host
must be this machine's, Origin must be this server, and what changes something needs the token.
"""

from __future__ import annotations

import ipaddress
import platform
import re
import secrets
from typing import NamedTuple

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "localhost", "::1")
HOST = re.compile(r"(\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[\w.-]+))(:\d{1,5})?", re.ASCII)
LARGEST_BODY = 2**16  # bytes
READING = ("GET", "HEAD")
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
        "media-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),  # plotly sets styles of its elements
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
        return secrets.compare_digest(token.encode(errors="replace"), self.token.encode())

    def refusal(self, method: str, headers: Headers, *, shows_token: bool) -> Refusal | None:
        """Returns why a request is refused; None if it is not."""
        if not self._is_ours(headers.getlist("host")):
            return Refusal(400, "this name in Host is not one of the dashboard's")
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

    def _is_ours(self, names: list[str]) -> bool:
        """Whether Host is a name that nobody else can point at this machine; any port, because tunnels change it."""
        if len(names) != 1:
            return False
        said = HOST.fullmatch(names[0].lower())
        name = "" if said is None else said["name"] or said["v6"]
        if name in LOOPBACK:
            return True
        return not self.on_loopback and (name == platform.node().lower() or _is_address(name))

    def _by_header(self, headers: Headers) -> bool:
        kind, _, token = headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and self.matches(token)

    def _by_cookie(self, headers: Headers) -> bool:
        return self.matches(cookie_parser(headers.get("cookie", "")).get(self.cookie, ""))


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
        app = self.app if refused is None else JSONResponse({"error": refused.text}, refused.status, CLOSE)

        async def strict(message: Message) -> None:
            if message["type"] == "http.response.start":
                answered = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    answered.setdefault(name, value)
            await send(message)

        await app(scope, receive, strict)


CLOSE = {"connection": "close"}  # what else the client sends is not read


def _token_in(query: bytes) -> str:
    """Returns the token of an address like /?token=TOKEN."""
    words = [part.partition(b"=") for part in query.split(b"&")]
    return next((value.decode("ascii", "replace") for name, _, value in words if name == b"token"), "")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def new_token() -> str:
    """Returns a token that cannot be guessed."""
    return secrets.token_urlsafe(24)
