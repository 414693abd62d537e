"""Selects the transitions that an update learns from (step 4): uniformly, or by their errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from t3d.config import ReplayConfig, RuleConfig
from t3d.data.priorities import SumTree
from t3d.data.replay import Replay
from t3d.files import to_count
from t3d.random_streams import open_streams
from t3d.tensors import put, sendable
from t3d.types import Batch, Coefficient, State

SMALLEST_ERROR = 1e-6  # is added to errors, so that a transition without one is still drawn; from Schaul and others
LOWEST, HIGHEST = 1e-30, 1e30  # of priorities: above zero, and a million add up to what a float holds; chosen
FIND_HIGHEST_EVERY = 250  # transitions of a member; TD7's number, there of updates


class UniformSampler:
    """Samples transitions uniformly, each member from its own random stream; other samplers override its methods."""

    capture_safe = True  # whether CUDA graphs may record sample and feedback
    settings = ReplayConfig()  # unless others are given

    def __init__(
        self,
        replay: Replay,
        cfg: RuleConfig,
        seeds: Sequence[int],
        gamma: Coefficient | None = None,
        replay_cfg: ReplayConfig | None = None,
        n_steps: Sequence[int] = (),
    ) -> None:
        """n_steps are those of members, if they differ in them."""
        self.settings = replay_cfg or self.settings
        self.replay, self.n_step = replay, max(n_steps, default=self.settings.n_step)
        shape, device = (len(seeds), cfg.batch_size), replay.rows.device
        self._n_steps = torch.tensor(n_steps, device=device).unsqueeze(1) if len({*n_steps}) > 1 else None
        self._streams = open_streams(seeds, "sampling", torch.empty(shape, device=device, dtype=torch.float64))
        if isinstance(gamma, Tensor):
            self._gamma = gamma.to(device, torch.float32).unsqueeze(1).expand(shape)
        else:
            self._gamma = torch.full(shape, cfg.gamma if gamma is None else gamma, device=device, dtype=torch.float32)
        self._weight = torch.ones(shape, device=device, dtype=torch.float32)

    def sample(self) -> Batch:
        """Draws rows, and from each as many steps as its episode has, at most n_step."""
        index = self.replay.pick(self._streams.uniform())  # (M, B)
        return n_step_batch(self.replay, index, self._gamma, self._weight, self.n_step, self._n_steps)

    def added(self, *blocks: tuple[int, int, int]) -> None: ...  # member, and its transitions first to stop of the run

    def feedback(self, index: Tensor, td: Tensor) -> None: ...

    def find_highest(self, members: Sequence[int]) -> None: ...  # finds their highest priorities, if it has any

    def keep(self, members: Sequence[int]) -> Callable[[], None]:
        """Returns what puts back to what it is now whatever updates change of these members."""
        return self._streams.keep(members)

    def state(self) -> State:
        return {"streams": self._streams.state()}

    def restore(self, state: State) -> None:
        self._streams.restore(state["streams"])


def n_step_batch(
    replay: Replay, index: Tensor, gamma: Tensor, weight: Tensor, n: int, each: Tensor | None = None
) -> Batch:
    """Gathers rows index (M, B) with the rewards of up to n steps: r + gamma r' + ..., and the state after the last.

    A row whose episode ends, was cut or has not gone further yet uses the steps there are; its discount is gamma to
    the power of their number. each (M, 1) is every member's n, where some have a smaller one.
    """
    if n == 1:
        s, a, r, terminated, s2 = replay.gather(index)
        return Batch(s, a, r, s2, terminated, gamma, weight, index)
    discount, last, r = gamma, index, replay.rewards(index)
    for number in range(1, n):
        following = replay.links.next.gather(1, last)
        goes_on = following >= 0 if each is None else (following >= 0) & (number < each)
        last = torch.where(goes_on, following.long(), last)
        r = r + torch.where(goes_on, discount * replay.rewards(last), 0)
        discount = torch.where(goes_on, discount * gamma, discount)
    s, a, _, terminated, s2 = replay.gather(index, last)
    return Batch(s, a, r, s2, terminated, discount, weight, index)


PRIORITIES: dict[str, Callable[[Tensor, float], Tensor]] = {  # of errors (M, B), with an exponent
    "proportional": lambda error, alpha: (error + SMALLEST_ERROR) ** alpha,
    "lap": lambda error, alpha: error.clamp(min=1) ** alpha,
}


class PrioritisedSampler(UniformSampler):
    """Samples stored transitions in proportion to their priorities; each member has its own, and its own stream."""

    finds_highest_itself = True  # otherwise it is told when
    settings = ReplayConfig(sampling="proportional")

    def __init__(self, replay: Replay, cfg: RuleConfig, seeds: Sequence[int], *others: Any) -> None:
        super().__init__(replay, cfg, seeds, *others)
        members, device = len(seeds), replay.rows.device
        self.tree = SumTree(members, replay.capacity, device)
        self.highest = torch.ones(members, device=device, dtype=torch.float32)  # priority of new transitions
        self.updates = torch.zeros((), device=device, dtype=torch.float64)  # a tensor, for CUDA graphs
        self._member = torch.arange(members, device=device).unsqueeze(1)
        self._oldest = [0] * members  # the first transition of each member that has a priority

    def sample(self) -> Batch:
        index = self.tree.find(self._streams.uniform())
        weight = self._importance(index) if self.settings.sampling == "proportional" else self._weight
        return n_step_batch(self.replay, index, self._gamma, weight, self.n_step, self._n_steps)

    def added(self, *blocks: tuple[int, int, int]) -> None:
        """Gives new transitions the highest priority, so that each is likely to be drawn soon."""
        members, rows = [], []
        for member, first, stop in blocks:
            if self.finds_highest_itself and first and first // FIND_HIGHEST_EVERY != stop // FIND_HIGHEST_EVERY:
                self.find_highest([member])
            members.append(np.full(stop - first, member))
            rows.append(np.arange(first, stop) % self.replay.capacity)
        device = self.highest.device
        where = sendable(np.stack([np.concatenate(members), np.concatenate(rows)]), device)
        member, row = where.to(device, non_blocking=True)
        self.tree.set(member, row, self.highest.index_select(0, member))
        for owner, _, _ in blocks:
            self._forget(owner)

    def feedback(self, index: Tensor, td: Tensor) -> None:
        """Sets priorities by the largest error of any critic; of n-step returns they are the first row's."""
        device = self.highest.device
        error = td.abs().amax(dim=1).double()  # (M, B); powers of float32 depend on a value's place in the batch
        priority = PRIORITIES[self.settings.sampling](error, self.settings.priority_exponent).clamp(LOWEST, HIGHEST)
        priority = priority.to(device, torch.float32)
        self.tree.set(self._member, index.to(device), priority)
        self.highest.copy_(self.highest.maximum(priority.amax(dim=1)))
        self.updates.add_(1)

    def find_highest(self, members: Sequence[int]) -> None:
        for member in members:
            self.highest[member] = self.tree.priorities[member].amax()

    def keep(self, members: Sequence[int]) -> Callable[[], None]:
        rest, rows = super().keep(members), torch.tensor(members, device=self.highest.device)
        kept = [(values, values.index_select(0, rows)) for values in (self.highest, *self.tree.levels)]

        def put_back() -> None:
            rest()
            for values, before in kept:
                values.index_copy_(0, rows, before)

        return put_back

    def state(self) -> State:
        return {
            **super().state(),
            "updates": int(self.updates),
            "highest": self.highest.to("cpu", copy=True).numpy(),
            "priorities": {
                str(member): self.tree.priorities[member].index_select(0, self._rows(member)).cpu().numpy()
                for member in range(len(self.highest))
            },
        }

    def restore(self, state: State) -> None:
        """Restores what state() returned, perhaps from a replay of another capacity, once transitions are counted."""
        super().restore(state)
        self.updates.fill_(to_count(state["updates"]))
        put(self.highest, state["highest"], "the highest priority")
        self.tree.priorities.zero_()
        for member in range(len(self.highest)):
            rows, saved = self._rows(member), state["priorities"][str(member)]
            fits = saved.dtype == np.float32 and saved.ndim == 1 and len(saved) >= len(rows)
            if not fits or (saved < 0).any():  # NaN may stay: that member has diverged
                raise ValueError(f"the priorities of member {member} do not fit its {len(rows)} transitions")
            newest = torch.from_numpy(saved[len(saved) - len(rows) :].copy())
            self.tree.priorities[member].index_copy_(0, rows, newest.to(rows.device))
        self.tree.rebuild()
        self._oldest = [self.replay.kept(member)[0] for member in range(len(self.highest))]

    def _forget(self, member: int) -> None:
        """Takes the priorities of transitions that have left although their rows are not overwritten."""
        first, stop = self.replay.kept(member)
        gone = np.arange(max(self._oldest[member], stop - self.replay.capacity), first) % self.replay.capacity
        self._oldest[member] = first
        if len(gone):
            rows = sendable(gone, self.highest.device).to(self.highest.device, non_blocking=True)
            self.tree.set(self._member[member], rows, torch.zeros_like(rows, dtype=torch.float32))

    def _rows(self, member: int) -> Tensor:
        return torch.arange(*self.replay.kept(member), device=self.highest.device) % self.replay.capacity

    def _importance(self, index: Tensor) -> Tensor:
        """Importance weights (N P(i))^-beta over the largest of the batch: N and the total priority cancel out."""
        start, updates = self.settings.importance_exponent, self.settings.importance_updates
        rise = (1 - start) / updates if updates else 0
        beta = (start + rise * self.updates).clamp(max=1)
        priority = self.tree.priorities.gather(1, index).double().clamp(min=LOWEST)
        return ((priority.amin(dim=1, keepdim=True) / priority) ** beta).float()


class ToldSampler(PrioritisedSampler):
    """As TD7 has it: the highest priority is found anew when the rule says so."""

    finds_highest_itself = False


SAMPLERS: dict[str, Callable[..., UniformSampler]] = {
    "uniform": UniformSampler,
    "proportional": PrioritisedSampler,  # Schaul and others, 2016
    "lap": PrioritisedSampler,  # loss-adjusted: Fujimoto and others, 2020
}
