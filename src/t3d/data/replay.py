"""Step 1: the replay memory. One ring buffer per member; when it is full the oldest transition is overwritten.

A transition is one row of floats [s, a, r, terminated, s2], so adding is one write and sampling is one gather. It
carries where it comes from. Links between neighbours are derived from that, and never saved.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from t3d.policy.spec import Spec
from t3d.tensors import send, send_rows
from t3d.types import GOES_ON, UNKNOWN, Origins, Rollout, row_sizes

BYTES_PER_VALUE = 4  # float32
NONE, NOT_YET, OVERWRITTEN = -1, -2, -3  # instead of a row: there is none, it has not arrived, the ring has lost it
BYTES_PER_ROW = 4 * 4 + 2 * 4  # origins and links in host memory; links on the GPU too, if the rows are there


class Replay:
    """Ring buffers (M, capacity, width) of float32, allocated once. Observations are stored unscaled."""

    def __init__(self, spec: Spec, capacity: int, members: int, device: torch.device | str = "cpu") -> None:
        self.spec, self.capacity = spec, capacity
        self.columns = row_sizes(spec._replace(images=()))  # whose frames FrameReplay keeps beside the rows
        self.rows = torch.empty(members, capacity, sum(self.columns), device=device, dtype=torch.float32)
        self._all_rows = self.rows.view(-1, self.rows.shape[-1])
        self._gathered: dict[tuple[str, int], tuple[Tensor, tuple[Tensor, ...]]] = {}
        self._first = torch.arange(members, device=device).unsqueeze(1) * capacity  # first row of each member
        self.added = [0] * members  # transitions ever added
        self.links = Links(members, capacity, device)
        self.size = torch.zeros(members, device=device, dtype=torch.float64)  # rows in use; a tensor, for CUDA graphs
        self._sizes = self.size.unsqueeze(1)  # a view

    def add(self, *rollouts: Rollout) -> None:
        """Appends blocks of transitions, at most one per member; to a GPU in one asynchronous copy."""
        index, rows = [], []
        for rollout in rollouts:
            member = rollout.member
            self.added[member] += len(rollout.rows)
            rows.append(rollout.rows[-self.capacity :])  # a longer block overwrites itself
            numbers = np.arange(self.added[member] - len(rows[-1]), self.added[member])
            index.append(member * self.capacity + numbers % self.capacity)
        send_rows(self._all_rows, joined(index), joined(rows))
        self.links.add(*((rollout.member, rollout.origins, self.added[rollout.member]) for rollout in rollouts))
        self._set_size()

    def kept(self, member: int) -> tuple[int, int]:
        """The first and one past the last transition that a member still holds, counted from the start of the run."""
        return max(0, self.added[member] - self.capacity), self.added[member]

    def pick(self, u: Tensor) -> Tensor:
        """Turns uniform draws u (M, B) from [0, 1) into rows of the transitions kept."""
        return (u * self._sizes).long()

    def origins(self, member: int, first: int, stop: int) -> Origins:
        origins: Origins = self.links.origins[member, np.arange(first, stop) % self.capacity]
        return origins

    def contents(self, member: int, first: int, stop: int) -> dict[str, NDArray[Any]]:
        """Reads what a segment holds of transitions first to stop, counted from the start of the run."""
        index = torch.arange(first, stop, device=self.rows.device) % self.capacity
        rows = self.rows[member].index_select(0, index).cpu().numpy()
        return {"rows": rows, "origins": self.origins(member, first, stop)}

    def content_bytes(self, member: int, first: int, stop: int) -> int:
        return (stop - first) * (self.rows[member, :1].nbytes + self.links.origins[member, :1].nbytes)

    def put(self, member: int, first: int, contents: dict[str, NDArray[Any]], gone: int = 0) -> None:
        """Writes back contents, perhaps of another capacity, of transitions from first on without those gone by now."""
        rows = contents["rows"][gone:]
        index = np.arange(first + gone, first + gone + len(rows)) % self.capacity
        on_device = torch.from_numpy(index).to(self.rows.device)
        self.rows[member].index_copy_(0, on_device, torch.from_numpy(rows.copy()).to(self.rows.device))
        self.links.origins[member, index] = contents["origins"][gone:]

    def set_added(self, added: list[int]) -> None:
        self.added[:] = added
        self._set_size()

    def rebuild(self, member: int, first: int, stop: int) -> None:
        self.links.rebuild(member, first, stop)

    def rewards(self, index: Tensor) -> Tensor:
        return self.rows[..., sum(self.columns[:2])].gather(1, index)

    def rewards_of(self, member: int, rows: NDArray[np.int64]) -> list[float]:
        index = torch.from_numpy(rows).to(self.rows.device)
        rewards: list[float] = self.rows[member, :, sum(self.columns[:2])].index_select(0, index).tolist()
        return rewards

    def gather(self, index: Tensor, last: Tensor | None = None) -> tuple[Tensor, ...]:
        """Gathers s, a, r of rows index (M, B) of each member, and terminated, s2 of rows last, if they are others.

        On the CPU the next call overwrites them: making views takes three times as long as copying rows.
        """
        s, a, r, terminated, s2 = self._columns(index, "first")
        if last is not None:
            *_, terminated, s2 = self._columns(last, "last")
        return s, a, r, terminated, s2

    def _columns(self, index: Tensor, which: str) -> tuple[Tensor, ...]:
        chosen = (index if len(self.added) == 1 else self._first + index).reshape(-1)
        if self.rows.device.type != "cpu":
            return self._split(self._all_rows.index_select(0, chosen), index.shape)
        known = self._gathered.get((which, len(chosen)))
        if known is None:
            rows = self.rows.new_empty(len(chosen), self.rows.shape[-1])
            known = self._gathered[which, len(chosen)] = rows, self._split(rows, index.shape)
        rows, columns = known
        torch.index_select(self._all_rows, 0, chosen, out=rows)
        return columns

    def _split(self, rows: Tensor, shape: torch.Size) -> tuple[Tensor, ...]:
        s, a, r, terminated, s2 = torch.split(rows.view(*shape, rows.shape[-1]), self.columns, dim=-1)
        return s, a, r.squeeze(-1), terminated.squeeze(-1), s2

    def _set_size(self) -> None:
        kept = [self.kept(member) for member in range(len(self.added))]
        send(self.size, np.array([stop - first for first, stop in kept], np.float64))


def joined(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    """Concatenates arrays; one alone, as in each step of one member, needs no copy."""
    return np.concatenate(arrays) if len(arrays) > 1 else arrays[0]


def bytes_needed(spec: Spec, capacity: int, members: int) -> int:
    """The memory that a replay of this size takes."""
    return members * capacity * (sum(row_sizes(spec._replace(images=()))) * BYTES_PER_VALUE + BYTES_PER_ROW)


class Links:
    """The rows of the next and the previous transition of each row, or NONE, NOT_YET or OVERWRITTEN.

    A row goes on to the next one of its episode, which may not be there yet. If an episode was cut short, by a fault, a
    lost actor or a resumed run, its last row's next is NONE as soon as the environment's next episode begins.
    """

    def __init__(self, members: int, capacity: int, device: torch.device | str) -> None:
        self.capacity = capacity
        self.origins: Origins = np.full((members, capacity, 4), UNKNOWN, np.int32)
        self._links = np.full((members, capacity, 2), NONE, np.int32)  # next, previous
        self._newest: list[dict[int, tuple[int, int, int]]] = [{} for _ in range(members)]  # env: number, episode, step
        shared = torch.from_numpy(self._links)
        self._on_device = shared if torch.device(device).type == "cpu" else shared.to(device)
        self.next, self.previous = self._on_device.unbind(-1)  # (M, capacity) int32 each: views

    def back(self, member: int, row: int, most: int) -> list[int]:
        """Returns a row and those before it in its episode, at most so many, latest first."""
        previous, rows = self._links[member, :, 1], list[int]()
        while row >= 0 and len(rows) < most:
            rows.append(row)
            row = int(previous[row])
        return rows

    def add(self, *blocks: tuple[int, Origins, int]) -> None:
        """Links new transitions, of which a member's last is its stop-th: (member, origins, stop)."""
        changed = [
            member * self.capacity + row
            for member, origins, stop in blocks
            for row in self._link(member, origins, stop)
        ]
        if changed and self._on_device.device.type != "cpu":
            rows = np.unique(changed)
            send_rows(self._on_device.view(-1, 2), rows, self._links.reshape(-1, 2)[rows])

    def rebuild(self, member: int, first: int, stop: int) -> None:
        """Derives a member's links anew from the origins of its transitions first to stop, all at once."""
        rows = np.arange(first, stop) % self.capacity
        env, episode, step, ending = self.origins[member, rows].T
        order = np.argsort(env, kind="stable")  # by environment, in the order of arrival
        earlier, later = order[:-1], order[1:]
        same_env = (env[earlier] == env[later]) & (env[earlier] != UNKNOWN)
        continues = same_env & (episode[earlier] == episode[later]) & (step[earlier] + 1 == step[later])
        following, previous = np.full(len(rows), NONE), np.where((step == 0) | (env == UNKNOWN), NONE, OVERWRITTEN)
        following[earlier[continues]] = rows[later[continues]]
        previous[later[continues]] = rows[earlier[continues]]
        newest = np.append(earlier[env[earlier] != env[later]], order[-1:])  # of each environment
        newest = newest[env[newest] != UNKNOWN]
        going_on = newest[ending[newest] == GOES_ON]
        following[going_on] = NOT_YET
        self._links[member] = NONE
        self._links[member, rows] = np.column_stack([following, previous])
        self._newest[member] = {
            int(env[last]): (first + int(last), int(episode[last]), int(step[last])) for last in newest
        }
        self._on_device[member].copy_(torch.from_numpy(self._links[member]))

    def end_episodes(self) -> None:
        """Declares that no episode goes on: what was not yet there never comes."""
        self._links[self._links == NOT_YET] = NONE
        for newest in self._newest:
            newest.clear()
        self._on_device.copy_(torch.from_numpy(self._links))

    def _link(self, member: int, origins: Origins, stop: int) -> list[int]:
        """Links one block; returns the rows whose links have changed, some of them twice."""
        capacity, links, newest = self.capacity, self._links[member], self._newest[member]
        changed: list[int] = []
        for number, (env, episode, step, ending) in enumerate(origins.tolist(), stop - len(origins)):
            row = number % capacity
            changed.append(row)
            follower = int(links[row, 0]) if number >= capacity else NONE
            if follower >= 0:  # of the transition that is overwritten now
                links[follower, 1] = OVERWRITTEN
                changed.append(follower)
            self.origins[member, row] = env, episode, step, ending
            previous = NONE if step == 0 else OVERWRITTEN
            before = newest.get(env)
            if before is not None and before[0] > number - capacity:
                continues = before[1:] == (episode, step - 1)
                before_row = before[0] % capacity
                links[before_row, 0] = row if continues else NONE
                changed.append(before_row)
                previous = before_row if continues else previous
            links[row] = NOT_YET if ending == GOES_ON else NONE, previous
            if env == UNKNOWN:
                links[row] = NONE
            else:
                newest[env] = number, episode, step
        return changed
