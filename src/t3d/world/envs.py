"""Environments: found, checked, and brought to one form.

Past this file observations are flat float32 vectors and actions are in [-1, 1] in every dimension, so noise scales and
clips mean the same everywhere. Nothing that is not a plain finite number gets past it either.
"""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # before Gymnasium imports pygame

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from t3d.errors import Diverged, UserError, did_you_mean
from t3d.types import Floats, Spec
from t3d.world.mujoco_log import redirect_warnings

GymEnv = gym.Env[Any, Any]
EnvFactory = Callable[..., GymEnv]

ABSURD = 1e15  # beyond this, squared TD errors overflow float32: (1e15 / (1 - gamma))^2 is 1e34 at gamma 0.99
EXTRAS = {"gymnasium.envs.box2d": "box2d"}  # where an environment comes from -> the extra of ours that brings it


class BadValue(UserError):
    """An environment returned something that must not reach the replay."""


class Environment:
    """One Gymnasium environment with flat observations and actions in [-1, 1], stepped and seeded by us."""

    def __init__(self, env: GymEnv, where: str) -> None:
        self.gym = env
        self.where = where  # for messages, e.g. "environment 0 of seed 3"
        self.spec = spec_of(env)
        self._episode = -1
        self._step = 0

    def reset(self, seed: int) -> Floats:
        """Begins an episode; its seed decides everything random in it."""
        self._episode += 1
        self._step = 0
        result = self._call(self.gym.reset, seed=seed)
        if not (isinstance(result, tuple) and len(result) == 2):
            raise BadValue(f"{self._now()}: reset() must return (observation, info), as Gymnasium asks for")
        return self._observation(result[0])

    def step(self, action: Floats) -> tuple[Floats, float, bool, bool]:
        """Plays an action in [-1, 1]; returns observation, reward, terminated, truncated."""
        self._step += 1
        if not np.isfinite(action).all():
            raise Diverged(f"the action for {self._now()} is {action}")
        result = self._call(self.gym.step, to_bounds(action, self.spec).astype(self.gym.action_space.dtype))
        if not (isinstance(result, tuple) and len(result) == 5):
            raise BadValue(
                f"{self._now()}: step() must return (observation, reward, terminated, truncated, info), "
                "as Gymnasium asks for"
            )
        observation, reward, terminated, truncated, _ = result
        return self._observation(observation), self._reward(reward), bool(terminated), bool(truncated)

    def close(self) -> None:
        """Frees the simulator."""
        self.gym.close()

    def _call(self, method: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        try:
            return method(*arguments, **keywords)
        except Exception as error:
            error.add_note(f"raised by the environment itself: {self._now()}")
            raise

    def _observation(self, value: Any) -> Floats:
        flat = self._numbers("observation", value, self.spec.observation_shape).reshape(-1)
        sound = np.abs(flat) <= ABSURD  # False for NaN too
        if not sound.all():
            worst = int(np.argmin(sound))
            raise BadValue(
                f"{self._now()}: observation[{worst}] is {flat[worst]}; every number must be finite and sane"
            )
        return flat.astype(np.float32)  # a copy: environments may reuse their buffer

    def _reward(self, value: Any) -> float:
        reward = float(self._numbers("reward", value, ()))
        if not abs(reward) <= ABSURD:
            raise BadValue(f"{self._now()}: reward is {reward}; it must be a finite, sane number")
        return reward

    def _numbers(self, field: str, value: Any, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """The value as float64 numbers of the given shape, or a sentence that says why it is not."""
        try:
            array = np.asarray(value)
        except ValueError:
            array = np.asarray(None)  # ragged lists
        if array.dtype.kind not in "fiub":
            raise BadValue(f"{self._now()}: {field} is {type(value).__name__} {value!r:.60}, not numbers")
        if array.shape != shape:
            raise BadValue(f"{self._now()}: {field} has shape {array.shape} instead of {shape}")
        return array.astype(np.float64)

    def _now(self) -> str:
        return f"{self.where}, episode {self._episode}, step {self._step}"


def spec_of(env: GymEnv) -> Spec:
    """Shapes and bounds, or a sentence about why TD3 cannot work with them."""
    name = env.spec.id if env.spec else type(env.unwrapped).__name__
    observations, actions = env.observation_space, env.action_space
    if not isinstance(actions, Box):
        raise UserError(f"{name} has actions {actions}; TD3 needs a continuous (Box) action space, as Pendulum-v1 has")
    if not isinstance(observations, Box):
        raise UserError(
            f"{name} has observations {observations}; T3D takes Box observations: "
            "wrap the environment in gymnasium.wrappers.FlattenObservation"
        )
    low = actions.low.astype(np.float64).reshape(-1)
    high = actions.high.astype(np.float64).reshape(-1)
    for index, (least, most) in enumerate(zip(low, high, strict=True)):
        if not (np.isfinite(least) and np.isfinite(most) and least < most):
            raise UserError(
                f"{name} has action bounds [{least}, {most}] in dimension {index}; TD3 needs finite bounds, "
                "low below high: set them in the environment's action_space"
            )
    return Spec(observations.shape, actions.shape, low, high)


def to_bounds(action: Floats, spec: Spec) -> NDArray[np.float64]:
    """From [-1, 1] to the environment's own bounds and shape: the one place where actions are rescaled."""
    share = (action.astype(np.float64) + 1) / 2
    scaled = spec.action_low + share * (spec.action_high - spec.action_low)
    return np.clip(scaled, spec.action_low, spec.action_high).reshape(spec.action_shape)


def env_factory(env_id: str) -> EnvFactory:
    """What makes environments of this id; a Gymnasium id, module:id, or module:callable."""
    if not env_id:
        raise UserError("no environment given; name one, e.g. t3d train Pendulum-v1")
    module_name, _, name = env_id.rpartition(":")
    if module_name:
        module = _import_module(module_name, env_id)
        made_by = getattr(module, name, None)
        if callable(made_by):
            return _with_accepted_keywords(made_by, env_id)
    _check_registered(name, env_id)
    return lambda **keywords: _gym_make(name, **keywords)


def _with_accepted_keywords(make: Callable[..., Any], env_id: str) -> EnvFactory:
    parameters = inspect.signature(make).parameters.values()
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    accepted = {parameter.name for parameter in parameters}

    def factory(**keywords: Any) -> GymEnv:
        redirect_warnings()
        env = make(**{key: value for key, value in keywords.items() if takes_all or key in accepted})
        if not isinstance(env, gym.Env):
            raise UserError(f"{env_id} returned {type(env).__name__}, not a gymnasium.Env")
        return env

    return factory


def _import_module(module_name: str, env_id: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and module_name.split(".", maxsplit=1)[0] == error.name.split(".")[0]:
            hint = "is it installed, or in the folder you started from?"
        else:
            hint = f"install it with: pip install {error.name}"
        raise UserError(f"cannot import {error.name} for the environment {env_id}; {hint}") from None


def _check_registered(name: str, env_id: str) -> None:
    if name in gym.registry:
        return
    same_task = [known for known in gym.registry if known.rpartition("-v")[0] == (name.rpartition("-v")[0] or name)]
    hint = f"; there is {' and '.join(same_task)}" if same_task else did_you_mean(name, gym.registry)
    raise UserError(f"unknown environment {env_id}{hint or '; for your own write module:callable'}")


def _gym_make(name: str, **keywords: Any) -> GymEnv:
    entry = str(gym.registry[name].entry_point)
    try:
        if ".mujoco" in entry:
            importlib.import_module("mujoco")
        redirect_warnings()
        return gym.make(name, disable_env_checker=True, **keywords)
    except (gym.error.DependencyNotInstalled, ImportError) as error:
        extra = next((extra for start, extra in EXTRAS.items() if entry.startswith(start)), None)
        remedy = f'install it with: pip install "t3d[{extra}]"' if extra else str(error)
        raise UserError(f"{name} needs a package that is not installed; {remedy}") from None
