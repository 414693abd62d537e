"""A client that sends requests when they are due, whether or not earlier ones are answered.

Latencies count from when a request was due: while a server stands still, the requests that would have come in that time
wait too, and their waiting is measured.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import selectors
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

CONNECTIONS = 32
OTHERS = (
    20  # of so many turns, each with one observation, two also have a request to the empty handler and one a bad one
)
SECONDS_TO_END = 10.0  # until what is missing at the end is lost


class Request(NamedTuple):
    """What to send, and whether an answer (status, body) to it is right."""

    content: bytes
    is_right: Callable[[int, bytes], bool]


@dataclass
class Figures:
    """What was measured of one kind of request."""

    seconds: list[float] = field(default_factory=list)
    wrong: int = 0
    example: str = ""  # of a wrong answer


class Connection(asyncio.Protocol):
    """One connection, with at most one request on its way."""

    def __init__(self, client: Client) -> None:
        self.client, self.received = client, b""
        self.waiting: tuple[float, str, Request] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Takes requests from now on."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 (TCP)
        self.transport = transport
        self.client.connections.add(self)
        self.client.is_free(self)

    def send(self, due: float, kind: str, request: Request) -> None:
        """Sends a request."""
        self.waiting, self.received = (due, kind, request), b""
        self.transport.write(request.content)

    def data_received(self, data: bytes) -> None:
        """Takes an answer in."""
        self.received += data
        head, found, body = self.received.partition(b"\r\n\r\n")
        if not found or self.waiting is None:
            return
        words = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        if len(body) >= int(words or 0):
            answered, self.waiting = self.waiting, None
            self.client.answered(*answered, int(head[9:12]), body)
            if b"connection: close" not in head.lower():
                self.client.is_free(self)

    def connection_lost(self, _: Exception | None) -> None:
        """Counts a request that gets no answer, and opens another connection."""
        if self.waiting is not None:
            self.client.answered(*self.waiting, 0, b"the connection was closed")
        self.client.lost(self)


class Client:
    """Sends requests over several connections to one server."""

    def __init__(self, host: str, port: int) -> None:
        self.address = host, port
        self.figures: dict[str, Figures] = {}
        self.late: list[float] = []  # seconds by which the client itself sent late
        self.connections: set[Connection] = set()
        self.free: list[Connection] = []
        self.backlog: deque[tuple[float, str, Request]] = deque()
        self.on_their_way = 0
        self.is_done = False

    async def run(self, schedule: Iterator[tuple[float, str, Request]]) -> None:
        """Sends what is due: seconds from the start, kind, request."""
        await asyncio.gather(*(self._connect() for _ in range(CONNECTIONS)))
        start = time.perf_counter()
        for after, kind, request in schedule:
            due = start + after
            if (delay := due - time.perf_counter()) > 0:
                await asyncio.sleep(delay)
            self.late.append(time.perf_counter() - due)
            self.on_their_way += 1
            if self.free:
                self.free.pop().send(due, kind, request)
            else:
                self.backlog.append((due, kind, request))
        ends = time.perf_counter() + SECONDS_TO_END
        while self.on_their_way and time.perf_counter() < ends:
            await asyncio.sleep(0.01)
        self._give_up()

    def _give_up(self) -> None:
        """Counts what has no answer by now as wrong, whether or not it was sent, and closes all connections."""
        self.is_done = True
        waiting = [connection.waiting for connection in self.connections if connection.waiting is not None]
        for connection in self.connections:
            connection.waiting = None
            connection.transport.abort()
        for due, kind, request in [*waiting, *self.backlog]:
            self.answered(due, kind, request, 0, b"there was no answer")

    def is_free(self, connection: Connection) -> None:
        """Takes the next request that waits for a connection."""
        if self.backlog:
            connection.send(*self.backlog.popleft())
        else:
            self.free.append(connection)

    def answered(self, due: float, kind: str, request: Request, status: int, body: bytes) -> None:
        """Counts an answer."""
        self.on_their_way -= 1
        found = self.figures.setdefault(kind, Figures())
        found.seconds.append(time.perf_counter() - due)
        if not request.is_right(status, body):
            found.wrong += 1
            found.example = found.example or f"{status} {body[:200]!r}"

    def lost(self, connection: Connection) -> None:
        """Replaces a connection that was closed."""
        self.connections.discard(connection)
        if connection in self.free:
            self.free.remove(connection)
        if not self.is_done:
            self._opening = asyncio.ensure_future(self._connect())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: Connection(self), *self.address)


def measure(
    address: tuple[str, int], schedule: Iterator[tuple[float, str, Request]]
) -> tuple[dict[str, Figures], list[float]]:
    """Sends everything; returns the figures by kind, and by how many seconds the client itself was late.

    The event loop uses select, which wakes to the microsecond; epoll rounds up to the next millisecond.
    """
    client = Client(*address)
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        runner.run(client.run(schedule))
    return client.figures, client.late


def schedule_of(
    rate: float, seconds: float, observations: list[Request], empty: Request, bad: list[Request]
) -> Iterator[tuple[float, str, Request]]:
    """Yields an observation at each turn and, halfway to the next, the others in between."""
    asked, refused = itertools.cycle(observations), itertools.cycle(bad)
    for turn in range(int(rate * seconds)):
        yield turn / rate, "act", next(asked)
        place = turn % OTHERS
        if place in (0, OTHERS // 2):
            yield (turn + 0.5) / rate, "empty", empty
        elif place == OTHERS // 4:
            yield (turn + 0.5) / rate, "bad", next(refused)


def http_request(method: str, path: str, body: bytes = b"", kind: str = "application/json") -> bytes:
    """A request as it goes over the wire."""
    head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def is_action(low: list[float], high: list[float]) -> Callable[[int, bytes], bool]:
    """Whether an answer is one action within bounds."""

    def is_right(status: int, body: bytes) -> bool:
        action: Any = json.loads(body).get("action", ()) if status == 200 else ()
        return len(action) == len(low) and all(a <= x <= b for a, x, b in zip(low, action, high, strict=True))

    return is_right


def is_status(*allowed: int) -> Callable[[int, bytes], bool]:
    """Whether an answer has one of these statuses."""
    return lambda status, _: status in allowed
