"""Step 1: the replay memory. One ring buffer per member; when it is full the oldest transition is overwritten.

A transition is one row of floats [s, a, r, terminated, s2], so adding is one write and sampling is one gather.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from t3d.data.links import BYTES_PER_ROW, Links
from t3d.policy.spec import Floats, Spec
from t3d.tensors import send, send_rows
from t3d.types import Origins, Rollout, row_sizes

BYTES_PER_VALUE = 4  # float32


class Replay:
    """Ring buffers (M, capacity, width) of float32, allocated once. Observations are stored unscaled."""

    def __init__(self, spec: Spec, capacity: int, members: int, device: torch.device | str = "cpu") -> None:
        self.spec, self.capacity = spec, capacity
        self.columns = row_sizes(spec._replace(images=()))  # whose frames FrameReplay keeps beside the rows
        self.rows = torch.empty(members, capacity, sum(self.columns), device=device, dtype=torch.float32)
        self._first = torch.arange(members, device=device).unsqueeze(1) * capacity  # first row of each member
        self.added = [0] * members  # transitions ever added
        self.links = Links(members, capacity, device)
        self.size = torch.zeros(members, device=device, dtype=torch.float64)  # rows in use; a tensor, for CUDA graphs

    def add(self, *rollouts: Rollout) -> None:
        """Appends blocks of transitions, at most one per member; to a GPU in one asynchronous copy."""
        index, rows = [], []
        for rollout in rollouts:
            member = rollout.member
            self.added[member] += len(rollout.rows)
            rows.append(rollout.rows[-self.capacity :])  # a longer block overwrites itself
            numbers = np.arange(self.added[member] - len(rows[-1]), self.added[member])
            index.append(member * self.capacity + numbers % self.capacity)
        send_rows(self.rows.view(-1, self.rows.shape[-1]), np.concatenate(index), np.concatenate(rows))
        self.links.add(*((rollout.member, rollout.origins, self.added[rollout.member]) for rollout in rollouts))
        self._set_size()

    def kept(self, member: int) -> tuple[int, int]:
        """The first and one past the last transition that a member still holds, counted from the start of the run."""
        return max(0, self.added[member] - self.capacity), self.added[member]

    def pick(self, u: Tensor) -> Tensor:
        """Turns uniform draws u (M, B) from [0, 1) into rows of the transitions kept."""
        return (u * self.size.unsqueeze(1)).long()

    def read(self, member: int, first: int, stop: int) -> Floats:
        """Reads the rows of transitions first to stop, counted from the start of the run."""
        index = torch.arange(first, stop, device=self.rows.device) % self.capacity
        rows: Floats = self.rows[member].index_select(0, index).cpu().numpy()
        return rows

    def origins(self, member: int, first: int, stop: int) -> Origins:
        origins: Origins = self.links.origins[member, np.arange(first, stop) % self.capacity]
        return origins

    def contents(self, member: int, first: int, stop: int) -> dict[str, NDArray[Any]]:
        """Reads what a segment holds of transitions first to stop."""
        return {"rows": self.read(member, first, stop), "origins": self.origins(member, first, stop)}

    def content_bytes(self, member: int, first: int, stop: int) -> int:
        return (stop - first) * (self.rows[member, :1].nbytes + self.links.origins[member, :1].nbytes)

    def put(self, member: int, first: int, contents: dict[str, NDArray[Any]], gone: int = 0) -> None:
        """Writes back what contents returned of transitions from first on, but for so many that are gone by now.

        It may come from a replay of another capacity; links are derived afterwards.
        """
        rows = contents["rows"][gone:]
        index = np.arange(first + gone, first + gone + len(rows)) % self.capacity
        on_device = torch.from_numpy(index).to(self.rows.device)
        self.rows[member].index_copy_(0, on_device, torch.from_numpy(rows.copy()).to(self.rows.device))
        self.links.origins[member, index] = contents["origins"][gone:]

    def set_added(self, added: list[int]) -> None:
        self.added[:] = added
        self._set_size()

    def rebuild(self, member: int, first: int, stop: int) -> None:
        """Derives a member's links anew from the transitions that were put back."""
        self.links.rebuild(member, first, stop)

    def rewards(self, index: Tensor) -> Tensor:
        return self.rows[..., sum(self.columns[:2])].gather(1, index)

    def rewards_of(self, member: int, rows: NDArray[np.int64]) -> list[float]:
        index = torch.from_numpy(rows).to(self.rows.device)
        rewards: list[float] = self.rows[member, :, sum(self.columns[:2])].index_select(0, index).tolist()
        return rewards

    def gather(self, index: Tensor, last: Tensor | None = None) -> tuple[Tensor, ...]:
        """Gathers s, a, r of rows index (M, B) of each member, and terminated, s2 of rows last, if they are others."""
        s, a, r, terminated, s2 = self._columns(index)
        if last is not None:
            *_, terminated, s2 = self._columns(last)
        return s, a, r.squeeze(-1), terminated.squeeze(-1), s2

    def _columns(self, index: Tensor) -> tuple[Tensor, ...]:
        members, batch = index.shape
        rows = self.rows.view(-1, self.rows.shape[-1]).index_select(0, (self._first + index).view(-1))
        return torch.split(rows.view(members, batch, rows.shape[-1]), self.columns, dim=-1)

    def _set_size(self) -> None:
        kept = [self.kept(member) for member in range(len(self.added))]
        send(self.size, np.array([stop - first for first, stop in kept], np.float64))


def bytes_needed(spec: Spec, capacity: int, members: int) -> int:
    """The memory that a replay of this size takes."""
    return members * capacity * (sum(row_sizes(spec._replace(images=()))) * BYTES_PER_VALUE + BYTES_PER_ROW)
