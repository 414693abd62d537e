"""R13: nobody but the user reads runs or changes them, whatever is sent to the dashboard or put into run folders."""

from __future__ import annotations

import http.client
import json
import os
import platform
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import psutil
import pytest
from starlette.datastructures import Headers

from dash_client import BEARER, HERE, TOKEN, client_of, served
from fake_runs import session, write_run
from t3d.config import Config
from t3d.dash.process import address_of
from t3d.dash.server import HEADERS
from t3d.events import to_line
from t3d.store.control import CONTROL
from t3d.web import Access, RequestRefused, full_name

SECRET = "the-secret-of-another-folder"
COOKIE = {"cookie": f"t3d-8700={TOKEN}"}
OURS = {"origin": HERE}
NOTES = {"tags": ["x"], "note": "y"}


class Answer(NamedTuple):
    """What the server said."""

    status: int
    headers: dict[str, str]
    body: bytes


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder of runs beside a secret, with every link to it that a run folder can hold."""
    runs, outside = tmp_path / "runs", tmp_path / "outside"
    write_run(outside / "run", {0: [1.0]}, env=SECRET)
    (outside / "secret.txt").write_text(SECRET)
    (outside / "secret.mp4").write_text(SECRET)
    (outside / "notes.json").write_text(json.dumps({"tags": [], "note": SECRET}))
    run = write_run(runs / "run", {0: [1.0, 2.0]})
    (run / "video.mp4").symlink_to(outside / "secret.mp4")
    (run / "notes.json").symlink_to(outside / "notes.json")
    (run / "videos").symlink_to(outside)
    (runs / "link").symlink_to(outside / "run")
    (runs / "secret.txt").write_text(SECRET)
    for file in ("events.jsonl", "config.toml", "journal.jsonl"):
        path = write_run(runs / f"linked-{file}", {0: [1.0]})
        (path / file).unlink(missing_ok=True)
        (path / file).symlink_to(outside / "run" / file if file != "journal.jsonl" else outside / "secret.txt")
    return runs


@pytest.fixture
def server(root: Path) -> Iterator[Access]:
    with served(root) as access:
        yield access


def raw(access: Access, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
    """Sends a request exactly as it stands: clients tidy up paths."""
    with closing(http.client.HTTPConnection("127.0.0.1", access.port, timeout=20)) as connection:
        connection.putrequest(method, path, skip_host="host" in headers, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        if body:
            connection.putheader("content-length", str(len(body)))
        connection.endheaders(body or None)
        answer = connection.getresponse()
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())


def everything_in(root: Path) -> dict[str, Any]:
    """What is below a folder: names, contents and links."""
    found: dict[str, Any] = {}
    for path in sorted(root.rglob("*")):
        found[str(path)] = path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None
    return found


HOSTS = [
    *(
        "evil.example",
        "evil.example:8700",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "192.168.0.5",
        "0.0.0.0",
    ),
    *("", "127.0.0.2:8700", "[::2]:8700", "localhost@evil.example", "localhost:8700.evil.example", "127.0.0.1,evil"),
]


def test_only_names_of_this_machine_are_answered(root: Path) -> None:
    client = client_of(root)
    for host in HOSTS:
        answer = client.get("/api/runs", headers={"host": host, **BEARER})
        assert answer.status_code == 400 and "runs" not in answer.json(), host


def test_a_request_names_exactly_one_host() -> None:
    for hosts in ([], [b"127.0.0.1", b"evil.example"]):
        with pytest.raises(RequestRefused, match="one of its names") as refused:
            Access().refuse_foreign(Headers(raw=[(b"host", host) for host in hosts]))
        assert refused.value.status == 400


def test_the_name_that_it_was_told_to_listen_on_is_answered(root: Path) -> None:
    client = client_of(root, "Lab.Example")
    assert client.get("/api/runs", headers={"host": "lab.example:8700", **BEARER}).status_code == 200
    assert client.get("/api/runs", headers={"host": "evil.example:8700", **BEARER}).status_code == 400
    assert client.get("/api/runs", headers={"host": "lab.example:8700"}).status_code == 401, "with the token"


def test_what_listens_everywhere_is_opened_under_the_name_of_the_machine(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_name.cache_clear()
    monkeypatch.setattr("socket.getfqdn", lambda: "Box.lab.example")
    address = urlsplit(address_of(Access("0.0.0.0", 8700, TOKEN)))
    assert address.hostname == "box.lab.example" and address.port == 8700
    inside, outside = client_of(root), client_of(root, "0.0.0.0")
    named = {"host": address.netloc, **BEARER}
    assert outside.get("/api/runs", headers=named).status_code == 200
    assert inside.get("/api/runs", headers=named).status_code == 400
    assert outside.get("/api/runs", headers={"host": address.netloc}).status_code == 401
    said = outside.get("/api/runs", headers={"host": "evil.example", **BEARER}).json()["error"]
    assert "Box.lab.example" in said and "localhost" in said
    assert "lab" not in inside.get("/api/runs", headers=named).json()["error"], "which others could read"
    full_name.cache_clear()
    monkeypatch.setattr("socket.getfqdn", lambda: "localhost.localdomain")
    assert urlsplit(address_of(Access("::", 8700, TOKEN))).hostname == platform.node().lower()
    full_name.cache_clear()


def test_names_of_this_machine_are_answered_with_any_port(root: Path) -> None:
    for host in ("127.0.0.1", "localhost:8700", "LOCALHOST:9000", "[::1]:8700"):
        assert client_of(root).get("/api/runs", headers={"host": host}).status_code == 200, host


ORIGINS = [
    *("http://evil.example", "https://127.0.0.1:8700", "http://127.0.0.1:9999", "http://127.0.0.1", "null", ""),
    *("http://localhost:8700", "http://127.0.0.1:8700.evil.example", "file://", "http://evil.example@127.0.0.1:8700"),
]


def test_pages_of_other_origins_neither_read_nor_change(root: Path) -> None:
    client, before = client_of(root), everything_in(root)
    for origin, headers in product(ORIGINS, (COOKIE, BEARER)):
        assert client.get("/api/runs", headers={**headers, "origin": origin}).status_code == 403, origin
        answer = client.put("/api/runs/run/notes", json=NOTES, headers={**headers, "origin": origin})
        assert answer.status_code == 403, origin
    assert everything_in(root) == before


WRONG = [
    {},
    {"authorization": "Bearer "},
    {"authorization": f"Bearer {TOKEN}x"},
    {"authorization": f"Basic {TOKEN}"},
    {"authorization": TOKEN},
    {"authorization": f"Bearer {TOKEN[:-1]}"},
    {"cookie": "t3d-8700="},
    {"cookie": f"t3d-9999={TOKEN}"},
    {"cookie": f"t3d-8700={TOKEN.upper()}"},
    {"x-token": TOKEN},
]


def test_nothing_changes_without_the_token(root: Path) -> None:
    client, before = client_of(root), everything_in(root)
    for headers in WRONG:
        for also in ({}, OURS):
            assert client.put("/api/runs/run/notes", json=NOTES, headers={**headers, **also}).status_code == 401, (
                headers
            )
            answer = client.post("/api/runs/run/control", json={"action": "stop"}, headers={**headers, **also})
            assert answer.status_code == 401, headers
            assert client.put(f"/api/runs/run/notes?token={TOKEN}", json=NOTES, headers=also).status_code == 401
        assert not client.get("/api/session", headers=headers).json()["may_control"], headers
    assert everything_in(root) == before


def test_with_the_cookie_a_change_also_needs_an_origin(root: Path) -> None:
    client, before = client_of(root), everything_in(root)
    assert client.put("/api/runs/run/notes", json=NOTES, headers=COOKIE).status_code == 403
    assert everything_in(root) == before
    assert client.put("/api/runs/run/notes", json=NOTES, headers={**COOKIE, **OURS}).status_code == 200


def test_the_address_with_the_token_gives_the_cookie_and_leaves_the_address(root: Path) -> None:
    answer = client_of(root).get(f"/?token={TOKEN}")
    assert answer.status_code == 200 and TOKEN not in answer.text
    cookie = answer.headers["set-cookie"].lower()
    assert all(word in cookie for word in (f"t3d-8700={TOKEN}", "httponly", "samesite=strict", "path=/"))
    assert client_of(root).get("/api/session", headers=COOKIE).json()["may_control"]
    assert "set-cookie" not in client_of(root).get("/?token=wrong").headers


def test_on_another_address_even_reading_needs_the_token(root: Path) -> None:
    client = client_of(root, "0.0.0.0")
    for path in ("/", "/api/runs", "/api/runs/run", "/static/plotly.min.js", "/api/live", "/nothing"):
        assert client.get(path).status_code == 401, path
        assert client.get(path, headers={"host": "evil.example", **BEARER}).status_code == 400, path
        for host in ("127.0.0.1:8700", "192.168.0.5:8700"):
            status = client.get(path, headers={"host": host, **BEARER}).status_code
            assert status == (404 if path == "/nothing" else 200), path


METHODS = ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "CONNECT", "BREW"]


PATHS = ["/", "/api/runs", "/api/runs/run", "/api/runs/run/notes", "/api/runs/run/control", "/api/live"]


def test_other_methods_are_refused(server: Access, root: Path) -> None:
    before = everything_in(root)
    token = {"authorization": f"Bearer {server.token}"}
    for method, path in product(METHODS, PATHS):
        if (method, path.rpartition("/")[2]) in (("PUT", "notes"), ("POST", "control")):
            continue
        answer = raw(server, method, path, b"", **token)
        assert 400 <= answer.status < 500, (method, path, answer)
        assert raw(server, method, path).status in (400, 401)
    assert everything_in(root) == before


DEEP = "../" * 12
TRAVERSALS = [
    *("../secret.txt", "..", ".", "../../outside/secret.txt", f"{DEEP}etc/passwd", "/etc/passwd", "//etc/passwd"),
    *("%2e%2e/secret.txt", "%2e%2e%2fsecret.txt", "..%2fsecret.txt", "..%2f..%2foutside%2fsecret.txt"),
    *(
        "%252e%252e%252fsecret.txt",
        "..%5csecret.txt",
        "..\\secret.txt",
        "%c0%ae%c0%ae/secret.txt",
        "..%c0%afsecret.txt",
    ),
    *(
        "....//secret.txt",
        "..;/secret.txt",
        "secret.txt",
        "secret.txt%00",
        "run%00.mp4",
        "run/../../outside/secret.txt",
    ),
    *("link", "link/video.mp4", "run/../secret.txt", "%2fetc%2fpasswd", "file:///etc/passwd", "~/.ssh/id_rsa"),
    *(
        "run/..%2f..%2f..%2foutside%2fsecret.txt",
        "%e2%80%a5/secret.txt",
        "%ff%fe",
        "C:%5csecret.txt",
    ),
    "linked-events.jsonl",
]


def test_nothing_outside_the_folder_is_reached(server: Access, root: Path) -> None:
    before = everything_in(root)
    for text in TRAVERSALS:
        is_refused_everywhere(server, text)
        assert everything_in(root) == before, text


def is_refused_everywhere(server: Access, text: str) -> None:
    places = [f"/{text}", f"/static/{text}", f"/api/runs/{text}", f"/api/runs/{text}/series?metric=return"]
    places += [f"/api/runs/{text}/videos/video.mp4", f"/api/runs/run/videos/{text}", f"/api/runs/{text}/config"]
    places += [
        f"/api/runs/run/config?against={text}",
        f"/api/compare?metric=return&run={text}",
        f"/api/live?run={text}",
    ]
    places += [f"/api/runs/{text}/steps"]
    for place in places:
        answer = raw(server, "GET", place.replace(" ", "%20"))
        assert 400 <= answer.status < 500 or place.startswith("/api/runs/run/config?against=run"), (place, answer)
        assert SECRET.encode() not in answer.body and b"root:" not in answer.body
    for method, end, body in (("PUT", "notes", NOTES), ("POST", "control", {"action": "stop"})):
        token = {"authorization": f"Bearer {server.token}", "content_type": "application/json"}
        answer = raw(server, method, f"/api/runs/{text}/{end}", json.dumps(body).encode(), **token)
        assert 400 <= answer.status < 500, (text, answer)


def test_links_in_a_folder_are_not_followed(root: Path) -> None:
    client = client_of(root)
    listed = client.get("/api/runs")
    assert [one["name"] for one in listed.json()["runs"]] == ["linked-config.toml", "linked-journal.jsonl", "run"]
    for name in ("run", "linked-config.toml", "linked-journal.jsonl", "linked-events.jsonl", "link"):
        for end in ("", "/config", "/steps", "/series?metric=return", "/videos/video.mp4", "/videos/videos/secret.mp4"):
            answer = client.get(f"/api/runs/{name}{end}")
            assert answer.status_code < 500 and SECRET not in answer.text, (name, end)
    assert client.get("/api/runs/run").json()["videos"] == []
    assert SECRET not in listed.text


def test_writing_notes_replaces_a_link_and_never_writes_through_it(root: Path) -> None:
    target = root.parent / "outside" / "notes.json"
    before = target.read_bytes()
    assert client_of(root).put("/api/runs/run/notes", json=NOTES, headers=BEARER).status_code == 200
    assert target.read_bytes() == before and not (root / "run" / "notes.json").is_symlink()


NAMES = [
    "<script>alert(1)",
    "<svg onload=alert(1)>",
    '"><img src=x onerror=alert(1)>',
    "a'b",
    "a&b",
    "läuft",
    "a b",
    "%2e%2e",
    "a#b?c",
    "{{7*7}}",
]


def test_script_in_a_name_stays_text(tmp_path: Path) -> None:
    for name in NAMES:
        write_run(tmp_path / name, {0: [1.0]}, env="<script>alert(2)</script>")
    with served(tmp_path) as server:
        page = raw(server, "GET", "/").body
        assert b"<script>alert" not in page and b"onerror=alert(1)>" not in page and b"<svg" not in page
        for name in NAMES:
            address = f"/api/runs/{quote(name, safe='')}"
            for path in ("/api/runs", address, f"{address}/config", f"{address}/series?metric=return"):
                answer = raw(server, "GET", path)
                assert answer.status == 200 and answer.headers["content-type"] == "application/json", path
                assert answer.headers["x-content-type-options"] == "nosniff"
            assert json.loads(raw(server, "GET", address).body)["name"] == name
        assert {run["name"] for run in json.loads(raw(server, "GET", "/api/runs").body)["runs"]} == {*NAMES}
        missing = raw(server, "GET", "/api/runs/%3Cscript%3E")
        assert missing.status == 404 and b"<script>" not in missing.body


def test_every_answer_makes_browsers_strict(root: Path) -> None:
    client = client_of(root)
    for path in ("/", "/api/runs", "/api/runs/nobody", "/static/plotly.min.js", "/nothing"):
        for headers in ({}, {"host": "evil.example"}):
            answer = client.get(path, headers=headers)
            assert {*HEADERS} <= {*answer.headers.keys()}, path
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy and "http" not in policy and "*" not in policy
            assert "unsafe" not in policy and "script-src 'self';" in policy
            assert "access-control-allow-origin" not in answer.headers


BODIES = {
    "a limit and one": b" " * (2**16 + 1),
    "not JSON": b"{",
    "deep": b"[" * 60_000,
    "not text": b"\xff\xfe",
    "empty": b"",
    "a number": b"5",
    "NaN": b"NaN",
}


def test_bodies_that_are_not_requests_are_refused(root: Path) -> None:
    client, before = client_of(root), everything_in(root)
    headers = {**BEARER, "content-type": "application/json"}
    for name, body in BODIES.items():
        assert 400 <= client.put("/api/runs/run/notes", content=body, headers=headers).status_code < 500, name
        assert 400 <= client.post("/api/runs/run/control", content=body, headers=headers).status_code < 500, name
    assert everything_in(root) == before


def test_bodies_that_forms_can_send_are_refused(root: Path) -> None:
    client = client_of(root)
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        headers = {**COOKIE, **OURS, "content-type": kind}
        assert client.put("/api/runs/run/notes", content=json.dumps(NOTES), headers=headers).status_code == 415, kind


@pytest.mark.parametrize("chunked", [False, True], ids=["with its length", "in chunks"])
def test_a_hundred_megabytes_are_not_taken_in(server: Access, root: Path, chunked: bool) -> None:
    before, memory = everything_in(root), psutil.Process().memory_info().rss
    length = "transfer-encoding: chunked" if chunked else f"content-length: {100 * 2**20}"
    head = (
        f"PUT /api/runs/run/notes HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {server.token}\r\n{length}\r\n"
    )
    piece = b"x" * 2**20
    sent = 0
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(f"{head}content-type: application/json\r\n\r\n".encode())
        try:
            for _ in range(100):
                connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
                sent += len(piece)
        except OSError:
            pass
        answer = b""
        with suppress(OSError):  # it was closed before everything was sent
            answer = connection.recv(4096)
    assert sent < 100 * 2**20
    assert not answer or answer.startswith(b"HTTP/1.1 413")
    assert psutil.Process().memory_info().rss - memory < 50 * 2**20
    assert raw(server, "GET", "/api/runs").status == 200
    assert everything_in(root) == before


def test_the_answer_to_a_body_that_is_too_long_arrives(server: Access) -> None:
    """Though the client reads it only when everything is sent, as most do."""
    for size, chunked, status in product([2**16 + 1, 2**19, 2**20], [False, True], [401, 413]):
        answer = answer_to_a_body(server, size, chunked, "right" if status == 413 else "")
        assert answer.startswith(b"HTTP/1.1 %d" % status), (size, chunked)


def answer_to_a_body(server: Access, size: int, chunked: bool, token: str) -> bytes:
    bearer = f"authorization: Bearer {server.token}\r\n" if token else ""
    length = "transfer-encoding: chunked" if chunked else f"content-length: {size}"
    head = f"PUT /api/runs/run/notes HTTP/1.1\r\nhost: 127.0.0.1\r\n{bearer}{length}\r\n"
    body = b"%x\r\n%s\r\n0\r\n\r\n" % (size, b"x" * size) if chunked else b"x" * size
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(f"{head}content-type: application/json\r\n\r\n".encode())
        time.sleep(0.05)  # in which a server that does not read on answers and closes
        for start in range(0, len(body), 2**14):
            connection.sendall(body[start : start + 2**14])
        time.sleep(0.05)
        return connection.recv(4096)


def test_two_hundred_sockets_do_not_keep_others_out(server: Access) -> None:
    with ExitStack() as opened:
        for place in range(200):
            connection = opened.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=20))
            if place % 4 == 1:
                connection.sendall(b"GET /api/live?run=run HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            if place % 4 == 2:
                connection.sendall(b"GET /api/runs HTTP/1.1\r\nhost: 127")  # and never more
            if place % 4 == 3:
                connection.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03junk\r\n\r\n")
        started = time.monotonic()
        answers = [raw(server, "GET", "/api/runs").status for _ in range(5)]
        assert answers == [200] * 5 and time.monotonic() - started < 19
    assert raw(server, "GET", "/api/session").status == 200


def test_a_run_that_is_not_alive_cannot_be_controlled(root: Path) -> None:
    answer = client_of(root).post("/api/runs/run/control", json={"action": "stop"}, headers=BEARER)
    assert answer.status_code == 409 and not (root / "run" / CONTROL).exists()


@pytest.mark.parametrize("action", ["rm", "", None, 5, ["stop"], {"a": 1}, "STOP", "pause; rm"])
def test_only_four_things_can_be_asked(tmp_path: Path, action: Any) -> None:
    path = write_run(tmp_path / "run", {0: [1.0]})
    start = to_line(session(path, Config(), os.getpid()))
    start = start.replace('"time": 1000000000.0', f'"time": {time.time()}')
    (path / "events.jsonl").write_text(start + "\n")
    (path / "journal.jsonl").write_text(start + "\n")
    client = client_of(tmp_path)
    assert client.get("/api/runs/run").json()["status"] == "running"
    answer = client.post("/api/runs/run/control", json={"action": action}, headers=BEARER)
    assert answer.status_code == 400 and not (path / CONTROL).exists()
    assert client.post("/api/runs/run/control", json={"action": "stop"}, headers=BEARER).status_code == 202
    assert client.get("/api/runs/run").json()["control"] == {"pause": False, "stop": True, "save": 0}
