"""TD7 written plainly from the paper, one member, no stacks; it shares no code with our own."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from t3d.config import TD7Config


def normal(x: Tensor) -> Tensor:
    return x / torch.clip(torch.mean(torch.abs(x), dim=1, keepdim=True), min=1e-8)


class Perceptron(nn.Module):
    def __init__(self, sizes: Sequence[int], activation: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(sizes))
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        *hidden, last = self.layers
        for layer in hidden:
            x = self.activation(layer(x))
        out: Tensor = last(x)
        return out


class Encoder(nn.Module):
    def __init__(self, state: int, action: int, cfg: TD7Config) -> None:
        super().__init__()
        width, size = cfg.encoder_hidden, cfg.embedding
        self.of_state = Perceptron([state, width, width, size], F.elu)
        self.of_pair = Perceptron([size + action, width, width, size], F.elu)

    def zs(self, s: Tensor) -> Tensor:
        return normal(self.of_state.forward(s))

    def zsa(self, zs: Tensor, a: Tensor) -> Tensor:
        return self.of_pair.forward(torch.cat([zs, a], 1))


class Beside(nn.Module):
    """Sees its inputs through one normalised layer, beside an embedding."""

    def __init__(self, inputs: int, embedding: int, hidden: Sequence[int], out: int, activation: Any) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, hidden[0])
        self.rest = Perceptron([hidden[0] + embedding, *hidden, out], activation)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        return self.rest.forward(torch.cat([normal(self.first(x)), embedding], 1))


class TD7Oracle:
    """A plain TD7 agent."""

    def __init__(self, state: int, action: int, cfg: TD7Config) -> None:
        self.cfg, size = cfg, cfg.embedding
        self.encoder = Encoder(state, action, cfg)
        self.actor = Beside(state, size, cfg.actor_hidden, action, F.relu)
        self.critics = nn.ModuleList(
            Beside(state + action, 2 * size, cfg.critic_hidden, 1, F.elu) for _ in range(cfg.critics)
        )
        self.begin()

    def begin(self) -> None:
        """Makes copies and optimisers, once the weights are what they should be."""
        self.fixed, self.oldest = copy.deepcopy(self.encoder), copy.deepcopy(self.encoder)
        self.actor_target, self.critic_targets = copy.deepcopy(self.actor), copy.deepcopy(self.critics)
        cfg = self.cfg
        self.encoder_adam = torch.optim.Adam(self.encoder.parameters(), lr=cfg.encoder_lr)
        self.actor_adam = torch.optim.Adam(self.actor.parameters(), lr=cfg.actor_lr)
        self.critic_adam = torch.optim.Adam(self.critics.parameters(), lr=cfg.critic_lr)
        self.copy_every = 250
        self.iterations, self.limits, self.seen = 0, (0.0, 0.0), (float("inf"), -float("inf"))

    def update(self, s: Tensor, a: Tensor, r: Tensor, s2: Tensor, terminated: Tensor, noise: Tensor) -> Tensor:
        """One iteration on a batch: s, s2, a, noise are (B, ·), r and terminated (B, 1); returns errors (B, C)."""
        cfg, encoder = self.cfg, self.encoder
        self.iterations += 1
        encoder_loss = F.mse_loss(encoder.zsa(encoder.zs(s), a), encoder.zs(s2).detach())
        self.step(self.encoder_adam, encoder_loss)

        with torch.no_grad():
            old_zs = self.oldest.zs(s2)
            eps = torch.clip(noise * cfg.target_noise, -cfg.target_noise_clip, cfg.target_noise_clip)
            a2 = torch.clip(torch.tanh(self.actor_target(s2, old_zs)) + eps, -1, 1)
            value = torch.min(self.all(self.critic_targets, self.oldest, s2, old_zs, a2), 1, keepdim=True).values
            y = r + cfg.gamma * (1 - terminated) * torch.clip(value, *self.limits)
            self.seen = min(self.seen[0], float(y.min())), max(self.seen[1], float(y.max()))
            zs = self.fixed.zs(s)
        td = self.all(self.critics, self.fixed, s, zs, a) - y
        size = td.abs()
        self.step(self.critic_adam, torch.where(size < 1, td**2 / 2, size).sum(1).mean())

        if self.iterations % cfg.policy_delay == 0:
            pi = torch.tanh(self.actor(s, zs))
            self.step(self.actor_adam, -self.all(self.critics, self.fixed, s, zs, pi).mean())
        if self.iterations % self.copy_every == 0:
            self.actor_target.load_state_dict(self.actor.state_dict())
            self.critic_targets.load_state_dict(self.critics.state_dict())
            self.oldest.load_state_dict(self.fixed.state_dict())
            self.fixed.load_state_dict(self.encoder.state_dict())
            self.limits = self.seen
        return td.detach()

    def all(self, critics: nn.ModuleList, encoder: Encoder, s: Tensor, zs: Tensor, a: Tensor) -> Tensor:
        embeddings = torch.cat([encoder.zsa(zs, a), zs], 1)
        return torch.cat([critic(torch.cat([s, a], 1), embeddings) for critic in critics], 1)

    def step(self, adam: torch.optim.Optimizer, loss: Tensor) -> None:
        adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()


def flat(*modules: nn.Module) -> Tensor:
    """Weights and biases in the order of our flat tensors, whose weights are (in, out)."""
    layers = chain(*(module.modules() for module in modules))
    pieces = [(layer.weight.T.flatten(), layer.bias) for layer in layers if isinstance(layer, nn.Linear)]
    return torch.cat([*chain(*pieces)])


def fill(source: Tensor, *modules: nn.Module) -> None:
    start = 0
    for layer in chain(*(module.modules() for module in modules)):
        if isinstance(layer, nn.Linear):
            for values in (layer.weight.data.T, layer.bias.data):
                values.copy_(source[start : start + values.numel()].view(values.shape))
                start += values.numel()
    assert start == source.numel()
