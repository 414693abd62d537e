"""Rings, policies and messages between processes: none torn, lost or out of order."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import helpers
from t3d.actors.shared_memory import Channel, Ring, SharedState, Torn
from t3d.policy.acting import PolicySnapshot, Scaling


def told(rows: Any, about: Any) -> list[Any]:
    pairs = zip(rows.tolist(), about, strict=True)
    return [(*row, int(tag["updates"]), int(tag["member"]), tag["origin"].tolist()) for row, tag in pairs]


@given(st.lists(st.integers(0, 5), max_size=60), st.integers(5, 12))
def test_a_ring_is_a_queue(sizes: list[int], capacity: int) -> None:
    ring, sent, received = Ring(2, "float32", capacity), [], []
    for number, size in enumerate(sizes):
        if ring.room < size or number % 3 == 2:
            rows, about = ring.receive()
            received += [
                (*row, *tag.item()[1:3], tag["origin"].tolist()) for row, tag in zip(rows.tolist(), about, strict=True)
            ]
        if ring.room >= size:
            block = [(float(number), float(row)) for row in range(size)]
            origins = np.array([(number, row, 2, 1) for row in range(size)], np.int32).reshape(-1, 4)
            ring.send(np.array(block, np.float32).reshape(-1, 2), origins, member=number % 4, updates=number)
            sent += [(*row, number, number % 4, [number, int(row[1]), 2, 1]) for row in block]
        assert ring.room + ring.waiting == capacity
    rows, about = ring.receive()
    received += [
        (*row, *tag.item()[1:3], tag["origin"].tolist()) for row, tag in zip(rows.tolist(), about, strict=True)
    ]
    assert received == sent
    ring.close()


def test_a_row_that_does_not_belong_is_seen() -> None:
    ring = Ring(2, "float32", 8)
    ring.send(np.zeros((3, 2), np.float32), np.zeros((3, 4), np.int32), 0, 0)
    ring.arrays["about"]["sequence"][1] = 77
    with pytest.raises(Torn, match="rows 0 to 2"):
        ring.receive()
    ring.close()


READER = """
import sys, numpy as np
from t3d.actors.shared_memory import Policies, SharedState
from t3d.config.networks import architecture
state_fd, policies_fd = map(int, sys.argv[1:])
state = SharedState(3, 1, 1, state_fd)
state.policies = Policies(3, architecture("mlp", (4, 300, 2), "relu"), 2, policies_fd)
seen = set()
print("ready", flush=True)
while (limit := state.limit) < 10**9:
    one = state.newest(1)
    values = {value for part in (one.flat, *one.scaling) for value in np.unique(part).tolist()}
    assert values == {float(one.updates)}, f"torn: {values} in policy {one.updates}"
    assert one.updates >= limit, f"policy {one.updates} is older than the limit {limit} that goes with it"
    seen.add(one.updates)
print(len(seen))
"""


def test_a_policy_is_never_read_half_written() -> None:
    """The learner publishes as fast as it can, another process reads as fast as it can."""
    network = helpers.mlp(4, 300, 2)
    shared_state = SharedState(3, 1, 1)

    def snapshot(number: int) -> PolicySnapshot:
        scaling = np.full((3, 4), number, np.float32)
        return PolicySnapshot(
            number, network, np.full((3, network.size), number, np.float32), Scaling(scaling, scaling)
        )

    shared_state.publish(snapshot(1), 1)
    fds = [shared_state.fd, shared_state.policies.fd]
    command = [sys.executable, "-c", READER, *map(str, fds)]
    with subprocess.Popen(command, pass_fds=fds, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None and reader.stdout.readline() == "ready\n"
        number, until = 1, time.monotonic() + 2
        while time.monotonic() < until:
            number += 1
            shared_state.publish(snapshot(number), number)
        shared_state.publish(snapshot(number + 1), 10**9)
        out, _ = reader.communicate(timeout=20)
    assert reader.returncode == 0 and int(out) > 10, "so many policies were read, each whole"


def test_messages_come_whole_and_in_order() -> None:
    ours, theirs = socket.socketpair()
    channel, other = Channel(ours), Channel(theirs)
    assert channel.receive() == []
    for number in range(100):
        other.send(number=number, text="x" * 300)
    assert [message["number"] for message in channel.receive()] == list(range(100))
    theirs.sendall(b'{"half": ')
    assert channel.receive() == []
    theirs.sendall(b"1}\n")
    assert channel.receive() == [{"half": 1}]
    other.send(last="words")
    channel.send(never="read")
    other.close()
    assert channel.receive() == [{"last": "words"}], "all that was said before the end, and no error"
    channel.close()
