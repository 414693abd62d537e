"""The replay of observations that are images: vectors and actions in rows, frames beside them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from t3d.data.frames import Frames
from t3d.data.replay import Replay
from t3d.policy.spec import floats_in
from t3d.types import Rollout


class FrameReplay(Replay):
    """A replay whose s and s2 are uint8 (M, B, observation_width), assembled from frames that are stored once.

    Transitions whose frames are overwritten leave before their rows are: many short episodes have more frames.
    """

    frames: Frames

    def __init__(self, frames: Frames) -> None:
        self.spec, self.frames = frames.spec, frames
        members, device = len(frames.written), frames.device
        super().__init__(self.spec._replace(images=(), stack=1), frames.rows, members, device)
        self._oldest = torch.zeros(members, 1, device=device, dtype=torch.int64)  # row of the oldest transition kept
        self._states: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}  # s and s2, by the shape of a batch

    def add(self, *rollouts: Rollout) -> None:
        """Appends blocks of transitions, at most one per member; to a GPU in a few asynchronous copies."""
        vector, frame = 4 * self.spec.observation_size, self.spec.frame_size
        self.frames.add(
            *(
                (one.member, self.added[one.member], one.origins, one.s[:, vector:], one.s2[:, vector:])
                for one in rollouts
            )
        )
        floats = [
            floats_in(np.concatenate([one.rows[:, :vector], one.rows[:, vector + frame : -frame]], axis=1))
            for one in rollouts
        ]
        super().add(*(one._replace(rows=rows) for one, rows in zip(rollouts, floats, strict=True)))

    def kept(self, member: int) -> tuple[int, int]:
        """The first and one past the last transition that a member still holds, with all frames."""
        first, stop = super().kept(member)
        return max(first, self.frames.oldest_whole[member]), stop

    def pick(self, u: Tensor) -> Tensor:
        """Turns uniform draws (M, B) from [0, 1) into rows of the transitions kept."""
        return (self._oldest + super().pick(u)) % self.capacity

    def contents(self, member: int, first: int, stop: int) -> dict[str, NDArray[Any]]:
        """Reads what a segment holds of transitions first to stop: their rows, origins, and each frame once."""
        numbers, frames = self.frames.contents(member, first, stop)
        return {**super().contents(member, first, stop), "numbers": numbers, "frames": frames}

    def content_bytes(self, member: int, first: int, stop: int) -> int:
        """The bytes of contents."""
        numbers = (stop - first) * self.frames.numbers[member, :1].nbytes
        frames = self.frames.count(member, first, stop) * self.spec.frame_size
        return super().content_bytes(member, first, stop) + numbers + frames

    def rebuild(self, member: int, first: int, stop: int) -> None:
        """Derives a member's links and the state of its frames from what was put back."""
        super().rebuild(member, first, stop)
        self.frames.rebuild(member, stop)
        self._set_size()

    def gather(self, index: Tensor, last: Tensor | None = None) -> tuple[Tensor, ...]:
        """Gathers s, a, r of rows index (M, B), and terminated, s2 of rows last; the next call overwrites s and s2."""
        s, a, r, terminated, s2 = super().gather(index, last)
        slots = self.frames.slots(index)
        slots2 = slots if last is None else self.frames.slots(last)
        states, ring = self._states_for(index.shape), self.frames.ring
        for state, vector, which in zip(states, (s, s2), (slots[:-1], slots2[1:]), strict=True):
            size = 4 * vector.shape[-1]
            if size:  # flat: Inductor cannot view rows of one number, or of none, as bytes
                state[:, :size] = vector.contiguous().view(-1).view(torch.uint8).view(-1, size)
            ring.gather(which, state.view(ring.word)[:, size // ring.words.itemsize :])
        s, s2 = (state.view(*index.shape, -1) for state in states)
        return s, a, r, terminated, s2

    def _states_for(self, shape: torch.Size) -> tuple[Tensor, Tensor]:
        """Memory for s and s2, taken once: taking it again for each batch costs more than filling it."""
        if shape not in self._states:
            size, device = (shape.numel(), self.spec.observation_width), self.rows.device
            s, s2 = (torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2))
            self._states[shape] = s, s2
        return self._states[shape]

    def _set_size(self) -> None:
        super()._set_size()
        oldest = [[self.kept(member)[0] % self.capacity] for member in range(len(self.added))]
        self._to_device(self._oldest, np.array(oldest, np.int64))
