"""TD3 written plainly from the paper's pseudocode, for tests and benchmarks; it shares no code with our own."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from t3d.config import TD3Config


def mlp(sizes: Sequence[int]) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Oracle:
    """A plain TD3 agent."""

    def __init__(self, observation_size: int, action_size: int, cfg: TD3Config) -> None:
        self.cfg = cfg
        self.actor = mlp([observation_size, *cfg.actor_hidden, action_size])
        self.critics = [mlp([observation_size + action_size, *cfg.critic_hidden, 1]) for _ in range(cfg.critics)]
        self.actor_target = copy.deepcopy(self.actor)
        self.critic_targets = copy.deepcopy(self.critics)
        self.actor_optimiser = torch.optim.Adam(self.actor.parameters(), lr=cfg.actor_lr)
        critic_parameters = [parameter for critic in self.critics for parameter in critic.parameters()]
        self.critic_optimiser = torch.optim.Adam(critic_parameters, lr=cfg.critic_lr)
        self.iterations = 0

    def update(self, s: Tensor, a: Tensor, r: Tensor, s2: Tensor, terminated: Tensor, noise: Tensor) -> None:
        """One iteration on a batch: s, s2, a, noise are (B, ·), r and terminated (B, 1)."""
        cfg = self.cfg
        self.iterations += 1
        with torch.no_grad():
            clipped = torch.clip(noise * cfg.target_noise, -cfg.target_noise_clip, cfg.target_noise_clip)
            smoothed = torch.clip(torch.tanh(self.actor_target(s2)) + clipped, -1, 1)
            values = [critic(torch.cat([s2, smoothed], 1)) for critic in self.critic_targets]
            target = r + cfg.gamma * (1 - terminated) * torch.min(torch.cat(values, 1), 1, keepdim=True).values

        state_action = torch.cat([s, a], 1)
        critic_loss = sum((F.mse_loss(critic(state_action), target) for critic in self.critics), torch.zeros(()))
        self.critic_optimiser.zero_grad()
        critic_loss.backward()  # type: ignore[no-untyped-call]
        self.critic_optimiser.step()

        if self.iterations % cfg.policy_delay == 0:
            actor_loss = -self.critics[0](torch.cat([s, torch.tanh(self.actor(s))], 1)).mean()
            self.actor_optimiser.zero_grad()
            actor_loss.backward()
            self.actor_optimiser.step()
            self._polyak(self.actor_target, self.actor)
            for target_critic, critic in zip(self.critic_targets, self.critics, strict=True):
                self._polyak(target_critic, critic)

    def _polyak(self, target: nn.Module, online: nn.Module) -> None:
        for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
            slow.data.copy_(self.cfg.tau * fast.data + (1 - self.cfg.tau) * slow.data)
