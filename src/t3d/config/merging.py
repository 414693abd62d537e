"""Merges, flattens and compares configurations."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from t3d.config.other_names import our_names
from t3d.config.settings import Config
from t3d.config.validation import declared_types
from t3d.errors import UserError, did_you_mean

Section = TypeVar("Section")
MOVED = {f"td3.{name}": name for name in ("random_steps", "updates_per_step", "normalise_observations")}


def merge(base: Section, data: Mapping[str, Any], *, prefix: str = "") -> Section:
    """Copies a configuration with the values of a nested mapping; unknown keys and wrong types are errors."""
    hints = declared_types(type(base))  # type: ignore[arg-type]  # mypy does not see that classes are hashable
    changes: dict[str, Any] = {}
    for key, value in data.items():
        name = f"{prefix}{key}"
        if name in MOVED:
            raise UserError(f"{name} is called {MOVED[name]} now")
        if key not in hints and (ours := our_names(name, flat(Config()))):
            raise UserError(f"{name} is {' and '.join(ours)} here")
        if key not in hints:
            raise UserError(f"unknown key {name}{did_you_mean(str(key), hints)}")
        current = getattr(base, key)
        if not dataclasses.is_dataclass(current):
            changes[key] = value
        elif isinstance(value, Mapping):
            changes[key] = merge(current, value, prefix=f"{name}.")
        else:
            raise UserError(f"{name}={value!r} must be a table of settings, e.g. [{name}]")
    return dataclasses.replace(base, **changes)  # type: ignore[type-var]


def to_dict(cfg: Config) -> dict[str, Any]:
    """Returns nested plain values, the inverse of merge(Config(), ...)."""
    return dataclasses.asdict(cfg)


def diff(cfg: Config, base: Config) -> dict[str, tuple[Any, Any]]:
    """Returns the dotted keys whose values differ: key -> (value in base, value in cfg); None: there is none."""
    old, new = flat(base), flat(cfg)
    return {key: (old.get(key), new.get(key)) for key in {**new, **old} if old.get(key) != new.get(key)}


def flat(cfg: Config) -> dict[str, Any]:
    """Returns the values by dotted keys, e.g. td3.gamma or env.args.wind."""
    return dotted(to_dict(cfg))


def dotted(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flattens nested plain values to dotted keys, of three parts at most."""
    out: dict[str, Any] = {}
    for key, value in values.items():
        nested = isinstance(value, dict) and prefix.count(".") < 2
        out |= dotted(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return out


def plain(value: Any) -> str:
    """Formats a setting as it is typed on the command line."""
    if value is None:
        return "nothing"  # an argument of the environment that is not given
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
