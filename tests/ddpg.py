"""DDPG (Lillicrap and others, 2016) as a rule of its own: one critic, no smoothing, no delay."""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from t3d.algo.adam import adam_step
from t3d.algo.rules import Rule
from t3d.algo.td3 import polyak, td3_init, td3_parameters


class Trace(NamedTuple):
    y: Tensor
    q: Tensor
    td: Tensor
    q_pi: Tensor
    losses = property(lambda trace: {"critic": trace.td.square().mean((1, 2)), "actor": -trace.q_pi.mean(1)})


def update(agent: Any, batch: Any, draws: Any, cfg: Any, numbers: Any, phase: None) -> Trace:
    with torch.no_grad():
        q2 = agent.critic_target.q1(batch.s2, agent.actor_target(batch.s2))
        y = batch.r + batch.discount * (1 - batch.terminated) * q2
    q = agent.critic(batch.s, batch.a)
    td = q - y.unsqueeze(1)
    adam_step(agent.critic_adam, agent.critic.flat, agent.critic.gradient(td.square().mean(2).sum()), numbers.critic_lr)
    q_pi = agent.critic.q1(batch.s, agent.actor(batch.s))
    adam_step(agent.actor_adam, agent.actor.flat, agent.actor.gradient(-q_pi.mean(1).sum()), numbers.actor_lr)
    polyak(agent.actor_target, agent.actor, numbers.tau)
    polyak(agent.critic_target, agent.critic, numbers.tau)
    return Trace(y, q.detach(), td.detach(), q_pi.detach())


DDPG = Rule(
    init=lambda spec, cfg, *rest: td3_init(spec, replace(cfg, critics=1), *rest),
    update=update,
    parameters=lambda spec, cfg: td3_parameters(spec, replace(cfg, critics=1)),
    phases=lambda cfg: [None],
)
