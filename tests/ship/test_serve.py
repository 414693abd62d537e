"""`t3d serve`: it answers what the policy answers, and says what it is."""

from __future__ import annotations

import json
import threading
import time
import warnings
from typing import Any

import numpy as np
import pytest
from starlette.websockets import WebSocketDisconnect

from serve_client import AS_BYTES, AS_JSON, GOOD, SIZE, WS, client_of, of_parts, pictures
from shipped_policies import IMAGES, bounded, made, of_images, of_vectors, vector_spec
from t3d.config.networks import actor_architecture
from t3d.policy.acting import SavedPolicy
from t3d.policy.spec import Image, Spec
from t3d.ship import export
from t3d.ship.serve import Application
from t3d.ship.serve_messages import LEAST_BYTES, MOST_BYTES, Messages

ABOUT_TRAINING = {"kind": "best", "seed": 3, "step": 12_000, "mean_return": -1.5, "t3d": "0.4.0"}
TOKEN = "a-token-of-twenty-chars"
BEARER = {"authorization": f"Bearer {TOKEN}"}


def observed(policy: SavedPolicy, count: int) -> Any:
    """Observations as R18 compares them, extremes included."""
    return export.observations(policy.spec, policy.snapshot.scaling, count, np.random.default_rng(0))


@pytest.mark.parametrize("scaled", [False, True])
def test_ten_thousand_actions_are_those_of_the_policy_to_the_last_bit(scaled: bool) -> None:
    policy = of_vectors(scaled=scaled)
    client, seen = client_of(policy), observed(policy, 10_000)
    for rows in seen.reshape(50, 200, SIZE):
        wanted = policy(rows)
        answer = client.post("/act", content=rows.astype("<f4").tobytes(), headers=AS_BYTES)
        assert (np.frombuffer(answer.content, "<f4").reshape(wanted.shape) == wanted).all()
        said = client.post("/act", json={"observation": rows.tolist()}).json()["action"]
        assert (np.array(said, np.float32) == wanted).all()


def test_single_observations_over_http_and_websocket() -> None:
    policy = of_vectors()
    client = client_of(policy)
    with client.websocket_connect(WS) as socket:
        for row in observed(policy, 50):
            wanted = policy(row)
            over_http = client.post("/act", json={"observation": row.tolist()})
            assert over_http.json() == {"action": wanted.tolist()}
            socket.send_json({"observation": row.tolist()})
            assert socket.receive_json() == over_http.json()
            socket.send_bytes(row.astype("<f4").tobytes())
            assert socket.receive_bytes() == wanted.astype("<f4").tobytes()


def test_parts_of_an_observation_are_named_in_json_and_in_order_in_bytes() -> None:
    policy = of_parts()
    client = client_of(policy)
    arm, choice, speed = np.array([[0.1, 0.2], [0.3, 0.4]]), 2, np.array([1.0, 2.0, 3.0])
    wanted, gears = policy({"arm": (arm, choice), "speed": speed, "gears": (1, 5)}), [1, 5]
    seen = {"arm": [arm.tolist(), choice], "speed": speed.tolist(), "gears": gears}
    assert client.post("/act", json={"observation": seen}).json() == {"action": wanted.tolist()}
    seen = {"arm": [2 * [arm.tolist()], 2 * [choice]], "speed": 2 * [speed.tolist()], "gears": [gears, [0, 6]]}
    both = client.post("/act", json={"observation": seen}).json()["action"]
    assert np.allclose(both[0], wanted, atol=1e-6) and not np.allclose(both[1], wanted, atol=1e-6)
    flat = np.concatenate([arm.ravel(), [choice], speed, gears]).astype("<f4").tobytes()
    answer = client.post("/act", content=2 * flat, headers=AS_BYTES)
    assert np.allclose(np.frombuffer(answer.content, "<f4").reshape(2, -1), wanted, atol=1e-6)
    names = [array["name"] for array in client.get("/info").json()["observation"]["arrays"]]
    assert len(names) == 4 and len(flat) == client.get("/info").json()["observation"]["bytes"]


def test_images_are_bytes_or_whole_numbers() -> None:
    policy = of_images(stack=1)
    client, seen = client_of(policy), pictures(policy, 2, np.random.default_rng(0))
    wanted = policy(seen)
    listed = {name: array.tolist() for name, array in seen.items()}
    assert client.post("/act", json={"observation": listed}).json() == {"action": wanted.tolist()}
    content = b"".join(
        seen["speed"][row].tobytes() + seen["wide"][row].tobytes() + seen["near"][row].tobytes() for row in range(2)
    )
    assert client.post("/act", content=content, headers=AS_BYTES).content == wanted.astype("<f4").tobytes()
    for wrong in (256, -1, 0.5):
        listed["near"][0][0][0][0] = wrong
        answer = client.post("/act", json={"observation": listed})
        assert answer.status_code == 422 and "from 0 to 255" in answer.json()["error"]


def test_images_of_floats_are_numbers_from_0_to_1() -> None:
    image = Image(("camera",), (1, 32, 32), 0, 32 * 32, is_float=True)
    policy = made(
        actor_architecture(spec := bounded(Spec((), (2,), -np.ones(2), np.ones(2), images=(image,))), IMAGES), spec
    )
    client, seen = client_of(policy), np.random.default_rng(0).random((2, 32, 32, 1), np.float32)
    wanted = policy({"camera": seen})
    assert client.post("/act", json={"observation": {"camera": seen.tolist()}}).json() == {"action": wanted.tolist()}
    answer = client.post("/act", content=seen.astype("<f4").tobytes(), headers=AS_BYTES)
    assert answer.content == wanted.astype("<f4").tobytes()
    listed = seen.tolist()
    for wrong in (1e300, -1e300, 255.0):
        listed[0][0][0][0] = wrong
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            answer = client.post("/act", json={"observation": {"camera": listed}})
        assert answer.status_code == 422 and "camera" in answer.json()["error"]


def test_a_websocket_starts_episodes_of_a_batch_one_by_one() -> None:
    policy = of_vectors(spec=vector_spec()._replace(max_action_change=0.05))
    controller, seen = policy.controller(), np.random.default_rng(0).normal(size=(4, 2, SIZE)).round(2)
    with client_of(policy).websocket_connect(WS) as socket:
        for rows, reset in zip(seen, ([True, True], [False, False], [False, True], False), strict=True):
            socket.send_json({"observation": rows.tolist(), "reset": reset})
            assert socket.receive_json() == {"action": controller(rows, reset or None).tolist()}
        for wrong in ([True], [True] * 3, []):
            socket.send_json({"observation": seen[0].tolist(), "reset": wrong})
            assert f"reset has {len(wrong)} values, and there are 2" in socket.receive_json()["error"]
        socket.send_json({"reset": [True, False]})
        assert "needs the observations too" in socket.receive_json()["error"]


def test_requests_to_act_have_no_episode_to_start() -> None:
    for reset in (True, [True], [False]):
        answer = client_of().post("/act", json={**GOOD, "reset": reset})
        assert answer.status_code == 400 and "the WebSocket /ws" in answer.json()["error"]
    assert client_of().post("/act", json={**GOOD, "reset": False}).status_code == 200


def test_each_websocket_has_an_episode_of_stacked_frames() -> None:
    policy = of_images(stack=3)
    client, rng = client_of(policy), np.random.default_rng(1)
    assert client.post("/act", json=GOOD).status_code == 409
    frames = [{name: array[0] for name, array in pictures(policy, 1, rng).items()} for _ in range(4)]
    sent = [{"observation": {name: array.tolist() for name, array in frame.items()}} for frame in frames]
    with client.websocket_connect(WS) as first, client.websocket_connect(WS) as second:

        def asked(socket: Any, message: dict[str, Any]) -> Any:
            socket.send_json(message)
            return socket.receive_json()

        of_first = [asked(first, sent[place])["action"] for place in (0, 1)]
        of_second = asked(second, sent[1])["action"]
        after_reset = asked(first, {**sent[2], "reset": True})["action"]
        assert asked(second, {"reset": True}) == {"reset": True}
        again = asked(second, sent[3])["action"]
    assert of_first == [policy(frames[place]).tolist() for place in (0, 1)]
    for action, frame in ((of_second, 1), (after_reset, 2), (again, 3)):
        policy.reset()
        assert action == policy(frames[frame]).tolist()


def test_info_says_what_the_policy_is() -> None:
    policy = of_vectors()
    info = client_of(policy, batch=7, seconds=2.5).get("/info").json()
    assert info["policy"] == repr(policy) and info["environment"] == {"id": "Toy-v0"}
    assert info["observation"]["bytes"] == 4 * SIZE and info["observation"]["arrays"][0]["shape"] == [SIZE]
    action = info["action"]
    assert (action["shape"], action["type"], action["bytes"]) == ([3], "float32", 12)
    assert action["low"] == policy.spec.action_low.tolist() and action["high"] == policy.spec.action_high.tolist()
    assert info["training"] == {
        "kind": "best",
        "seed": 3,
        "step": 12_000,
        "updates": 7,
        "mean_return": -1.5,
        "t3d": "0.4.0",
    }
    assert info["hashes"]["tensors_sha256"] == policy.sha256
    assert info["limits"] == {"batch": 7, "bytes": LEAST_BYTES, "seconds": 2.5, "queue": 64, "connections": 128}


def test_a_request_may_be_as_long_as_a_full_batch_in_json() -> None:
    row = [-1.2345678901234567e-300] * SIZE
    for most in (1, 256, 4000):
        messages = Messages(of_vectors().spec, most)
        assert len(json.dumps({"observation": [row] * most})) <= messages.most_bytes <= MOST_BYTES
    before = [[-1.2345678901234567e-300] * 20] * 256
    content = json.dumps({"observation": [row[:3]] * 256, "previous_action": before})
    spec = vector_spec(3, 20)._replace(max_action_change=0.1)
    assert LEAST_BYTES < len(content) <= Messages(spec, 256).most_bytes
    assert client_of(of_vectors(spec=spec)).post("/act", content=content, headers=AS_JSON).status_code == 200


def test_metrics_count_requests_seconds_and_rows() -> None:
    client = client_of()
    for rows in (1, 1, 3):
        client.post("/act", content=np.zeros((rows, SIZE), "<f4").tobytes(), headers=AS_BYTES)
    client.post("/act", content=b"{", headers=AS_JSON)
    client.get("/nowhere")
    with client.websocket_connect(WS) as socket:
        socket.send_text("{")
        assert socket.receive_json()["status"] == 400
        text = client.get("/metrics").text
    figures = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert figures['t3d_requests_total{path="/act",status="200"}'] == "3.0"
    assert figures['t3d_requests_total{path="/act",status="400"}'] == "1.0"
    assert figures['t3d_requests_total{path="/ws",status="400"}'] == "1.0"
    assert figures['t3d_requests_total{path="other",status="404"}'] == "1.0"
    bounds = ("1.0", "2.0", "4.0", "+Inf")
    assert [figures[f't3d_act_rows_bucket{{le="{bound}"}}'] for bound in bounds] == ["2.0", "2.0", "3.0", "3.0"]
    assert (figures["t3d_act_rows_sum"], figures["t3d_act_seconds_count"]) == ("5.0", "5.0")
    assert (figures["t3d_queue"], figures["t3d_websockets"]) == ("0.0", "1.0")
    assert float(figures["process_resident_memory_bytes"]) > 2**20
    assert all(line.startswith("#") or len(line.rsplit(" ", 1)) == 2 for line in text.splitlines())


PATHS = ["/act", "/info", "/health", "/metrics", "/nothing"]


@pytest.mark.parametrize("path", PATHS)
def test_on_another_address_everything_needs_the_token(path: str) -> None:
    client = client_of(host="0.0.0.0", token=TOKEN)
    for wrong in ({}, {"authorization": f"Bearer {TOKEN}x"}, {"authorization": f"Basic {TOKEN}"}, {"cookie": TOKEN}):
        assert client.request("POST" if path == "/act" else "GET", path, headers=wrong).status_code == 401
    assert client.get(f"{path}?token={TOKEN}").status_code == 401
    assert client.get(path, headers={"host": "192.168.0.5:8701"}).status_code == 401


@pytest.mark.parametrize("listens_on", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize("host", ["policy:8701", "box.lab.example", "192.168.0.5:8701", "127.0.0.1"])
def test_with_the_token_any_name_reaches_the_server(listens_on: str, host: str) -> None:
    """Names of containers and domains, proxies that keep Host, and pages behind a proxy with TLS."""
    client = client_of(host=listens_on, token=TOKEN)
    for headers in ({"host": host}, {"host": host, "origin": f"https://{host}"}):
        assert client.post("/act", json=GOOD, headers={**headers, **BEARER}).status_code == 200
        assert client.post("/act", json=GOOD, headers=headers).status_code == 401
        with client.websocket_connect(WS, headers={**headers, **BEARER}) as socket:
            socket.send_json(GOOD)
            assert "action" in socket.receive_json()


def test_websockets_need_the_token_and_our_origin_too() -> None:
    refused = [
        (client_of(host="0.0.0.0", token=TOKEN), {}, 401),
        (client_of(), {"origin": "http://evil.example"}, 403),
        (client_of(), {"host": "evil.example"}, 400),
    ]
    for client, headers, status in refused:
        with pytest.raises(Exception) as caught, client.websocket_connect(WS, headers=headers):
            pass
        assert getattr(caught.value, "status_code", None) == status
    with client_of(host="0.0.0.0", token=TOKEN).websocket_connect(WS, headers=BEARER) as socket:
        socket.send_json(GOOD)
        assert "action" in socket.receive_json()


def test_pages_of_other_sites_reach_nothing() -> None:
    client = client_of()
    for headers in ({"origin": "http://evil.example"}, {"origin": "null"}, {"origin": "http://localhost:8701"}):
        assert client.post("/act", json=GOOD, headers=headers).status_code == 403
    for host in ("evil.example", "127.0.0.1.evil.example", "192.168.0.5", ""):
        assert client.post("/act", json=GOOD, headers={"host": host}).status_code == 400
    assert client.post("/act", json=GOOD, headers={"origin": "http://127.0.0.1:8701"}).status_code == 200


def test_a_bug_is_answered_and_shown_and_the_server_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = client_of()

    def broken(self: Application, *_: Any) -> Any:
        raise ZeroDivisionError("a bug")

    with monkeypatch.context() as patched:
        patched.setattr(Application, "_act", broken)
        assert client.post("/act", json=GOOD).status_code == 500
        with client.websocket_connect(WS) as socket:
            for _ in range(2):
                socket.send_json(GOOD)
                assert socket.receive_json()["status"] == 500
    assert capsys.readouterr().err.count("ZeroDivisionError: a bug") == 3
    assert client.post("/act", json=GOOD).status_code == 200


def test_a_policy_that_limits_changes_takes_the_previous_action_and_a_websocket_keeps_it() -> None:
    policy = of_vectors(spec=vector_spec()._replace(max_action_change=0.05))
    client, row = client_of(policy), GOOD["observation"]
    previous = policy.initial_action
    with client.websocket_connect(WS) as socket:
        for _ in range(3):
            wanted = policy(np.array(row), previous)
            answer = client.post("/act", json={"observation": row, "previous_action": previous.tolist()})
            assert answer.json() == {"action": wanted.tolist()}
            socket.send_json({"observation": row})
            assert socket.receive_json() == answer.json()
            previous = wanted
        high = policy.spec.action_high.tolist()
        socket.send_json({"observation": row, "reset": True, "previous_action": high})
        assert socket.receive_json() == {"action": policy(np.array(row), high).tolist()}
        socket.send_json({"observation": row, "previous_action": high})
        assert 'only with "reset": true' in socket.receive_json()["error"]
    assert "takes previous_action too" in client.post("/act", json=GOOD).json()["error"]
    wrongs: list[Any] = [[1.0], [float("nan")] * 3, "text", {}, [[1], [1, 2]]]
    for wrong in wrongs:
        body = json.dumps({"observation": row, "previous_action": wrong})
        answer = client.post("/act", content=body, headers=AS_JSON)
        assert answer.status_code == 422 and "previous_action" in answer.json()["error"]
    with client.websocket_connect(WS) as socket:
        for wrong in wrongs:
            for also in ({"observation": row}, {}):
                socket.send_text(json.dumps({"reset": True, "previous_action": wrong, **also}))
                refused = socket.receive_json()
                assert refused["status"] == 422 and "previous_action" in refused["error"]
                socket.send_json(GOOD)
                assert "action" in socket.receive_json(), "what was refused is not kept"
    with_limit = (
        client.get("/info").json()["action"]["max_change"],
        client_of().get("/info").json()["action"]["max_change"],
    )
    assert with_limit == (0.05, 0.0)
    answer = client_of().post("/act", json={"observation": row, "previous_action": previous.tolist()})
    assert answer.status_code == 422


def test_a_websocket_whose_message_takes_too_long_is_closed_because_its_episode_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the next message would be answered while the worker is still at the one before."""
    policy, began = of_vectors(), threading.Event()

    def slow(*_: Any) -> Any:
        began.set()
        time.sleep(0.5)

    monkeypatch.setattr(policy, "actions", slow)
    client, large = client_of(policy, seconds=0.1), np.zeros((250, SIZE), "<f4").tobytes()
    with client.websocket_connect(WS) as socket:
        socket.send_bytes(large)
        assert "the policy did not answer within 0.1 s" in socket.receive_json()["error"] and began.is_set()
        with pytest.raises(WebSocketDisconnect) as caught:
            socket.receive_json()
    assert caught.value.code == 1013
