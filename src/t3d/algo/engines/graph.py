"""The fast CUDA engine: td3_update with gradients derived by hand, plain operations that can be compiled as one graph.

Why it exists: td3_update, recorded as it stands by capture.py, has twice as many kernels. Networks are backprop.py's.
test_the_compilable_update_is_td3_update in tests/algo/test_graph_update.py proves the two equal, and every run checks
it again for its own engine when it starts (verify.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from t3d.algo.coefficients import rowwise
from t3d.algo.critics import AGGREGATES
from t3d.algo.engines.backprop import backward, forward, input_gradient, network, output, parameter_gradient
from t3d.algo.networks import Critic
from t3d.algo.td3 import Agent, Coefficients, optimise, polyak
from t3d.config import TD3Config
from t3d.types import Batch, Draws, UpdateTrace


def update(
    agent: Agent, batch: Batch, draws: Draws, cfg: TD3Config, coefficients: Coefficients, update_actor: bool
) -> UpdateTrace:
    """Performs steps 5 to 15 like td3_update."""
    members, critics = len(agent.actor.flat), cfg.critics
    # Steps 5 and 6
    pi2 = output(forward(network(agent.actor_target), batch.s2)).tanh()
    sigma, clip = rowwise(coefficients.target_noise, pi2), rowwise(coefficients.target_noise_clip, pi2)
    eps = (draws.target_noise * sigma).clamp(-clip, clip)
    a2 = (pi2 + eps).clamp(-1, 1)
    # Steps 7 to 9
    x2 = for_each_critic(torch.cat([batch.s2, a2], dim=-1), critics)
    q2 = output(forward(network(agent.critic_target), x2)).view(members, critics, -1)
    v2 = AGGREGATES[cfg.aggregate](q2, draws, cfg)
    y = batch.r + batch.discount * (1 - batch.terminated) * v2
    # Steps 10 to 12
    online = network(agent.critic)
    passed = forward(online, for_each_critic(torch.cat([batch.s, batch.a], dim=-1), critics))
    q = output(passed).view(members, critics, -1)
    td = q - y.unsqueeze(1)
    d_q = (batch.weight.unsqueeze(1) * td * (2 / td.shape[-1])).view_as(output(passed))
    gradient = parameter_gradient(passed, backward(online, passed, d_q))
    optimise(agent.critic, agent.critic_adam, gradient, coefficients.critic_lr, cfg, coefficients)
    moved = _update_actor(agent, batch, cfg, coefficients) if update_actor else (None, None, None)
    return UpdateTrace(pi2, eps, a2, q2, v2, y, q, td, td.square(), batch.weight, *moved)


def _update_actor(
    agent: Agent, batch: Batch, cfg: TD3Config, coefficients: Coefficients
) -> tuple[Tensor, Tensor, Tensor]:
    # Step 13
    online = network(agent.actor)
    passed = forward(online, batch.s)
    pi = output(passed).tanh()
    q_pi, d_x = OBJECTIVES[cfg.actor_objective](agent.critic, torch.cat([batch.s, pi], dim=-1), cfg.critics)
    d_output = d_x[..., batch.s.shape[-1] :] * (1 - pi * pi)  # tanh' = 1 - tanh²
    gradient = parameter_gradient(passed, backward(online, passed, d_output))
    optimise(agent.actor, agent.actor_adam, gradient, coefficients.actor_lr, cfg, coefficients, every=cfg.policy_delay)
    # Steps 14 and 15
    polyak(agent.actor_target, agent.actor, coefficients.tau)
    polyak(agent.critic_target, agent.critic, coefficients.tau)
    return pi, q_pi, -q_pi.mean(dim=-1)


def for_each_critic(x: Tensor, critics: int) -> Tensor:
    """Repeats a member's inputs (M, B, in) for each of its critics, (M * C, B, in)."""
    return x.unsqueeze(1).expand(-1, critics, -1, -1).flatten(0, 1)


def first(critic: Critic, x: Tensor, critics: int) -> tuple[Tensor, Tensor]:
    """What the first critic predicts for x (M, B, in): q_pi (M, B), and d -mean(q_pi) / d x."""
    asked = network(critic, every=critics)
    passed = forward(asked, x)
    q = output(passed)
    d_q = torch.full_like(q, -1 / q.shape[1])
    return q.squeeze(-1), input_gradient(asked, passed, d_q)


def of_all(
    critic: Critic, x: Tensor, critics: int, combine: Callable[[Tensor], tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """As first, for a combination of all critics."""
    asked = network(critic)
    passed = forward(asked, for_each_critic(x, critics))
    q_pi, share = combine(output(passed).view(-1, critics, x.shape[1]))
    d_q = (share * (-1 / x.shape[1])).view_as(output(passed))
    d_x = input_gradient(asked, passed, d_q)  # (M * C, B, in)
    return q_pi, d_x.view(-1, critics, *x.shape[1:]).sum(dim=1)


def mean(q: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of q (M, C, B) over critics, and its gradient."""
    return q.mean(dim=1), torch.full_like(q, 1 / q.shape[1])


def smallest(q: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest of q (M, C, B), and its gradient, which critics that are equal share as in autograd."""
    least = q.amin(dim=1)
    chosen = (q == least.unsqueeze(1)).to(q.dtype)
    return least, chosen / chosen.sum(dim=1, keepdim=True)


OBJECTIVES: dict[str, Callable[[Critic, Tensor, int], tuple[Tensor, Tensor]]] = {  # step 13, as in algo/critics.py
    "first": first,
    "mean": partial(of_all, combine=mean),
    "min": partial(of_all, combine=smallest),
}
