"""Finds environments by what the user types, or says in a sentence why it cannot."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # before Gymnasium imports pygame

import gymnasium as gym

from t3d.errors import UserError, did_you_mean
from t3d.world.dm import DmControl
from t3d.world.envs import EnvFactory, GymEnv
from t3d.world.mujoco_log import redirect_warnings

EXTRAS = {"gymnasium.envs.box2d": "box2d", "pybullet_envs_gymnasium": "pybullet"}  # module -> our extra that brings it


@dataclass(frozen=True)
class ById:
    """Makes environments of an id, and remembers it: another process can be told."""

    env_id: str
    make: EnvFactory

    def __call__(self, **keywords: Any) -> Any:
        return self.make(**keywords)


def env_factory(env_id: str) -> ById:
    """What makes environments of this id."""
    return ById(env_id, _factory(env_id))


def _factory(env_id: str) -> EnvFactory:
    """What makes environments of this id: a Gymnasium id, dm:domain-task, module:id, or module:callable."""
    if not env_id:
        raise UserError("no environment given; name one, e.g. Pendulum-v1 or module:callable for your own")
    module_name, _, name = env_id.rpartition(":")
    if module_name == "dm":
        return partial(DmControl, name)
    if "Bullet" in name and name not in gym.registry:
        module_name = module_name or "pybullet_envs_gymnasium"
    module = _import_module(module_name, env_id) if module_name else None
    if name in gym.registry:
        return partial(_gym_make, name)
    made_by = getattr(module, name, None)
    if not callable(made_by):
        raise UserError(f"unknown environment {env_id}{_hint(name, module)}")
    return partial(_call, made_by, env_id)


def _hint(name: str, module: ModuleType | None) -> str:
    if module is not None:
        made_there = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        return f"; {module.__name__} has no {name or 'name after the colon'}{did_you_mean(name, made_there)}"
    task = name.rpartition("-v")[0] or name
    versions = [known for known in gym.registry if known.rpartition("-v")[0] == task]
    if versions:
        return f"; there is {max(versions, key=lambda known: int(known.rpartition('-v')[2]))}"
    return did_you_mean(name, gym.registry) or "; for an environment of your own write module:callable"


def _import_module(module_name: str, env_id: str) -> ModuleType:
    if module_name.endswith(".py"):
        raise UserError(f"write the module without .py: {env_id.replace('.py:', ':')}")
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
    except ImportError as error:
        raise UserError(f"cannot import {module_name} for the environment {env_id}: {error}") from None
    except SyntaxError as error:
        raise UserError(f"{error.filename} does not parse: {error.msg} in line {error.lineno}") from None


def _gym_make(name: str, **keywords: Any) -> GymEnv:
    entry = str(gym.registry[name].entry_point)
    try:
        if ".mujoco" in entry:
            importlib.import_module("mujoco")
        redirect_warnings()
        return gym.make(name, disable_env_checker=True, **keywords)
    except (gym.error.DependencyNotInstalled, ImportError) as error:
        extra = next((extra for start, extra in EXTRAS.items() if entry.startswith(start)), None)
        remedy = f'install it with: pip install "t3d[{extra}]"' if extra else f"try a newer version{_hint(name, None)}"
        reason = str(error).partition(",")[0]  # what follows is Gymnasium's own advice
        raise UserError(f"{name} cannot be made ({reason}); {remedy}") from None


def _call(make: Callable[..., Any], env_id: str, **keywords: Any) -> Any:
    """The user's own callable, with those of the keywords that it takes."""
    signature = inspect.signature(make)
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    accepted = {key: value for key, value in keywords.items() if takes_all or key in signature.parameters}
    try:
        signature.bind(**accepted)
    except TypeError as error:
        raise UserError(f"{env_id} must be callable without arguments: {error}; give them defaults") from None
    env = make(**accepted)
    redirect_warnings()  # it may have imported MuJoCo itself
    return env
