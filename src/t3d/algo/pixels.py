"""TD3 for observations with images: td3.py with an encoder in front, as in DrQ-v2 (Yarats and others, 2021).

A member's actor and critics share it. It learns from the critics' loss alone, and has no target: s2 is encoded by the
online encoder. Once encoded, s and s2 are vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from t3d.algo.adam import AdamState, adam_init, scheduled
from t3d.algo.networks import Actor, Critic, ImageActor, gradients, initial
from t3d.algo.td3 import Agent, Coefficients, improve, judge, new_critics, optimise, td3_draws
from t3d.config import TD3Config
from t3d.config.networks import actor_architecture
from t3d.policy.architectures import Encoder
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
    """Performs td3_update, steps 4 to 15, on what the encoder sees."""
    policy, critic, adam = agent.policy, agent.critic, agent.critic_adam
    beyond = Agent(policy.actor, agent.actor_target, critic, agent.critic_target, agent.actor_adam, adam)
    # Step 4: a batch of transitions. All images of an observation are shifted alike, those of others independently.
    s, s2, encoder = batch.s, batch.s2, policy.architecture.encoder
    if draws.shift is not None and encoder is not None:
        pixels = whole_pixels(draws.shift, cfg.image_shift)
        s, s2 = shifted(s, pixels[..., :2], encoder), shifted(s2, pixels[..., 2:], encoder)
    with torch.no_grad():
        # Step 5: the next state as the encoder sees it.
        s2 = policy.encode(s2)
    # Step 10: the state as the encoder sees it.
    s = policy.encode(s)
    trace, critic_loss = judge(beyond, batch._replace(s=s, s2=s2), draws, cfg, coefficients)
    # Step 12: backpropagate through critics and encoder, one Adam step each.
    for_encoder, for_critics = gradients(critic_loss, policy.encoder, critic)
    rate = scheduled(coefficients.critic_lr, adam.steps, cfg)
    optimise(policy.encoder, agent.encoder_adam, for_encoder, rate, coefficients)
    optimise(critic, adam, for_critics, rate, coefficients)
    # Steps 13 to 15: the encoder does not learn from the actor.
    return improve(beyond, s.detach(), trace, cfg, coefficients) if update_actor else trace


def pixels_draws(spec: Spec, cfg: TD3Config) -> Draws:
    """The shapes of what an update draws, for one member."""
    return td3_draws(spec, cfg)._replace(shift=(cfg.batch_size, 4) if cfg.image_shift else None)  # type: ignore[arg-type]


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
