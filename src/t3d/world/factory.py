"""Factories of environments: each call must make a new one; their names, and how another process can make the same."""

from __future__ import annotations

import copy
import importlib
import inspect
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

from t3d.config import Config, EnvConfig, merge
from t3d.config.fields import is_toml
from t3d.errors import EnvironmentFailed, OwnSignal, UserError
from t3d.modules import import_named
from t3d.world.arguments import accepted, call_with, wrapped
from t3d.world.spec import name_of

NO_ENV = EnvConfig()


class CheckedFactory:
    """Creates environments with `make`, which gets their arguments as a table, and puts wrappers around them.

    Refuses one that shares its innermost environment with an earlier one. `make_env` is what a program passed;
    without it another process can do the same, by the environment's id.
    """

    def __init__(self, make: Callable[..., Any], name: str, env: EnvConfig, make_env: Any = None) -> None:
        self.make, self.name, self.env, self.make_env = make, name, env, make_env  # the name is for messages
        self.wrappers: Any = [import_named(wrapper, Callable, "wrapper") for wrapper in env.wrappers]  # type: ignore[arg-type]
        self._created: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # by id()

    def with_args(self, args: dict[str, Any]) -> CheckedFactory:
        """Returns a factory of the same environments with other arguments."""
        other = copy.copy(self)
        other.env = replace(self.env, args=args)
        return other

    def __call__(self, **keywords: Any) -> Any:
        try:
            env = self.make(self.env.args, **accepted(self.make, keywords))
            for wrapper in self.wrappers:
                env = wrapped(env, wrapper)
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


def checked_factory(make_env: Any, env: EnvConfig = NO_ENV) -> CheckedFactory:
    """Wraps what the user passed as make_env; refuses it if it cannot create environments."""
    if isinstance(make_env, gym.Env | VectorEnv):
        raise UserError(
            f"make_env is a {name_of(make_env)} object, and training and evaluation need environments of their own; "
            f"pass a function that makes them: {_how_to_write_it(make_env.unwrapped)}"
        )
    if not callable(make_env):
        raise UserError(f"make_env={make_env!r:.60} cannot be called; pass a function or class that makes environments")
    if isinstance(make_env, CheckedFactory):
        return make_env
    function, bound = make_env, dict[str, Any]()
    if isinstance(make_env, partial) and make_env.func is not gym.make:  # others may replace the arguments it gives
        with suppress(UserError):
            function, bound = make_env.func, _arguments(make_env)
    name = getattr(function, "__name__", "make_env").replace("<lambda>", "make_env")

    of_id = {} if _is_named(make_env, env) else env.args  # which the id takes, and make_env perhaps not

    def make(args: dict[str, Any], **keywords: Any) -> Any:
        taken = accepted(function, args)
        args = {key: value for key, value in args.items() if key in taken or of_id.get(key) != value}
        return call_with(function, name, {**bound, **args}, keywords)

    return CheckedFactory(make, "make_env", env, make_env)


def _is_named(make_env: Any, env: EnvConfig) -> bool:
    with suppress(UserError):
        return reference(make_env)[0] == env.id
    return not env.id


def _innermost(env: Any) -> Iterator[Any]:
    """Yields the environment without its wrappers, and those that a VectorEnv steps in this process."""
    if isinstance(env, gym.Env | VectorEnv):
        yield env.unwrapped
    if isinstance(env, VectorEnv):
        for single in getattr(env.unwrapped, "envs", ()):
            yield from _innermost(single)


def _how_to_write_it(env: Any) -> str:
    call = f'gymnasium.make("{env.spec.id}")' if getattr(env, "spec", None) else f"{type(env).__name__}(...)"
    return f"make_env=lambda: {call}"


def with_reference(cfg: Config, make_env: Any) -> Config:
    """Adds the id and the arguments of what make_env makes, if another process can make it by these.

    An id that is given says where to find the environment, so it stays. Arguments that make_env gives come first.
    """
    if make_env is None:
        return cfg
    try:
        env_id, args = reference(make_env)
    except UserError:
        return cfg
    both = {**cfg.env.args, **args}
    return merge(cfg, {"env": {"id": env_id, "args": both}}) if cfg.env.id in ("", env_id) else cfg


def other_environment(cfg: Config, make_env: Any, label: str) -> list[str]:
    """Notes that a run is named after a Gymnasium id, and that make_env makes something else."""
    named = cfg.env.id
    if getattr(make_env, "make_env", make_env) is None or not named or ":" in named or label.startswith(named):
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
        if make_env.make_env is None:
            return make_env.env.id, make_env.env.args
        make_env = make_env.make_env
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


def _arguments(factory: partial[Any]) -> dict[str, Any]:
    try:
        parameters = [*inspect.signature(factory.func).parameters.values()][: len(factory.args)]
    except (TypeError, ValueError):  # callables written in C often have no signature
        parameters = []
    names = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    if len(names) < len(factory.args):
        raise UserError(
            f"actor processes cannot be given the arguments {factory.args!r:.60} of make_env; give them by name, "
            "or train with actors=inline"
        )
    return {**dict(zip(names, factory.args, strict=True)), **factory.keywords}


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
