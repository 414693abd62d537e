"""Environments: found, checked, and brought to one form.

Past this file observations are flat float32 vectors and actions are in [-1, 1] in every dimension, so noise scales and
clips mean the same everywhere. Nothing that is not a plain finite number gets past it either.
"""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # before Gymnasium imports pygame

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from t3d.errors import Diverged, UserError, did_you_mean
from t3d.types import Floats, Spec
from t3d.world.dm import DmControl
from t3d.world.mujoco_log import redirect_warnings
from t3d.world.spaces import Unfit, flatten, layout_of, number

GymEnv = gym.Env[Any, Any]
EnvFactory = Callable[..., Any]  # makes a gymnasium.Env or a gymnasium.vector.VectorEnv

EXTRAS = {"gymnasium.envs.box2d": "box2d", "pybullet_envs_gymnasium": "pybullet"}  # module -> our extra that brings it


class Result(NamedTuple):
    """What one step of one environment gave."""

    observation: Floats
    reward: float
    terminated: bool
    truncated: bool


class BadValue(UserError):
    """An environment returned something that must not reach the replay."""


class Environment:
    """One Gymnasium environment with flat observations and actions in [-1, 1], stepped and seeded by us."""

    count = 1

    def __init__(self, env: GymEnv, where: str, action_repeat: int = 1) -> None:
        self.gym = env
        self.spec = spec_of(env.observation_space, env.action_space, name_of(env))
        self.gate = Gate(self.spec, env.action_space.dtype, where)
        self.action_repeat = action_repeat

    def reset(self, seed: int) -> Floats:
        """Begins an episode; its seed decides everything random in it."""
        self.gate.begin_episode()
        result = self.gate.call(self.gym.reset, seed=seed)
        return self.gate.first_observation(result)

    def step(self, action: Floats) -> Result:
        """Plays an action in [-1, 1]; repeated ones add up their rewards and end with the episode."""
        scaled = self.gate.action(action)
        total = 0.0
        for _ in range(self.action_repeat):
            result = self.gate.call(self.gym.step, scaled)
            observation, reward, terminated, truncated = self.gate.step(result)
            total += reward
            if terminated or truncated:
                break
        return Result(observation, total, terminated, truncated)

    def close(self) -> None:
        """Frees the simulator."""
        self.gym.close()


class Gate:
    """Between T3D and one environment: scales what goes in, checks what comes out, knows where and when it is."""

    def __init__(self, spec: Spec, action_dtype: Any, where: str) -> None:
        self.spec, self.action_dtype = spec, action_dtype
        self.where = where  # for messages, e.g. "environment 0 of seed 3"
        self.episode, self.step_number = -1, 0

    def begin_episode(self) -> None:
        """Counts."""
        self.episode += 1
        self.step_number = 0

    def action(self, action: Floats) -> NDArray[Any]:
        """An action in [-1, 1] as the environment takes it."""
        self.step_number += 1
        if not np.isfinite(action).all():
            raise Diverged(f"the action for {self.now()} is {action}")
        scaled = to_bounds(action, self.spec)
        if np.issubdtype(self.action_dtype, np.integer):
            scaled = np.rint(scaled)
        return scaled.astype(self.action_dtype)

    def first_observation(self, result: Any) -> Floats:
        """What reset returned."""
        if not (isinstance(result, tuple) and len(result) == 2):
            raise BadValue(f"{self.now()}: reset() must return (observation, info), as Gymnasium asks for")
        return self.observation(result[0])

    def step(self, result: Any) -> Result:
        """What step returned."""
        if not (isinstance(result, tuple) and len(result) == 5):
            raise BadValue(
                f"{self.now()}: step() must return (observation, reward, terminated, truncated, info), "
                "as Gymnasium asks for"
            )
        observation, reward, terminated, truncated, _ = result
        return Result(self.observation(observation), self.reward(reward), bool(terminated), bool(truncated))

    def observation(self, value: Any) -> Floats:
        """A sound observation, flat."""
        try:
            return flatten(value, self.spec)
        except Unfit as error:
            raise BadValue(f"{self.now()}: {error}") from None

    def reward(self, value: Any) -> float:
        """A sound reward."""
        try:
            return number("reward", value)
        except Unfit as error:
            raise BadValue(f"{self.now()}: {error}") from None

    def call(self, method: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Calls into the environment; what it raises says where it came from."""
        try:
            return method(*arguments, **keywords)
        except Exception as error:
            error.add_note(f"raised by the environment itself: {self.now()}")
            raise

    def now(self) -> str:
        """Where and when, for messages."""
        return f"{self.where}, episode {self.episode}, step {self.step_number}"


def name_of(env: GymEnv) -> str:
    """What to call an environment in messages."""
    return env.spec.id if env.spec else type(env.unwrapped).__name__


def spec_of(observations: gym.Space[Any], actions: gym.Space[Any], name: str) -> Spec:
    """Shapes and bounds, or a sentence about why TD3 cannot work with them."""
    if not isinstance(actions, Box):
        raise UserError(f"{name} has actions {actions}; TD3 needs a continuous (Box) action space, as Pendulum-v1 has")
    low = actions.low.astype(np.float64).reshape(-1)
    high = actions.high.astype(np.float64).reshape(-1)
    for index, (least, most) in enumerate(zip(low, high, strict=True)):
        if not (np.isfinite(least) and np.isfinite(most) and least < most):
            raise UserError(
                f"{name} has action bounds [{least}, {most}] in dimension {index}; TD3 needs finite bounds, "
                "low below high: set them in the environment's action_space"
            )
    return Spec(layout_of(observations), actions.shape, low, high)


def to_bounds(action: Floats, spec: Spec) -> NDArray[np.float64]:
    """From [-1, 1] to the environment's own bounds and shape: the one place where actions are rescaled."""
    share = (action.astype(np.float64) + 1) / 2
    scaled = spec.action_low + share * (spec.action_high - spec.action_low)
    return np.clip(scaled, spec.action_low, spec.action_high).reshape(spec.action_shape)


def env_factory(env_id: str) -> EnvFactory:
    """What makes environments of this id: a Gymnasium id, dm:domain-task, module:id, or module:callable."""
    if not env_id:
        raise UserError("no environment given; name one, e.g. t3d train Pendulum-v1")
    module_name, _, name = env_id.rpartition(":")
    if module_name == "dm":
        return partial(DmControl, name)
    if module_name:
        module = _import_module(module_name, env_id)
        made_by = getattr(module, name, None)
        if callable(made_by):
            return _with_accepted_keywords(made_by)
    if name not in gym.registry and "Bullet" in name:
        _import_module("pybullet_envs_gymnasium", env_id)  # registers its ids
    _check_registered(name, env_id)
    return lambda **keywords: _gym_make(name, **keywords)


def _with_accepted_keywords(make: Callable[..., Any]) -> EnvFactory:
    parameters = inspect.signature(make).parameters.values()
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    accepted = {parameter.name for parameter in parameters}

    def factory(**keywords: Any) -> Any:
        redirect_warnings()
        return make(**{key: value for key, value in keywords.items() if takes_all or key in accepted})

    return factory


def _import_module(module_name: str, env_id: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name in EXTRAS:
            hint = f'install it with: pip install "t3d[{EXTRAS[error.name]}]"'
        elif error.name == module_name:
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
        remedy = f'install it with: pip install "t3d[{extra}]"' if extra else "install it with pip"
        raise UserError(f"{name} needs a package that is not installed ({error}); {remedy}") from None
