"""What the servers of T3D share: what they need, names of this machine in Host, tokens, the socket they listen on."""

from __future__ import annotations

import importlib.util
import ipaddress
import platform
import re
import secrets
import socket
from collections.abc import Sequence

from t3d.errors import UserError

LOOPBACK = ("127.0.0.1", "localhost", "::1")
HOST = re.compile(r"(\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[\w.-]+))(:\d{1,5})?", re.ASCII)
BACKLOG = 512


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


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
