"""Policies as plain arrays, without torch: for acting, evaluating, saving and export."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from t3d.files import to_count
from t3d.policy.architectures import Architecture, numpy_operations
from t3d.policy.spec import Floats


class Scaling(NamedTuple):
    """How observations are normalised: (s - mean) / std, clipped to SCALED_LIMIT either way."""

    mean: Floats  # (M, observation_size)
    std: Floats  # (M, observation_size)


SCALED_LIMIT = 10.0  # chosen; learning (data/normaliser.py) clips here too


class PolicySnapshot(NamedTuple):
    """The actors of all members at one moment, as plain arrays."""

    updates: int
    architecture: Architecture  # of each actor
    flat: Floats  # (M, P): each row has all parameters of an actor
    scaling: Scaling | None = None  # None: observations are not scaled


def packed(snapshot: PolicySnapshot) -> dict[str, Any]:
    """Converts a policy snapshot to part of a state."""
    scaling = {} if snapshot.scaling is None else snapshot.scaling._asdict()
    return {"updates": snapshot.updates, "flat": snapshot.flat, **scaling}


def unpacked(state: dict[str, Any], members: int, architecture: Architecture) -> PolicySnapshot:
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


class MemberPolicy:
    """One member's actor: observations (N, observation_width) -> actions (N, action_size) in [-1, 1]."""

    def __init__(self, snapshot: PolicySnapshot, member: int) -> None:
        network = snapshot.architecture
        self._parameters = [one[0] for one in network.parameters(snapshot.flat[member : member + 1])]
        self._forward, self._ops = network.forward, numpy_operations(network.activation)
        scaling = snapshot.scaling
        self.scaling = None if scaling is None else (scaling.mean[member], scaling.std[member])

    def __call__(self, observations: NDArray[Any]) -> Floats:
        x = observations
        with np.errstate(all="ignore"):  # an environment may have set "raise"; whoever acts notices what is not finite
            if self.scaling is not None:  # of vectors only
                mean, std = self.scaling
                x = np.clip((x - mean) / std, -SCALED_LIMIT, SCALED_LIMIT)
            action: Floats = np.tanh(self._forward(self._parameters, x, self._ops))
        return action
