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


SCALED_LIMIT = 10.0  # chosen; learning (data/scaling.py) clips here too


class PolicySnapshot(NamedTuple):
    """The actors of all members at one moment, as plain arrays."""

    updates: int
    architecture: Architecture  # of each actor
    flat: Floats  # (M, P): each row has all parameters of an actor
    scaling: Scaling | None = None  # None: observations are not scaled

    def of_member(self, member: int) -> PolicySnapshot:
        """Copies one member's part, which later updates do not change."""
        row, scaling = slice(member, member + 1), self.scaling
        alone = None if scaling is None else Scaling(scaling.mean[row].copy(), scaling.std[row].copy())
        return self._replace(flat=self.flat[row].copy(), scaling=alone)

    def to_dict(self) -> dict[str, Any]:
        """Returns everything but the architecture, as arrays and plain values by name."""
        scaling = {} if self.scaling is None else self.scaling._asdict()
        return {"updates": self.updates, "flat": self.flat, **scaling}

    @classmethod
    def from_dict(cls, fields: dict[str, Any], members: int, architecture: Architecture) -> PolicySnapshot:
        """Reverses to_dict for this number of members; raises ValueError for arrays of another shape or type."""
        scale = (members, architecture.sizes[0])
        shapes = {"flat": (members, architecture.size), "mean": scale, "std": scale}
        arrays = {name: fields[name] for name in shapes if name in fields}
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray) or array.dtype != np.float32 or array.shape != shapes[name]:
                raise ValueError(f"{name} of a policy is not float32 {shapes[name]}")
        scaling = Scaling(arrays["mean"], arrays["std"]) if "mean" in arrays else None
        return cls(to_count(fields["updates"]), architecture, arrays["flat"], scaling)

    def checked(self) -> PolicySnapshot:
        """Returns it, unless a number is not finite."""
        if not all(np.isfinite(array).all() for array in (self.flat, *(self.scaling or ()))):
            raise ValueError("one of its numbers is not finite")
        return self


class MemberPolicy:
    """One member's actor: observations (N, observation_width) -> actions (N, action_size) in [-1, 1]."""

    def __init__(self, snapshot: PolicySnapshot, member: int) -> None:
        network = snapshot.architecture
        self._parameters = [stack[0] for stack in network.parameters(snapshot.flat[member : member + 1])]
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
