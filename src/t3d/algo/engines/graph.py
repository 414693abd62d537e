"""The fast CUDA engine: td3_update with gradients derived by hand, plain operations that can be compiled as one graph.

Why it exists: td3_update, recorded as it stands by capture.py, has twice as many kernels. Everything here is a batched
product or an operation that Inductor fuses with its neighbours. test_the_compilable_update_is_td3_update in
tests/algo/test_graph_update.py proves the two equal, and every run checks it again when it starts (verify.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from t3d.algo.adam import scheduled
from t3d.algo.coefficients import rowwise
from t3d.algo.critics import AGGREGATES
from t3d.algo.networks import Critic, Stack
from t3d.algo.td3 import Agent, Coefficients, optimise, polyak
from t3d.config import TD3Config
from t3d.policy.architectures import NORM_EPSILON
from t3d.types import Batch, Draws, UpdateTrace


def update(
    agent: Agent, batch: Batch, draws: Draws, cfg: TD3Config, coefficients: Coefficients, update_actor: bool
) -> UpdateTrace:
    """Performs steps 5 to 15 like td3_update."""
    members, critics = len(agent.actor.flat), cfg.critics
    # Steps 5 and 6
    pi2 = forward(network(agent.actor_target), batch.s2)[-1][0].tanh()
    sigma, clip = rowwise(coefficients.target_noise, pi2), rowwise(coefficients.target_noise_clip, pi2)
    eps = (draws.target_noise * sigma).clamp(-clip, clip)
    a2 = (pi2 + eps).clamp(-1, 1)
    # Steps 7 to 9
    x2 = for_each_critic(torch.cat([batch.s2, a2], dim=-1), critics)
    q2 = forward(network(agent.critic_target), x2)[-1][0].view(members, critics, -1)
    v2 = AGGREGATES[cfg.aggregate](q2, draws, cfg)
    y = batch.r + batch.discount * (1 - batch.terminated) * v2
    # Steps 10 to 12
    online = network(agent.critic)
    passed = forward(online, for_each_critic(torch.cat([batch.s, batch.a], dim=-1), critics))
    q = passed[-1][0].view(members, critics, -1)
    td = q - y.unsqueeze(1)
    d_q = (batch.weight.unsqueeze(1) * td * (2 / td.shape[-1])).view_as(passed[-1][0])
    gradient = parameter_gradient(passed, backward(online, passed, d_q))
    rate = scheduled(coefficients.critic_lr, agent.critic_adam.steps, cfg)
    optimise(agent.critic, agent.critic_adam, gradient, rate, coefficients)
    moved = _update_actor(agent, batch, cfg, coefficients) if update_actor else (None, None, None)
    return UpdateTrace(pi2, eps, a2, q2, v2, y, q, td, td.square(), batch.weight, *moved)


def _update_actor(
    agent: Agent, batch: Batch, cfg: TD3Config, coefficients: Coefficients
) -> tuple[Tensor, Tensor, Tensor]:
    # Step 13
    online = network(agent.actor)
    passed = forward(online, batch.s)
    pi = passed[-1][0].tanh()
    q_pi, d_x = objective(agent.critic, torch.cat([batch.s, pi], dim=-1), cfg)
    d_output = d_x[..., batch.s.shape[-1] :] * (1 - pi * pi)  # tanh' = 1 - tanh²
    gradient = parameter_gradient(passed, backward(online, passed, d_output))
    rate = scheduled(coefficients.actor_lr, agent.actor_adam.steps, cfg, every=cfg.policy_delay)
    optimise(agent.actor, agent.actor_adam, gradient, rate, coefficients)
    # Steps 14 and 15
    polyak(agent.actor_target, agent.actor, coefficients.tau)
    polyak(agent.critic_target, agent.critic, coefficients.tau)
    return pi, q_pi, -q_pi.mean(dim=-1)


def for_each_critic(x: Tensor, critics: int) -> Tensor:
    """Repeats a member's inputs (M, B, in) for each of its critics, (M * C, B, in)."""
    return x.unsqueeze(1).expand(-1, critics, -1, -1).flatten(0, 1)


def objective(critic: Critic, x: Tensor, cfg: TD3Config) -> tuple[Tensor, Tensor]:
    """What the critics predict for x (M, B, in): q_pi (M, B), and d -mean(q_pi) / d x."""
    critics = 1 if cfg.actor_objective == "first" else cfg.critics
    online = network(critic, every=cfg.critics // critics)
    passed = forward(online, for_each_critic(x, critics))
    q_pi, share = OBJECTIVES[cfg.actor_objective](passed[-1][0].view(-1, critics, x.shape[1]))
    d_q = (share * (-1 / x.shape[1])).view_as(passed[-1][0])
    d_x = torch.bmm(backward(online, passed, d_q)[0][0], online.layers[0][0].mT)  # (M * C, B, in)
    return q_pi, d_x.view(-1, critics, *x.shape[1:]).sum(dim=1)


def smallest(q: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest of q (M, C, B), and its gradient, which critics that are equal share as in autograd."""
    least = q.amin(dim=1)
    chosen = (q == least.unsqueeze(1)).to(q.dtype)
    return least, chosen / chosen.sum(dim=1, keepdim=True)


def mean(q: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of q (M, C, B) over critics, and its gradient."""
    return q.mean(dim=1), torch.full_like(q, 1 / q.shape[1])


OBJECTIVES = {"first": mean, "mean": mean, "min": smallest}  # step 13, as in algo/critics.py; the first alone is a mean


class Hidden(NamedTuple):
    """What a hidden layer does with z (K, B, size), the linear function of its input; and the gradient of that."""

    parameters: int  # besides weight and bias, each (K, 1, size)
    forward: Callable[..., list[Tensor]]  # z, parameters -> the layer's output, then whatever else backward needs
    backward: Callable[..., list[Tensor]]  # d output, parameters, what forward returned -> d z, d each parameter


def norm_relu(z: Tensor, scale: Tensor, shift: Tensor) -> list[Tensor]:
    """Layer normalisation, then ReLU."""
    centred = z - z.mean(dim=-1, keepdim=True)
    per_deviation = (centred.square().mean(dim=-1, keepdim=True) + NORM_EPSILON).rsqrt()  # (K, B, 1)
    normal = centred * per_deviation
    return [(normal * scale + shift).relu(), normal, per_deviation]


def norm_relu_backward(
    d_h: Tensor, scale: Tensor, shift: Tensor, h: Tensor, normal: Tensor, per_deviation: Tensor
) -> list[Tensor]:
    """The gradient of norm_relu; d z has no part that would only move or stretch z, as normal would stay the same."""
    d_shift = d_h * (h > 0)
    d_normal = d_shift * scale
    moves = d_normal.mean(dim=-1, keepdim=True)
    stretches = normal * (d_normal * normal).mean(dim=-1, keepdim=True)
    return [(d_normal - moves - stretches) * per_deviation, d_shift * normal, d_shift]


HIDDEN = {
    "mlp": Hidden(0, lambda z: [z.relu()], lambda d_h, h: [d_h * (h > 0)]),  # one kernel with adding the bias
    "layer_norm": Hidden(2, norm_relu, norm_relu_backward),
}


class Network(NamedTuple):
    """K networks of one kind."""

    hidden: Hidden
    layers: list[list[Tensor]]  # of each its weight (K, in, out), its bias (K, 1, out), and what Hidden has besides


def network(stack: Stack, every: int = 1) -> Network:
    """All networks of a stack, or every n-th."""
    hidden = HIDDEN[stack.architecture.name]
    *parameters, weight, bias = stack.architecture.parameters(stack.flat[::every])
    each = 2 + hidden.parameters
    layers = [parameters[start : start + each] for start in range(0, len(parameters), each)]
    return Network(hidden, [*layers, [weight, bias]])


def forward(network: Network, x: Tensor) -> list[list[Tensor]]:
    """Returns the input, what each hidden layer's forward returned, and the output."""
    passed = [[x]]
    for weight, bias, *others in network.layers[:-1]:
        z = torch.bmm(passed[-1][0], weight) + bias
        passed.append(network.hidden.forward(z, *others))
    weight, bias = network.layers[-1]
    return [*passed, [torch.bmm(passed[-1][0], weight) + bias]]


def backward(network: Network, passed: list[list[Tensor]], d_output: Tensor) -> list[list[Tensor]]:
    """Returns d loss / d each layer's z, and what to sum over the batch for its other parameters, first layer first."""
    back = [[d_output]]
    layers = network.layers
    for layer, above, kept in zip(layers[-2::-1], layers[:0:-1], passed[-2:0:-1], strict=True):
        d_h = torch.bmm(back[-1][0], above[0].mT)
        back.append(network.hidden.backward(d_h, *layer[2:], *kept))
    return back[::-1]


def parameter_gradient(passed: list[list[Tensor]], back: list[list[Tensor]]) -> Tensor:
    """Returns d loss / d flat, (K, P), in the layout of the architecture."""
    pieces = []
    for (x, *_), (d_z, *others) in zip(passed[:-1], back, strict=True):
        pieces += [torch.bmm(x.mT, d_z).flatten(1), d_z.sum(dim=1), *(other.sum(dim=1) for other in others)]
    return torch.cat(pieces, dim=1)
