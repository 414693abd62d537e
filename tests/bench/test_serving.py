"""`t3d bench serve`: what it measures is there, and a server that stands still shows."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from serve_client import saved
from shipped_policies import of_vectors, vector_spec
from t3d.app.cli import main
from t3d.bench import open_loop, serving
from t3d.bench.open_loop import Request, http_request, is_action, is_status, measure, schedule_of


def test_actions_an_empty_handler_and_bad_requests_are_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "serve.json"
    assert main(["bench", "serve", "--rate", "50", "--seconds", "2", "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    assert [(row["what"], row["answers"], row["wrong"]) for row in found["rows"]] == [
        ("act", 100, 0),
        ("empty", 10, 0),
        ("bad", 5, 0),
    ]
    for row in found["rows"]:
        assert 0 < row["ms"]["p50"] <= row["ms"]["p99"] <= row["ms"]["p99.9"] <= row["ms"]["max"]
    assert min(found["server_mib"]) > 10 and found["versions"]["cpu"] and found["machine"]["cores"]
    said = capsys.readouterr().out
    assert "an empty handler" in said and "MiB at the end" in said


@pytest.mark.parametrize("limit", [0.0, 0.2])
def test_a_token_in_the_environment_and_limited_policies_are_no_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: float
) -> None:
    run = saved(tmp_path / "run", of_vectors(spec=vector_spec()._replace(max_action_change=limit)))
    monkeypatch.setenv("T3D_TOKEN", "a-token-of-twenty-chars")
    file = tmp_path / "serve.json"
    assert main(["bench", "serve", str(run), "--rate", "50", "--seconds", "0.5", "--json", str(file)]) == 0
    act = json.loads(file.read_text())["rows"][0]
    assert (act["what"], act["answers"], act["wrong"]) == ("act", 25, 0)


def test_wrong_answers_fail_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "is_action", lambda *_: lambda *_: False)
    assert main(["bench", "serve", "--rate", "50", "--seconds", "0.2"]) == 1


def test_a_file_that_cannot_be_written_is_noticed_before_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serving, "measured", lambda _: pytest.fail("it measured"))
    for place in (tmp_path, tmp_path / "nowhere" / "serve.json"):
        assert main(["bench", "serve", "--json", str(place)]) == 2
        assert capsys.readouterr().err.startswith(f"error: cannot write {place}: ")


def test_requests_without_an_answer_are_wrong_whether_or_not_they_were_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_loop, "SECONDS_TO_END", 0.2)
    request = Request(http_request("GET", "/"), is_status(200))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        figures, _ = measure(silent.getsockname(), schedule_of(500, 0.2, [request], request, [request]))
    counts = {kind: (len(found.seconds), found.wrong) for kind, found in figures.items()}
    assert counts == {"act": (100, 100), "empty": (10, 10), "bad": (5, 5)}
    assert "there was no answer" in figures["act"].example


@contextmanager
def plain_server(pause: float, status: int = 200, body: bytes = b"{}") -> Iterator[int]:
    """Answers at once but for one request, on which it stands still."""
    count = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        while await reader.readline():
            while (await reader.readline()).strip():
                pass
            count += 1
            if count == 50:
                time.sleep(pause)
            writer.write(b"HTTP/1.1 %d OK\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body)

    loop, ready, port = asyncio.new_event_loop(), threading.Event(), 0

    async def start() -> None:
        nonlocal port
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        ready.set()

    async def end() -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def run() -> None:
        loop.run_until_complete(start())
        loop.run_forever()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(20)
    yield port
    stop = asyncio.run_coroutine_threadsafe(end(), loop)
    stop.result(20)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(20)
    loop.close()


def test_a_pause_of_the_server_counts_for_all_that_were_due_in_it() -> None:
    request = Request(http_request("GET", "/"), is_status(200))
    with plain_server(pause=0.5) as port:
        figures, _ = measure(("127.0.0.1", port), schedule_of(100, 1.5, [request], request, [request]))
    waited = [seconds for seconds in figures["act"].seconds if seconds > 0.1]
    assert len(figures["act"].seconds) == 150 and figures["act"].wrong == 0
    assert len(waited) >= 30 and max(waited) > 0.4  # a closed loop would have seen one of them


def test_wrong_answers_are_counted_and_shown() -> None:
    action = Request(http_request("GET", "/"), is_action([-1, -1], [1, 1]))
    for status, body, wrong in ((200, b'{"action": [0, 1]}', 0), (200, b'{"action": [0, 1.1]}', 5), (503, b"{}", 5)):
        with plain_server(0, status, body) as port:
            figures, _ = measure(("127.0.0.1", port), schedule_of(50, 0.1, [action], action, [action]))
        assert figures["act"].wrong == wrong and (str(status) in figures["act"].example) == bool(wrong)
    assert not is_action([-1, -1], [1, 1])(200, b'{"action": [NaN, 0]}')
    assert not is_action([-1, -1], [1, 1])(200, b'{"action": [0]}')


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["nowhere"], "no policy at nowhere"),
        (["--rate", "0"], "--rate must be from 1"),
        (["--seconds", "0"], "--seconds from 0.1"),
        (["--engines", "fused"], "unknown flag --engines"),
    ],
)
def test_mistakes_get_a_sentence(flags: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", *flags]) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.startswith("error: ") and said.count("\n") == 1
