"""Owns what learning changes: networks, optimisers, the update counter and the stream of target noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from t3d.algo.td3 import td3_init, td3_update
from t3d.config import TD3Config
from t3d.seeds import derive
from t3d.tensors import put, set_streams, streams
from t3d.types import Batch, Draws, PolicySnapshot, Spec, State, Steps


class Learner:
    """All members' TD3, updated together."""

    def __init__(
        self,
        spec: Spec,
        cfg: TD3Config,
        seeds: Sequence[int],
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.cfg = cfg
        self.nets, self.opts = td3_init(spec, cfg, seeds, device, dtype)
        self.updates = 0
        self._noise = torch.empty(len(seeds), cfg.batch_size, spec.action_size, device=device, dtype=dtype)
        self._generators = [torch.Generator(device).manual_seed(derive(seed, "target noise")) for seed in seeds]

    @property
    def until_actor(self) -> int:
        """Updates until the next one that moves the actor, that one included."""
        return self.cfg.policy_delay - self.updates % self.cfg.policy_delay

    def run(self, n: int, sample: Callable[[], Batch]) -> Steps:
        """Makes n >= 1 updates, each on a fresh batch, and returns what the last one did."""
        for _ in range(n):
            steps = self.update(sample(), self.draw())
        return steps

    def update(self, batch: Batch, draws: Draws) -> Steps:
        """Makes one update; every policy_delay-th moves the actor and the targets too."""
        update_actor = self.until_actor == 1
        self.updates += 1
        return td3_update(self.nets, self.opts, batch, draws, self.cfg, update_actor=update_actor)

    def draw(self) -> Draws:
        """The randomness of one update, each member's from its own stream."""
        for noise, generator in zip(self._noise, self._generators, strict=True):
            noise.normal_(generator=generator)
        return Draws(self._noise)

    def snapshot(self) -> PolicySnapshot:
        """The actors as arrays that later updates do not change."""
        actor = self.nets.actor
        flat = actor.flat.to("cpu", torch.float32, copy=True).numpy()
        return PolicySnapshot(self.updates, actor.sizes, flat)

    def state(self) -> State:
        """Everything that learning changes, as arrays that later updates do not change."""
        arrays = {name: tensor.to("cpu", copy=True).numpy() for name, tensor in self._tensors().items()}
        return {"updates": self.updates, "target_noise_streams": streams(self._generators), **arrays}

    def restore(self, state: State) -> None:
        """Goes on where a learner of the same shape was."""
        for name, tensor in self._tensors().items():
            put(tensor, state[name], name)
        set_streams(self._generators, state["target_noise_streams"])
        self.updates = state["updates"]

    def unsound(self) -> list[tuple[str, int]]:
        """The networks and moments that hold a number that is not finite, with their member; empty when all is well."""
        members = len(self._generators)
        finite = {
            name: torch.isfinite(tensor).view(members, -1).all(dim=1).tolist()
            for name, tensor in self._tensors().items()
            if tensor.ndim == 2  # Adam's count of steps is a number of its own
        }
        return [(name, member) for name, sound in finite.items() for member in range(members) if not sound[member]]

    def _tensors(self) -> dict[str, torch.Tensor]:
        """The tensors that updates change in place, by name."""
        tensors = {name: network.flat for name, network in self.nets._asdict().items()}
        for owner, adam in self.opts._asdict().items():
            tensors |= {f"{owner}_adam_{name}": tensor for name, tensor in adam._asdict().items()}
        return tensors
