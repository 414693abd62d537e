"""Checks that an environment factory returns a new environment with every call."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv

from t3d.errors import EnvironmentFailed, OwnSignal, UserError
from t3d.world.guard import EnvFactory
from t3d.world.spec import name_of


class CheckedFactory:
    """Creates environments with `make`; refuses one that shares its innermost environment with an earlier one."""

    def __init__(self, make: EnvFactory, name: str) -> None:
        self.make, self.name = make, name  # the name is for messages
        self._created: dict[int, Callable[[], Any]] = {}  # by id(), which is reused when an object is gone

    def __call__(self, **keywords: Any) -> Any:
        try:
            env = self.make(**accepted(self.make, keywords))
        except (UserError, OwnSignal):
            raise
        except BaseException as error:
            raise EnvironmentFailed(f"making {self.name}", error) from error
        for one in _innermost(env):
            if id(one) in self._created and self._created[id(one)]() is one:
                raise UserError(
                    f"{self.name} returned the same {name_of(one)} object twice, and training and evaluation need "
                    f"environments of their own; make a new one with every call: {_how_to_write_it(one)}"
                )
            self._created[id(one)] = _reference(one)
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
        for one in getattr(env.unwrapped, "envs", ()):
            yield from _innermost(one)


def _how_to_write_it(env: Any) -> str:
    made = f'gymnasium.make("{env.spec.id}")' if getattr(env, "spec", None) else f"{type(env).__name__}(...)"
    return f"make_env=lambda: {made}"


def _reference(thing: Any) -> Callable[[], Any]:
    """Returns a weak reference if possible: an environment that is gone must be forgotten."""
    try:
        return weakref.ref(thing)
    except TypeError:  # a class with __slots__
        return lambda: thing
