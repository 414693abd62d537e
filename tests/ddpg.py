"""DDPG (Lillicrap and others, 2016) as a rule of its own: one critic, no smoothing, no delay."""

from dataclasses import replace
from typing import Any, NamedTuple

from t3d.algo.adam import adam_step
from t3d.algo.rules import Rule
from t3d.algo.td3 import polyak, td3_init, td3_parameters


class Trace(NamedTuple):
    y: Any
    q: Any
    td: Any
    q_pi: Any

    @property
    def losses(self) -> dict[str, Any]:
        return {"critic": self.td.square().mean((1, 2)), "actor": -self.q_pi.mean(1)}


def update(agent: Any, batch: Any, draws: Any, cfg: Any, coefficients: Any, phase: None) -> Trace:
    s, a, r, s2, terminated, discount, *_ = batch
    y = (r + discount * (1 - terminated) * agent.critic_target.q1(s2, agent.actor_target(s2))).detach()
    q = agent.critic(s, a)
    td = q - y.unsqueeze(1)
    gradient = agent.critic.gradient(td.square().mean(2).sum())
    adam_step(agent.critic_adam, agent.critic.flat, gradient, coefficients.critic_lr)
    q_pi = agent.critic.q1(s, agent.actor(s))
    adam_step(agent.actor_adam, agent.actor.flat, agent.actor.gradient(-q_pi.mean(1).sum()), coefficients.actor_lr)
    polyak(agent.actor_target, agent.actor, coefficients.tau)
    polyak(agent.critic_target, agent.critic, coefficients.tau)
    return Trace(y, q.detach(), td.detach(), q_pi.detach())


DDPG = Rule(
    init=lambda spec, cfg, *rest: td3_init(spec, replace(cfg, critics=1), *rest),
    update=update,
    parameters=lambda spec, cfg: td3_parameters(spec, replace(cfg, critics=1)),
    phases=lambda cfg: [None],
)
