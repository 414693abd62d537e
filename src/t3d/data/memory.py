"""What a run remembers: replay, sampler and normaliser as the loop sees them."""

from __future__ import annotations

import torch

from t3d.config import Config
from t3d.data.normaliser import Normaliser
from t3d.data.replay import Replay
from t3d.data.samplers import UniformSampler
from t3d.types import Batch, PolicySnapshot, Rollout, Spec, State, whole


class Memory:
    """Takes rollouts in and gives batches out."""

    def __init__(self, spec: Spec, cfg: Config, device: torch.device | str) -> None:
        members = len(cfg.seeds)
        self.replay = Replay(spec, rows_needed(cfg), members, device)
        self.sampler = UniformSampler(self.replay, cfg.td3, cfg.seeds)
        self.normaliser = Normaliser(members, spec.observation_size, device) if cfg.td3.normalise_observations else None

    @property
    def added(self) -> list[int]:
        """Transitions ever added, per member."""
        return self.replay.added

    def add(self, rollout: Rollout) -> None:
        """Remembers a block of transitions, which may be empty."""
        if len(rollout.r) == 0:
            return
        self.replay.add(rollout)
        if self.normaliser is not None:
            self.normaliser.add(rollout)

    def sample(self) -> Batch:
        """A batch for one update (step 4)."""
        batch = self.sampler()
        return batch if self.normaliser is None else self.normaliser.normalised(batch)

    def scaled(self, snapshot: PolicySnapshot) -> PolicySnapshot:
        """The snapshot with the observation scaling that goes with it."""
        return snapshot if self.normaliser is None else self.normaliser.put_into(snapshot)

    def state(self) -> State:
        """Everything but the rows of the replay, which are saved piece by piece."""
        normaliser = {} if self.normaliser is None else self.normaliser.state()
        return {"added": list(self.added), "sampler": self.sampler.state(), "normaliser": normaliser}

    def restore(self, state: State) -> None:
        """Goes on where a memory of the same shape was; the rows are put back after."""
        if len(state["added"]) != len(self.added):
            raise ValueError(f"it holds {len(state['added'])} members")
        self.replay.set_added([whole(count) for count in state["added"]])
        self.sampler.restore(state["sampler"])
        if self.normaliser is not None:
            self.normaliser.restore(state["normaliser"])


def rows_needed(cfg: Config) -> int:
    """A run shorter than the ring's capacity never fills it, so no more than total_steps rows are allocated."""
    return min(cfg.replay.capacity, cfg.total_steps)
