"""The replay of observations that are images: vectors and actions in rows, and frames beside them, each stored once.

A row knows the numbers of its frames: those of s, oldest first, and then that of s2, whose stack is the last ones. A
transition shares the frames of the one before it in its episode, so that only the frame of its s2 is new.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from t3d.data.frame_ring import SHARE, Bytes, FrameRing, oldest_shared
from t3d.data.replay import Replay
from t3d.files import to_count
from t3d.policy.spec import Spec, floats_in
from t3d.tensors import send, send_rows
from t3d.types import GOES_ON, UNKNOWN, Origins, Rollout, State

Numbers = NDArray[np.int64]


class LastStack(NamedTuple):
    """The frames after a step, with which the next transition of the episode begins."""

    episode: int
    step: int
    numbers: list[int]
    frames: list[Bytes]

    def owned(self) -> LastStack:
        """Copies frames that are views of a block of transitions, so that its memory can be freed."""
        return self._replace(frames=[frame if frame.base is None else frame.copy() for frame in self.frames])


class FrameReplay(Replay):
    """A replay whose s and s2 are uint8 (M, B, observation_width), assembled from frames that are stored once.

    Transitions whose frames are overwritten leave before their rows are: many short episodes have more frames.
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
        super().__init__(spec, capacity if steps is None else min(capacity, steps), members, device)
        self.ring = FrameRing(spec, capacity, members, envs, device, folder, steps)
        self.numbers = np.zeros((members, self.capacity, spec.stack + 1), np.int64)  # of the frames of each row
        self.written = [0] * members  # frames ever written
        self.oldest_complete_row = [0] * members  # that has all its frames, counted from the start of the run
        self._oldest_shared = oldest_shared(spec, capacity, envs)
        self._dropped_at_once = max(1, min(capacity, self.ring.capacity) // SHARE)
        self._last_stacks: list[dict[int, LastStack]] = [{} for _ in range(members)]  # by environment
        shared = torch.from_numpy(self.numbers)
        self._on_device = shared if self.rows.device.type == "cpu" else shared.to(device)
        self._member = torch.arange(members, device=device).view(-1, 1, 1)
        self._oldest = torch.zeros(members, 1, device=device, dtype=torch.int64)  # row of the oldest transition kept
        self._states: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}  # s and s2, by the shape of a batch

    def add(self, *rollouts: Rollout) -> None:
        """Appends blocks of transitions, at most one per member; to a GPU in a few asynchronous copies."""
        vector, size = 4 * self.spec.observation_size, self.spec.frame_size
        slots, frames, kept, vectors = list[Numbers](), list[Bytes](), list[Numbers](), list[Rollout]()
        for rollout in rollouts:
            member, first, before = rollout.member, self.added[rollout.member], self.written[rollout.member]
            numbers, new = self._numbered(member, rollout.origins, rollout.s[:, vector:], rollout.s2[:, vector:])
            new = new[-self.ring.capacity :]  # a longer block overwrites itself
            self.written[member] = int(numbers[-1, -1]) + 1
            slots.append(self.ring.slots(member, np.arange(self.written[member] - len(new), self.written[member])))
            frames += new
            stop = first + len(numbers)
            rows = np.arange(max(first, stop - self.capacity), stop) % self.capacity
            self.numbers[member, rows] = numbers[-self.capacity :]
            kept.append(member * self.capacity + rows)
            if self._overwritten(before) != self._overwritten(self.written[member]):
                self._lose_rows(member, stop)
            columns = [rollout.rows[:, :vector], rollout.rows[:, vector + size : -size]]
            vectors.append(rollout._replace(rows=floats_in(np.concatenate(columns, axis=1))))
        self.ring.write(np.concatenate(slots), frames)
        if self._on_device.device.type != "cpu":
            sent, width = np.concatenate(kept), self.spec.stack + 1
            send_rows(self._on_device.view(-1, width), sent, self.numbers.reshape(-1, width)[sent])
        super().add(*vectors)

    def kept(self, member: int) -> tuple[int, int]:
        """The first and one past the last transition that a member still holds, with all frames."""
        first, stop = super().kept(member)
        return max(first, self.oldest_complete_row[member]), stop

    def pick(self, u: Tensor) -> Tensor:
        return (self._oldest + super().pick(u)) % self.capacity

    def contents(self, member: int, first: int, stop: int) -> dict[str, NDArray[Any]]:
        """Reads what a segment holds of transitions first to stop: also the numbers of their frames, and each once."""
        numbers: Numbers = self.numbers[member, np.arange(first, stop) % self.capacity]
        frames = self.ring.read(self.ring.slots(member, np.unique(numbers)))
        return {**super().contents(member, first, stop), "numbers": numbers, "frames": frames}

    def content_bytes(self, member: int, first: int, stop: int) -> int:
        numbers: Numbers = self.numbers[member, np.arange(first, stop) % self.capacity]
        frames = len(np.unique(numbers)) * self.spec.frame_size
        return super().content_bytes(member, first, stop) + numbers.nbytes + frames

    def put(self, member: int, first: int, contents: dict[str, NDArray[Any]], gone: int = 0) -> None:
        """Writes back what contents returned; frames as far as the ring still holds them, or none if there are none."""
        super().put(member, first, contents, gone)
        numbers = contents["numbers"]
        if "frames" in contents:
            self._put_frames(member, numbers, contents["frames"])
        self.numbers[member, np.arange(first + gone, first + len(numbers)) % self.capacity] = numbers[gone:]

    def rebuild(self, member: int, first: int, stop: int) -> None:
        super().rebuild(member, first, stop)
        self._lose_rows(member, stop)
        self._on_device[member].copy_(torch.from_numpy(self.numbers[member]))
        self._set_size()

    def gather(self, index: Tensor, last: Tensor | None = None) -> tuple[Tensor, ...]:
        """Gathers s, a, r of rows index (M, B), and terminated, s2 of rows last; the next call overwrites s and s2."""
        s, a, r, terminated, s2 = super().gather(index, last)
        slots = self._slots(index)
        slots2 = slots if last is None else self._slots(last)
        if index.shape not in self._states:  # memory taken for each batch again costs more than filling it
            size, device = (index.numel(), self.spec.observation_width), self.rows.device
            states = (torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2))
            self._states[index.shape] = next(states), next(states)
        for state, vector, which in zip(self._states[index.shape], (s, s2), (slots[:-1], slots2[1:]), strict=True):
            width = 4 * vector.shape[-1]
            if width:  # flat: Inductor cannot view rows of one number, or of none, as bytes
                state[:, :width] = vector.contiguous().view(-1).view(torch.uint8).view(-1, width)
            self.ring.gather(which, state.view(self.ring.word)[:, width // self.ring.words.itemsize :])
        s, s2 = (state.view(*index.shape, -1) for state in self._states[index.shape])
        return s, a, r, terminated, s2

    def state(self) -> State:
        """How many frames were written, the oldest row that has all its frames, and the last stacks.

        Rows do not tell the last stacks: the newest row of an environment may have lost its frames.
        """
        stacks = [
            (member, env, last)
            for member, by_env in enumerate(self._last_stacks)
            for env, last in sorted(by_env.items())
        ]
        where = np.array([(member, env, last.episode, last.step) for member, env, last in stacks], np.int64)
        numbers = np.array([last.numbers for *_, last in stacks], np.int64)
        frames = np.array([last.frames for *_, last in stacks], np.uint8)
        return {
            "written": list(self.written),
            "first": list(self.oldest_complete_row),
            "seen": {
                "where": where.reshape(-1, 4),
                "numbers": numbers.reshape(-1, self.spec.stack),
                "frames": frames.reshape(-1, self.spec.stack, self.spec.frame_size),
            },
        }

    def restore(self, state: State, added: list[int]) -> None:
        written, first = ([to_count(count) for count in state[name]] for name in ("written", "first"))
        if len(written) != len(added) or len(first) != len(added):
            raise ValueError(f"it holds the frames of {len(written)} members")
        if any(oldest > max(0, stop - 1) for oldest, stop in zip(first, added, strict=True)):
            raise ValueError("its frames begin after the newest transition")
        self.written[:], self.oldest_complete_row[:] = written, first
        where, numbers, frames = (state["seen"][name] for name in ("where", "numbers", "frames"))
        shapes = (len(where), 4), (len(where), self.spec.stack), (len(where), self.spec.stack, self.spec.frame_size)
        is_sound = (where.shape, numbers.shape, frames.shape) == shapes and frames.dtype == np.uint8
        if not is_sound or not np.isin(where[:, 0], range(len(added))).all():
            raise ValueError("the last frames of its environments do not fit")
        self._last_stacks = [{} for _ in added]
        for (member, env, episode, step), its_numbers, its_frames in zip(where.tolist(), numbers, frames, strict=True):
            self._put_frames(member, its_numbers[None], its_frames[np.unique(its_numbers, return_index=True)[1]])
            self._last_stacks[member][env] = LastStack(episode, step, its_numbers.tolist(), list(its_frames)).owned()

    def _put_frames(self, member: int, numbers: Numbers, frames: Bytes) -> None:
        unique, written = np.unique(numbers), self.written[member]
        is_valid = len(unique) == len(frames) and unique[0] >= 0 and unique[-1] < written
        if not is_valid or (np.diff(numbers, axis=1) < 0).any():
            raise ValueError(f"the numbers of frames do not fit the {len(frames)} frames there and {written} written")
        kept = unique >= written - self.ring.capacity
        self.ring.write(self.ring.slots(member, unique[kept]), frames[kept])

    def _slots(self, index: Tensor) -> Tensor:
        """(stack + 1, M * B): where the frames of rows index (M, B) are."""
        members, batch = index.shape
        rows = (self._member.view(-1, 1) * self.capacity + index).view(-1)
        numbers = self._on_device.view(-1, self.spec.stack + 1).index_select(0, rows).view(members, batch, -1)
        slots = numbers % self.ring.capacity + self._member * self.ring.capacity
        return slots.view(members * batch, -1).T.contiguous()

    def _numbered(self, member: int, origins: Origins, s: Bytes, s2: Bytes) -> tuple[Numbers, list[Bytes]]:
        """Returns the numbers of each transition's frames, and the frames that are new."""
        stacks, written, new = self._last_stacks[member], self.written[member], list[Bytes]()
        numbers = list[list[int]]()
        for (env, episode, step, ending), frame, frame2 in zip(origins.tolist(), s, s2, strict=True):
            last = stacks.get(env)
            if last is None or (last.episode, last.step) != (episode, step - 1):
                last = LastStack(episode, step, [-1] * self.spec.stack, [frame] * self.spec.stack)
            stack, frames = last.numbers, last.frames
            if stack[0] < written + len(new) - self._oldest_shared or stack[0] < 0:
                stack = _stored(stack, frames, new, written)
            numbers.append([*stack, written + len(new)])
            new.append(frame2)
            if env != UNKNOWN and ending == GOES_ON:
                stacks[env] = LastStack(episode, step, numbers[-1][1:], [*frames[1:], frame2])
            else:
                stacks.pop(env, None)
        for env in np.unique(origins[:, 0]).tolist():
            if env in stacks:
                stacks[env] = stacks[env].owned()
        return np.array(numbers, np.int64), new

    def _overwritten(self, written: int) -> int:
        """How many frames count as overwritten, in steps, so that rows are seldom searched for them."""
        return -(-max(0, written - self.ring.capacity) // self._dropped_at_once) * self._dropped_at_once

    def _lose_rows(self, member: int, stop: int) -> None:
        """Finds the oldest row from which on all have their frames."""
        rows = np.arange(max(self.oldest_complete_row[member], stop - self.capacity), stop)
        lost = rows[self.numbers[member, rows % self.capacity, 0] < self._overwritten(self.written[member])]
        if len(lost):
            self.oldest_complete_row[member] = int(lost[-1]) + 1

    def _set_size(self) -> None:
        super()._set_size()
        oldest = [[self.kept(member)[0] % self.capacity] for member in range(len(self.added))]
        send(self._oldest, np.array(oldest, np.int64))


def _stored(stack: list[int], frames: list[Bytes], new: list[Bytes], written: int) -> list[int]:
    """Adds a stack to what is new, a frame that it repeats once, and returns its numbers."""
    fresh = dict[int, int]()
    for number, frame in zip(stack, frames, strict=True):
        if number not in fresh:
            fresh[number] = written + len(new)
            new.append(frame)
    return [fresh[number] for number in stack]
