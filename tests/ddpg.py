"""DDPG (Lillicrap and others, 2016) as a second rule: one critic, no smoothing, no delay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch

from t3d.algo.adam import adam_step
from t3d.algo.rules import Rule
from t3d.algo.td3 import polyak, td3_init
from t3d.architectures import actor_architecture, critic_architecture


class Trace(NamedTuple):
    y: Any
    q: Any
    td: Any
    pi: Any
    losses: Any = property(lambda trace: {"critic": trace.td.square().mean((1, 2)), "actor": -trace.pi.mean((1, 2))})


def update(agent: Any, batch: Any, draws: Any, cfg: Any, numbers: Any, phase: Any) -> Any:
    with torch.no_grad():
        q2 = agent.critic_target(batch.s2, agent.actor_target(batch.s2))
        y = batch.r + batch.discount * (1 - batch.terminated) * q2[:, 0]
    q = agent.critic(batch.s, batch.a)
    td = q - y.unsqueeze(1)
    adam_step(agent.critic_adam, agent.critic.flat, agent.critic.gradient(td.square().mean(-1).sum()), numbers.critic_lr)
    value = agent.critic.q1(batch.s, agent.actor(batch.s))
    adam_step(agent.actor_adam, agent.actor.flat, agent.actor.gradient(-value.mean(-1).sum()), numbers.actor_lr)
    polyak(agent.actor_target, agent.actor, numbers.tau)
    polyak(agent.critic_target, agent.critic, numbers.tau)
    return Trace(y, q.detach(), td.detach(), value.detach().unsqueeze(1))
