"""Which transition comes before and after another in its episode.

Every stored transition carries, unchanging, where it comes from: environment, episode, step and how it ended. Links are
derived from that when transitions are added, and again when a run is resumed; they are never saved.
"""

from __future__ import annotations

import numpy as np
import torch

from t3d.tensors import send_rows
from t3d.types import GOES_ON, UNKNOWN, Origins

NONE, NOT_YET, OVERWRITTEN = -1, -2, -3  # instead of a row: there is none, it has not arrived, the ring has lost it
BYTES_PER_ROW = 4 * 4 + 2 * 4  # origins and links in host memory; links on the GPU too, if the rows are there


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
