"""Replay, sampler and normaliser behind one interface for the training loop."""

from __future__ import annotations

from collections.abc import Callable

from t3d.config import Config
from t3d.data.normaliser import Normaliser
from t3d.data.replay import Replay
from t3d.data.samplers import UniformSampler
from t3d.data.staging import Staged
from t3d.files import to_count
from t3d.snapshots import PolicySnapshot
from t3d.types import Batch, Coefficient, Rollout, Spec, State


class Memory:
    """Stores rollouts and samples batches."""

    def __init__(
        self, spec: Spec, cfg: Config, device: str, learning_on: str | None = None, gamma: Coefficient | None = None
    ) -> None:
        members, learning_on = len(cfg.seeds), learning_on or device
        self.replay = Replay(spec, rows_needed(cfg), members, device)
        self.sampler = UniformSampler(self.replay, cfg.td3, cfg.seeds, gamma)
        self.staged = Staged(self.sampler, learning_on) if device != learning_on else None
        scales = cfg.normalise_observations
        self.normaliser = Normaliser(members, spec.observation_size, learning_on) if scales else None

    @property
    def added(self) -> list[int]:
        """Transitions ever added, per member."""
        return self.replay.added

    def add(self, *rollouts: Rollout) -> None:
        """Stores blocks of transitions, at most one per member; they may be empty."""
        filled = [one for one in rollouts if len(one.rows)]
        if filled:
            self.replay.add(*filled)
        if self.normaliser is not None:
            for one in filled:
                self.normaliser.add(one)

    def sample(self) -> Batch:
        """Samples a batch for one update (step 4)."""
        if self.staged is not None:
            self.staged.refill()
        return self.recorded()

    def recorded(self) -> Batch:
        """Does the part of sampling that a CUDA graph can record: all of it, or only what follows refill."""
        batch = self.sampler() if self.staged is None else self.staged.batch
        return batch if self.normaliser is None else self.normaliser.normalised(batch)

    @property
    def refill(self) -> Callable[[], None] | None:
        """The function to call before each update of a CUDA graph; None if none is needed."""
        return None if self.staged is None else self.staged.refill

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
