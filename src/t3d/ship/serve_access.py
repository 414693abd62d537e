"""Who may ask a server for actions, and how much."""

from __future__ import annotations

from typing import NamedTuple

from starlette.datastructures import Headers

from t3d.ship.serve_messages import RequestRefused
from t3d.web import bearer_token, names_this_machine, same_secret


class Limits(NamedTuple):
    """What a client may ask for; whatever is beyond is refused in a sentence."""

    batch: int = 256  # observations of a request
    bytes: int | None = None  # of a request; None: what a full batch takes in JSON
    seconds: float = 5.0  # until a request has arrived, and again until it is answered
    queue: int = 64  # requests that are being received, wait or are answered
    connections: int = 128


class Access(NamedTuple):
    """Who may ask."""

    host: str = "127.0.0.1"  # where the server listens
    token: str = ""  # empty: none is needed

    def refusal(self, headers: Headers) -> RequestRefused | None:
        """Returns why a request is refused; None if it is not.

        With a token nothing else matters: a page of another site does not know it, whatever name it reaches us by.
        """
        if self.token:
            if same_secret(bearer_token(headers.get("authorization", "")), self.token):
                return None
            return RequestRefused(401, "the token is missing or wrong: send the header Authorization: Bearer TOKEN")
        if not names_this_machine(headers.getlist("host"), self.host):
            return RequestRefused(400, "the Host header does not name this server")
        origin = headers.get("origin")
        if origin is not None and origin != f"http://{headers['host']}":
            return RequestRefused(403, "requests from pages of other origins are refused")
        return None
