"""Modules of Stable-Baselines3 whose parameters are our learner's memory: what is written to either is in both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.policies import BasePolicy
from torch import Tensor, nn

from t3d.algo.networks import Stack
from t3d.config import TD3Config
from t3d.config.networks import actor_architecture, critic_architecture
from t3d.policy.acting import MemberPolicy, PolicySnapshot
from t3d.policy.observations import flatten_batch
from t3d.sb3.settings import spec_for

NETWORKS = ("actor", "actor_target", "critic", "critic_target")  # in their policies and in our agents


def share(policy: Any, agent: Any) -> None:
    """Lets the parameters of their policy be views of our agent's."""
    for name in NETWORKS:
        module = getattr(policy, name)
        if isinstance(policy, ImagePolicy):
            stack = agent.policy if name == "actor" else getattr(agent, name)
            module.flat.data = stack.flat
        else:
            stack = getattr(agent, name)
            for parameter, view in zip(parameters(module), views(stack, stack.flat), strict=True):
                parameter.data = view


def views(stack: Stack, flat: Tensor) -> Iterator[Tensor]:
    """Parts of flat (K, P), which has a number for each parameter, as their linear layers have them."""
    pieces = stack.architecture.parameters(flat.detach())
    for row in range(len(flat)):
        for weight, bias in zip(pieces[::2], pieces[1::2], strict=True):  # (K, in, out), (K, 1, out)
            yield weight[row].T
            yield bias[row, 0]


def parameters(module: Any) -> Iterator[nn.Parameter]:
    """The weights and biases of an actor, or of all critics."""
    networks = [module.mu] if hasattr(module, "mu") else module.q_networks
    for network in networks:
        yield from network.parameters()


class ImageActor(BasePolicy):
    """An actor with our encoder of images."""

    def __init__(self, observation_space: Any, action_space: Any, networks: dict[str, Any]) -> None:
        super().__init__(observation_space, action_space, squash_output=True)
        self.networks, self.spec = networks, spec_for(observation_space, action_space)
        self.architecture = actor_architecture(self.spec, TD3Config(**networks))
        self.flat = nn.Parameter(torch.zeros(1, self.architecture.size), requires_grad=False)
        self.optimizer = torch.optim.Adam([self.flat])  # that some scripts look at

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {
            "observation_space": self.observation_space,
            "action_space": self.action_space,
            "networks": self.networks,
        }

    def _predict(self, observation: Any, deterministic: bool = True) -> Tensor:
        if isinstance(observation, dict):
            arrays: Any = {name: tensor.cpu().numpy() for name, tensor in observation.items()}
            count = len(next(iter(arrays.values())))
        else:
            arrays = observation.cpu().numpy()
            count = len(arrays)
        snapshot = PolicySnapshot(0, self.architecture, np.asarray(self.flat.detach().cpu()))
        actions = MemberPolicy(snapshot, 0)(flatten_batch(arrays, count, self.spec))
        return torch.from_numpy(actions).to(self.device)


class Weights(nn.Module):
    """The parameters of other networks that see what the encoder returns."""

    def __init__(self, rows: int, size: int) -> None:
        super().__init__()
        self.flat = nn.Parameter(torch.zeros(rows, size), requires_grad=False)
        self.optimizer = torch.optim.Adam([self.flat])


class ImagePolicy(ImageActor):
    """In the shape of their CnnPolicy: an actor and critics that share our encoder."""

    def __init__(self, observation_space: Any, action_space: Any, networks: dict[str, Any]) -> None:
        super().__init__(observation_space, action_space, networks)
        cfg = TD3Config(**networks)
        self.actor = ImageActor(observation_space, action_space, networks)
        self.flat = self.actor.flat
        after_encoder = self.architecture._replace(encoded=True).size
        self.actor_target = Weights(1, after_encoder)
        critic = critic_architecture(self.spec, cfg).size
        self.critic, self.critic_target = Weights(cfg.critics, critic), Weights(cfg.critics, critic)
