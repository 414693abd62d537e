"""Names for environments that are created in Python and have no id."""

from __future__ import annotations

from functools import partial
from typing import Any

from t3d.config import Config, merge


def named(cfg: Config, make_env: Any) -> Config:
    """Names the environment in the configuration, if it has neither an id nor a name yet."""
    if cfg.env.id or cfg.env.name:
        return cfg
    return merge(cfg, {"env": {"name": name_of(make_env)}})


def name_of(make_env: Any) -> str:
    """The name of the class or function that creates environments, or its id; empty for a lambda."""
    if isinstance(make_env, partial):
        return name_of(make_env.func)
    known = getattr(make_env, "env_id", "") or getattr(make_env, "__qualname__", "") or type(make_env).__name__
    name = str(known).rpartition(".")[2]
    return "" if name.startswith("<") else name
