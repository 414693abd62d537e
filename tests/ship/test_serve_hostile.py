"""R14: whatever is sent to `t3d serve`, it says why it refuses, goes on, and every action is finite and in bounds."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from serve_bad import BAD, BAD_PREVIOUS
from serve_client import AS_BYTES, AS_JSON, GOOD, GOOD_LIMITED, LIMITED, SIZE, WS, client_of, is_good
from shipped_policies import of_vectors
from t3d.policy.acting import SavedPolicy


@pytest.fixture(scope="module")
def client() -> TestClient:
    return client_of()


FREE, SMOOTH = of_vectors(), of_vectors(spec=LIMITED)
EACH = pytest.mark.parametrize(("policy", "good"), [(FREE, GOOD), (SMOOTH, GOOD_LIMITED)], ids=["free", "limited"])


def is_sentence(text: Any) -> bool:
    return isinstance(text, str) and 10 < len(text) < 300 and "Traceback" not in text and "Error" not in text


def with_previous(content: bytes) -> bytes:
    """The same request with a good previous action, where it has room for one."""
    return content.replace(b'{"observation"', b'{"previous_action": [0.1, 0.2, 0.3], "observation"', 1)


@EACH
def test_bad_requests_get_the_reason(policy: SavedPolicy, good: Any) -> None:
    client = client_of(policy)
    for name, (kind, body) in BAD.items():
        answer = client.post("/act", content=body if policy is FREE else with_previous(body), headers=kind)
        assert 400 <= answer.status_code < 500 and is_sentence(answer.json()["error"]), (name, answer.text)
        assert is_good(client.post("/act", json=good).json()["action"], policy), name


@EACH
def test_bad_messages_of_a_websocket_get_the_reason_and_it_stays_open(policy: SavedPolicy, good: Any) -> None:
    with client_of(policy).websocket_connect(WS) as opened:
        for name, (kind, body) in BAD.items():
            if kind is AS_JSON:
                opened.send_text(body.decode(errors="replace"))
            else:
                opened.send_bytes(body)
            answer = opened.receive_json()
            assert 400 <= answer["status"] < 500 and is_sentence(answer["error"]), (name, answer)
            opened.send_json({**good, "reset": True})
            assert is_good(opened.receive_json()["action"], policy), name


def test_bad_previous_actions_get_the_reason_and_are_not_kept() -> None:
    client = client_of(SMOOTH)
    for name, body in BAD_PREVIOUS.items():
        answer = client.post("/act", content=body, headers=AS_JSON)
        assert answer.status_code == 422 and answer.json()["error"].startswith("previous_action"), (name, answer.text)
        with client.websocket_connect(WS) as opened:
            for message in (body, body.replace(b"{", b'{"reset": true, ', 1)):
                opened.send_text(message.decode())
                refused = opened.receive_json()
                assert 400 <= refused["status"] < 500 and "previous" in refused["error"], (name, refused)
            opened.send_json({**GOOD_LIMITED, "reset": True})
            assert is_good(opened.receive_json()["action"], SMOOTH), name


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


def test_the_reason_is_the_right_one(client: TestClient) -> None:
    for name, sentence in SAID.items():
        assert sentence in client.post("/act", content=BAD[name][1], headers=AS_JSON).json()["error"], name


def test_other_content_types_are_refused(client: TestClient) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "json"):
        answer = client.post("/act", content=json.dumps(GOOD), headers={"content-type": kind})
        assert answer.status_code == 415 and "application/json" in answer.json()["error"], kind


METHODS = ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW", "HEAD"]
PATHS = ["/act", "/info", "/health", "/nothing", "/act/", "//act", "/../etc/passwd", "/ws"]


def test_other_paths_and_methods_are_refused(client: TestClient) -> None:
    for method, path in product(METHODS, PATHS):
        if method in ("GET", "HEAD") and path in ("/info", "/health"):
            continue
        answer = client.request(method, f"http://127.0.0.1:8701{path}")
        assert answer.status_code in (404, 405), (method, path)
        assert method == "HEAD" or "POST /act" in answer.json()["error"], (method, path)


NUMBERS = st.floats(allow_nan=True) | st.integers() | st.none() | st.text(max_size=3) | st.booleans()
FIELDS = ["observation", "previous_action", "reset", "x"]
NESTED = st.recursive(
    NUMBERS,
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.sampled_from(FIELDS), inner),
    max_leaves=30,
)


def vectors(size: int) -> st.SearchStrategy[Any]:
    """Vectors, often good ones, batches, and lists of several lengths."""
    near = st.lists(st.floats(-2, 2), min_size=size, max_size=size)
    ragged = st.lists(st.lists(st.floats(-2, 2), max_size=size), max_size=3)
    return near | st.lists(st.floats() | NUMBERS, min_size=size, max_size=size) | st.lists(near, max_size=3) | ragged


LIKELY = st.fixed_dictionaries(
    {"observation": vectors(SIZE)},
    optional={
        "previous_action": vectors(3) | NESTED,
        "reset": st.booleans() | st.lists(st.booleans(), max_size=3) | NUMBERS,
    },
)
STARTS = st.fixed_dictionaries(
    {"reset": st.just(value=True), "previous_action": vectors(3) | NESTED},
    optional={"observation": st.just(GOOD["observation"])},
)
ROWS = st.fixed_dictionaries({"observation": st.lists(st.lists(st.floats(-1e12, 1e12), min_size=5, max_size=5))})
CLIENTS = [(client_of(policy), policy) for policy in (FREE, SMOOTH)]


def rows_of(value: Any) -> int | None:
    """How many actions a request that gets them must get; None for a single one."""
    return len(value["observation"]) if np.ndim(value["observation"]) == 2 else None


def refused_or_good(body: bytes, kind: dict[str, str]) -> None:
    for client, policy in CLIENTS:
        answer = client.post("/act", content=body, headers=kind)
        if answer.status_code != 200:
            assert 400 <= answer.status_code < 500 and is_sentence(answer.json()["error"]), (body, answer.text)
        elif kind is AS_JSON:
            assert is_good(answer.json()["action"], policy, rows_of(json.loads(body)))
        else:
            actions = np.frombuffer(answer.content, "<f4").reshape(-1, policy.spec.action_size)
            assert is_good(actions, policy, len(body) // (4 * SIZE))


@given(NESTED | LIKELY | ROWS)
def test_any_json_is_refused_or_gets_a_good_action(value: Any) -> None:
    refused_or_good(json.dumps(value).encode(), AS_JSON)


@given(st.lists(STARTS | LIKELY | NESTED | ROWS, min_size=1, max_size=4))
def test_any_messages_of_a_websocket_are_refused_or_get_good_actions(values: list[Any]) -> None:
    """Also one after the other: what one leaves behind must not harm the next."""
    for client, policy in CLIENTS:
        with client.websocket_connect(WS) as opened:
            for value in [*values, {**GOOD, "reset": True}]:
                opened.send_text(json.dumps(value))
                answer = opened.receive_json()
                if "action" in answer:
                    assert is_good(answer["action"], policy, rows_of(value))
                elif "error" in answer:
                    assert 400 <= answer["status"] < 500 and is_sentence(answer["error"]), (values, answer)
                else:
                    assert answer == {"reset": True}
            assert "action" in answer


@given(st.binary(max_size=200) | st.binary(min_size=4 * SIZE, max_size=4 * SIZE))
def test_any_bytes_are_refused_or_get_a_good_action(content: bytes) -> None:
    for kind in (AS_JSON, AS_BYTES):
        refused_or_good(content, kind)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_thousand_random_requests_are_refused_or_good() -> None:
    rng = np.random.default_rng(0)
    good = json.dumps(GOOD_LIMITED).encode()
    for trial in range(10_000):
        if trial % 2:  # bytes of every length
            refused_or_good(rng.bytes(int(rng.integers(0, 81))), AS_BYTES)
        else:  # a good request with some bytes changed
            content = bytearray(good if trial % 4 else json.dumps(GOOD).encode())
            for place in rng.integers(0, len(content), int(rng.integers(1, 4))):
                content[place] = int(rng.integers(0, 256))
            refused_or_good(bytes(content), AS_JSON)
