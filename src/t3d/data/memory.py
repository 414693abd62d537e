"""Replay, sampler, normaliser and reward scaler: what the loop adds to and updates learn from."""

from __future__ import annotations

from collections.abc import Callable

import torch

from t3d.config import Config
from t3d.data import priorities, replay
from t3d.data.normaliser import Normaliser
from t3d.data.prioritised import PrioritisedSampler
from t3d.data.replay import Replay
from t3d.data.reward_scaler import RewardScaler
from t3d.data.samplers import Sampler, UniformSampler
from t3d.files import to_count
from t3d.snapshots import PolicySnapshot
from t3d.types import Batch, Coefficient, Rollout, Spec, State

SAMPLERS: dict[str, Callable[..., Sampler]] = {
    "uniform": UniformSampler,
    "proportional": PrioritisedSampler,
    "lap": PrioritisedSampler,
}


class Memory:
    """Stores rollouts; the source of the learner's batches."""

    def __init__(self, spec: Spec, cfg: Config, device: str, gamma: Coefficient | None = None) -> None:
        seeds = cfg.member_seeds
        self.replay = Replay(spec, rows_needed(cfg), len(seeds), device)
        self.sampler = SAMPLERS[cfg.replay.sampling](self.replay, cfg.td3, seeds, gamma, cfg.replay)
        self.normaliser = Normaliser(len(seeds), spec.observation_size, device) if cfg.normalise_observations else None
        gamma = cfg.td3.gamma if gamma is None else gamma
        self.reward_scaler = RewardScaler(len(seeds), gamma, device) if cfg.scale_rewards else None

    @property
    def added(self) -> list[int]:
        """Transitions ever added, per member."""
        return self.replay.added

    def add(self, *rollouts: Rollout) -> None:
        """Stores blocks of transitions, at most one per member; they may be empty."""
        filled = [one for one in rollouts if len(one.rows)]
        if filled:
            self.replay.add(*filled)
            stops = self.replay.added
            self.sampler.added(*((one.member, stops[one.member] - len(one.rows), stops[one.member]) for one in filled))
        for one in filled:
            if self.normaliser is not None:
                self.normaliser.add(one)
        if self.reward_scaler is not None and filled:
            self.reward_scaler.add(*filled)

    @property
    def device(self) -> torch.device:
        """Where batches are."""
        return self.replay.rows.device

    @property
    def capture_safe(self) -> bool:
        """Whether CUDA graphs may record sampling and feedback."""
        return self.sampler.capture_safe and self.device.type == "cuda"

    def sample(self) -> Batch:
        """Samples a batch for one update (step 4)."""
        batch = self.sampler.sample()
        if self.normaliser is not None:
            batch = self.normaliser.normalised(batch)
        return batch if self.reward_scaler is None else self.reward_scaler.scaled(batch)

    def feedback(self, index: torch.Tensor, td: torch.Tensor) -> None:
        """Tells the sampler the errors (M, C, B) of rows index (M, B)."""
        self.sampler.feedback(index, td)

    def scaled(self, snapshot: PolicySnapshot) -> PolicySnapshot:
        """Adds the current observation scaling to a snapshot."""
        return snapshot if self.normaliser is None else self.normaliser.put_into(snapshot)

    def state(self) -> State:
        """Everything except the rows of the replay, which are saved in segments."""
        return {
            "added": list(self.added),
            "sampler": self.sampler.state(),
            "normaliser": {} if self.normaliser is None else self.normaliser.state(),
            "reward_scaler": {} if self.reward_scaler is None else self.reward_scaler.state(),
        }

    def restore(self, state: State) -> None:
        """Restores what state() returned; the rows of the replay are put back separately."""
        if len(state["added"]) != len(self.added):
            raise ValueError(f"it holds {len(state['added'])} members")
        self.replay.set_added([to_count(count) for count in state["added"]])
        self.sampler.restore(state["sampler"])
        if self.normaliser is not None:
            self.normaliser.restore(state["normaliser"])
        if self.reward_scaler is not None:  # added in the course of format 2
            self.reward_scaler.restore(state["reward_scaler"])


def rows_needed(cfg: Config) -> int:
    """Rows to allocate: at most total_steps, because a shorter run never fills the replay's capacity."""
    return min(cfg.replay.capacity, cfg.total_steps)


def bytes_needed(spec: Spec, cfg: Config) -> int:
    """The memory that the replay takes, with priorities if there are any."""
    rows, members = rows_needed(cfg), len(cfg.members)
    for_priorities = 0 if cfg.replay.sampling == "uniform" else priorities.bytes_needed(members, rows)
    return replay.bytes_needed(spec, rows, members) + for_priorities
