"""What to call an environment that was made in Python and has no id."""

from __future__ import annotations

from functools import partial
from typing import Any

from t3d.config import Config, merge


def named(cfg: Config, make_env: Any) -> Config:
    """The configuration with a name for its environment, where neither an id nor the user says one."""
    if cfg.env.id or cfg.env.name:
        return cfg
    return merge(cfg, {"env": {"name": name_of(make_env)}})


def name_of(make_env: Any) -> str:
    """The name of the class or function that makes environments, or the id that it knows; empty for a lambda."""
    if isinstance(make_env, partial):
        return name_of(make_env.func)
    known = getattr(make_env, "env_id", "") or getattr(make_env, "__qualname__", "") or type(make_env).__name__
    name = str(known).rpartition(".")[2]
    return "" if name.startswith("<") else name
