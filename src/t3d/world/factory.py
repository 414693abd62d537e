"""Factories of environments: each call must make a new one; their names, and how another process can make the same."""

from __future__ import annotations

import importlib
import inspect
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

from t3d.config import Config, EnvConfig, merge
from t3d.config.fields import is_toml
from t3d.errors import EnvironmentFailed, OwnSignal, UserError
from t3d.world.guard import EnvFactory
from t3d.world.spec import name_of


class CheckedFactory:
    """Creates environments with `make`; refuses one that shares its innermost environment with an earlier one.

    If it is known by an id and arguments, it keeps these so that another process can do the same.
    """

    def __init__(self, make: EnvFactory, name: str, env: EnvConfig | None = None) -> None:
        self.make, self.name, self.env = make, name, env  # the name is for messages
        self._created: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # by id()

    def __call__(self, **keywords: Any) -> Any:
        try:
            env = self.make(**accepted(self.make, keywords))
        except (UserError, OwnSignal):
            raise
        except BaseException as error:
            raise EnvironmentFailed(f"making {self.name}", error) from error
        for inner in _innermost(env):
            if id(inner) in self._created:
                raise UserError(
                    f"{self.name} returned the same {name_of(inner)} object twice, and training and evaluation need "
                    f"environments of their own; make a new one with every call: {_how_to_write_it(inner)}"
                )
            with suppress(TypeError):  # a class with __slots__
                self._created[id(inner)] = inner
        return env


def accepted(make: Callable[..., Any], keywords: dict[str, Any]) -> dict[str, Any]:
    """Those of the keywords that a factory accepts."""
    if not keywords:
        return keywords
    try:
        parameters = inspect.signature(make).parameters
    except ValueError:  # callables written in C often have no signature
        return {}
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return {key: value for key, value in keywords.items() if takes_all or key in parameters}


def checked_factory(make_env: Any) -> CheckedFactory:
    """Wraps what the user passed as make_env; refuses it if it cannot create environments."""
    if isinstance(make_env, gym.Env | VectorEnv):
        raise UserError(
            f"make_env is a {name_of(make_env)} object, and training and evaluation need environments of their own; "
            f"pass a function that makes them: {_how_to_write_it(make_env.unwrapped)}"
        )
    if not callable(make_env):
        raise UserError(f"make_env={make_env!r:.60} cannot be called; pass a function or class that makes environments")
    return CheckedFactory(make_env, "make_env")


def _innermost(env: Any) -> Iterator[Any]:
    """Yields the environment without its wrappers, and those that a VectorEnv steps in this process."""
    if isinstance(env, gym.Env | VectorEnv):
        yield env.unwrapped
    if isinstance(env, VectorEnv):
        for single in getattr(env.unwrapped, "envs", ()):
            yield from _innermost(single)


def _how_to_write_it(env: Any) -> str:
    made = f'gymnasium.make("{env.spec.id}")' if getattr(env, "spec", None) else f"{type(env).__name__}(...)"
    return f"make_env=lambda: {made}"


def with_reference(cfg: Config, make_env: Any) -> Config:
    """Adds the id and the arguments of what make_env makes, if another process can make it by these.

    An id that is given says where to find the environment, so it stays.
    """
    if make_env is None:
        return cfg
    try:
        env_id, args = reference(make_env)
    except UserError:
        return cfg
    return merge(cfg, {"env": {"id": env_id, "args": args}}) if cfg.env.id in ("", env_id) else cfg


def other_environment(cfg: Config, make_env: Any, label: str) -> list[str]:
    """Notes that a run is named after a Gymnasium id, and that make_env makes something else."""
    named = cfg.env.id
    if getattr(make_env, "env", None) or not named or ":" in named or label.startswith(named):
        return []
    return [
        f"env.id is {named}, and make_env makes {label}: that is what is trained, under the name of {named}, by which "
        "t3d eval and t3d record make an environment; leave env.id out to name the run after what make_env makes"
    ]


def reference(make_env: Any) -> tuple[str, dict[str, Any]]:
    """Returns the id and the arguments by which another process can make the same environments.

    Raises UserError if there are none: for a lambda, a class of a notebook, or an argument that is no plain value.
    """
    if isinstance(make_env, CheckedFactory):
        if make_env.env is not None:
            return make_env.env.id, make_env.env.args
        make_env = make_env.make
    function = make_env.func if isinstance(make_env, partial) else make_env
    module, name = getattr(function, "__module__", "__main__"), getattr(function, "__qualname__", "<lambda>")
    imported: Any = None
    with suppress(ImportError, AttributeError):
        imported = getattr(importlib.import_module(module), name)
    if module == "__main__" or imported is not function:
        raise UserError(
            f"actor processes cannot import make_env={name} of {module}; define it at the top of a module of its own, "
            "or train with actors=inline"
        )
    args = _arguments(make_env) if isinstance(make_env, partial) else {}
    args = {key: value.item() if isinstance(value, np.generic) else value for key, value in args.items()}
    for key, value in args.items():
        if not is_toml(value):
            raise UserError(
                f"actor processes cannot be given {key}={value!r:.60} of make_env={name}; use strings, numbers, lists "
                "and dicts of these, or train with actors=inline"
            )
    if function is gym.make and isinstance(args.get("id"), str):
        return args.pop("id"), args
    return f"{module}:{name}", args


def _arguments(made: partial[Any]) -> dict[str, Any]:
    try:
        parameters = [*inspect.signature(made.func).parameters.values()][: len(made.args)]
    except (TypeError, ValueError):  # callables written in C often have no signature
        parameters = []
    names = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    if len(names) < len(made.args):
        raise UserError(
            f"actor processes cannot be given the arguments {made.args!r:.60} of make_env; give them by name, "
            "or train with actors=inline"
        )
    return {**dict(zip(names, made.args, strict=True)), **made.keywords}


def label_of(env: Any) -> str:
    """The name of an environment that has no id of its own: Pendulum-v1 if it is registered, or drone:Drone."""
    if getattr(env, "spec", None):
        return str(env.spec.id)
    kind = type(getattr(env, "unwrapped", env))
    module = kind.__module__
    if module == "__main__":  # of a program it is the file, in a notebook there is none
        stem = Path(getattr(sys.modules["__main__"], "__file__", None) or "").stem
        module = stem if stem.isidentifier() else ""
    return f"{module}:{kind.__name__}".lstrip(":")
