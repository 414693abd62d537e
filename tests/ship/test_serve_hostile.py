"""R14: whatever is sent to `t3d serve`, it says why it refuses, goes on, and every action is finite and in bounds."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from serve_bad import BAD
from serve_client import AS_BYTES, AS_JSON, GOOD, SIZE, WS, client_of, is_good
from shipped_policies import of_vectors


def test_there_are_forty_of_them() -> None:
    assert len(BAD) >= 40


@pytest.fixture(scope="module")
def client() -> TestClient:
    return client_of()


def is_sentence(text: Any) -> bool:
    return isinstance(text, str) and 10 < len(text) < 300 and "Traceback" not in text and "Error" not in text


@pytest.mark.parametrize("name", BAD)
def test_bad_requests_get_the_reason(client: TestClient, name: str) -> None:
    kind, body = BAD[name]
    answer = client.post("/act", content=body, headers=kind)
    assert 400 <= answer.status_code < 500 and is_sentence(answer.json()["error"]), answer.text
    assert client.post("/act", json=GOOD).status_code == 200


@pytest.mark.parametrize("name", BAD)
def test_bad_messages_of_a_websocket_get_the_reason_and_it_stays_open(client: TestClient, name: str) -> None:
    kind, body = BAD[name]
    with client.websocket_connect(WS) as opened:
        if kind is AS_JSON:
            opened.send_text(body.decode(errors="replace"))
        else:
            opened.send_bytes(body)
        answer = opened.receive_json()
        assert 400 <= answer["status"] < 500 and is_sentence(answer["error"])
        opened.send_json(GOOD)
        assert is_good(opened.receive_json()["action"], of_vectors())


SAID = {
    "NaN": "observation[1] is nan; every number must be finite",
    "too short": "observation has shape (4,) instead of (5,)",
    "text": "not numbers",
    "a huge batch": "at most 256 observations, and this one has 300",
    "deeper JSON": "nested too deeply",
    "no JSON": "not JSON",
    "another field": "unknown field 'obs'",
    "a bad row in a batch": "in row 2 of the batch",
}


@pytest.mark.parametrize("name", SAID)
def test_the_reason_is_the_right_one(client: TestClient, name: str) -> None:
    assert SAID[name] in client.post("/act", content=BAD[name][1], headers=AS_JSON).json()["error"]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "json"])
def test_other_content_types_are_refused(client: TestClient, kind: str) -> None:
    answer = client.post("/act", content=json.dumps(GOOD), headers={"content-type": kind})
    assert answer.status_code == 415 and "application/json" in answer.json()["error"]


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW", "HEAD"])
@pytest.mark.parametrize("path", ["/act", "/info", "/health", "/nothing", "/act/", "//act", "/../etc/passwd", "/ws"])
def test_other_paths_and_methods_are_refused(client: TestClient, method: str, path: str) -> None:
    if method in ("GET", "HEAD") and path in ("/info", "/health"):
        return
    answer = client.request(method, f"http://127.0.0.1:8701{path}")
    assert answer.status_code in (404, 405)
    assert method == "HEAD" or "POST /act" in answer.json()["error"]


NUMBERS = st.floats(allow_nan=True) | st.integers() | st.none() | st.text(max_size=3) | st.booleans()
NESTED = st.recursive(
    NUMBERS,
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.sampled_from(["observation", "reset", "x"]), inner),
    max_leaves=30,
)
LIKELY = st.fixed_dictionaries({"observation": st.lists(st.floats() | NUMBERS, min_size=SIZE, max_size=SIZE)})
ROWS = st.fixed_dictionaries({"observation": st.lists(st.lists(st.floats(-1e12, 1e12), min_size=5, max_size=5))})


def refused_or_good(client: TestClient, body: bytes, kind: dict[str, str]) -> None:
    answer = client.post("/act", content=body, headers=kind)
    if answer.status_code != 200:
        assert 400 <= answer.status_code < 500 and is_sentence(answer.json()["error"]), (body, answer.text)
    elif kind is AS_JSON:
        assert is_good(answer.json()["action"], of_vectors())
    else:
        assert is_good(np.frombuffer(answer.content, "<f4"), of_vectors())


@given(NESTED | LIKELY | ROWS)
@settings(max_examples=200, deadline=None)
def test_any_json_is_refused_or_gets_a_good_action(value: Any) -> None:
    refused_or_good(CLIENT, json.dumps(value).encode(), AS_JSON)


@given(st.binary(max_size=200) | st.binary(min_size=4 * SIZE, max_size=4 * SIZE))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_refused_or_get_a_good_action(content: bytes) -> None:
    for kind in (AS_JSON, AS_BYTES):
        refused_or_good(CLIENT, content, kind)


CLIENT = client_of()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_thousand_random_requests_are_refused_or_good() -> None:
    rng = np.random.default_rng(0)
    good = json.dumps(GOOD).encode()
    for trial in range(10_000):
        if trial % 2:  # bytes of every length
            refused_or_good(CLIENT, rng.bytes(int(rng.integers(0, 81))), AS_BYTES)
        else:  # a good request with some bytes changed
            content = bytearray(good)
            for place in rng.integers(0, len(good), int(rng.integers(1, 4))):
                content[place] = int(rng.integers(0, 256))
            refused_or_good(CLIENT, bytes(content), AS_JSON)
