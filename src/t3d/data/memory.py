"""Replay, sampler, normaliser and reward scaler: what the loop adds to and updates learn from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import torch

from t3d.config import Config
from t3d.data import priorities, replay
from t3d.data.frame_ring import frames_needed
from t3d.data.frames import FrameReplay
from t3d.data.replay import Replay
from t3d.data.samplers import SAMPLERS, ToldSampler
from t3d.data.scaling import Normaliser, RewardScaler
from t3d.errors import UserError
from t3d.files import to_count, to_fields, to_number
from t3d.policy.acting import PolicySnapshot
from t3d.policy.spec import Spec
from t3d.types import Batch, Coefficient, Rollout, State


class Memory:
    """Stores rollouts; the source of the learner's batches."""

    def __init__(self, spec: Spec, cfg: Config, device: str, gamma: Coefficient | None = None) -> None:
        seeds, settings = cfg.member_seeds, cfg.settings_of()
        self.replay = _replay(spec, cfg, device)
        self.added, self.device = self.replay.added, self.replay.rows.device  # transitions ever added, per member
        self.carried = [0] * len(seeds)  # how many of these another run has collected
        n_steps = [cfg.replay_of(member).n_step for member in cfg.members]
        kind = ToldSampler if cfg.chooses_itself else SAMPLERS[cfg.replay.sampling]
        self.sampler = kind(self.replay, settings, seeds, gamma, cfg.sampling, n_steps)
        self.capture_safe = self.sampler.capture_safe and self.device.type == "cuda"  # whether graphs may record it
        self.normaliser = Normaliser(len(seeds), spec.observation_size, device) if cfg.normalise_observations else None
        self._largest = [0.0] * len(seeds)
        gamma = settings.gamma if gamma is None else gamma
        scales = [cfg.scales_rewards(member) for member in cfg.members]
        self.reward_scaler = RewardScaler(len(seeds), gamma, device, scales) if any(scales) else None

    def add(self, *rollouts: Rollout) -> None:
        """Stores blocks of transitions, at most one per member; they may be empty."""
        filled = [rollout for rollout in rollouts if len(rollout.rows)]
        if not filled:
            return
        first = list(self.added)
        self.replay.add(*filled)
        self.sampler.added(*((m, first[m], self.added[m]) for m in (rollout.member for rollout in filled)))
        for rollout in filled:
            self._largest[rollout.member] = max(self._largest[rollout.member], float(np.abs(rollout.r).max()))
            if self.normaliser is not None:
                self.normaliser.add(rollout)
        if self.reward_scaler is not None:
            self.reward_scaler.add(*filled)

    def take_over(self, state: State, members: Sequence[int]) -> None:
        """Continues the statistics of these members of another run, whose episodes in progress do not continue."""
        for name in ("normaliser", "reward_scaler"):
            part, saved = getattr(self, name), to_fields(state.get(name, {}))
            if part is not None and saved:
                moments = {key: saved[key][list(members)] for key in ("count", "mean", "m2")}
                part.restore({**moments, "newest": np.empty((0, 5))})

    def carry(self, rollouts: Iterable[Rollout]) -> None:
        """Stores what another run has collected; none of its episodes goes on."""
        for rollout in rollouts:
            self.add(rollout)
        self.replay.links.end_episodes()
        self.carried = list(self.added)

    def collected(self, member: int) -> int:
        """Transitions that this run has added."""
        return self.added[member] - self.carried[member]

    @property
    def largest_rewards(self) -> list[float]:
        """Each member's largest reward so far, without its sign, scaled as the networks see it now."""
        if self.reward_scaler is None:
            return list(self._largest)
        scales = self.reward_scaler.scale.flatten().tolist()
        return [largest / scale for largest, scale in zip(self._largest, scales, strict=True)]

    def sample(self) -> Batch:
        return self.prepare(self.sampler.sample())

    def prepare(self, batch: Batch) -> Batch:
        if self.normaliser is not None:
            batch = self.normaliser.normalised(batch)
        return batch if self.reward_scaler is None else self.reward_scaler.scaled(batch)

    def feedback(self, index: torch.Tensor, td: torch.Tensor) -> None:
        self.sampler.feedback(index, td)

    def keep(self, members: Sequence[int]) -> Callable[[], None]:
        return self.sampler.keep(members)

    def find_highest(self, members: Sequence[int]) -> None:
        self.sampler.find_highest(members)

    def scaled(self, snapshot: PolicySnapshot) -> PolicySnapshot:
        return snapshot if self.normaliser is None else self.normaliser.put_into(snapshot)

    def state(self) -> State:
        """Everything except the rows and frames of the replay, which are saved in segments."""
        parts = {"sampler": self.sampler, "normaliser": self.normaliser, "reward_scaler": self.reward_scaler}
        return {
            **({"frames": self.replay.state()} if isinstance(self.replay, FrameReplay) else {}),
            "device": self.device.type,
            "added": list(self.added),
            "carried": list(self.carried),
            "largest_rewards": list(self._largest),
            **{name: {} if part is None else part.state() for name, part in parts.items()},
        }

    def restore(self, state: State) -> None:
        if len(state["added"]) != len(self.added):
            raise ValueError(f"it holds {len(state['added'])} members")
        added = [to_count(count) for count in state["added"]]
        if isinstance(self.replay, FrameReplay):
            self.replay.restore(state["frames"], added)
        self.replay.set_added(added)
        self.carried = [to_count(count) for count in state.get("carried", self.carried)]  # not in older ones
        largest = state.get("largest_rewards", [0.0] * len(added))  # not in older ones
        self._largest = [to_number(reward) for reward, _ in zip(largest, added, strict=True)]
        self.sampler.restore(state["sampler"])
        if self.normaliser is not None:
            self.normaliser.restore(state["normaliser"])
        if self.reward_scaler is not None:  # added in the course of format 2
            self.reward_scaler.restore(state["reward_scaler"])


def _replay(spec: Spec, cfg: Config, device: str) -> Replay:
    if not spec.images:
        if cfg.replay.frames_on_disk:
            raise UserError("replay.frames_on_disk=true, and the observations hold no images; leave it off")
        return Replay(spec, _rows(cfg, cfg.replay.capacity), len(cfg.members), device)
    if cfg.start_replay:
        raise UserError("start_replay=true is for vectors, and these observations hold images; leave it off")
    if cfg.normalise_observations:
        raise UserError(
            "normalise_observations=true is for vectors, and these observations hold images, which are scaled as they "
            "are encoded; leave it off"
        )
    folder = Path(cfg.run.root) if cfg.replay.frames_on_disk else None
    capacity, members, envs = cfg.replay.capacity, len(cfg.members), cfg.num_envs
    return FrameReplay(spec, capacity, members, device, envs, folder, cfg.total_steps)


def _rows(cfg: Config, capacity: int) -> int:
    return capacity if cfg.start_replay else min(capacity, cfg.total_steps)  # a shorter run never fills it


def bytes_needed(spec: Spec, cfg: Config, capacity: int | None = None) -> int:
    """The memory that the replay takes, or would with another capacity, with priorities and frames if there are any."""
    capacity, members, envs = capacity or cfg.replay.capacity, len(cfg.members), cfg.num_envs
    rows = _rows(cfg, capacity)
    needed = replay.bytes_needed(spec, rows, members)
    if cfg.sampling.sampling != "uniform":
        needed += priorities.bytes_needed(members, rows)
    if spec.images:
        in_memory = 0 if cfg.replay.frames_on_disk else frames_needed(spec, capacity, envs, cfg.total_steps)
        needed += members * (in_memory * spec.frame_size + rows * (spec.stack + 1) * 8)
    return needed
