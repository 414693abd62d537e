"""Policies with random networks of every kind, and what torch makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from helpers import make_spec
from t3d.algo.networks import Actor, ImageActor, initial
from t3d.config import TD3Config
from t3d.config.networks import actor_architecture, architecture
from t3d.policy.acting import SCALED_LIMIT, PolicySnapshot, SavedPolicy, Scaling
from t3d.policy.architectures import Architecture
from t3d.policy.files import policy_of
from t3d.policy.spec import Image, Part, Spec, limited, to_bounds

ABOUT = {"env": "Toy-v0", "kind": "best", "seed": 3, "step": 12_000, "mean_return": -1.5, "t3d": "0.4.0"}
IMAGES = TD3Config(actor_hidden=(16,), encoder_channels=4, encoder_features=8)


def bounded(spec: Spec) -> Spec:
    """The same with bounds that differ in each dimension; as those of every Box, of the type of its actions."""
    count = np.arange(1, spec.action_size + 1)
    low, high = (bound.astype(np.float32).astype(np.float64) for bound in (-count / 3, count * 0.7))
    return spec._replace(action_low=low, action_high=high)


def vector_spec(size: int = 5, actions: int = 3) -> Spec:
    return bounded(make_spec(size, actions))


def picture_spec(stack: int = 2) -> Spec:
    """Two cameras, one with channels first, and a vector."""
    first = Image(("wide",), (3, 34, 32), 0, 3 * 34 * 32)
    second = Image(("near",), (1, 32, 33), first.stop, first.stop + 32 * 33, channels_last=False)
    return bounded(
        Spec((Part(("speed",), (2,), 0, 2),), (2,), -np.ones(2), np.ones(2), "float32", (first, second), stack)
    )


def made(network: Architecture, spec: Spec, scaled: bool = False, seed: int = 0) -> SavedPolicy:
    """A policy with the numbers that training starts from, scales and shifts moved."""
    rng = np.random.default_rng(seed)
    flat = initial(network, [seed], torch.float32).numpy()
    flat = flat + 0.05 * rng.normal(size=flat.shape).astype(np.float32)
    size = (1, spec.observation_size)
    scaling = None
    if scaled:
        scaling = Scaling(rng.normal(size=size).astype(np.float32), rng.uniform(0.1, 3, size).astype(np.float32))
    snapshot = PolicySnapshot(7, network, flat, scaling)
    return policy_of(snapshot, spec, ABOUT)


def of_vectors(
    kind: str = "mlp",
    activation: str = "relu",
    hidden: tuple[int, ...] = (32, 32),
    scaled: bool = False,
    **keywords: Any,
) -> SavedPolicy:
    spec = keywords.get("spec") or vector_spec()
    return made(architecture(kind, (spec.observation_size, *hidden, spec.action_size), activation), spec, scaled)


def of_images(kind: str = "mlp", activation: str = "relu", stack: int = 2, max_action_change: float = 0) -> SavedPolicy:
    spec = picture_spec(stack)._replace(max_action_change=max_action_change)
    cfg = TD3Config(**{**vars(IMAGES), "actor_network": kind, "actor_activation": activation})
    return made(actor_architecture(spec, cfg), spec)


def torch_actions(policy: SavedPolicy) -> Callable[[NDArray[Any], NDArray[Any] | None], NDArray[Any]]:
    """The same policy as the learner computes it."""
    network, scaling = policy.snapshot.architecture, policy.snapshot.scaling
    flat = torch.from_numpy(policy.snapshot.flat)
    actor = Actor(network, flat) if network.encoder is None else ImageActor(network, flat)

    def actions(seen: NDArray[Any], previous: NDArray[Any] | None = None) -> NDArray[Any]:
        s = torch.from_numpy(seen)
        if scaling is not None:
            mean, std = map(torch.from_numpy, scaling)
            s = ((s - mean) / std).clamp(-SCALED_LIMIT, SCALED_LIMIT)
        action = actor(s.unsqueeze(0))[0].detach().numpy()
        scaled = to_bounds(action, policy.spec)
        return scaled if previous is None else limited(scaled, previous, policy.spec)

    return actions
