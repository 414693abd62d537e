"""What an environment is made with: arguments, checked against the parameters of what makes it, and wrappers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv, VectorWrapper

from t3d.errors import UserError, did_you_mean
from t3d.world.spec import name_of

BY_NAME = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY


def accepted(make: Callable[..., Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the keywords that a factory accepts."""
    if not keywords:
        return {}
    try:
        parameters = inspect.signature(make).parameters
    except ValueError:  # callables written in C often have no signature
        return {}
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return {key: value for key, value in keywords.items() if takes_all or key in parameters}


def call_with(
    make: Callable[..., Any],
    name: str,
    args: Mapping[str, Any],
    keywords: Mapping[str, Any],
    takes: Callable[..., Any] | None = None,
    also: Iterable[str] = (),
) -> Any:
    """Calls what makes an environment with its arguments, and with those of the keywords that it accepts.

    `takes` is what the arguments are for if `make` passes them on; `also` are those that something around it takes.
    """
    parameters, passed_on = _parameters(takes or make)
    known = [parameter for parameter in parameters if parameter != "render_mode"]
    for arg in args:
        if passed_on is not None and arg not in {*parameters, *passed_on, *also}:
            has = ", ".join(known) or "no arguments"
            raise UserError(f"{name} takes {has}, and {arg} is none of them{did_you_mean(arg, known)}")
    if takes is None:
        _refuse_missing(make, name, args)
    try:
        return make(**{**args, **accepted(make, keywords)})
    except TypeError as error:
        for arg in args:  # a function may pass on what it does not know
            if f"unexpected keyword argument '{arg}'" in str(error):
                raise UserError(f"{name} cannot be made with {arg}: {error}") from error
        raise


def _refuse_missing(make: Callable[..., Any], name: str, args: Mapping[str, Any]) -> None:
    try:
        inspect.signature(make).bind(**args)
    except ValueError:  # callables written in C often have no signature
        return
    except TypeError as error:
        raise UserError(f"{name} cannot be made: {error}; give it with --env.args NAME=VALUE, or a default") from None


def _parameters(make: Callable[..., Any]) -> tuple[list[str], list[str] | None]:
    """Returns the names that a callable takes, and those that a class passes on to its parents; None: it takes any."""
    is_class, classes = isinstance(make, type), make.__mro__[:-1] if isinstance(make, type) else ()
    callables = [vars(part)["__init__"] for part in classes if "__init__" in vars(part)] if is_class else [make]
    direct, passed_on = list[str](), list[str]()
    for called in callables:
        try:
            parameters = [*inspect.signature(called).parameters.values()][is_class:]  # without self
        except (TypeError, ValueError):  # callables written in C often have no signature
            return direct, None
        names = [parameter.name for parameter in parameters if parameter.kind in BY_NAME]
        (direct if called is callables[0] else passed_on).extend(names)
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            return direct, passed_on
    return direct, passed_on if is_class else None


def wrapped(env: Any, wrapper: Callable[[Any], Any]) -> Any:
    """Puts a wrapper around an environment; refuses one that does not fit."""
    about, is_vector = f"env.wrappers: {getattr(wrapper, '__name__', wrapper)}", isinstance(env, VectorEnv)
    if isinstance(wrapper, type) and is_vector != issubclass(wrapper, VectorWrapper):
        takes = (
            "a single environment; a VectorEnv needs a gymnasium.vector.VectorWrapper" if is_vector else "a VectorEnv"
        )
        raise UserError(f"{about} does not fit {name_of(env)}: it wraps {takes}")
    try:
        inspect.signature(wrapper).bind(env)
    except TypeError as error:
        raise UserError(f"{about} is called with the environment alone: {error}") from None
    outer = wrapper(env)
    if not isinstance(outer, VectorEnv if is_vector else gym.Env):
        raise UserError(f"{about} returned {type(outer).__name__}, not an environment")
    return outer
