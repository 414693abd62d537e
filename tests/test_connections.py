"""R26: sockets that say nothing, speak slowly or never read keep nobody out of `t3d serve` and `t3d dash`."""

from __future__ import annotations

import http.client
import json
import os
import re
import resource
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from fake_runs import write_run
from serve_client import AS_JSON, GOOD, saved, served, until
from shipped_policies import of_vectors
from t3d.dash.server import PLOTLY

pytestmark = pytest.mark.system

UPGRADE = (
    b"GET /ws HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
ACT = json.dumps(GOOD).encode()
HEAD = b"POST /act HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(
    ACT
)


class Server(NamedTuple):
    """A server in a process of its own that may open few files."""

    kind: str
    process: subprocess.Popen[bytes]
    port: int
    output: Path

    def ask(self) -> tuple[int, float]:
        """Asks over a connection of its own; returns the status, 0 for none, and how many seconds that took."""
        started, status = time.monotonic(), 0
        with (
            suppress(OSError, http.client.HTTPException),
            closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)) as connection,
        ):
            if self.kind == "serve":
                connection.request("POST", "/act", ACT, AS_JSON)
            else:
                connection.request("GET", "/api/runs")
            answer = connection.getresponse()
            if answer.read():
                status = answer.status
        return status, time.monotonic() - started

    def plug(self) -> socket.socket:
        """A connection with little room for what is not read."""
        plug = socket.socket()
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**12)
        plug.settimeout(20)
        plug.connect(("127.0.0.1", self.port))
        return plug


@contextmanager
def server(kind: str, folder: Path, files: int = 1024) -> Iterator[Server]:
    saved(folder / "run", of_vectors())
    write_run(folder / "runs" / "a", {0: [1.0, 2.0]})
    place = folder / ("run" if kind == "serve" else "runs")
    command = ["sh", "-c", f'ulimit -n {files} && exec "$@"', "sh", sys.executable, "-m", "t3d", kind, str(place)]
    output = folder / "output.txt"
    with (
        output.open("wb") as log,
        subprocess.Popen([*command, "--port", "0"], stdout=log, stderr=log, env={**os.environ}) as process,
    ):
        try:
            pattern = re.compile(rb"http://127\.0\.0\.1:(\d+)/")
            until(lambda: pattern.search(output.read_bytes()), 60)
            port = pattern.search(output.read_bytes())
            assert port is not None
            yield Server(kind, process, int(port[1]), output)
        finally:
            process.kill()


def frame(opcode: int, content: bytes = b"", is_last: bool = True) -> bytes:
    """As a client sends it, with a mask of zeros."""
    size = bytes([0x80 | len(content)]) if len(content) < 126 else b"\xfe" + len(content).to_bytes(2, "big")
    return bytes([opcode | (0x80 if is_last else 0)]) + size + bytes(4) + content


ROWS = json.dumps({"observation": [GOOD["observation"]] * 200}).encode()


class Attack(NamedTuple):
    """What each of many clients sends: `first`, then `rest` again and again, `every` so many seconds; none reads."""

    first: bytes = b""
    rest: bytes = b""
    every: float = 0.0


ATTACKS = {
    "says nothing": Attack(every=0.2),
    "sends headers slowly": Attack(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n", b"x: y\r\n", 0.5),
    "asks in a WebSocket": Attack(UPGRADE, frame(1, ACT) * 500),
    "asks much in a WebSocket": Attack(UPGRADE, frame(1, ROWS) * 20),
    "sends nonsense in a WebSocket": Attack(UPGRADE, frame(1, b"1") * 5000),
    "pings": Attack(UPGRADE, frame(9) * 5000),
    "asks": Attack(b"", (HEAD + ACT) * 500),
    "asks for pages": Attack(b"", b"GET /static/plotly.min.js HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" * 500),
}


@contextmanager
def attacked_by(server: Server, count: int, attack: Attack) -> Iterator[None]:
    """Holds connections that attack; those that the server closes are opened again."""
    stop, unsent = threading.Event(), dict[socket.socket, bytes]()
    with ExitStack() as opened:

        def add() -> None:
            plug = opened.enter_context(server.plug())
            plug.setblocking(False)
            unsent[plug] = attack.first

        def go_on(plug: socket.socket) -> None:
            content = unsent[plug] or attack.rest
            if content:
                unsent[plug] = content[plug.send(content) :]
            elif plug.recv(1, socket.MSG_PEEK) == b"":
                raise ConnectionResetError

        def go() -> None:
            while not stop.wait(attack.every or 0.001):
                for plug in [*unsent]:
                    try:
                        go_on(plug)
                    except BlockingIOError:
                        pass
                    except OSError:
                        plug.close()
                        del unsent[plug]
                        with suppress(OSError):
                            add()

        for _ in range(count):
            add()
        thread = threading.Thread(target=go)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def trial(server: Server, count: int, attack: Attack, seconds: float, patience: float) -> str:
    """Asks over and over during an attack: every time there is an answer within `patience`, and little is logged."""
    before, asked = server.output.stat().st_size, []
    with attacked_by(server, count, attack):
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            asked.append(server.ask())
            time.sleep(0.1)
    until(lambda: server.ask()[0] == 200)
    statuses, slowest = Counter(status for status, _ in asked), max(took for _, took in asked)
    logged = server.output.stat().st_size - before
    said = f"{dict(statuses)}, slowest {slowest:.2f} s, {logged:,} bytes logged"
    assert {*statuses} <= {200, 503} and slowest < patience and logged < 1000, said
    return said


BOTH = ("says nothing", "sends headers slowly")
OF_SERVE = [("serve", name) for name in ATTACKS if name != "asks for pages"]
EACH = [*OF_SERVE, *(("dash", name) for name in (*BOTH, "asks for pages"))]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    """Both servers, with so few files that 300 connections are too many."""
    with (
        server("serve", tmp_path_factory.mktemp("serve"), 256) as serving,
        server("dash", tmp_path_factory.mktemp("dash"), 256) as showing,
    ):
        yield {"serve": serving, "dash": showing}


SHORT = [*((kind, name, 300) for kind in ("serve", "dash") for name in BOTH), ("serve", "asks in a WebSocket", 60)]


@pytest.mark.parametrize(("kind", "name", "count"), SHORT)
def test_others_are_answered(servers: dict[str, Server], kind: str, name: str, count: int) -> None:
    trial(servers[kind], count, ATTACKS[name], 1.5, 5.0)


def test_headers_that_do_not_end_are_given_up_those_of_a_second_request_too(tmp_path: Path) -> None:
    request = b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    with served(tmp_path / "run", first="import t3d.web_server as web; web.HEADER_SECONDS = 1") as server:
        for is_second in (False, True):
            with socket.create_connection(("127.0.0.1", server.port), timeout=20) as plug:
                if is_second:
                    plug.sendall(request + b"\r\n")
                    assert b"200 OK" in plug.recv(4096)
                    time.sleep(1.5)  # it may be idle for longer
                plug.sendall(request)
                started = time.monotonic()
                with suppress(ConnectionError):
                    while time.monotonic() < started + 10:
                        plug.sendall(b"x: y\r\n")
                        time.sleep(0.1)
                    pytest.fail("the server waits")
                assert time.monotonic() - started > 0.9


def test_requests_sent_without_waiting_are_answered_in_turn_and_not_piled_up(tmp_path: Path) -> None:
    count, size = 40_000, 0
    with (
        served(tmp_path / "run") as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=20) as plug,
    ):
        process = psutil.Process(server.process.pid)
        memory = process.memory_info().rss
        plug.sendall(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        first = b""
        while not first.endswith(b"}"):
            first += plug.recv(4096)
        answer = len(first)
        request = b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" * count
        sender = threading.Thread(target=plug.sendall, args=(request,))
        sender.start()
        while size < count * answer:
            piece = plug.recv(2**16)
            assert piece
            size += len(piece)
        sender.join()
        assert size == count * answer
        assert process.memory_info().rss - memory < 16 * 2**20


def test_a_large_answer_is_sent_whole(servers: dict[str, Server]) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", servers["dash"].port, timeout=20)) as connection:
        connection.request("GET", "/static/plotly.min.js")
        assert connection.getresponse().read() == PLOTLY.read_bytes()


def test_that_no_file_can_be_opened_is_said_once(tmp_path: Path) -> None:
    with server("dash", tmp_path, 40) as attacked, attacked_by(attacked, 200, ATTACKS["says nothing"]):
        until(lambda: b"no more files can be opened" in attacked.output.read_bytes())
        time.sleep(2.5)  # in which it tries again twice
        assert len(attacked.output.read_bytes().splitlines()) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), EACH)
def test_others_are_answered_within_a_second_in_each_of_five_trials(tmp_path: Path, kind: str, name: str) -> None:
    """1,200 connections that say nothing or send headers slowly; 60 that ask and never read."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(4096, hard)), hard))
    with server(kind, tmp_path) as attacked:
        for number in range(5):
            said = trial(attacked, 1200 if name in BOTH else 60, ATTACKS[name], 5.0, 1.0)
            print(f"{kind}, a client that {name}, trial {number + 1}: {said}")
