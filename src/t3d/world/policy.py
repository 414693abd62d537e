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
from t3d.world.batched import batch_size, flatten_batch
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


class LoadedPolicy:
    """A policy from a file: observations of the environment in, actions within the environment's bounds out.

    It takes one observation, or a batch of them as vectors of environments return them, and may be called by several
    threads at once. If it was trained on stacked images, it keeps the newest ones itself: call reset() when an episode
    begins, and give each thread a copy.copy(policy), which shares the network and keeps frames of its own.
    """

    def __init__(self, spec: Spec, about: dict[str, Any], sha256: str) -> None:
        self.spec = spec
        self.about = about  # environment, seed, step, mean_return, ...
        self.sha256 = sha256  # of its tensors
        is_one_vector = len(spec.observation) == 1 and not spec.images and not spec.observation[0].path
        self._usual_shape = spec.observation[0].shape if is_one_vector else ()
        self._before: NDArray[np.uint8] | None = None  # the observations before, whose frames are kept

    def __repr__(self) -> str:
        about, spec = self.about, self.spec
        seen = [f"{spec.observation_size} values"] if spec.observation_size else []
        seen += [f"{'x'.join(map(str, image.shape))} pixels" for image in spec.images]
        seen += [f"{spec.stack} frames"] if spec.stack > 1 else []
        which = f"{about.get('kind', '')} policy".strip()
        trained = (
            f"of {about.get('env') or 'an environment made in Python'}, seed {about['seed']}, step {about['step']:,}"
        )
        actions = f"{spec.action_size} {'action' if spec.action_size == 1 else 'actions'}"
        return f"<{which} {trained}: {', '.join(seen)} -> {about['network']['name']} -> {actions}>"

    def reset(self) -> None:
        """Starts an episode: the next observation is its first."""
        self._before = None

    def __call__(self, observation: Any) -> NDArray[Any]:
        return self._act(observation, None)

    def predict(
        self, observation: Any, state: None = None, episode_start: Any = None, deterministic: bool = True
    ) -> tuple[NDArray[Any], None]:
        """Acts as policies of Stable-Baselines3 do; there is no state to hand on, and actions are never random."""
        return self._act(observation, episode_start), None

    def actions(self, flat: NDArray[Any]) -> NDArray[Any]:
        """Flat observations (N, observation_width) to actions (N, *action_shape) within the environment's bounds."""
        raise NotImplementedError

    def _act(self, observation: Any, starts: Any) -> NDArray[Any]:
        spec = self.spec
        try:
            is_usual = getattr(observation, "shape", None) == self._usual_shape
            count = None if is_usual else batch_size(observation, spec)
            flat = flatten(observation, spec)[None] if count is None else flatten_batch(observation, count, spec)
        except InvalidValue as error:
            raise UserError(str(error)) from None
        if spec.stack > 1:
            flat = self._before = self._with_older_frames(flat, starts)
        actions = self.actions(flat)
        return actions[0] if count is None else actions

    def _with_older_frames(self, flat: NDArray[np.uint8], starts: Any) -> NDArray[np.uint8]:
        """Adds the frames of the observations before, where no episode starts."""
        before = self._before
        if before is not None and len(before) != len(flat):
            raise UserError(
                f"the policy keeps the frames of {len(before)} episodes, and was given {len(flat)} observations; call "
                "reset() when others begin"
            )
        begins = [before is None] * len(flat) if starts is None or before is None else np.asarray(starts).reshape(-1)
        rows = zip(flat, flat if before is None else before, begins, strict=True)
        return np.stack([stacked(row, None if begin else older, self.spec) for row, older, begin in rows])


class SavedPolicy(LoadedPolicy):
    """A policy that a run has saved, computed in NumPy."""

    def __init__(self, snapshot: PolicySnapshot, spec: Spec, about: dict[str, Any], sha256: str) -> None:
        super().__init__(spec, about, sha256)
        self.snapshot = snapshot  # of this policy alone
        self.actor = MemberPolicy(snapshot, 0)

    def actions(self, flat: NDArray[Any]) -> NDArray[Any]:
        """As the base class says."""
        actions = self.actor(flat)
        one_by_one = actions.reshape(-1)
        if not one_by_one.dot(one_by_one) >= 0:  # NaN, and the fastest way to see it
            raise UserError("the policy's action for this observation is not finite")
        return to_bounds(actions, self.spec)
