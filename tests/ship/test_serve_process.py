"""`t3d serve` as a process: junk on the wire, limits, how it stops, and mistakes on the command line."""

from __future__ import annotations

import http.client
import json
import os
import random
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from serve_bad import BAD
from serve_client import AS_JSON, GOOD, LIMITED, SIZE, Served, is_good, of_parts, saved, served, until
from shipped_policies import of_images, of_vectors, vector_spec
from t3d.app.cli import main
from t3d.policy.acting import SavedPolicy
from t3d.web import listen

pytestmark = pytest.mark.system


def raw(server: Served, content: bytes) -> bytes:
    """Sends bytes as they are; returns what comes back until the server closes or a second passes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as plug:
        with suppress(OSError):
            plug.sendall(content)
        plug.settimeout(1)
        found = b""
        with suppress(OSError):
            while piece := plug.recv(4096):
                found += piece
        return found


def asked(server: Served, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    """A request for an action over a connection of its own."""
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection:
        content = json.dumps(GOOD).encode() if body is None else body
        connection.request("POST", "/act", content, {**AS_JSON, **headers})
        answer = connection.getresponse()
        return answer.status, answer.read()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    limits = ["--max-seconds", "1", "--max-connections", "40"]
    with served(tmp_path_factory.mktemp("served") / "run", *limits) as found:
        yield found


def test_an_answer_does_not_wait_until_the_client_has_confirmed_its_head() -> None:
    with listen("127.0.0.1", [0], "a test") as opened, socket.create_connection(opened.getsockname()):
        accepted, _ = opened.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


HEAD = b"POST /act HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
JUNK = {
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03junk\r\n\r\n",
    "zeros": b"\x00" * 1000,
    "a line that never ends": b"A" * 100_000,
    "no host": b"POST /act HTTP/1.1\r\n\r\n",
    "a length below zero": HEAD + b"content-length: -5\r\n\r\n",
    "a length that is no number": HEAD + b"content-length: five\r\n\r\n",
    "two lengths": HEAD + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello",
    "length and chunks": HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "a bad chunk": HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\nhello\r\n",
    "a thousand headers": HEAD + b"x: y\r\n" * 20_000 + b"\r\n",
    "another version": b"POST /act HTTP/9.9\r\nhost: 127.0.0.1\r\n\r\n",
    "an upgrade to nothing": b"GET /ws HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n",
    "a WebSocket without its key": (
        b"GET /ws HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
    ),
}


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK)
def test_junk_on_the_wire_is_refused(server: Served, junk: bytes) -> None:
    answer = raw(server, junk)
    was_cut_off = not answer and len(junk) > 2**16  # the connection was closed while we were still sending
    assert was_cut_off or answer.startswith(b"HTTP/1.1 4"), answer
    head, _, body = answer.partition(b"\r\n\r\n")
    is_plain = b"upgrade: websocket" in junk or body == b"Invalid HTTP request received."  # what no application sees
    assert was_cut_off or is_plain or (b"application/json" in head and {*json.loads(body)} == {"error"}), answer
    assert asked(server)[0] == 200


ENDLESS = {
    "headers": (HEAD, b"x: y\r\n" * 10_000),
    "a header": (HEAD + b"x: ", b"y" * 60_000),
    "trailers": (HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\n", b"x: y\r\n" * 10_000),
    "extensions of a chunk": (HEAD + b"transfer-encoding: chunked\r\n\r\n1;", b"y" * 60_000),
}


@pytest.mark.parametrize(("head", "piece"), ENDLESS.values(), ids=ENDLESS)
def test_what_does_not_end_is_not_taken_in(server: Served, head: bytes, piece: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as plug, suppress(OSError):
        plug.sendall(head)
        for _ in range(1000):  # 60 MB
            plug.sendall(piece)
        pytest.fail("the server took all of it")
    assert psutil.Process(server.process.pid).memory_info().rss < 200 * 2**20
    assert asked(server)[0] == 200


UPGRADE = (
    b"GET /ws HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
FRAMES = {
    "a frame without a mask": b"\x81\x05hello",
    "a frame of 2^62 bytes": b"\x81\xff\x3f" + b"\xff" * 7 + b"mask",
    "text that is not UTF-8": b"\x81\x82\x00\x00\x00\x00\xff\xfe",
    "an unknown opcode": b"\x8f\x80\x00\x00\x00\x00",
    "a piece without a beginning": b"\x80\x80\x00\x00\x00\x00",
    "reserved bits": b"\xf1\x80\x00\x00\x00\x00",
}


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
def test_junk_in_a_websocket_closes_it_alone(server: Served, frame: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as plug:
        plug.sendall(UPGRADE)
        assert plug.recv(4096).startswith(b"HTTP/1.1 101")
        plug.sendall(frame)
        assert plug.recv(4096).startswith(b"\x88")  # a frame that closes
    assert asked(server)[0] == 200


def frame(opcode: int, content: bytes = b"", is_last: bool = True) -> bytes:
    """As a client sends it, with a mask of zeros."""
    size = bytes([0x80 | len(content)]) if len(content) < 126 else b"\xfe" + len(content).to_bytes(2, "big")
    return bytes([opcode | (0x80 if is_last else 0)]) + size + bytes(4) + content


@contextmanager
def deaf(server: Served) -> Iterator[socket.socket]:
    """A WebSocket whose client reads nothing, with little room for what it does not read."""
    with socket.socket() as plug:
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**12)
        plug.settimeout(20)
        plug.connect(("127.0.0.1", server.port))
        plug.sendall(UPGRADE)
        assert plug.recv(4096).startswith(b"HTTP/1.1 101")
        yield plug


def test_a_client_that_sends_pings_and_does_not_read_is_dropped(server: Served) -> None:
    process = psutil.Process(server.process.pid)
    memory = process.memory_info().rss
    with deaf(server) as plug, suppress(OSError):
        for _ in range(1000):  # 65 MB
            plug.sendall(frame(9, b"x" * 125) * 500)
        pytest.fail("the server took all of it")
    assert process.memory_info().rss - memory < 20 * 2**20
    assert asked(server)[0] == 200


def test_a_client_that_reads_may_send_thousands_of_pings_between_two_questions(server: Served) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as plug:
        plug.sendall(UPGRADE)
        answers = plug.makefile("rb")
        while answers.readline().strip():
            pass
        for _ in range(20):
            for _ in range(10):
                plug.sendall(frame(9, b"x" * 125) * 200)
                assert len(answers.read(127 * 200)) == 127 * 200
            plug.sendall(frame(1, json.dumps(GOOD).encode()))
            assert b'"action"' in plug.recv(4096)


def test_a_message_of_endless_fragments_closes_its_websocket(server: Served) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as plug:
        plug.sendall(UPGRADE)
        assert plug.recv(4096).startswith(b"HTTP/1.1 101")
        content = json.dumps(GOOD).encode()
        plug.sendall(frame(1, b"", is_last=False) + frame(0, b"", is_last=False) * 4000 + frame(0, content))
        assert b'"action"' in plug.recv(4096), "so many are taken"
        with suppress(OSError):
            plug.sendall(frame(1, b"", is_last=False) + frame(0, b"", is_last=False) * 200_000)
            assert plug.recv(4096) == b""
    assert asked(server)[0] == 200


def test_a_message_that_is_too_long_closes_its_websocket_with_1009(server: Served) -> None:
    with connect(f"ws://127.0.0.1:{server.port}/ws", proxy=None) as opened:
        opened.send(" " * 70_000)
        with pytest.raises(ConnectionClosed) as caught:
            opened.recv(timeout=20)
        assert caught.value.rcvd is not None and caught.value.rcvd.code == 1009


def test_a_client_for_which_answers_wait_is_dropped(tmp_path: Path) -> None:
    with (
        served(tmp_path / "run", first="import t3d.web_server as web; web.UNREAD_SECONDS = 1") as server,
        deaf(server) as plug,
    ):
        assert b"t3d_websockets 1.0" in fetched(server, "/metrics")
        plug.settimeout(0.3)
        message = frame(2, np.zeros((250, SIZE), "<f4").tobytes())
        with suppress(OSError):
            for _ in range(10_000):
                plug.sendall(message)
            pytest.fail("the server took all of it")
        until(lambda: b"t3d_websockets 0.0" in fetched(server, "/metrics"))


def test_the_time_in_which_a_connection_was_idle_is_not_taken_from_the_next_request(tmp_path: Path) -> None:
    """It is idle for 1.5 s of 2, then sends a request that takes 1 s."""

    def slowly() -> Iterator[bytes]:
        time.sleep(1)
        yield json.dumps(GOOD).encode()

    with (
        served(tmp_path / "run", first="import t3d.ship.serve as serve; serve.IDLE_SECONDS = 2") as server,
        closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)) as connection,
    ):
        for body in (json.dumps(GOOD), slowly()):
            connection.request("POST", "/act", body, AS_JSON)
            assert b'"action"' in connection.getresponse().read()
            started = time.monotonic()
            time.sleep(1.5)
        assert connection.sock.recv(4096) == b"", "and an idle one is closed"
        assert 1.5 < time.monotonic() - started < 10


def test_a_request_that_does_not_arrive_is_given_up(server: Served) -> None:
    started = time.monotonic()
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as plug:
        plug.sendall(HEAD + b"content-length: 100\r\n\r\n{")
        answer = plug.makefile("rb").read()  # until it is closed
    assert answer.startswith(b"HTTP/1.1 408") and b"did not arrive within 1 s" in answer
    assert 0.9 < time.monotonic() - started < 10


def test_a_request_that_is_somewhat_too_large_gets_the_reason_and_the_connection_stays(server: Served) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection:
        for body, status in ((b" " * 500_000, 413), (json.dumps(GOOD), 200), (iter([b" " * 400_000] * 2), 413)):
            connection.request("POST", "/act", body, AS_JSON)
            answer = connection.getresponse()
            said = answer.read()
            assert answer.status == status and (status == 200 or b"at most 65,536 bytes" in said)
            assert not answer.will_close


@pytest.mark.parametrize("chunked", [False, True], ids=["with its length", "in chunks"])
def test_a_hundred_megabytes_are_not_taken_in(server: Served, chunked: bool) -> None:
    process = psutil.Process(server.process.pid)
    memory = process.memory_info().rss
    length = b"transfer-encoding: chunked" if chunked else b"content-length: %d" % (100 * 2**20)
    piece, sent, answer = b"x" * 2**20, 0, b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as plug:
        with suppress(OSError):
            plug.sendall(HEAD + length + b"\r\n\r\n")
            for _ in range(100):
                plug.sendall(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
                sent += len(piece)
        with suppress(OSError):
            answer = plug.recv(4096)
    assert sent < 100 * 2**20 and (not answer or answer.startswith(b"HTTP/1.1 413"))
    assert process.memory_info().rss - memory < 20 * 2**20
    assert asked(server)[0] == 200


def test_sockets_beyond_the_limit_are_refused_and_do_no_harm(server: Served) -> None:
    with ExitStack() as opened:
        plugs = [opened.enter_context(socket.create_connection(("127.0.0.1", server.port), 20)) for _ in range(60)]
        for plug in plugs[::3]:
            with suppress(OSError):
                plug.sendall(HEAD[:20])  # and never more
        assert plugs[-1].recv(4096).startswith(b"HTTP/1.1 503")
    until(lambda: asked(server)[0] == 200)


def test_more_requests_than_the_queue_takes_get_503(tmp_path: Path) -> None:
    with served(tmp_path / "run", "--max-queue", "3", "--max-seconds", "5") as server, ExitStack() as opened:
        for _ in range(3):
            plug = opened.enter_context(socket.create_connection(("127.0.0.1", server.port), 20))
            plug.sendall(HEAD + b"content-length: 100\r\n\r\n{")  # counts from here on
        until(lambda: asked(server)[0] == 503)
        status, said = asked(server)
        assert status == 503 and b"3 requests are waiting already" in said
        opened.close()
        until(lambda: asked(server)[0] == 200)


def test_large_batches_do_not_mix_up_who_asked_for_what(server: Served) -> None:
    policy, rng = of_vectors(), np.random.default_rng(0)
    seen = rng.normal(size=(16, 250, SIZE)).astype(np.float32)

    def ask(rows: Any) -> Any:
        return np.array(json.loads(asked(server, json.dumps({"observation": rows.tolist()}).encode())[1])["action"])

    with ThreadPoolExecutor(4) as threads:
        for rows, actions in zip(seen, threads.map(ask, seen), strict=True):
            assert (actions.astype(np.float32) == policy(rows)).all()


@pytest.mark.parametrize("number", [2, 15], ids=["Ctrl-C", "SIGTERM"])
def test_it_finishes_what_it_has_when_it_is_stopped(tmp_path: Path, number: int) -> None:
    with served(tmp_path / "run", "--max-seconds", "20") as server:
        assert asked(server)[0] == 200 and asked(server, b"{")[0] == 400
        body = json.dumps(GOOD).encode()
        with socket.create_connection(("127.0.0.1", server.port), 20) as plug:
            plug.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body[:10])
            until(lambda: b"t3d_queue 1.0" in fetched(server, "/metrics"))
            stopped = threading.Timer(0.5, plug.sendall, [body[10:]])
            stopped.start()
            code, said = server.stop(number)
            answer = plug.recv(4096)
        assert answer.startswith(b"HTTP/1.1 200") and b'"action"' in answer
    assert code == 0 and said.startswith("stopped after ") and "2 answered with actions, 1 refused" in said, said


def test_it_finishes_what_a_websocket_has_asked_when_it_is_stopped(tmp_path: Path) -> None:
    policy, rows = of_vectors(hidden=(512, 512)), np.random.default_rng(0).normal(size=(20_000, SIZE)).astype("<f4")
    limits = ["--max-batch", "20000", "--max-bytes", "1000000", "--max-seconds", "30"]
    with (
        served(tmp_path / "run", *limits, policy=policy) as server,
        connect(f"ws://127.0.0.1:{server.port}/ws", proxy=None, max_size=None) as opened,
    ):
        opened.send(rows.tobytes())
        until(lambda: b"t3d_queue 1.0" in fetched(server, "/metrics"))
        server.process.terminate()
        answer = opened.recv(timeout=60)
        assert isinstance(answer, bytes) and np.allclose(
            np.frombuffer(answer, "<f4").reshape(-1, 3), policy(rows), atol=1e-6
        )
        assert server.process.wait(60) == 0


def fetched(server: Served, path: str) -> bytes:
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection:
        connection.request("GET", path)
        return connection.getresponse().read()


def test_elsewhere_the_token_is_printed_or_taken_from_the_environment(tmp_path: Path) -> None:
    own = "my-own-token-of-some-length"
    with served(tmp_path / "run", "--host", "0.0.0.0", T3D_TOKEN=own) as server:
        assert own not in server.first_lines and "Authorization" not in server.first_lines
        assert asked(server)[0] == 401 and asked(server, authorization=f"Bearer {own}")[0] == 200
        assert asked(server, b" " * 2**20)[0] == 401, "the answer to a long body arrives too"
        assert own not in server.stop()[1]
    with served(tmp_path / "run", "--host", "0.0.0.0") as server:
        assert asked(server)[0] == 401
        assert "Authorization: Bearer " in server.first_lines


SHIPPED: dict[str, tuple[SavedPolicy, list[str], dict[str, str]]] = {
    "a vector": (of_vectors(), [], {}),
    "a Dict with a Tuple and a Discrete": (of_parts(), [], {}),
    "a limit on changes": (of_vectors(spec=LIMITED), [], {}),
    "a printed token": (of_vectors(), ["--host", "0.0.0.0"], {}),
    "a token of one's own": (of_vectors(), ["--host", "0.0.0.0"], {"T3D_TOKEN": "a-token-'of some\\ length"}),
}


@pytest.mark.parametrize("name", SHIPPED)
def test_the_line_of_curl_that_it_prints_gets_an_action(tmp_path: Path, name: str) -> None:
    policy, flags, variables = SHIPPED[name]
    with served(tmp_path / "run", *flags, policy=policy, **variables) as server:
        line = server.first_lines.splitlines()[-1]
        answer = subprocess.run(["sh", "-c", line], env={**os.environ, **variables}, capture_output=True, check=True)
    assert is_good(json.loads(answer.stdout)["action"], policy), answer.stdout


def test_the_line_of_curl_for_a_policy_of_images_gets_what_it_is(tmp_path: Path) -> None:
    with served(tmp_path / "run", policy=of_images()) as server:
        line = server.first_lines.splitlines()[-1]
        answer = subprocess.run(["sh", "-c", line], capture_output=True, check=True)
    assert json.loads(answer.stdout)["observation"]["frames"] == 2


MISTAKES = {
    "no file": (["nowhere"], "no policy at nowhere"),
    "no port": (["RUN", "--port", "99999"], "--port 99999 is not a port"),
    "no batch": (["x", "--max-batch", "0"], "--max-batch must be at least 1"),
    "no time": (["x", "--max-seconds", "0"], "--max-seconds must be above 0"),
    "no address": (["RUN", "--host", "192.0.2.1"], "t3d serve cannot listen on 192.0.2.1"),
    "an unknown flag": (["x", "--max-row", "3"], "unknown flag --max-row"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_on_the_command_line_get_a_sentence(
    tmp_path: Path, mistake: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words, sentence = MISTAKES[mistake]
    run = saved(tmp_path / "run", of_vectors())
    assert main(["serve", *(str(run) if word == "RUN" else word for word in words)]) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.startswith("error: ") and said.count("\n") == 1


def test_a_short_token_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("T3D_TOKEN", "short")
    assert main(["serve", "x"]) == 2 and "at least 16" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_memory_stays_flat_through_twenty_thousand_bad_requests(tmp_path: Path) -> None:
    bad = [*BAD.values()]
    with served(tmp_path / "run", policy=of_vectors(hidden=(256, 256), spec=vector_spec())) as server:
        process, rng = psutil.Process(server.process.pid), random.Random(0)

        def send(count: int) -> None:
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
            for _ in range(count):
                if rng.random() < 0.02:
                    raw_junk = socket.create_connection(("127.0.0.1", server.port), 20)
                    raw_junk.sendall(rng.choice([*JUNK.values()])[:1000])
                    raw_junk.close()
                kind, body = rng.choice(bad)
                connection.request("POST", "/act", body, kind)
                answer = connection.getresponse()
                assert 400 <= answer.status < 500 and b"error" in answer.read()
            connection.close()

        send(2000)
        before = process.memory_info().rss, process.num_fds(), process.num_threads()
        send(20_000)
        until(lambda: process.num_fds() <= before[1] + 2)
        after = process.memory_info().rss, process.num_fds(), process.num_threads()
        assert after[0] - before[0] < 4 * 2**20 and after[2] == before[2], (before, after)
        assert asked(server)[0] == 200
