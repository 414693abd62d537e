"""The CUDA engine: sampling, draws and steps 5 to 15 as CUDA graphs, so that Python launches no kernels itself.

Why it exists: an update is some hundred kernels of a few microseconds, and Python needs longer than that to launch one.
`update` is td3_update with gradients derived by hand, plain operations that can be compiled as one graph;
test_the_compilable_update_is_td3_update in tests/algo/test_graph.py proves the two equal, and every run checks it again
for its own engine when it starts (algo/engines/verify.py).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from t3d.algo.adam import adam_step
from t3d.algo.networks import Layers, Networks
from t3d.algo.td3 import AGGREGATES, Optimisers
from t3d.config import TD3Config
from t3d.snapshots import layers_of
from t3d.types import Batch, Draws, UpdateTrace

CYCLES_A_LAUNCH = 4  # policy_delay updates each; chosen: a launch then takes the GPU longer than Python
WARM_UP_CALLS = 2


def update(
    nets: Networks, opts: Optimisers, batch: Batch, draws: Draws, cfg: TD3Config, *, update_actor: bool
) -> UpdateTrace:
    """Performs steps 5 to 15 like td3_update."""
    members, critics = len(nets.actor.flat), cfg.critics
    actor_sizes, critic_sizes = nets.actor.sizes, nets.critic.sizes

    def for_each_critic(x: Tensor) -> Tensor:
        return x.unsqueeze(1).expand(-1, critics, -1, -1).flatten(0, 1)  # (M * C, B, in)

    # Steps 5 and 6
    pi2 = forward(layers_of(nets.actor_target.flat, actor_sizes), batch.s2)[-1].tanh()
    eps = (draws.target_noise * cfg.target_noise).clamp(-cfg.target_noise_clip, cfg.target_noise_clip)
    a2 = (pi2 + eps).clamp(-1, 1)
    # Steps 7 to 9
    x2 = for_each_critic(torch.cat([batch.s2, a2], dim=-1))
    q2 = forward(layers_of(nets.critic_target.flat, critic_sizes), x2)[-1].view(members, critics, -1)
    q2_min = AGGREGATES[cfg.aggregate](q2)
    y = batch.r + batch.discount * (1 - batch.terminated) * q2_min
    # Steps 10 to 12
    layers = layers_of(nets.critic.flat, critic_sizes)
    passed = forward(layers, for_each_critic(torch.cat([batch.s, batch.a], dim=-1)))
    q = passed[-1].view(members, critics, -1)
    td = q - y.unsqueeze(1)
    d_q = (batch.weight.unsqueeze(1) * td * (2 / td.shape[-1])).view_as(passed[-1])
    adam_step(opts.critic, nets.critic.flat, weight_gradient(passed, backward(layers, passed, d_q)), cfg.critic_lr)
    pi, q1_pi = _update_actor(nets, opts, batch, cfg) if update_actor else (None, None)
    return UpdateTrace(pi2, eps, a2, q2, q2_min, y, q, td, batch.weight, pi, q1_pi)


def _update_actor(nets: Networks, opts: Optimisers, batch: Batch, cfg: TD3Config) -> tuple[Tensor, Tensor]:
    # Step 13
    layers = layers_of(nets.actor.flat, nets.actor.sizes)
    passed = forward(layers, batch.s)
    pi = passed[-1].tanh()
    first = layers_of(nets.critic.flat[:: cfg.critics], nets.critic.sizes)
    passed_q1 = forward(first, torch.cat([batch.s, pi], dim=-1))
    d_q1 = torch.full_like(passed_q1[-1], -1 / passed_q1[-1].shape[1])
    d_x = torch.bmm(backward(first, passed_q1, d_q1)[0], first[0][0].mT)
    d_output = d_x[..., batch.s.shape[-1] :] * (1 - pi * pi)  # tanh' = 1 - tanh²
    adam_step(opts.actor, nets.actor.flat, weight_gradient(passed, backward(layers, passed, d_output)), cfg.actor_lr)
    # Steps 14 and 15
    nets.actor_target.flat.lerp_(nets.actor.flat, cfg.tau)
    nets.critic_target.flat.lerp_(nets.critic.flat, cfg.tau)
    return pi, passed_q1[-1].squeeze(-1)


def forward(layers: Layers, x: Tensor) -> list[Tensor]:
    """Returns the input, every hidden layer after its ReLU, and the output."""
    passed = [x]
    for weight, bias in layers[:-1]:
        passed.append((torch.bmm(passed[-1], weight) + bias).relu())  # compiled, bias and ReLU are one kernel
    weight, bias = layers[-1]
    return [*passed, torch.bmm(passed[-1], weight) + bias]


def backward(layers: Layers, passed: list[Tensor], d_output: Tensor) -> list[Tensor]:
    """Returns d loss / d each layer's output before its ReLU, first layer first."""
    back = [d_output]
    for (weight, _), hidden in zip(layers[:0:-1], passed[-2:0:-1], strict=True):
        back.append(torch.bmm(back[-1], weight.mT) * (hidden > 0))
    return back[::-1]


def weight_gradient(passed: list[Tensor], back: list[Tensor]) -> Tensor:
    """Returns d loss / d flat, (K, P), in the layout of layers_of."""
    pieces = []
    for x, d in zip(passed[:-1], back, strict=True):
        pieces += [torch.bmm(x.mT, d).flatten(1), d.sum(dim=1)]
    return torch.cat(pieces, dim=1)


class Graphs:
    """Recorded updates: one that moves the actor, one that does not, and a block of both kinds."""

    def __init__(
        self, step: Callable[[bool], UpdateTrace], policy_delay: int, refill: Callable[[], object] | None = None
    ) -> None:
        self.policy_delay, self.refill = policy_delay, refill
        cycle = [moves == policy_delay for moves in range(1, policy_delay + 1)]
        for moves_actor in cycle * WARM_UP_CALLS:
            step(moves_actor)
        self.block = Recorded(step, cycle * CYCLES_A_LAUNCH)
        self.single = {moves_actor: Recorded(step, [moves_actor]) for moves_actor in set(cycle)}

    def run(self, n: int, made: int) -> UpdateTrace:
        """Performs n >= 1 updates after the first `made`; returns the trace of the last one, valid until the next call.

        If batches come from outside the graphs, each update is launched separately, after refill.
        """
        while n:
            at_start = made % self.policy_delay == 0 and self.refill is None
            one = (
                self.block if at_start and n >= self.block.updates else self.single[(made + 1) % self.policy_delay == 0]
            )
            if self.refill is not None:
                self.refill()
            one.graph.replay()
            made, n = made + one.updates, n - one.updates
        return one.steps


class Recorded:
    """A CUDA graph of some updates, and the trace of the last one."""

    def __init__(self, step: Callable[[bool], UpdateTrace], moves_actor: list[bool]) -> None:
        self.updates = len(moves_actor)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for moves in moves_actor:
                self.steps = step(moves)
