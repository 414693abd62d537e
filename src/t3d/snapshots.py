"""Policies as plain arrays, without torch: for acting, evaluating, saving and export."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from t3d.config import TD3Config
from t3d.files import to_count
from t3d.types import Floats, Spec, State


class Scaling(NamedTuple):
    """How observations are normalised: (s - mean) / std, clipped to SCALED_LIMIT either way."""

    mean: Floats  # (M, observation_size)
    std: Floats  # (M, observation_size)


SCALED_LIMIT = 10.0  # chosen; learning (data/normaliser.py) and acting (world/policy.py) both clip here


class PolicySnapshot(NamedTuple):
    """The actors of all members at one moment, as plain arrays."""

    updates: int
    sizes: tuple[int, ...]  # observation_size, hidden..., action_size
    flat: Floats  # (M, P), in the layout of layers_of
    scaling: Scaling | None = None  # None: observations are not scaled


def actor_sizes(spec: Spec, cfg: TD3Config) -> tuple[int, ...]:
    """Layer sizes of an actor."""
    return (spec.observation_size, *cfg.actor_hidden, spec.action_size)


def critic_sizes(spec: Spec, cfg: TD3Config) -> tuple[int, ...]:
    """Layer sizes of a critic, which has one output."""
    return (spec.observation_size + spec.action_size, *cfg.critic_hidden, 1)


def parameter_count(sizes: tuple[int, ...]) -> int:
    """The number of parameters of an MLP with these layer sizes."""
    return sum(fan_in * fan_out + fan_out for fan_in, fan_out in pairwise(sizes))


def layers_of(flat: Any, sizes: tuple[int, ...]) -> list[tuple[Any, Any]]:
    """Views of K MLPs in flat (K, P), torch or numpy: per layer a weight (K, in, out) and a bias (K, 1, out)."""
    count, layers, start = flat.shape[0], [], 0
    for fan_in, fan_out in pairwise(sizes):
        middle = start + fan_in * fan_out
        end = middle + fan_out
        weight = flat[:, start:middle].reshape(count, fan_in, fan_out)
        bias = flat[:, middle:end].reshape(count, 1, fan_out)
        layers.append((weight, bias))
        start = end
    return layers


def packed(snapshot: PolicySnapshot) -> State:
    """Converts a policy snapshot to part of a state."""
    scaling = {} if snapshot.scaling is None else snapshot.scaling._asdict()
    return {"updates": snapshot.updates, "flat": snapshot.flat, **scaling}


def unpacked(state: State, members: int, sizes: tuple[int, ...]) -> PolicySnapshot:
    """Reverses packed for the given number of members; refuses values that are not finite or of another shape."""
    shapes = {"flat": (members, parameter_count(sizes)), "mean": (members, sizes[0]), "std": (members, sizes[0])}
    arrays = {name: state[name] for name in shapes if name in state}
    for name, array in arrays.items():
        if array.shape != shapes[name] or array.dtype != np.float32 or not np.isfinite(array).all():
            raise ValueError(
                f"{name} of a policy is {array.dtype} {array.shape} instead of float32 {shapes[name]}, or not finite"
            )
    scaling = Scaling(arrays["mean"], arrays["std"]) if "mean" in arrays else None
    return PolicySnapshot(to_count(state["updates"]), sizes, arrays["flat"], scaling)
