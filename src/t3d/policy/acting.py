"""Policies as plain arrays: one forward pass in numpy, used for collecting, for evaluating and by load_policy.

A torch call for one observation takes several times as long, and this way actor processes need no torch.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from t3d.errors import UserError
from t3d.files import to_count
from t3d.policy.architectures import (
    ACTIVATIONS,
    BRIGHTEST,
    KERNEL,
    LEAST_MAGNITUDE,
    MIDDLE,
    NORM_EPSILON,
    Architecture,
    Operations,
)
from t3d.policy.observations import batch_size, flatten, flatten_batch, numbers, sane, stacked
from t3d.policy.spec import Floats, Spec, floats_in, limited, middle, put_previous, to_bounds

SCALED_LIMIT = 10.0  # chosen; learning (data/scaling.py) clips here too
_TAKES_PREVIOUS = (
    "this policy limits how much actions change, so it takes the previous action too: policy(observation, "
    "previous_action); policy.controller() keeps it for you"
)
_TAKES_NO_PREVIOUS = "this policy takes no previous action: it was trained without env.max_action_change"


def _linear(x: Floats, weight: Floats, bias: Floats) -> Floats:
    y: Floats = x.dot(weight)  # as x @ weight, in half its time
    y += bias
    return y


def _layer_norm(x: Floats, scale: Floats, shift: Floats) -> Floats:
    def mean(values: Floats) -> Floats:  # what values.mean() computes, in a quarter of its time
        total: Floats = np.add.reduce(values, axis=-1, keepdims=True)
        total /= np.float32(values.shape[-1])
        return total

    centred = x - mean(x)
    normal: Floats = centred / np.sqrt(mean(np.square(centred)) + np.float32(NORM_EPSILON)) * scale + shift
    return normal


def _avg_l1_norm(x: Floats) -> Floats:
    normal: Floats = x / np.maximum(np.abs(x).mean(axis=-1, keepdims=True), np.float32(LEAST_MAGNITUDE))
    return normal


def pixels(images: NDArray[np.uint8], like: Floats) -> Floats:
    """Bytes as floats from -0.5 to 0.5."""
    values: Floats = np.divide(images, np.float32(BRIGHTEST), dtype=np.float32)
    values -= np.float32(MIDDLE)
    return values


def convolve(images: Floats, weight: Floats, bias: Floats, stride: int) -> Floats:
    """A convolution as a product of matrices, and a ReLU: (N, in, height, width) -> (N, out, less, less)."""
    windows = sliding_window_view(images, (KERNEL, KERNEL), (2, 3))[:, :, ::stride, ::stride]
    count, channels, height, width, *_ = windows.shape
    columns = windows.transpose(0, 1, 4, 5, 2, 3).reshape(count, channels * KERNEL * KERNEL, height * width)
    outputs: Floats = weight.T @ columns
    outputs += bias.T
    np.maximum(outputs, 0, out=outputs)
    return outputs.reshape(count, -1, height, width)


def numpy_operations(activation: str) -> Operations:
    """The operations of one network in NumPy."""
    join, floats = partial(np.concatenate, axis=-1), lambda values, like: floats_in(values)
    for_images = (np.tanh, join, floats, pixels, convolve, lambda images: images.reshape(len(images), -1))
    for_embeddings = (ACTIVATIONS["elu"], _avg_l1_norm)
    return Operations(_linear, _layer_norm, ACTIVATIONS[activation], *for_images, *for_embeddings)


class Scaling(NamedTuple):
    """How observations are normalised: (s - mean) / std, clipped to SCALED_LIMIT either way."""

    mean: Floats  # (M, observation_size)
    std: Floats  # (M, observation_size)


class PolicySnapshot(NamedTuple):
    """The actors of all members at one moment, as plain arrays."""

    updates: int
    architecture: Architecture  # of each actor
    flat: Floats  # (M, P): each row has all parameters of an actor
    scaling: Scaling | None = None  # None: observations are not scaled

    def of_member(self, member: int) -> PolicySnapshot:
        """Copies one member's part, which later updates do not change."""
        row = slice(member, member + 1)
        scaling = self.scaling and Scaling(*(array[row].copy() for array in self.scaling))
        return self._replace(flat=self.flat[row].copy(), scaling=scaling)

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
        self.scale_as(snapshot, member)

    def scale_as(self, snapshot: PolicySnapshot, member: int) -> None:
        scaling = snapshot.scaling
        self.scaling = None if scaling is None else (scaling.mean[member], scaling.std[member])

    def __call__(self, observations: NDArray[Any]) -> Floats:
        with np.errstate(all="ignore"):  # an environment may have set "raise"; whoever acts notices what is not finite
            if self.scaling is not None:  # of vectors only
                mean, std = self.scaling
                observations = np.clip((observations - mean) / std, -SCALED_LIMIT, SCALED_LIMIT)
            action: Floats = np.tanh(self._forward(self._parameters, observations, self._ops))
        return action


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
        env = about.get("env") or "an environment made in Python"
        actions = f"{spec.action_size} {'action' if spec.action_size == 1 else 'actions'}"
        actions += f", changing by at most {spec.max_action_change:g} of the range" if spec.max_action_change else ""
        computed = f"{', '.join(inputs)} -> {about['network']['name']} -> {actions}"
        return f"<{about.get('kind', 'a')} policy of {env}, seed {about['seed']}, step {about['step']:,}: {computed}>"

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

    def __call__(self, observation: Any, previous_action: Any = None, episode_start: Any = None) -> NDArray[Any]:
        spec, previous = self.spec, previous_action
        if (previous is None) == (spec.max_action_change > 0):
            raise UserError(_TAKES_PREVIOUS if previous is None else _TAKES_NO_PREVIOUS)
        is_usual = getattr(observation, "shape", None) == self._usual_shape
        count = None if is_usual else batch_size(observation, spec)
        flat = flatten(observation, spec) if count is None else flatten_batch(observation, count, spec)
        if previous is not None:
            previous = _valid_previous(previous, count, spec)
            put_previous(flat, previous, spec)
        return self.actions(flat if spec.stack == 1 else self._with_older_frames(flat, episode_start), previous)

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = True
    ) -> tuple[NDArray[Any], NDArray[Any] | None]:
        """Acts as policies of Stable-Baselines3 do; actions are never random.

        The state to hand on is the previous action if the policy takes one, otherwise None.
        """
        if not self.spec.max_action_change:
            return self(observation, None, episode_start), None
        if state is None or episode_start is not None:
            count, first = batch_size(observation, self.spec), self.initial_action
            shape = first.shape if count is None else (count, *first.shape)
            begins = _starts(state is None or episode_start, 1 if count is None else count)
            before = first if state is None else _valid_previous(state, count, self.spec)
            state = np.where(begins.reshape(-1, *[1] * first.ndim), first, before).reshape(shape)
        action = self(observation, state, episode_start)
        return action, action.copy()

    def actions(self, flat: NDArray[Any], previous: NDArray[Any] | None = None) -> NDArray[Any]:
        """Flat observations (N, observation_width), or one, to actions (N, *action_shape) within the bounds, or one.

        If changes of actions are limited, the previous ones are given too, of the same shape.
        """
        raise NotImplementedError

    def _with_older_frames(self, flat: NDArray[np.uint8], starts: Any) -> NDArray[np.uint8]:
        """Adds the frames of the observations before, where no episode starts, and keeps them for the next."""
        rows = flat.reshape(-1, flat.shape[-1])
        before = rows if self._before is None else self._before
        if len(before) != len(rows):
            raise UserError(
                f"the policy keeps the frames of {len(before)} episodes, and was given {len(rows)} observations; call "
                "reset() when others begin"
            )
        begins = _starts(self._before is None or (starts is not None and starts), len(rows))
        pairs = zip(rows, before, begins, strict=True)
        self._before = np.stack([stacked(row, None if begin else older, self.spec) for row, older, begin in pairs])
        return self._before.reshape(*flat.shape[:-1], -1)


def _starts(starts: Any, rows: int) -> NDArray[np.bool_]:
    try:
        return np.broadcast_to(np.asarray(starts, bool).reshape(-1), rows)
    except ValueError:
        raise UserError(f"episode_start is {starts!r:.60}, not one bool for each of the {rows} observations") from None


def _valid_previous(value: Any, count: int | None, spec: Spec) -> NDArray[Any]:
    """Checks a previous action, or `count` of them; what is beyond the bounds counts as the bound."""
    shape = spec.action_shape if count is None else (count, *spec.action_shape)
    given = sane("previous_action", numbers("previous_action", value, shape).reshape(-1))
    rows = given if count is None else given.reshape(count, spec.action_size)
    inside: NDArray[Any] = np.minimum(np.maximum(rows, spec.action_low), spec.action_high)  # faster than clip
    return inside.astype(spec.action_dtype).reshape(shape)


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
            given = np.asarray(previous_action, object)  # any type takes a ragged list, which is refused below
            count = len(given) if given.ndim > len(spec.action_shape) else None
            previous_action = _valid_previous(previous_action, count, spec)
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
