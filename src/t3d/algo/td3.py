"""The complete TD3 algorithm (Fujimoto, van Hoof and Meger, 2018, "Addressing Function Approximation Error in
Actor-Critic Methods").

Step 1, the replay memory, is data/replay.py. Everything else is in this file, in the paper's letters: s, a, r, s2, y;
eps is the smoothing noise, q and q2 are values of the critics and of their targets. M members are trained side by side
and share nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from t3d.algo.adam import AdamState, adam_init, adam_step
from t3d.algo.networks import Actor, Critic, Networks, Stack, linear_init
from t3d.config import TD3Config
from t3d.seeds import derive
from t3d.snapshots import actor_sizes, critic_sizes, parameter_count
from t3d.types import Batch, Draws, Spec, UpdateTrace

AGGREGATES: dict[str, Callable[[Tensor], Tensor]] = {"min": lambda q2: q2.amin(dim=1)}  # (M, C, B) -> (M, B)


class Optimisers(NamedTuple):
    """Adam for the actors and Adam for the critics."""

    actor: AdamState
    critic: AdamState


def td3_init(
    spec: Spec,
    cfg: TD3Config,
    seeds: Sequence[int],
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> tuple[Networks, Optimisers]:
    """Creates networks and optimisers, one member per seed."""
    # Step 2: the actor, and its target: a second object that starts as a copy.
    sizes, actor_seeds = actor_sizes(spec, cfg), [derive(seed, "actor") for seed in seeds]
    actor = Actor(sizes, linear_init(sizes, actor_seeds, dtype).to(device))
    # Step 3: the critics, each with an initialisation of its own, and their targets.
    sizes, each = critic_sizes(spec, cfg), range(cfg.critics)
    critic_seeds = [derive(seed, "critic", which) for seed in seeds for which in each]
    critic = Critic(sizes, linear_init(sizes, critic_seeds, dtype).to(device), len(seeds))

    nets = Networks(actor, actor.copy(), critic, critic.copy())
    return nets, Optimisers(adam_init(actor.flat), adam_init(critic.flat))


def parameters_per_member(spec: Spec, cfg: TD3Config) -> int:
    """The number of parameters that one member learns: its actor and critics, without targets."""
    return parameter_count(actor_sizes(spec, cfg)) + cfg.critics * parameter_count(critic_sizes(spec, cfg))


def td3_update(
    nets: Networks, opts: Optimisers, batch: Batch, draws: Draws, cfg: TD3Config, *, update_actor: bool
) -> UpdateTrace:
    """Performs one iteration of the paper's loop, steps 4 to 15; steps 13 to 15 only if update_actor."""
    # Step 4: a batch of transitions.
    s, a, r, s2, terminated, discount, weight, _ = batch

    with torch.no_grad():
        # Step 5: the target actor's action in the next state.
        pi2 = nets.actor_target(s2)  # (M, B, action)
        # Step 6: target policy smoothing: clipped noise, and the result is clipped to a valid action.
        eps = (cfg.target_noise * draws.target_noise).clamp(-cfg.target_noise_clip, cfg.target_noise_clip)
        a2 = (pi2 + eps).clamp(-1, 1)
        # Step 7: the target critics' values of it.
        q2 = nets.critic_target(s2, a2)  # (M, C, B)
        # Step 8: the smallest of them (clipped double Q-learning).
        q2_min = AGGREGATES[cfg.aggregate](q2)  # (M, B)
        # Step 9: one target for all critics. Termination stops the bootstrap, a time limit does not.
        y = r + discount * (1 - terminated) * q2_min

    # Step 10: the critics' values of the action that was taken.
    q = nets.critic(s, a)  # (M, C, B)
    # Step 11: mean squared error, summed over critics (and members, whose gradients are independent).
    td = q - y.unsqueeze(1)
    critic_loss = (weight.unsqueeze(1) * td.square()).mean(dim=-1).sum()
    # Step 12: backpropagate, one Adam step for all critics.
    adam_step(opts.critic, nets.critic.flat, nets.critic.gradient(critic_loss), cfg.critic_lr)

    trace = UpdateTrace(pi2, eps, a2, q2, q2_min, y, q.detach(), td.detach(), weight)
    if not update_actor:
        return trace

    # Step 13: gradient ascent of the actor on the first online critic.
    pi = nets.actor(s)
    q1_pi = nets.critic.q1(s, pi)  # (M, B)
    actor_loss = -q1_pi.mean(dim=-1).sum()
    adam_step(opts.actor, nets.actor.flat, nets.actor.gradient(actor_loss), cfg.actor_lr)
    # Step 14: the actor's target follows slowly,
    polyak(nets.actor_target, nets.actor, cfg.tau)
    # Step 15: and so do the critics' targets.
    polyak(nets.critic_target, nets.critic, cfg.tau)
    return trace._replace(pi=pi.detach(), q1_pi=q1_pi.detach())


def polyak(target: Stack, online: Stack, tau: float) -> None:
    """target <- tau * online + (1 - tau) * target."""
    target.flat.lerp_(online.flat, tau)
