"""The fast CUDA engine: td3_update with gradients derived by hand, plain operations that can be compiled as one graph.

Why it exists: td3_update, recorded as it stands by capture.py, has twice as many kernels. TD3 with ReLU only.
test_the_compilable_update_is_td3_update in tests/algo/test_graph.py proves the two equal, and every run checks it again
for its own engine when it starts (verify.py).
"""

from __future__ import annotations

import torch
from torch import Tensor

from t3d.algo.coefficients import rowwise
from t3d.algo.critics import AGGREGATES
from t3d.algo.networks import Layers, Stack, layers_of
from t3d.algo.td3 import Agent, Coefficients, optimise, polyak
from t3d.config import TD3Config
from t3d.types import Batch, Draws, UpdateTrace


def update(
    agent: Agent, batch: Batch, draws: Draws, cfg: TD3Config, coefficients: Coefficients, update_actor: bool
) -> UpdateTrace:
    """Performs steps 5 to 15 like td3_update."""
    members, critics = len(agent.actor.flat), cfg.critics

    def for_each_critic(x: Tensor) -> Tensor:
        return x.unsqueeze(1).expand(-1, critics, -1, -1).flatten(0, 1)  # (M * C, B, in)

    # Steps 5 and 6
    pi2 = forward(layers(agent.actor_target), batch.s2)[-1].tanh()
    sigma, clip = rowwise(coefficients.target_noise, pi2), rowwise(coefficients.target_noise_clip, pi2)
    eps = (draws.target_noise * sigma).clamp(-clip, clip)
    a2 = (pi2 + eps).clamp(-1, 1)
    # Steps 7 to 9
    x2 = for_each_critic(torch.cat([batch.s2, a2], dim=-1))
    q2 = forward(layers(agent.critic_target), x2)[-1].view(members, critics, -1)
    v2 = AGGREGATES[cfg.aggregate](q2, draws, cfg)
    y = batch.r + batch.discount * (1 - batch.terminated) * v2
    # Steps 10 to 12
    online = layers(agent.critic)
    passed = forward(online, for_each_critic(torch.cat([batch.s, batch.a], dim=-1)))
    q = passed[-1].view(members, critics, -1)
    td = q - y.unsqueeze(1)
    d_q = (batch.weight.unsqueeze(1) * td * (2 / td.shape[-1])).view_as(passed[-1])
    gradient = weight_gradient(passed, backward(online, passed, d_q))
    optimise(agent.critic, agent.critic_adam, gradient, coefficients.critic_lr, cfg, coefficients)
    moved = _update_actor(agent, batch, cfg, coefficients) if update_actor else (None, None, None)
    return UpdateTrace(pi2, eps, a2, q2, v2, y, q, td, td.square(), batch.weight, *moved)


def _update_actor(
    agent: Agent, batch: Batch, cfg: TD3Config, coefficients: Coefficients
) -> tuple[Tensor, Tensor, Tensor]:
    # Step 13
    online = layers(agent.actor)
    passed = forward(online, batch.s)
    pi = passed[-1].tanh()
    first = layers(agent.critic, every=cfg.critics)
    passed_q1 = forward(first, torch.cat([batch.s, pi], dim=-1))
    d_q1 = torch.full_like(passed_q1[-1], -1 / passed_q1[-1].shape[1])
    d_x = torch.bmm(backward(first, passed_q1, d_q1)[0], first[0][0].mT)
    d_output = d_x[..., batch.s.shape[-1] :] * (1 - pi * pi)  # tanh' = 1 - tanh²
    gradient = weight_gradient(passed, backward(online, passed, d_output))
    optimise(agent.actor, agent.actor_adam, gradient, coefficients.actor_lr, cfg, coefficients, every=cfg.policy_delay)
    # Steps 14 and 15
    polyak(agent.actor_target, agent.actor, coefficients.tau)
    polyak(agent.critic_target, agent.critic, coefficients.tau)
    q_pi = passed_q1[-1].squeeze(-1)
    return pi, q_pi, -q_pi.mean(dim=-1)


def layers(stack: Stack, every: int = 1) -> Layers:
    """The layers of all networks of a stack, or of every n-th."""
    return layers_of(stack.architecture, stack.flat[::every])


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
