"""TD3 for observations with images: td3.py with an encoder in front, as in DrQ-v2 (Yarats and others, 2021).

An encoder of convolutions is shared by a member's actor and critics. It learns from the critics' loss alone, and it has
no target: s2 is encoded by the online encoder. Images are shifted at random before they are encoded. The fifteen steps
and their letters are those of td3.py; once encoded, s and s2 are vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from t3d.algo.adam import AdamState, adam_init, scheduled
from t3d.algo.coefficients import rowwise
from t3d.algo.critics import AGGREGATES, LOSSES, OBJECTIVES
from t3d.algo.networks import Actor, Critic, ImageActor, gradients, initial
from t3d.algo.td3 import Coefficients, new_critics, optimise, penalty, polyak, td3_draws
from t3d.config import TD3Config
from t3d.config.networks import actor_architecture
from t3d.policy.encoders import Encoder
from t3d.policy.spec import Spec
from t3d.seeds import derive
from t3d.types import Batch, Draws, UpdateTrace


class PixelAgent(NamedTuple):
    """What is learned, for all members; the names of its fields are the names in checkpoints."""

    policy: ImageActor  # encoder and actor
    actor_target: Actor  # without an encoder
    critic: Critic  # of what the encoder returns
    critic_target: Critic
    encoder_adam: AdamState
    actor_adam: AdamState
    critic_adam: AdamState


def pixels_init(
    spec: Spec, cfg: TD3Config, seeds: Sequence[int], device: str = "cpu", dtype: torch.dtype = torch.float32
) -> PixelAgent:
    """Creates networks and optimisers, one member per seed."""
    # Step 2: the actor with its encoder, and the target of the actor alone.
    network, actor_seeds = actor_architecture(spec, cfg), [derive(seed, "actor") for seed in seeds]
    policy = ImageActor(network, initial(network, actor_seeds, dtype).to(device))
    # Step 3: the critics, each with an initialisation of its own, and their targets.
    critic = new_critics(spec, cfg, seeds, device, dtype)

    adams = [adam_init(stack.flat) for stack in (policy.encoder, policy.actor, critic)]
    return PixelAgent(policy, policy.actor.copy(), critic, critic.copy(), *adams)


def pixels_update(
    agent: PixelAgent, batch: Batch, draws: Draws, cfg: TD3Config, coefficients: Coefficients, update_actor: bool
) -> UpdateTrace:
    """Performs one iteration of the paper's loop, steps 4 to 15; steps 13 to 15 only if update_actor."""
    encoder, actor = agent.policy.encoder, agent.policy.actor
    # Step 4: a batch of transitions, whose images are shifted.
    s, a, r, s2, terminated, discount, weight, _ = batch
    s, s2 = randomly_shifted(agent.policy, s, s2, draws, cfg)

    with torch.no_grad():
        # Step 5: the next state as the encoder sees it, and the target actor's action in it.
        s2 = agent.policy.encode(s2)
        pi2 = agent.actor_target(s2)  # (M, B, action)
        # Step 6: target policy smoothing.
        sigma, clip = rowwise(coefficients.target_noise, pi2), rowwise(coefficients.target_noise_clip, pi2)
        eps = (sigma * draws.target_noise).clamp(-clip, clip)
        a2 = (pi2 + eps).clamp(-1, 1)
        # Steps 7 to 9: the target critics' values of it, one of them, and the target for all critics.
        q2 = agent.critic_target(s2, a2)  # (M, C, B)
        v2 = AGGREGATES[cfg.aggregate](q2, draws, cfg)  # (M, B)
        y = r + discount * (1 - terminated) * v2

    # Step 10: the state as the encoder sees it, and the critics' values of the action that was taken.
    s = agent.policy.encode(s)
    outputs = agent.critic.outputs(s, a)
    q = agent.critic.value(outputs)  # (M, C, B)
    # Step 11: the loss of the critics, and of the encoder.
    td = q - y.unsqueeze(1)
    loss = LOSSES[cfg.critic_loss](outputs, td, y, cfg)  # (M, C, B)
    critic_loss = (weight.unsqueeze(1) * loss).mean(dim=-1).sum()
    # Step 12: backpropagate through both, one Adam step each.
    for_encoder, for_critics = gradients(critic_loss, encoder, agent.critic)
    rate = scheduled(coefficients.critic_lr, agent.critic_adam.steps, cfg)
    optimise(encoder, agent.encoder_adam, for_encoder, rate, coefficients)
    optimise(agent.critic, agent.critic_adam, for_critics, rate, coefficients)

    trace = UpdateTrace(pi2, eps, a2, q2, v2, y, q.detach(), td.detach(), loss.detach(), weight)
    if not update_actor:
        return trace

    # Step 13: gradient ascent of the actor on the critics; the encoder does not learn from it.
    s = s.detach()
    pre_activation = actor.forward(s)
    pi = pre_activation.tanh()
    q_pi = OBJECTIVES[cfg.actor_objective](agent.critic, s, pi)  # (M, B)
    actor_loss = -q_pi.mean(dim=-1) + penalty(pre_activation, coefficients.pre_activation_penalty)  # (M,)
    gradient = actor.gradient(actor_loss.sum())
    rate = scheduled(coefficients.actor_lr, agent.actor_adam.steps, cfg, every=cfg.policy_delay)
    optimise(actor, agent.actor_adam, gradient, rate, coefficients)
    # Steps 14 and 15: the targets follow slowly.
    polyak(agent.actor_target, actor, coefficients.tau)
    polyak(agent.critic_target, agent.critic, coefficients.tau)
    return trace._replace(pi=pi.detach(), q_pi=q_pi.detach(), actor_loss=actor_loss.detach())


def pixels_draws(spec: Spec, cfg: TD3Config) -> Draws:
    """The shapes of what an update draws, for one member."""
    shift = (cfg.batch_size, 4) if cfg.image_shift else None
    return td3_draws(spec, cfg)._replace(shift=shift)  # type: ignore[arg-type]


def randomly_shifted(policy: ImageActor, s: Tensor, s2: Tensor, draws: Draws, cfg: TD3Config) -> tuple[Tensor, Tensor]:
    """Shifts all images of an observation alike, and those of s, of s2 and of every transition independently."""
    if draws.shift is None:
        return s, s2
    encoder = policy.architecture.encoder
    assert encoder is not None  # noqa: S101 (it is an actor with images)
    pixels = whole_pixels(draws.shift, cfg.image_shift)
    return shifted(s, pixels[..., :2], encoder), shifted(s2, pixels[..., 2:], encoder)


def whole_pixels(normal: Tensor, most: int) -> Tensor:
    """Turns standard normal draws into whole numbers from -most to most, all equally likely."""
    uniform = (1 + torch.erf(normal / 2**0.5)) / 2
    return (uniform * (2 * most + 1)).floor().clamp(0, 2 * most).long() - most


def shifted(s: Tensor, by: Tensor, encoder: Encoder) -> Tensor:
    """Moves the images in s (M, B, width), bytes, by (M, B, 2) pixels up and left; borders are repeated."""
    vector = s.shape[-1] - encoder.stack * encoder.frame_size
    frames = s[..., vector:].reshape(*s.shape[:-1], encoder.stack, encoder.frame_size)
    moved, start = [], 0
    for channels, height, width in encoder.images:
        stop = start + channels * height * width
        rows = (torch.arange(height, device=s.device) + by[..., :1]).clamp(0, height - 1)  # (M, B, height)
        columns = (torch.arange(width, device=s.device) + by[..., 1:]).clamp(0, width - 1)
        source = (rows.unsqueeze(-1) * width + columns.unsqueeze(-2)).flatten(2)  # (M, B, height * width)
        images = frames[..., start:stop].reshape(*frames.shape[:-1], channels, -1)  # (M, B, stack, channels, pixels)
        moved.append(images.gather(-1, source[:, :, None, None].expand_as(images)).flatten(3))
        start = stop
    return torch.cat([s[..., :vector], torch.cat(moved, dim=-1).flatten(2)], dim=-1)
