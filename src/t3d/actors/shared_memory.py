"""What processes share: transitions on their way to the learner, the newest policy on its way back, JSON messages.

The memory is anonymous and passed on by descriptor: however the processes end, nothing is left behind. Each value has
one writer. Readers rely on stores becoming visible in program order, as x86-64 guarantees.
"""

from __future__ import annotations

import json
import mmap
import os
import select
import socket
import time
from contextlib import suppress
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3d.config.networks import sent_architecture
from t3d.policy.acting import PolicySnapshot, Scaling
from t3d.policy.architectures import Architecture
from t3d.types import Origins

CACHE_LINE = 64  # bytes; arrays do not share one, so that writers do not slow each other down
POLICY_SLOTS = 2
RANDOM = -1  # instead of a policy's number of updates: the action was random
ABOUT = np.dtype([("sequence", np.int64), ("updates", np.int64), ("member", np.int64), ("origin", np.int32, (4,))])
Fields = dict[str, tuple[Any, tuple[int, ...]]]  # name -> type and shape


class Torn(Exception):
    """The rows of a ring do not match its counters."""


class Shared:
    """Named arrays in anonymous memory: created here, or opened by the descriptor that another process created."""

    def __init__(self, fields: Fields, fd: int | None = None) -> None:
        starts, end = {}, 0
        for name, (dtype, shape) in fields.items():
            starts[name] = end
            end += -(-np.dtype(dtype).itemsize * prod(shape) // CACHE_LINE) * CACHE_LINE
        self.fd = os.memfd_create("t3d") if fd is None else fd
        if fd is None:
            os.ftruncate(self.fd, end)
        memory = mmap.mmap(self.fd, end)
        self.arrays: dict[str, NDArray[Any]] = {
            name: np.frombuffer(memory, dtype, prod(shape), starts[name]).reshape(shape)
            for name, (dtype, shape) in fields.items()
        }

    def close(self) -> None:
        """Closes the descriptor; the memory is freed with the last array that uses it."""
        os.close(self.fd)


class Ring(Shared):
    """Transitions from one actor, in order. Rows are counted after they are written: each is complete or absent."""

    def __init__(self, width: int, dtype: str, capacity: int, fd: int | None = None) -> None:
        counter = (np.int64, (1,))
        rows = (np.dtype(dtype), (capacity, width))
        super().__init__({"sent": counter, "received": counter, "about": (ABOUT, (capacity,)), "rows": rows}, fd)
        self.capacity = capacity
        self.handle = [width, dtype, capacity, self.fd]  # what another process opens it with
        self._sent, self._received = self.arrays["sent"], self.arrays["received"]
        self._about, self._rows = self.arrays["about"], self.arrays["rows"]

    @property
    def waiting(self) -> int:
        return int(self._sent[0]) - int(self._received[0])

    @property
    def room(self) -> int:
        return self.capacity - self.waiting

    def send(self, rows: NDArray[Any], origins: Origins, member: int, updates: int) -> None:
        """Appends one member's rows; there must be room. updates says which policy acted, or RANDOM."""
        sent = int(self._sent[0])
        first = sent % self.capacity
        fitting = self.capacity - first
        for start, part in ((first, slice(fitting)), (0, slice(fitting, None))):  # slices are faster than index arrays
            some = rows[part]
            if len(some):
                here = slice(start, start + len(some))
                self._rows[here], about = some, self._about[here]
                about["origin"] = origins[part]
                about["sequence"] = np.arange(sent, sent + len(some))
                about["updates"], about["member"] = updates, member
                sent += len(some)
        self._sent[0] = sent

    def receive(self) -> tuple[NDArray[Any], NDArray[Any]]:
        if not 0 <= self.waiting <= self.capacity:
            raise Torn(f"{self.waiting} rows wait in a ring of {self.capacity}")
        sequence = np.arange(int(self._received[0]), int(self._sent[0]))
        positions = sequence % self.capacity
        rows, about = self._rows[positions], self._about[positions]
        if not np.array_equal(about["sequence"], sequence):
            raise Torn(f"rows {sequence[0]} to {sequence[-1]} carry the numbers {about['sequence'][:5]}...")
        self._received[0] += len(sequence)
        return rows, about


class Policies(Shared):
    """A fixed number of snapshots of policies of one network."""

    def __init__(self, members: int, network: Architecture, slots: int, fd: int | None = None) -> None:
        scaling = (np.float32, (slots, members, network.sizes[0]))
        counts = (np.int64, (slots,))
        flat = (np.float32, (slots, members, network.size))
        super().__init__({"updates": counts, "scaled": counts, "flat": flat, "mean": scaling, "std": scaling}, fd)
        self.network, self.handle = network, [members, network.to_dict(), slots, self.fd]

    @classmethod
    def opened(cls, members: int, network: dict[str, Any], slots: int, fd: int) -> Policies:
        return cls(members, sent_architecture(network), slots, fd)

    def put(self, slot: int, snapshot: PolicySnapshot) -> None:
        self.arrays["scaled"][slot] = snapshot.scaling is not None
        for name, value in snapshot.to_dict().items():
            self.arrays[name][slot] = value

    def get(self, slot: int) -> PolicySnapshot:
        """Returns a snapshot, which changes when the slot does."""
        flat, mean, std = (self.arrays[name][slot] for name in ("flat", "mean", "std"))
        scaling = Scaling(mean, std) if self.arrays["scaled"][slot] else None
        return PolicySnapshot(int(self.arrays["updates"][slot]), self.network, flat, scaling)


class SharedState(Shared):
    """The progress of learner and actors, which all can read.

    The learner writes which policy is the newest and how many transitions a member may have; an actor writes how many
    it has taken for each member, and which episode is in flight in each of its environments. If a rule hears episodes,
    an actor writes how many have ended, and the learner of how many the rule has heard: the next begins after that.
    """

    policies: Policies  # from the first that is published on

    def __init__(self, members: int, num_envs: int, actors: int, fd: int | None = None) -> None:
        shapes: dict[str, tuple[int, ...]] = {"version": (1,), "limit": (1,), "stamps": (POLICY_SLOTS, 2)}
        shapes |= {"taken": (members, actors + 1), "stopped": (members,)}
        shapes |= dict.fromkeys(("episodes", "bad_values", "ended", "heard"), (members, num_envs))
        super().__init__({name: (np.int64, shape) for name, shape in shapes.items()}, fd)
        self.handle = [members, num_envs, actors, self.fd]
        self.taken = self.arrays["taken"]  # by member and actor; the last column is from before the run was resumed
        self.episodes, self.bad_values = self.arrays["episodes"], self.arrays["bad_values"]
        self.ended, self.heard = self.arrays["ended"], self.arrays["heard"]
        self.stopped = self.arrays["stopped"]  # 1 for members that act no more
        self._version, self._limit, self._stamps = (self.arrays[name] for name in ("version", "limit", "stamps"))

    @property
    def version(self) -> int:
        return int(self._version[0])

    @property
    def limit(self) -> int:
        """Transitions that each member may have. After reading it, a process finds its policy, or a newer one."""
        return int(self._limit[0])

    def publish(self, snapshot: PolicySnapshot, limit: int) -> None:
        """Publishes a policy, and the limit that goes with it. The previous one stays readable meanwhile."""
        version = self.version + 1
        if version == 1:
            self.policies = Policies(len(self.stopped), snapshot.architecture, POLICY_SLOTS)
        slot = version % POLICY_SLOTS
        self._stamps[slot, 0] = version
        self.policies.put(slot, snapshot)
        self._stamps[slot, 1] = version
        self._version[0] = version
        self._limit[0] = limit

    def newest(self, member: int) -> PolicySnapshot:
        """Copies one member's newest policy. If it was overwritten meanwhile, the next one is copied."""
        while True:
            version = self.version
            slot = version % POLICY_SLOTS
            copied = self.policies.get(slot).of_member(member)
            if (self._stamps[slot] == version).all():
                return copied

    def close(self) -> None:
        if self.version:
            self.policies.close()
        super().close()


class Heartbeat(Shared):
    """Signs of life from one worker."""

    def __init__(self, fd: int | None = None) -> None:
        super().__init__({"beat": (np.int64, (1,)), "waited": (np.int64, (1,))}, fd)

    @property
    def waited(self) -> float:
        return int(self.arrays["waited"][0]) / 1e9

    def beat(self) -> None:
        self.arrays["beat"][0] += 1

    def wait(self, wakeup: Wakeup, seconds: float) -> None:
        started = time.monotonic_ns()
        wakeup.wait(seconds)
        self.arrays["waited"][0] += time.monotonic_ns() - started


class Wakeup:
    """Wakes another process up."""

    def __init__(self, fd: int | None = None) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) if fd is None else fd
        self._poll = select.poll()
        self._poll.register(self.fd, select.POLLIN)

    def wake(self) -> None:
        os.eventfd_write(self.fd, 1)

    def wait(self, seconds: float) -> None:
        if self._poll.poll(seconds * 1000):
            os.eventfd_read(self.fd)

    def close(self) -> None:
        os.close(self.fd)


class Channel:
    """Lines of JSON over a socket."""

    def __init__(self, end: socket.socket) -> None:
        self._socket, self._rest = end, b""

    def send(self, **message: Any) -> None:
        """Sends one message; waits while too many are unread."""
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def first(self) -> dict[str, Any]:
        """Waits for the first message; if the other side ends before that, so does this process."""
        while b"\n" not in self._rest:
            piece = self._socket.recv(2**16)
            if not piece:
                raise SystemExit(1)
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def receive(self) -> list[dict[str, Any]]:
        with suppress(BlockingIOError, ConnectionResetError):  # nothing more yet, or ever
            while piece := self._socket.recv(2**16, socket.MSG_DONTWAIT):
                self._rest += piece
        *lines, self._rest = self._rest.split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        self._socket.close()
