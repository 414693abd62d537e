"""Metrics of learning: of a batch (M members, C critics, B transitions), of networks, and returns that followed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from t3d.algo.adam import BETA1, AdamState
from t3d.algo.networks import Stack, named_fields
from t3d.data.replay import Replay
from t3d.policy.architectures import Operations
from t3d.types import GOES_ON, TRUNCATED, Batch

Forward = list[Tensor]  # what each activation passes on in one forward pass, (K, B, size)
SATURATED = 0.99  # of the range of an action; tanh has a fiftieth of its slope there
BINS = 20  # of histograms; chosen
MOST_OWN = 0.5  # of the critics' own estimate may be in a return: more would compare them with themselves; chosen
SEARCHED, AT_ONCE = 100_000, 10_000  # newest transitions searched for ends of episodes; chosen


def disagreement(q: Tensor) -> Tensor:
    """The standard deviation of q (M, C, B) over the critics, on average over the batch: (M,)."""
    return q.std(dim=1, correction=0).mean(dim=-1)


def saturated(pi: Tensor) -> Tensor:
    """The share of the components of actions pi (M, B, action_size) that are at the ends of their range: (M,)."""
    return (pi.abs() > SATURATED).float().mean(dim=(1, 2))


def stuck_actions(pi: Tensor) -> Tensor:
    """The share of the components of actions pi (M, B, action_size) that are at the same end in all states: (M,)."""
    return ((pi > SATURATED).all(dim=1) | (pi < -SATURATED).all(dim=1)).float().mean(dim=-1)


def constant_observations(s: Tensor) -> list[list[int]]:
    """For each member the components of s (M, B, observation_size) that are the same in all observations."""
    same = (s.amax(dim=1) == s.amin(dim=1)).cpu()
    return [torch.nonzero(components).flatten().tolist() for components in same]


def quantiles(values: Tensor, shares: Sequence[float]) -> list[list[float]]:
    """For each member the quantiles of its values (M, ...)."""
    each = torch.quantile(values.flatten(1).double(), torch.tensor(shares, dtype=torch.float64), dim=1)
    by_member: list[list[float]] = each.T.tolist()
    return by_member


def ages(index: Tensor, added: Sequence[int], capacity: int) -> Tensor:
    """How many transitions of a member were added after those in rows index (M, B) of its ring: (M, B)."""
    newest = torch.tensor(added).unsqueeze(1) - 1
    return (newest - index) % capacity


def histogram(values: NDArray[np.floating], low: float, high: float) -> list[int]:
    """Counts values in BINS bins of equal width from low to high."""
    counts: list[int] = np.histogram(values.astype(np.float64), BINS, (low, high))[0].tolist()
    return counts


def networks(agent: Any) -> dict[str, Stack]:
    """The networks of an agent that learn; an actor with an encoder is two."""
    stacks: dict[str, Stack] = {}
    for name, value in named_fields(agent):
        if isinstance(value, Stack) and not name.endswith(("_target", "_fixed", "checkpoint")):
            stacks |= value.parts or {name: value}
    return stacks


def norms(values: Tensor, members: int) -> list[float]:
    """The norm of each member's values (M, ...) or (M * C, ...), over all its rows."""
    norm_of_each: list[float] = torch.linalg.vector_norm(values.view(members, -1), dim=1, dtype=torch.float64).tolist()
    return norm_of_each


def first_moments(agent: Any) -> dict[str, Tensor]:
    """A copy of Adam's first moments, by the name of the network that it moves."""
    return {
        name.removesuffix("_adam"): value.mean.to(torch.float64, copy=True)
        for name, value in named_fields(agent)
        if isinstance(value, AdamState)
    }


def gradient(before: Tensor, after: Tensor) -> Tensor:
    """The gradient that changed Adam's first moment: after = BETA1 * before + (1 - BETA1) * gradient."""
    return (after - BETA1 * before) / (1 - BETA1)


def record_activations(stack: Stack) -> list[Forward]:
    """Returns a list to which every forward pass of this object adds what its activations pass on."""
    network, forwards = stack.architecture, list[Forward]()

    def forward(parameters: Sequence[Any], x: Any, ops: Operations) -> Any:
        passed: Forward = []
        forwards.append(passed)

        def activate(value: Any) -> Any:
            y = ops.activate(value)
            passed.append(y.detach())
            return y

        return network.kind.forward(parameters, x, ops._replace(activate=activate))

    stack.architecture = network._replace(kind=network.kind._replace(forward=forward))
    return forwards


def dead_units(passed: Forward, members: int) -> list[float]:
    """The share of the units after a ReLU that are zero for the whole batch."""
    dead = torch.cat([(layer <= 0).all(dim=1) for layer in passed], dim=-1)  # (K, units)
    shares: list[float] = dead.view(members, -1).float().mean(dim=1).tolist()
    return shares


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
        for position in np.flatnonzero(origins[:, 3] > GOES_ON)[::-1].tolist():
            _, _, step, ending = origins[position].tolist()
            yield (before + position) % replay.capacity, step + 1, ending


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
