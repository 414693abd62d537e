"""What followed the newest transitions of a replay: their discounted returns, to compare predictions with."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from t3d.data.replay import Replay
from t3d.types import GOES_ON, TRUNCATED, Batch

MOST_OWN = 0.5  # of the critics' own estimate may be in a return: more would compare them with themselves; chosen
SEARCHED, AT_ONCE = 100_000, 10_000  # newest transitions searched for ends of episodes; chosen


class Returns(NamedTuple):
    """Transitions of one member's finished episodes, those of the newest episode first."""

    rows: NDArray[np.int64]  # (n,): of the replay
    last: NDArray[np.int64]  # (n,): the last row of each one's episode
    r: NDArray[np.float64]  # (n,): the discounted sum of the rewards to the end of the episode
    discount: NDArray[np.float64]  # (n,): what the value of the state after that counts for


NO_RETURNS = Returns(*np.zeros((2, 0), np.int64), *np.zeros((2, 0)))


def discounted(latest_first: Iterable[float], gamma: float) -> list[float]:
    """The discounted sum of an episode's rewards from each of its steps to the end, the last step's first."""
    total, sums = 0.0, []
    for reward in latest_first:
        total = reward + gamma * total
        sums.append(total)
    return sums


def newest_returns(replay: Replay, member: int, gamma: float, most: int) -> Returns:
    """Finds a member's newest transitions whose return is known, at most so many.

    Episodes that go on or were cut are left out. If a time limit ended one, the value of the state after it is part
    of the return, and transitions for which it counts more than MOST_OWN are left out.
    """
    episodes = list(_finished(replay, member, gamma, most))
    rewards = iter(replay.rewards_of(member, np.array([row for rows, _ in episodes for row in rows], np.int64)))
    pieces = [NO_RETURNS]
    for rows, used in episodes:
        sums = discounted(islice(rewards, len(rows)), gamma)
        discount = gamma ** np.arange(1, len(rows) + 1, dtype=np.float64)
        last = np.full(len(rows), rows[0])
        pieces.append(Returns(*(np.array(column)[used] for column in (rows, last, sums, discount))))
    return Returns(*(np.concatenate(columns)[:most] for columns in zip(*pieces, strict=True)))


def _finished(replay: Replay, member: int, gamma: float, most: int) -> Iterator[tuple[list[int], NDArray[np.bool_]]]:
    """Yields the rows of finished episodes from the last one back, and which of them have a return worth comparing."""
    first, stop = replay.kept(member)
    count = 0
    for last, length, ending in _ends(replay, member):
        limit = MOST_OWN if ending == TRUNCATED else 1.0
        if count >= most:
            return
        if gamma**length > limit:
            continue
        before = math.ceil(math.log(limit, gamma)) if 0 < gamma < 1 else 0  # rows that are too close to the end
        rows = replay.links.back(member, last, before + most - count)
        discount = gamma ** np.arange(1, len(rows) + 1, dtype=np.float64)
        is_kept = (stop - 1 - np.array(rows)) % replay.capacity < stop - first  # its frames may have gone
        used = (discount <= limit) & is_kept
        count += int(used.sum())
        yield rows, used


def _ends(replay: Replay, member: int) -> Iterator[tuple[int, int, int]]:
    """Yields the last rows of finished episodes, newest first, each with the episode's length and how it ended."""
    first, stop = replay.kept(member)
    for after in range(stop, max(first, stop - SEARCHED), -AT_ONCE):
        before = max(first, after - AT_ONCE)
        origins = replay.origins(member, before, after)
        for place in np.flatnonzero(origins[:, 3] > GOES_ON)[::-1].tolist():
            _, _, step, ending = origins[place].tolist()
            yield (before + place) % replay.capacity, step + 1, ending


def as_batch(replay: Replay, returns: Sequence[Returns], most: int) -> Batch:
    """Returns of all members as a batch (M, most) of many-step transitions; where there are fewer, the weight is 0."""
    index, last = np.zeros((2, len(returns), most), np.int64)
    r, discount, weight = np.zeros((3, len(returns), most), np.float32)
    for member, known in enumerate(returns):
        where = member, slice(len(known.rows))
        index[where], last[where], r[where], discount[where], weight[where] = *known, 1
    device = replay.rows.device
    rows, ends, *numbers = (torch.from_numpy(array).to(device) for array in (index, last, r, discount, weight))
    s, a, _, terminated, s2 = replay.gather(rows, ends)
    return Batch(s, a, numbers[0], s2, terminated, numbers[1], numbers[2], rows)
