"""The complete TD3 algorithm (Fujimoto, van Hoof and Meger, 2018, "Addressing Function Approximation Error in
Actor-Critic Methods"), for M members that are trained side by side and share nothing.

Step 1, the replay memory, is data/replay.py. Everything else is in this file, in the paper's letters: s, a, r, s2, y;
eps is the smoothing noise, q and q2 are values of the critics and of their targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from t3d.algo.adam import AdamState, adam_init, adam_step, clipped, decay, scheduled
from t3d.algo.coefficients import is_zero, rowwise
from t3d.algo.critics import AGGREGATES, LOSSES, OBJECTIVES, expectation
from t3d.algo.networks import Actor, Critic, Stack, initial, only_output
from t3d.config import TD3Config
from t3d.config.networks import actor_architecture, critic_architecture
from t3d.policy.spec import Spec
from t3d.seeds import derive
from t3d.types import Batch, Coefficient, Draws, UpdateTrace


class Agent(NamedTuple):
    """What TD3 learns, for all members; the names of its fields are the names in checkpoints."""

    actor: Actor
    actor_target: Actor
    critic: Critic
    critic_target: Critic
    actor_adam: AdamState
    critic_adam: AdamState


class Coefficients(NamedTuple):
    """The numbers that an update reads, for all members or one for each (algo/coefficients.py)."""

    gamma: Coefficient  # arrives as the discount of a batch
    tau: Coefficient
    actor_lr: Coefficient
    critic_lr: Coefficient
    target_noise: Coefficient
    target_noise_clip: Coefficient
    weight_decay: Coefficient
    max_grad_norm: Coefficient
    pre_activation_penalty: Coefficient


def coefficients_of(cfg: TD3Config) -> Coefficients:
    """The same numbers for all members."""
    return Coefficients(*(getattr(cfg, name) for name in Coefficients._fields))


def td3_init(
    spec: Spec, cfg: TD3Config, seeds: Sequence[int], device: str = "cpu", dtype: torch.dtype = torch.float32
) -> Agent:
    """Creates networks and optimisers, one member per seed."""
    # Step 2: the actor, and its target: a second object that starts as a copy.
    network, actor_seeds = actor_architecture(spec, cfg), [derive(seed, "actor") for seed in seeds]
    actor = Actor(network, initial(network, actor_seeds, dtype).to(device))
    # Step 3: the critics, each with an initialisation of its own, and their targets.
    critic = new_critics(spec, cfg, seeds, device, dtype)

    return Agent(actor, actor.copy(), critic, critic.copy(), adam_init(actor.flat), adam_init(critic.flat))


def new_critics(spec: Spec, cfg: TD3Config, seeds: Sequence[int], device: str, dtype: torch.dtype) -> Critic:
    """Creates each member's critics, none like another."""
    network = critic_architecture(spec, cfg)
    critic_seeds = [derive(seed, "critic", which) for seed in seeds for which in range(cfg.critics)]
    value = partial(expectation, cfg=cfg) if cfg.critic_loss == "categorical" else only_output
    return Critic(network, initial(network, critic_seeds, dtype).to(device), len(seeds), value)


def judge(
    agent: Agent, batch: Batch, draws: Draws, cfg: TD3Config, coefficients: Coefficients
) -> tuple[UpdateTrace, Tensor]:
    """The first half of an update: the target, and the loss of the critics."""
    # Step 4: a batch of transitions.
    s, a, r, s2, terminated, discount, weight, _ = batch

    with torch.no_grad():
        # Step 5: the target actor's action in the next state.
        pi2 = agent.actor_target(s2)  # (M, B, action)
        # Step 6: target policy smoothing: clipped noise, and the result is clipped to a valid action.
        sigma, clip = rowwise(coefficients.target_noise, pi2), rowwise(coefficients.target_noise_clip, pi2)
        eps = (sigma * draws.target_noise).clamp(-clip, clip)
        a2 = (pi2 + eps).clamp(-1, 1)
        # Step 7: the target critics' values of it.
        q2 = agent.critic_target(s2, a2)  # (M, C, B)
        # Step 8: the smallest of them (clipped double Q-learning).
        v2 = AGGREGATES[cfg.aggregate](q2, draws, cfg)  # (M, B)
        # Step 9: one target for all critics. Termination stops the bootstrap, a time limit does not.
        y = r + discount * (1 - terminated) * v2

    # Step 10: the critics' values of the action that was taken.
    outputs = agent.critic.outputs(s, a)
    q = agent.critic.value(outputs)  # (M, C, B)
    # Step 11: mean squared error, summed over critics (and members, whose gradients are independent).
    td = q - y.unsqueeze(1)
    loss = LOSSES[cfg.critic_loss](outputs, td, y, cfg)  # (M, C, B)
    critic_loss = (weight.unsqueeze(1) * loss).mean(dim=-1).sum()
    return UpdateTrace(pi2, eps, a2, q2, v2, y, q.detach(), td.detach(), loss.detach(), weight), critic_loss


def td3_update(
    agent: Agent, batch: Batch, draws: Draws, cfg: TD3Config, coefficients: Coefficients, update_actor: bool
) -> UpdateTrace:
    """Performs one iteration of the paper's loop, steps 4 to 15; steps 13 to 15 only if update_actor."""
    trace, critic_loss = judge(agent, batch, draws, cfg, coefficients)  # steps 4 to 11
    # Step 12: backpropagate, one Adam step for all critics.
    gradient = agent.critic.gradient(critic_loss)
    rate = scheduled(coefficients.critic_lr, agent.critic_adam.steps, cfg)
    optimise(agent.critic, agent.critic_adam, gradient, rate, coefficients)
    return improve(agent, batch.s, trace, cfg, coefficients) if update_actor else trace  # steps 13 to 15


def improve(agent: Agent, s: Tensor, trace: UpdateTrace, cfg: TD3Config, coefficients: Coefficients) -> UpdateTrace:
    """The second half of an update: the actor, and what follows it slowly."""
    # Step 13: gradient ascent of the actor on the first online critic.
    pre_activation = agent.actor.forward(s)
    pi = pre_activation.tanh()
    q_pi = OBJECTIVES[cfg.actor_objective](agent.critic, s, pi)  # (M, B)
    actor_loss = -q_pi.mean(dim=-1) + penalty(pre_activation, coefficients.pre_activation_penalty)  # (M,)
    gradient = agent.actor.gradient(actor_loss.sum())
    rate = scheduled(coefficients.actor_lr, agent.actor_adam.steps, cfg, every=cfg.policy_delay)
    optimise(agent.actor, agent.actor_adam, gradient, rate, coefficients)
    # Step 14: the actor's target follows slowly,
    polyak(agent.actor_target, agent.actor, coefficients.tau)
    # Step 15: and so do the critics' targets.
    polyak(agent.critic_target, agent.critic, coefficients.tau)
    return trace._replace(pi=pi.detach(), q_pi=q_pi.detach(), actor_loss=actor_loss.detach())


def optimise(stack: Stack, adam: AdamState, gradient: Tensor, rate: Coefficient, coefficients: Coefficients) -> None:
    """Performs one step of Adam, with clipped gradients and decaying weights where the settings say so."""
    gradient = clipped(gradient, stack.members, coefficients.max_grad_norm)
    decay(stack.flat, rate, coefficients.weight_decay)
    adam_step(adam, stack.flat, gradient, rate)


def penalty(pre_activation: Tensor, strength: Coefficient) -> Tensor | float:
    """A penalty of each member for outputs of its actor far from zero, where tanh has no slope: (M,), or nothing."""
    if is_zero(strength):
        return 0.0
    squares = pre_activation.square().mean(dim=(1, 2))
    penalties: Tensor = rowwise(strength, squares) * squares
    return penalties


def polyak(target: Stack, online: Stack, tau: Coefficient) -> None:
    """target <- tau * online + (1 - tau) * target."""
    target.flat.lerp_(online.flat, rowwise(tau, target.flat))


def td3_draws(spec: Spec, cfg: TD3Config) -> Draws:
    """The shapes of what an update draws, for one member."""
    choice = (cfg.critics,) if cfg.aggregate == "min_of_random_2" else None
    return Draws((cfg.batch_size, spec.action_size), choice)  # type: ignore[arg-type]


def td3_parameters(spec: Spec, cfg: TD3Config) -> int:
    """The number of parameters that one member learns: its actor and critics, without targets."""
    return actor_architecture(spec, cfg).size + cfg.critics * critic_architecture(spec, cfg).size
