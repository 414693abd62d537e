"""Frames of observations that are images, each stored once.

Frames are numbered in the order they arrive, and a ring for each member keeps the newest. A row of the replay knows the
numbers of its frames: those of s, oldest first, and then that of s2, whose stack is the last ones of them. A transition
shares the frames of the one before it in its episode, so that only the frame of its s2 is new.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from t3d.data.frame_ring import SHARE, Bytes, FrameRing, frames_needed, oldest_shared
from t3d.files import to_count
from t3d.policy.spec import Spec
from t3d.tensors import sendable
from t3d.types import GOES_ON, UNKNOWN, Origins, State

Numbers = NDArray[np.int64]


class Seen(NamedTuple):
    """The stack of frames after a step, which the next transition of the episode begins with."""

    episode: int
    step: int
    numbers: list[int]
    frames: list[Bytes]

    def owned(self) -> Seen:
        """The same with copies of frames that are views, of a block that is about to go."""
        return self._replace(frames=[frame if frame.base is None else frame.copy() for frame in self.frames])


class Frames:
    """The frames of all members, the numbers (M, rows, stack + 1) of each row's, and the oldest row that has all.

    A run of fewer steps than the capacity takes less memory.
    """

    def __init__(
        self,
        spec: Spec,
        capacity: int,
        members: int,
        device: torch.device | str = "cpu",
        envs: int = 1,
        folder: Path | None = None,
        steps: int | None = None,
    ) -> None:
        self.spec, self.device = spec, torch.device(device)
        self.ring = FrameRing(spec, capacity, members, envs, device, folder, steps)
        self.stack, self.frame_size = spec.stack, spec.frame_size
        self.rows = capacity if steps is None else min(capacity, steps)
        self.numbers = np.zeros((members, self.rows, spec.stack + 1), np.int64)
        self.written = [0] * members  # frames ever written
        self.oldest_whole = [0] * members  # the oldest row that has all its frames, counted from the start of the run
        self._oldest_shared = oldest_shared(spec, capacity, envs)
        self._dropped_at_once = max(1, min(capacity, self.ring.capacity) // SHARE)
        self._seen: list[dict[int, Seen]] = [{} for _ in range(members)]  # by environment
        shared = torch.from_numpy(self.numbers)
        self._on_device = shared if self.device.type == "cpu" else shared.to(device)
        self._member = torch.arange(members, device=device).view(-1, 1, 1)

    def add(self, *blocks: tuple[int, int, Origins, Bytes, Bytes]) -> None:
        """Stores what is new in blocks of transitions: (member, first row, origins, frames of s, frames of s2)."""
        slots, frames, places = list[Numbers](), list[Bytes](), list[Numbers]()
        for member, first, origins, s, s2 in blocks:
            before = self.written[member]
            numbers, new = self._numbered(member, origins, s, s2)
            new = new[-self.ring.capacity :]  # a longer block overwrites itself
            self.written[member] = int(numbers[-1, -1]) + 1
            slots.append(self.ring.slots(member, np.arange(self.written[member] - len(new), self.written[member])))
            frames += new
            stop = first + len(numbers)
            kept = np.arange(max(first, stop - self.rows), stop) % self.rows
            self.numbers[member, kept] = numbers[-self.rows :]
            places.append(member * self.rows + kept)
            if self._gone(before) != self._gone(self.written[member]):
                self._lose_rows(member, stop)
        self.ring.write(np.concatenate(slots), frames)
        self._send(np.concatenate(places))

    def slots(self, index: Tensor) -> Tensor:
        """(stack + 1, M * B): where the frames of rows index (M, B) are."""
        members, batch = index.shape
        rows = (self._member.view(-1, 1) * self.rows + index).view(-1)
        numbers = self._on_device.view(-1, self.stack + 1).index_select(0, rows).view(members, batch, -1)
        slots = numbers % self.ring.capacity + self._member * self.ring.capacity
        return slots.view(members * batch, -1).T.contiguous()

    def contents(self, member: int, first: int, stop: int) -> tuple[Numbers, Bytes]:
        """Returns the numbers of rows first to stop, and each of their frames once, in the order of its number."""
        numbers: Numbers = self.numbers[member, np.arange(first, stop) % self.rows]
        return numbers, self.ring.read(self.ring.slots(member, np.unique(numbers)))

    def count(self, member: int, first: int, stop: int) -> int:
        """Returns how many frames rows first to stop have."""
        return len(np.unique(self.numbers[member, np.arange(first, stop) % self.rows]))

    def put(self, member: int, numbers: Numbers, frames: Bytes) -> None:
        """Writes back the frames that contents returned, as far as the ring still holds them."""
        unique, written = np.unique(numbers), self.written[member]
        is_valid = len(unique) == len(frames) and unique[0] >= 0 and unique[-1] < written
        if not is_valid or (np.diff(numbers, axis=1) < 0).any():
            raise ValueError(f"the numbers of frames do not fit the {len(frames)} frames there and {written} written")
        kept = unique >= written - self.ring.capacity
        self.ring.write(self.ring.slots(member, unique[kept]), frames[kept])

    def put_numbers(self, member: int, first: int, numbers: Numbers) -> None:
        """Writes back the numbers of rows from first on."""
        self.numbers[member, np.arange(first, first + len(numbers)) % self.rows] = numbers

    def rebuild(self, member: int, stop: int) -> None:
        """Derives which rows have all their frames from what was put back."""
        self._lose_rows(member, stop)
        self._on_device[member].copy_(torch.from_numpy(self.numbers[member]))

    def state(self) -> State:
        """How many frames were written, the oldest row that has all its frames, and what was seen last.

        Rows do not tell what was seen last: the newest one of an environment may have lost its frames.
        """
        seen = [(member, env, one) for member, mine in enumerate(self._seen) for env, one in sorted(mine.items())]
        where = np.array([(member, env, one.episode, one.step) for member, env, one in seen], np.int64)
        numbers = np.array([one.numbers for *_, one in seen], np.int64)
        frames = np.array([one.frames for *_, one in seen], np.uint8)
        return {
            "written": list(self.written),
            "first": list(self.oldest_whole),
            "seen": {
                "where": where.reshape(-1, 4),
                "numbers": numbers.reshape(-1, self.stack),
                "frames": frames.reshape(-1, self.stack, self.frame_size),
            },
        }

    def restore(self, state: State, added: list[int]) -> None:
        """Restores what state() returned; the frames of rows are put back separately."""
        written, first = ([to_count(count) for count in state[name]] for name in ("written", "first"))
        if len(written) != len(added) or len(first) != len(added):
            raise ValueError(f"it holds the frames of {len(written)} members")
        if any(oldest > max(0, stop - 1) for oldest, stop in zip(first, added, strict=True)):
            raise ValueError("its frames begin after the newest transition")
        self.written[:], self.oldest_whole[:] = written, first
        self._restore_seen(**state["seen"])

    def _restore_seen(self, where: Numbers, numbers: Numbers, frames: Bytes) -> None:
        shapes = (len(where), 4), (len(where), self.stack), (len(where), self.stack, self.frame_size)
        is_sound = (where.shape, numbers.shape, frames.shape) == shapes and frames.dtype == np.uint8
        if not is_sound or not all(0 <= member < len(self.written) for member in where[:, 0].tolist()):
            raise ValueError("what its environments have seen does not fit")
        self._seen = [{} for _ in self.written]
        for (member, env, episode, step), its_numbers, its_frames in zip(where.tolist(), numbers, frames, strict=True):
            self.put(member, its_numbers[None], its_frames[np.unique(its_numbers, return_index=True)[1]])
            self._seen[member][env] = Seen(episode, step, its_numbers.tolist(), list(its_frames)).owned()

    def _numbered(self, member: int, origins: Origins, s: Bytes, s2: Bytes) -> tuple[Numbers, list[Bytes]]:
        """Returns the numbers of each transition's frames, and the frames that are new."""
        seen, written, new = self._seen[member], self.written[member], list[Bytes]()
        numbers = list[list[int]]()
        for place, (env, episode, step, ending) in enumerate(origins.tolist()):
            before = seen.get(env)
            if before is None or (before.episode, before.step) != (episode, step - 1):
                before = Seen(episode, step, [-1] * self.stack, [s[place]] * self.stack)
            stack, frames = before.numbers, before.frames
            if stack[0] < written + len(new) - self._oldest_shared or stack[0] < 0:
                stack = _stored(stack, frames, new, written)
            numbers.append([*stack, written + len(new)])
            new.append(s2[place])
            if env != UNKNOWN and ending == GOES_ON:
                seen[env] = Seen(episode, step, numbers[-1][1:], [*frames[1:], new[-1]])
            else:
                seen.pop(env, None)
        for env in np.unique(origins[:, 0]).tolist():
            if env in seen:
                seen[env] = seen[env].owned()
        return np.array(numbers, np.int64), new

    def _gone(self, written: int) -> int:
        """How many frames count as overwritten, in steps, so that rows are seldom searched for them."""
        return -(-max(0, written - self.ring.capacity) // self._dropped_at_once) * self._dropped_at_once

    def _lose_rows(self, member: int, stop: int) -> None:
        """Finds the oldest row from which on all have their frames."""
        rows = np.arange(max(self.oldest_whole[member], stop - self.rows), stop)
        lost = rows[self.numbers[member, rows % self.rows, 0] < self._gone(self.written[member])]
        if len(lost):
            self.oldest_whole[member] = int(lost[-1]) + 1

    def _send(self, places: NDArray[np.int64]) -> None:
        """Copies the numbers of some rows to the GPU, if frames are there."""
        device = self._on_device.device
        if device.type != "cpu":
            values = self.numbers.reshape(-1, self.stack + 1)[places]
            self._on_device.view(-1, self.stack + 1).index_copy_(
                0,
                sendable(places, device).to(device, non_blocking=True),
                sendable(values, device).to(device, non_blocking=True),
            )


def _stored(stack: list[int], frames: list[Bytes], new: list[Bytes], written: int) -> list[int]:
    """Adds a stack to what is new, a frame that it repeats once, and returns its numbers."""
    fresh = dict[int, int]()
    for number, frame in zip(stack, frames, strict=True):
        if number not in fresh:
            fresh[number] = written + len(new)
            new.append(frame)
    return [fresh[number] for number in stack]


def bytes_needed(spec: Spec, capacity: int, members: int, envs: int, steps: int, *, on_disk: bool) -> int:
    """The memory that frames and their numbers take in a run of so many steps."""
    frames = 0 if on_disk else frames_needed(spec, capacity, envs, steps) * spec.frame_size
    return members * (frames + min(capacity, steps) * (spec.stack + 1) * 8)
