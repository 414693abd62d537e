"""The acting policy: one forward pass in numpy, used for collecting, for evaluating and by load_policy.

A torch call for one observation takes several times as long, and this way actor processes need no torch.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3d.errors import UserError
from t3d.policy.actions import action_count, limited, middle, put_previous, to_bounds, valid_previous
from t3d.policy.observations import batch_size, flatten, flatten_batch, stacked
from t3d.policy.snapshots import MemberPolicy, PolicySnapshot
from t3d.policy.spec import Spec

_TAKES_PREVIOUS = (
    "this policy limits how much actions change, so it takes the previous action too: policy(observation, "
    "previous_action); policy.controller() keeps it for you"
)
_TAKES_NO_PREVIOUS = "this policy takes no previous action: it was trained without env.max_action_change"


class LoadedPolicy:
    """A policy from a file: observations of the environment in, actions within the environment's bounds out.

    It takes one observation, or a batch of them as vectors of environments return them, and may be called by several
    threads at once. If it was trained on stacked images, it keeps the newest ones itself: call reset() when an episode
    begins, and give each thread a copy.copy(policy), which shares the network and keeps frames of its own. If it was
    trained with a limit on how much actions change, it takes the previous action too; controller() keeps both.
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
        inputs = [f"{spec.own_size} values"] if spec.own_size else []
        inputs += [f"{'x'.join(map(str, image.shape))} pixels" for image in spec.images]
        inputs += [f"{spec.stack} frames"] if spec.stack > 1 else []
        inputs += ["the previous action"] if spec.max_action_change else []
        kind, env = f"{about.get('kind', '')} policy".strip(), about.get("env") or "an environment made in Python"
        actions = f"{spec.action_size} {'action' if spec.action_size == 1 else 'actions'}"
        actions += f", changing by at most {spec.max_action_change:g} of the range" if spec.max_action_change else ""
        computed = f"{', '.join(inputs)} -> {about['network']['name']} -> {actions}"
        return f"<{kind} of {env}, seed {about['seed']}, step {about['step']:,}: {computed}>"

    def reset(self) -> None:
        """Starts an episode: the next observation is its first."""
        self._before = None

    @property
    def initial_action(self) -> NDArray[Any]:
        """The previous action when an episode begins: the middle of the range."""
        return middle(self.spec)

    def controller(self) -> Controller:
        """This policy for one control loop: it keeps the previous action and frames itself."""
        return Controller(self)

    def __call__(self, observation: Any, previous_action: Any = None) -> NDArray[Any]:
        return self._act(observation, previous_action, None)

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = True
    ) -> tuple[NDArray[Any], NDArray[Any] | None]:
        """Acts as policies of Stable-Baselines3 do; actions are never random.

        The state to hand on is the previous action if the policy takes one, otherwise None.
        """
        if not self.spec.max_action_change:
            return self._act(observation, None, episode_start), None
        action = self._act(observation, self._previous(observation, state, episode_start), episode_start)
        return action, action.copy()

    def _previous(self, observation: Any, state: Any, starts: Any) -> Any:
        """The previous action of each observation: the state, except where an episode starts."""
        if state is not None and starts is None:
            return state  # checked with the observation
        count, first = batch_size(observation, self.spec), self.initial_action
        rows, shape = (1, first.shape) if count is None else (count, (count, *first.shape))
        if state is None:
            return np.broadcast_to(first, shape)
        begins = _starts(starts, rows).reshape(-1, *[1] * first.ndim)
        return np.where(begins, first, valid_previous(state, count, self.spec)).reshape(shape)

    def actions(self, flat: NDArray[Any], previous: NDArray[Any] | None = None) -> NDArray[Any]:
        """Flat observations (N, observation_width), or one, to actions (N, *action_shape) within the bounds, or one.

        If changes of actions are limited, the previous ones are given too, of the same shape.
        """
        raise NotImplementedError

    def _act(self, observation: Any, previous: Any, starts: Any) -> NDArray[Any]:
        spec = self.spec
        if (previous is None) == (spec.max_action_change > 0):
            raise UserError(_TAKES_PREVIOUS if previous is None else _TAKES_NO_PREVIOUS)
        is_usual = getattr(observation, "shape", None) == self._usual_shape
        count = None if is_usual else batch_size(observation, spec)
        flat = flatten(observation, spec) if count is None else flatten_batch(observation, count, spec)
        if previous is not None:
            previous = valid_previous(previous, count, spec)
            put_previous(flat, previous, spec)
        return self.actions(flat if spec.stack == 1 else self._with_older_frames(flat, starts), previous)

    def _with_older_frames(self, flat: NDArray[np.uint8], starts: Any) -> NDArray[np.uint8]:
        """Adds the frames of the observations before, where no episode starts, and keeps them for the next."""
        before, rows = self._before, flat.reshape(-1, flat.shape[-1])
        if before is not None and len(before) != len(rows):
            raise UserError(
                f"the policy keeps the frames of {len(before)} episodes, and was given {len(rows)} observations; call "
                "reset() when others begin"
            )
        begins = _starts(before is None if starts is None or before is None else starts, len(rows))
        pairs = zip(rows, rows if before is None else before, begins, strict=True)
        self._before = np.stack([stacked(row, None if begin else older, self.spec) for row, older, begin in pairs])
        return self._before.reshape(*flat.shape[:-1], -1)


def _starts(starts: Any, rows: int) -> NDArray[np.bool_]:
    """Whether an episode starts, for each row."""
    try:
        return np.broadcast_to(np.asarray(starts, bool).reshape(-1), rows)
    except ValueError:
        problem = f"episode_start is {starts!r:.60}, not one bool for each of the {rows} observations"
        raise UserError(problem) from None


class Controller:
    """Acts in one control loop: one episode after the other, or a batch of them side by side.

    It keeps what the policy needs of the steps before, the previous action and frames, and shares the network.
    """

    def __init__(self, policy: LoadedPolicy) -> None:
        self.policy = copy.copy(policy)
        self.reset()

    def reset(self, previous_action: Any = None) -> None:
        """Starts an episode; the previous action is the middle of the range, or what the actuators do now."""
        spec = self.policy.spec
        if previous_action is not None:
            if not spec.max_action_change:
                raise UserError(_TAKES_NO_PREVIOUS)
            previous_action = valid_previous(previous_action, action_count(previous_action, spec), spec)
        self.policy.reset()
        self._state = previous_action

    def __call__(self, observation: Any, episode_start: Any = None) -> NDArray[Any]:
        """Acts; in a batch, `episode_start` says of each row whether an episode starts there."""
        action, self._state = self.policy.predict(observation, self._state, episode_start)
        return action


class SavedPolicy(LoadedPolicy):
    """A policy that a run has saved, computed in NumPy."""

    def __init__(self, snapshot: PolicySnapshot, spec: Spec, about: dict[str, Any], sha256: str) -> None:
        super().__init__(spec, about, sha256)
        self.snapshot = snapshot  # of this policy alone
        self.actor = MemberPolicy(snapshot, 0)

    def actions(self, flat: NDArray[Any], previous: NDArray[Any] | None = None) -> NDArray[Any]:
        actions = self.actor(flat.reshape(-1, flat.shape[-1]))
        one_by_one = actions.reshape(-1)
        if not one_by_one.dot(one_by_one) >= 0:  # NaN, and the fastest way to see it
            raise UserError("the policy's action for this observation is not finite")
        scaled = to_bounds(one_by_one if flat.ndim == 1 else actions, self.spec)
        return scaled if previous is None else limited(scaled, previous, self.spec)
