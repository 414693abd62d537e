"""Replay, sampler and normaliser: what the loop adds to and updates learn from."""

from __future__ import annotations

import torch

from t3d.config import Config
from t3d.data.normaliser import Normaliser
from t3d.data.replay import Replay
from t3d.data.samplers import Sampler, UniformSampler
from t3d.files import to_count
from t3d.snapshots import PolicySnapshot
from t3d.types import Batch, Coefficient, Rollout, Spec, State


class Memory:
    """Stores rollouts; the source of the learner's batches."""

    def __init__(self, spec: Spec, cfg: Config, device: str, gamma: Coefficient | None = None) -> None:
        seeds = [member.seed for member in cfg.members]
        self.replay = Replay(spec, rows_needed(cfg), len(seeds), device)
        self.sampler: Sampler = UniformSampler(self.replay, cfg.td3, seeds, gamma, cfg.replay.n_step)
        scales = cfg.normalise_observations
        self.normaliser = Normaliser(len(seeds), spec.observation_size, device) if scales else None

    @property
    def added(self) -> list[int]:
        """Transitions ever added, per member."""
        return self.replay.added

    def add(self, *rollouts: Rollout) -> None:
        """Stores blocks of transitions, at most one per member; they may be empty."""
        filled = [one for one in rollouts if len(one.rows)]
        if filled:
            self.replay.add(*filled)
        for one in filled:
            stop = self.replay.added[one.member]
            self.sampler.added(one.member, stop - len(one.rows), stop)
            if self.normaliser is not None:
                self.normaliser.add(one)

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
        return batch if self.normaliser is None else self.normaliser.normalised(batch)

    def feedback(self, index: torch.Tensor, td: torch.Tensor) -> None:
        """Tells the sampler the errors (M, C, B) of rows index (M, B)."""
        self.sampler.feedback(index, td)

    def scaled(self, snapshot: PolicySnapshot) -> PolicySnapshot:
        """Adds the current observation scaling to a snapshot."""
        return snapshot if self.normaliser is None else self.normaliser.put_into(snapshot)

    def state(self) -> State:
        """Everything except the rows of the replay, which are saved in segments."""
        normaliser = {} if self.normaliser is None else self.normaliser.state()
        return {"added": list(self.added), "sampler": self.sampler.state(), "normaliser": normaliser}

    def restore(self, state: State) -> None:
        """Restores what state() returned; the rows of the replay are put back separately."""
        if len(state["added"]) != len(self.added):
            raise ValueError(f"it holds {len(state['added'])} members")
        self.replay.set_added([to_count(count) for count in state["added"]])
        self.sampler.restore(state["sampler"])
        if self.normaliser is not None:
            self.normaliser.restore(state["normaliser"])


def rows_needed(cfg: Config) -> int:
    """Rows to allocate: at most total_steps, because a shorter run never fills the replay's capacity."""
    return min(cfg.replay.capacity, cfg.total_steps)
