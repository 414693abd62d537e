"""Policies as plain arrays, without torch: for acting, evaluating, saving and export."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from t3d.files import to_count
from t3d.policy.architectures import Architecture
from t3d.types import Floats, State


class Scaling(NamedTuple):
    """How observations are normalised: (s - mean) / std, clipped to SCALED_LIMIT either way."""

    mean: Floats  # (M, observation_size)
    std: Floats  # (M, observation_size)


SCALED_LIMIT = 10.0  # chosen; learning (data/normaliser.py) and acting (policy/acting.py) both clip here


class PolicySnapshot(NamedTuple):
    """The actors of all members at one moment, as plain arrays."""

    updates: int
    architecture: Architecture  # of each actor
    flat: Floats  # (M, P): each row has all parameters of an actor
    scaling: Scaling | None = None  # None: observations are not scaled


def packed(snapshot: PolicySnapshot) -> State:
    """Converts a policy snapshot to part of a state."""
    scaling = {} if snapshot.scaling is None else snapshot.scaling._asdict()
    return {"updates": snapshot.updates, "flat": snapshot.flat, **scaling}


def unpacked(state: State, members: int, architecture: Architecture) -> PolicySnapshot:
    """Reverses packed for the given number of members; refuses values that are not finite or of another shape."""
    scale = (members, architecture.sizes[0])
    shapes = {"flat": (members, architecture.size), "mean": scale, "std": scale}
    arrays = {name: state[name] for name in shapes if name in state}
    for name, array in arrays.items():
        is_array = isinstance(array, np.ndarray) and array.dtype == np.float32
        if not is_array or array.shape != shapes[name] or not np.isfinite(array).all():
            raise ValueError(f"{name} of a policy is not float32 {shapes[name]}, or not finite")
    scaling = Scaling(arrays["mean"], arrays["std"]) if "mean" in arrays else None
    return PolicySnapshot(to_count(state["updates"]), architecture, arrays["flat"], scaling)
