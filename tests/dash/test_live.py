"""A page sees changes whenever it asks, and pages, videos and control work with a real server."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from starlette.responses import FileResponse
from starlette.testclient import TestClient

from dash_client import client_of, served
from fake_runs import evaluation, write_run
from t3d.app.cli import main
from t3d.dash.process import NICE, PORT, beside, listen
from t3d.errors import UserError
from t3d.events import to_line

VIDEO = bytes(range(256)) * 4096  # a megabyte


class Page:
    """What a page does: it asks again and again what it knows already."""

    def __init__(self, client: TestClient, *names: str) -> None:
        self.client, self.names, self.tag = client, names, ""

    def look(self) -> Any:
        """Returns the state of its runs; None if that is what it knows."""
        answer = self.client.get("/api/live", params={"run": self.names}, headers={"if-none-match": self.tag})
        if answer.status_code == 304:
            assert answer.content == b""
            return None
        assert answer.status_code == 200 and self.tag != answer.headers["etag"]
        self.tag = answer.headers["etag"]
        return answer.json()["runs"]


def grow(path: Path, step: int) -> None:
    with (path / "events.jsonl").open("a") as log:
        log.write(to_line(evaluation(0, 0, step, 1.0)) + "\n")


def test_a_page_sees_at_once_that_a_run_has_grown_and_gets_nothing_while_it_has_not(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", {0: [1.0]})
    page = Page(client_of(tmp_path), "a")
    for step in (0, 1000, 2000):
        if step:
            grow(path, step)
        size = (path / "events.jsonl").stat().st_size
        assert page.look() == [{"name": "a", "size": size, "status": "died", "step": step}]
        assert page.look() is None and page.look() is None


def test_the_list_sees_new_runs_tags_and_folders_that_are_none(tmp_path: Path) -> None:
    write_run(tmp_path / "a", {0: [1.0]})
    page = Page(client_of(tmp_path))
    assert [run["name"] for run in page.look()] == ["a"] and page.look() is None
    write_run(tmp_path / "b", {0: [1.0]})
    assert [run["name"] for run in page.look()] == ["a", "b"] and page.look() is None
    (tmp_path / "a" / "notes.json").write_text('{"tags": ["x"], "note": ""}')
    assert page.look() and page.look() is None
    (tmp_path / "empty").mkdir()
    assert page.look() and page.look() is None


def test_a_page_sees_the_video_that_is_recorded_after_training(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", {0: [1.0]})
    page = Page(client_of(tmp_path), "a")
    assert page.look() and page.look() is None
    (path / "video.mp4").write_bytes(b"x")
    assert page.look() and page.look() is None


def test_an_open_list_sees_that_a_run_was_killed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        log = write_run(tmp_path / "a", {0: [1.0]}) / "events.jsonl"
        start, *rest = log.read_text().splitlines(keepends=True)
        alive = json.loads(start) | {"pid": process.pid, "time": time.time()}
        log.write_text("".join([json.dumps(alive) + "\n", *rest]))
        page = Page(client_of(tmp_path))
        assert [run["status"] for run in page.look()] == ["running"] and page.look() is None
        process.kill()
        process.wait()
        assert [run["status"] for run in page.look()] == ["died"]


def test_a_run_that_is_removed_is_gone(tmp_path: Path) -> None:
    path, client = write_run(tmp_path / "a", {0: [1.0]}), client_of(tmp_path)
    assert Page(client, "a").look()
    path.rename(tmp_path.parent / "elsewhere")
    answer = client.get("/api/live?run=a")
    assert answer.status_code == 404 and answer.json() == {"error": "there is no run of this name"}


def test_no_more_runs_are_watched_than_compared(tmp_path: Path) -> None:
    answer = client_of(tmp_path).get("/api/live", params={"run": [str(number) for number in range(31)]})
    assert answer.status_code == 400 and "at most 30 runs" in answer.json()["error"]


def test_a_server_that_ends_lets_go_of_open_connections_without_a_word(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "a", {0: [1.0]})
    with served(tmp_path) as access:
        page = http.client.HTTPConnection("127.0.0.1", access.port, timeout=20)
        page.request("GET", "/api/live")
        assert page.getresponse().read()
    page.close()
    assert capfd.readouterr().err == ""


RANGES = {
    None: (200, 0, len(VIDEO)),
    "bytes=0-": (206, 0, len(VIDEO)),
    "bytes=0-99": (206, 0, 100),
    "bytes=100-": (206, 100, len(VIDEO)),
    "bytes=500000-1999999": (206, 500_000, len(VIDEO)),
    "bytes=-300": (206, len(VIDEO) - 300, len(VIDEO)),
    "bytes=5-5": (206, 5, 6),
    "seconds=1-2": (200, 0, len(VIDEO)),
    "items=0-1": (200, 0, len(VIDEO)),
    "bytes=abc": (200, 0, len(VIDEO)),
    "bytes=-": (200, 0, len(VIDEO)),
    "bytes": (200, 0, len(VIDEO)),
    f"bytes={len(VIDEO)}-": (416, 0, 0),
    "bytes=-0": (416, 0, 0),
    "bytes=0-9,20-29": (200, 0, len(VIDEO)),
    "bytes=9-5": (200, 0, len(VIDEO)),
    "bytes=" + "9" * 400: (200, 0, len(VIDEO)),
}


@pytest.mark.parametrize("asked", RANGES, ids=lambda asked: str(asked)[:30])
def test_parts_of_videos_are_sent(tmp_path: Path, asked: str | None) -> None:
    path = write_run(tmp_path / "a", {0: [1.0]})
    (path / "videos").mkdir()
    (path / "videos" / "seed-0-step-2000.mp4").write_bytes(VIDEO)
    status, start, stop = RANGES[asked]
    headers = {} if asked is None else {"range": asked}
    answer = client_of(tmp_path).get("/api/runs/a/videos/videos/seed-0-step-2000.mp4", headers=headers)
    assert answer.status_code == status
    if status < 300:
        assert answer.content == VIDEO[start:stop] and answer.headers["content-type"] == "video/mp4"
    else:
        assert answer.headers["content-range"] == f"bytes */{len(VIDEO)}" and str(len(VIDEO)) in answer.json()["error"]
    if status == 206:
        assert answer.headers["content-range"] == f"bytes {start}-{stop - 1}/{len(VIDEO)}"


def test_a_video_that_becomes_a_link_is_sent_as_it_was_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    video = write_run(tmp_path / "a", {0: [1.0]}) / "video.mp4"
    video.write_bytes(b"video!")
    (tmp_path / "secret").write_bytes(b"secret")

    def swapped(*arguments: Any, **keywords: Any) -> FileResponse:
        video.unlink()
        video.symlink_to(tmp_path / "secret")
        return FileResponse(*arguments, **keywords)

    monkeypatch.setattr("t3d.dash.server.FileResponse", swapped)
    client = client_of(tmp_path)
    assert client.get("/api/runs/a/videos/video.mp4").content == b"video!"
    assert client.get("/api/runs/a/videos/video.mp4").status_code == 404


def test_videos_are_listed_by_step(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", {0: [1.0]})
    (path / "videos").mkdir()
    for name in ("videos/seed-0-step-10000.mp4", "videos/seed-0-step-2000.mp4", "video.mp4", "videos/other.txt"):
        (path / name).write_bytes(b"x")
    found = client_of(tmp_path).get("/api/runs/a").json()["videos"]
    assert [(one["step"], one["member"], one["file"]) for one in found] == [
        (2000, "seed-0", "videos/seed-0-step-2000.mp4"),
        (10000, "seed-0", "videos/seed-0-step-10000.mp4"),
        (None, None, "video.mp4"),
    ]


def test_a_port_that_is_taken_is_replaced_unless_it_was_named() -> None:
    with listen("127.0.0.1", None)[0] as first, listen("127.0.0.1", None)[0] as second:
        assert first.getsockname()[1] != second.getsockname()[1] and PORT
        taken = first.getsockname()[1]
        with pytest.raises(UserError, match=f"127.0.0.1:{taken}"):
            listen("127.0.0.1", taken)
    with pytest.raises(UserError, match=r"nowhere\.invalid"):
        listen("nowhere.invalid", 0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "there is no folder nowhere"),
        (["run"], "is a run itself"),
        ([".", "--port", "99999"], "is not a port"),
        ([".", "--port", "x"], "must be an integer"),
        ([".", "--host", "999.1.1.1"], "cannot listen"),
    ],
)
def test_mistakes_are_one_sentence(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "run", {0: [1.0]})
    assert main(["dash", *arguments]) == 2
    err = capsys.readouterr().err
    assert said in err and "Traceback" not in err


@contextmanager
def started(*arguments: str, cwd: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A command in another process, and the first line that it prints."""
    command = [sys.executable, "-m", "t3d", *arguments]
    with subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            threading.Thread(target=process.stdout.read, daemon=True).start()
            yield process, line
        finally:
            process.kill()


def asked(address: str, method: str, path: str, body: Any = None) -> Any:
    """The answer to a request with the token of an address."""
    parts = urlsplit(address)
    assert parts.hostname and parts.port
    headers = {"authorization": f"Bearer {parts.query.removeprefix('token=')}", "content-type": "application/json"}
    with closing(http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)) as connection:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        return json.loads(connection.getresponse().read())


def wait_for(address: str, path: str, good: Any, seconds: float = 60.0) -> Any:
    until = time.monotonic() + seconds
    while not good(found := asked(address, "GET", path)):
        assert time.monotonic() < until, found
        time.sleep(0.2)
    return found


def test_the_server_beside_a_training_gives_way_to_it(tmp_path: Path) -> None:
    """Also where Linux weighs sessions: there a process's niceness alone changes nothing."""
    write_run(tmp_path / "a", {0: [1.0]})
    with beside(tmp_path) as address:
        asked(address, "GET", "/api/runs")
        (server,) = psutil.Process().children()
        assert server.nice() == min(19, os.nice(0) + NICE)
        of_session = Path(f"/proc/{server.pid}/autogroup")
        assert not of_session.exists() or of_session.read_text().endswith(f"nice {NICE}\n")


def test_the_command_serves_until_ctrl_c(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a", {0: [1.0]})
    with started("dash", "--port", "0", cwd=tmp_path) as (process, line):
        found = re.fullmatch(r"dashboard: (http://127\.0\.0\.1:\d+/\?token=[\w-]{32})   \(Ctrl-C ends it\)\n", line)
        assert found, line
        assert [one["name"] for one in asked(found[1], "GET", "/api/runs")["runs"]] == ["a"]
        assert psutil.Process(process.pid).nice() == min(19, os.nice(0) + NICE), "trainings come first"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


@pytest.mark.slow
def test_a_run_is_watched_and_controlled_while_it_trains(tmp_path: Path) -> None:
    small = "--random-steps 100 --td3.batch-size 8 --td3.actor-hidden 8 --td3.critic-hidden 8 --log.every-steps 50"
    rest = f"{small} --eval.every-steps 500 --eval.episodes 1 --no-video --run.name live --total-steps 1000000"
    with started("train", "Pendulum-v1", "--dash", *rest.split(), cwd=tmp_path) as (process, line):
        address = line.removeprefix("dashboard: ").strip()
        assert address.startswith("http://127.0.0.1:"), line
        wait_for(address, "/api/runs", lambda found: found["runs"] and found["runs"][0]["steps"] > 0)
        series = "/api/runs/live/series?metric=total_reward"
        wait_for(address, series, lambda found: found["series"])
        assert asked(address, "GET", "/api/runs/live")["status"] == "running"

        assert asked(address, "POST", "/api/runs/live/control", {"action": "pause"})["pause"]
        wait_for(address, "/api/runs/live", lambda found: found["status"] == "paused")
        size = asked(address, "GET", "/api/runs/live")["size"]
        time.sleep(1.0)
        assert asked(address, "GET", "/api/runs/live")["size"] == size
        asked(address, "POST", "/api/runs/live/control", {"action": "save"})
        news = wait_for(address, "/api/runs/live", lambda found: found["checkpoint"])["news"]
        assert [one["event"] for one in news][-2:] == ["paused", "saved"]
        asked(address, "POST", "/api/runs/live/control", {"action": "continue"})
        wait_for(address, "/api/runs/live", lambda found: found["status"] == "running" and found["size"] > size)

        servers = [one for one in psutil.Process(process.pid).children() if "t3d.dash.process" in one.cmdline()]
        asked(address, "POST", "/api/runs/live/control", {"action": "stop"})
        assert process.wait(60) == 0
        assert len(servers) == 1 and not psutil.pid_exists(servers[0].pid), "the server ends with the command"
    assert (tmp_path / "runs" / "live" / "curve.png").exists()


def test_the_server_beside_a_run_ends_even_if_that_is_killed(tmp_path: Path) -> None:
    rest = "--no-video --run.name live --total-steps 1000000 --td3.batch-size 8"
    with started("train", "Pendulum-v1", "--dash", *rest.split(), cwd=tmp_path) as (process, line):
        address = line.removeprefix("dashboard: ").strip()
        wait_for(address, "/api/session", lambda found: found["may_control"])
        (server,) = [one for one in psutil.Process(process.pid).children() if "t3d.dash.process" in one.cmdline()]
        process.kill()
        server.wait(20)
