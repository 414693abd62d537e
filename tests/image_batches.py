"""Specs, batches and an oracle for observations with images: TD3 with an encoder, written plainly with nn.Conv2d.

The oracle shares no code with t3d.algo on purpose: one seed, modules, torch.optim.Adam, images shifted one by one.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor, nn

import helpers
from t3d.algo.pixels import PixelAgent
from t3d.config import TD3Config
from t3d.policy.spec import Image, Part, Spec
from t3d.types import Batch, Draws

Shape = tuple[int, int, int]


def image_spec(*shapes: Shape, vector: int = 0, stack: int = 1, action: int = 2) -> Spec:
    """Observations {"camera 0": image, ..., "vector": vector}."""
    images: list[Image] = []
    for number, shape in enumerate(shapes):
        start = images[-1].stop if images else 0
        images.append(Image((f"camera {number}",), shape, start, start + int(np.prod(shape))))
    parts = (Part(("vector",), (vector,), 0, vector),) if vector else ()
    bounds = -np.ones(action), np.ones(action)
    return Spec(parts, (action,), *bounds, images=tuple(images), stack=stack)


def observations(spec: Spec, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Random bytes (..., observation_width): sane floats, then any pixels."""
    vector = torch.randn(*shape, spec.observation_size, generator=generator)
    frames = torch.randint(256, (*shape, spec.stack * spec.frame_size), generator=generator, dtype=torch.uint8)
    return torch.cat([vector.view(torch.uint8), frames], dim=-1) if spec.observation_size else frames


def image_batches(
    spec: Spec, cfg: TD3Config, members: int, count: int, dtype: torch.dtype = torch.float64, seed: int = 0
) -> Iterator[tuple[Batch, Draws]]:
    """As helpers.random_batches, with discounts as of n-step returns and weights as of priorities."""
    generator = torch.Generator().manual_seed(seed)
    shape = (members, cfg.batch_size)
    for batch, draws in helpers.random_batches(helpers.make_spec(1, spec.action_size), cfg, members, count, dtype):
        yield (
            batch._replace(
                s=observations(spec, shape, generator),
                s2=observations(spec, shape, generator),
                discount=0.9 ** torch.randint(1, 4, shape, generator=generator).to(dtype),
                weight=0.5 + torch.rand(shape, generator=generator, dtype=dtype),
            ),
            draws._replace(shift=torch.randn(*shape, 4, generator=generator, dtype=dtype)),
        )


class Trunk(nn.Module):
    """The projection of what an encoder returns, and a ReLU network on that and whatever is beside it."""

    def __init__(self, encoded: int, beside: int, outputs: int, hidden: Sequence[int], cfg: TD3Config, kind: str):
        super().__init__()
        self.encoded = encoded
        self.projection = nn.Linear(encoded, cfg.encoder_features)
        self.norm = nn.LayerNorm(cfg.encoder_features)
        layers: list[nn.Module] = []
        for fan_in, fan_out in pairwise([cfg.encoder_features + beside, *hidden, outputs]):
            layers += [
                nn.Linear(fan_in, fan_out),
                *([nn.LayerNorm(fan_out)] if kind == "layer_norm" else []),
                nn.ReLU(),
            ]
        self.layers = nn.Sequential(*layers[: -2 if kind == "layer_norm" else -1])

    def forward(self, x: Tensor) -> Tensor:
        features = torch.tanh(self.norm(self.projection(x[:, : self.encoded])))
        y: Tensor = self.layers(torch.cat([features, x[:, self.encoded :]], 1))
        return y


class Encoding(nn.Module):
    """The bytes of observations to what actors and critics see."""

    def __init__(self, spec: Spec, cfg: TD3Config):
        super().__init__()
        self.spec = spec
        self.cameras = nn.ModuleList()
        for image in spec.images:
            layers: list[nn.Module] = []
            channels = spec.stack * image.shape[0]
            for stride in cfg.encoder_strides:
                layers += [nn.Conv2d(channels, cfg.encoder_channels, 3, stride), nn.ReLU()]
                channels = cfg.encoder_channels
            self.cameras.append(nn.Sequential(*layers, nn.Flatten()))

    def forward(self, s: Tensor) -> Tensor:
        dtype = next(self.parameters()).dtype
        pieces = [
            camera((pictures.to(dtype) / 255) - 0.5)
            for camera, pictures in zip(self.cameras, pictures_of(s, self.spec), strict=True)
        ]
        vector = np.frombuffer(s[:, : 4 * self.spec.observation_size].numpy().tobytes(), np.float32)
        return torch.cat([*pieces, torch.from_numpy(vector.copy()).view(len(s), -1).to(dtype)], 1)


def pictures_of(s: Tensor, spec: Spec) -> list[Tensor]:
    """Of each camera (B, stack * channels, height, width), byte by byte."""
    found = []
    for image in spec.images:
        pieces = []
        for frame in range(spec.stack):
            begin = 4 * spec.observation_size + frame * spec.frame_size
            pieces.append(s[:, begin + image.start : begin + image.stop].reshape(-1, *image.shape))
        found.append(torch.cat(pieces, 1))
    return found


def shifted_naively(s: Tensor, by: Tensor, spec: Spec, most: int) -> Tensor:
    """Pads each picture of s (B, width) by repeating its border, and cuts the shifted one out."""
    moved = s.clone()
    for row, (down, right) in zip(moved, by.tolist(), strict=True):
        for frame in range(spec.stack):
            for image in spec.images:
                begin = 4 * spec.observation_size + frame * spec.frame_size
                place = row[begin + image.start : begin + image.stop]
                _, height, width = image.shape
                padded = np.pad(place.view(image.shape).numpy(), ((0, 0), (most, most), (most, most)), mode="edge")
                rows, columns = slice(most + down, most + down + height), slice(most + right, most + right + width)
                place.copy_(torch.from_numpy(padded[:, rows, columns].copy()).reshape(-1))
    return moved


def pixels_of(normal: Tensor, most: int) -> Tensor:
    """Whole pixels from normal draws, one by one."""
    chosen = [int(NormalDist().cdf(one) * (2 * most + 1)) - most for one in normal.reshape(-1).tolist()]
    return torch.tensor(chosen).view(normal.shape)


class PixelOracle:
    """One member, in the state of an agent's."""

    def __init__(self, agent: PixelAgent, member: int, spec: Spec, cfg: TD3Config) -> None:
        self.spec, self.cfg, self.member, self.iterations = spec, cfg, member, 0
        self.encoder = Encoding(spec, cfg).double()
        encoded = self.encoder(torch.zeros(1, spec.observation_width, dtype=torch.uint8)).shape[1]
        images, vector = encoded - spec.observation_size, spec.observation_size
        actor = Trunk(images, vector, spec.action_size, cfg.actor_hidden, cfg, cfg.actor_network)
        beside = vector + spec.action_size
        self.critics = [
            Trunk(images, beside, 1, cfg.critic_hidden, cfg, cfg.critic_network).double() for _ in range(cfg.critics)
        ]
        self.actor = actor.double()
        self.targets = copy.deepcopy([self.actor, *self.critics])
        for modules, flat in self.pairs(agent):
            load(modules, flat)
        self.critic_adam = torch.optim.Adam(
            [one for module in (self.encoder, *self.critics) for one in module.parameters()], lr=cfg.critic_lr
        )
        self.actor_adam = torch.optim.Adam(self.actor.parameters(), lr=cfg.actor_lr)

    def pairs(self, agent: PixelAgent) -> Iterator[tuple[list[nn.Module], Tensor]]:
        """Modules beside the row of the agent that holds the same parameters."""
        first = self.member * self.cfg.critics
        yield [self.encoder, self.actor], agent.policy.flat[self.member]
        yield [self.targets[0]], agent.actor_target.flat[self.member]
        for which, (critic, target) in enumerate(zip(self.critics, self.targets[1:], strict=True)):
            yield [critic], agent.critic.flat[first + which]
            yield [target], agent.critic_target.flat[first + which]

    def difference(self, agent: PixelAgent) -> float:
        """The largest distance between any parameter and the agent's."""
        return max(float((unload(modules) - flat).abs().max()) for modules, flat in self.pairs(agent))

    def update(self, batch: Batch, draws: Draws) -> None:
        """One iteration."""
        cfg, spec, member = self.cfg, self.spec, self.member
        s, a, r, s2, terminated, discount, weight, _ = (part[member] for part in batch)
        if draws.shift is not None:
            by = pixels_of(draws.shift[member], cfg.image_shift)
            s = shifted_naively(s, by[:, :2], spec, cfg.image_shift)
            s2 = shifted_naively(s2, by[:, 2:], spec, cfg.image_shift)
        self.iterations += 1
        with torch.no_grad():
            x2 = self.encoder(s2)
            noise = (draws.target_noise[member] * cfg.target_noise).clip(-cfg.target_noise_clip, cfg.target_noise_clip)
            a2 = (torch.tanh(self.targets[0](x2)) + noise).clip(-1, 1)
            q2 = torch.cat([critic(torch.cat([x2, a2], 1)) for critic in self.targets[1:]], 1)
            y = r + discount * (1 - terminated) * q2.min(1).values
        x = self.encoder(s)
        errors = [critic(torch.cat([x, a], 1)).squeeze(1) - y for critic in self.critics]
        self.critic_adam.zero_grad()
        sum(((weight * error**2).mean() for error in errors), torch.zeros(())).backward()
        self.critic_adam.step()
        if self.iterations % cfg.policy_delay == 0:
            x = x.detach()
            self.actor_adam.zero_grad()
            (-self.critics[0](torch.cat([x, torch.tanh(self.actor(x))], 1)).mean()).backward()
            self.actor_adam.step()
            for target, online in zip(self.targets, [self.actor, *self.critics], strict=True):
                for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
                    slow.data.copy_(cfg.tau * fast.data + (1 - cfg.tau) * slow.data)


def load(modules: Sequence[nn.Module], flat: Tensor) -> None:
    """Gives modules the parameters in a row of a stack."""
    start = 0
    for parameter in (one for module in modules for one in module.parameters()):
        values = flat[start : start + parameter.numel()]
        turned = values.view(-1, len(parameter)).T if parameter.ndim > 1 else values
        parameter.data.copy_(turned.reshape(parameter.shape))
        start += parameter.numel()
    assert start == len(flat)


def unload(modules: Sequence[nn.Module]) -> Tensor:
    """Reverses load."""
    all_of_them = [one.data for module in modules for one in module.parameters()]
    return torch.cat([one.flatten(1).T.reshape(-1) if one.ndim > 1 else one for one in all_of_them])
