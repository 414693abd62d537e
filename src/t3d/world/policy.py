"""The acting policy: one forward pass in numpy, used for collecting, for evaluating and by load_policy.

A torch call for one observation takes several times as long, and this way actor processes need no torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3d.architectures import numpy_operations
from t3d.errors import UserError
from t3d.snapshots import SCALED_LIMIT, PolicySnapshot
from t3d.types import Floats, Spec
from t3d.world.spaces import InvalidValue, flatten, stacked, to_bounds


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
        if self.scaling is not None:  # of vectors only
            mean, std = self.scaling
            x = np.clip((x - mean) / std, -SCALED_LIMIT, SCALED_LIMIT)
        with np.errstate(over="ignore", invalid="ignore"):  # of a policy that has diverged; whoever acts notices
            action: Floats = np.tanh(self._forward(self._parameters, x, self._ops))
        return action


class SavedPolicy:
    """A policy from a file: an observation of the environment in, an action within the environment's bounds out.

    If it was trained on stacked images, it keeps the newest ones itself: call reset() when an episode begins.
    """

    def __init__(self, snapshot: PolicySnapshot, spec: Spec, about: dict[str, Any], sha256: str) -> None:
        self.actor = MemberPolicy(snapshot, 0)
        self.spec = spec
        self.about = about  # environment, seed, step, mean_return, ...
        self.sha256 = sha256  # of its tensors
        self._before: NDArray[np.uint8] | None = None  # the observation before, whose frames are kept

    def reset(self) -> None:
        """Starts an episode: the next observation is its first."""
        self._before = None

    def __call__(self, observation: Any) -> NDArray[Any]:
        try:
            flat = flatten(observation, self.spec)
        except InvalidValue as error:
            raise UserError(str(error)) from None
        if self.spec.images:
            flat = self._before = stacked(flat, self._before, self.spec)
        return to_bounds(self.actor(flat[None])[0], self.spec)
