"""Owns what learning changes: networks, optimisers, the update counter and the random streams of target noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from t3d.algo.engines import UPDATES, compiled_if_possible
from t3d.algo.engines.graph import Graphs
from t3d.algo.td3 import td3_init
from t3d.config import TD3Config
from t3d.files import to_count
from t3d.random_streams import open_streams
from t3d.snapshots import PolicySnapshot
from t3d.tensors import put
from t3d.types import Batch, Draws, Spec, State, UpdateTrace


class Learner:
    """All members' TD3, updated together."""

    def __init__(
        self,
        spec: Spec,
        cfg: TD3Config,
        seeds: Sequence[int],
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        engine: str = "eager",
    ) -> None:
        self.cfg = cfg
        self.nets, self.opts = td3_init(spec, cfg, seeds, device, dtype)
        self.updates = 0
        self._update = UPDATES[engine](self.nets, self.opts, cfg)
        self._graphs: Graphs | None = None
        noise = torch.empty(len(seeds), cfg.batch_size, spec.action_size, device=device, dtype=dtype)
        self._streams = open_streams(seeds, "target noise", noise)

    @property
    def until_actor(self) -> int:
        """Updates until the next one that moves the actor, that one included."""
        return self.cfg.policy_delay - self.updates % self.cfg.policy_delay

    def run(self, n: int, sample: Callable[[], Batch]) -> UpdateTrace:
        """Performs n >= 1 updates, each on a new batch, and returns the trace of the last one."""
        if self._graphs is not None:
            steps = self._graphs.run(n, self.updates)
            self.updates += n
            return steps
        for _ in range(n):
            steps = self.update(sample(), self.draw())
        return steps

    def record(self, sample: Callable[[], Batch], refill: Callable[[], object] | None = None) -> None:
        """Records CUDA graphs of sampling and updating for run to replay; refill is called before each update.

        sample is recorded, so it must perform the same operations on the same tensors every time.
        """
        torch.compiler.reset()  # else a process that has trained other shapes before reaches the recompilation limit
        state, drawn = self.state(), compiled_if_possible(lambda: (sample(), self.draw()))

        def step(update_actor: bool) -> UpdateTrace:
            return self._update(*drawn(), update_actor=update_actor)

        with torch.no_grad():
            self._graphs = Graphs(step, self.cfg.policy_delay, refill)
        self.restore(state)

    def update(self, batch: Batch, draws: Draws) -> UpdateTrace:
        """Performs one update; every policy_delay-th also moves the actor and the targets."""
        update_actor = self.until_actor == 1
        self.updates += 1
        return self._update(batch, draws, update_actor=update_actor)

    def draw(self) -> Draws:
        """Draws the randomness of one update, each member's from its own stream."""
        return Draws(self._streams.normal())

    def snapshot(self) -> PolicySnapshot:
        """Copies the actors to arrays that later updates do not change."""
        flat = self.actor_weights.to("cpu", torch.float32, copy=True).numpy()
        return PolicySnapshot(self.updates, self.actor_sizes, flat)

    @property
    def actor_weights(self) -> torch.Tensor:
        """(M, P): the actors' parameters, which updates change in place."""
        return self.nets.actor.flat

    @property
    def actor_sizes(self) -> tuple[int, ...]:
        """Layer sizes of the actors."""
        return self.nets.actor.sizes

    def state(self) -> State:
        """Everything that learning changes, as arrays that later updates do not change."""
        arrays = {name: tensor.to("cpu", copy=True).numpy() for name, tensor in self._tensors().items()}
        return {"updates": self.updates, "target_noise": self._streams.state(), **arrays}

    def restore(self, state: State) -> None:
        """Restores what state() returned."""
        for name, tensor in self._tensors().items():
            put(tensor, state[name], name)
        self._streams.restore(state["target_noise"])
        self.updates = to_count(state["updates"])

    def non_finite(self) -> list[tuple[str, int]]:
        """Lists the networks and moments that hold a non-finite value, each with its member."""
        members = len(self.nets.actor.flat)
        finite = {
            name: torch.isfinite(tensor).view(members, -1).all(dim=1).tolist()
            for name, tensor in self._tensors().items()
            if tensor.ndim == 2  # Adam's step count is a scalar
        }
        return [(name, member) for name, fine in finite.items() for member in range(members) if not fine[member]]

    def _tensors(self) -> dict[str, torch.Tensor]:
        """The tensors that updates change in place, by name."""
        tensors = {name: network.flat for name, network in self.nets._asdict().items()}
        for owner, adam in self.opts._asdict().items():
            tensors |= {f"{owner}_adam_{name}": tensor for name, tensor in adam._asdict().items()}
        return tensors
