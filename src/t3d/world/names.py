"""Environments that are made in Python: what they are called, and how another process can make them."""

from __future__ import annotations

import importlib
import inspect
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from t3d.config import Config, merge
from t3d.config.fields import is_toml
from t3d.errors import UserError
from t3d.world.factory import CheckedFactory
from t3d.world.make import ById


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


def with_name(cfg: Config, label: str) -> Config:
    """Names an environment that has no id after its class."""
    return cfg if cfg.env.id or cfg.env.name else merge(cfg, {"env": {"name": label}})


def reference(make_env: Any) -> tuple[str, dict[str, Any]]:
    """Returns the id and the arguments by which another process can make the same environments.

    Raises UserError if there are none: for a lambda, a class of a notebook, or an argument that is no plain value.
    """
    make_env = make_env.make if isinstance(make_env, CheckedFactory) else make_env
    if isinstance(make_env, ById):
        return make_env.env.id, make_env.env.args
    function = make_env.func if isinstance(make_env, partial) else make_env
    module, name = getattr(function, "__module__", "__main__"), getattr(function, "__qualname__", "<lambda>")
    found: Any = None
    with suppress(ImportError, AttributeError):
        found = getattr(importlib.import_module(module), name)
    if module == "__main__" or found is not function:
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
    """Returns the arguments of a partial by name."""
    try:
        parameters = [*inspect.signature(made.func).parameters.values()][: len(made.args)]
    except (TypeError, ValueError):  # callables written in C often have no signature
        parameters = []
    names = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
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
