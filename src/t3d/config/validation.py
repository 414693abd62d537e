"""Types and ranges of settings."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from t3d.errors import UserError

LARGEST_WHOLE_FLOAT = 2**1023  # larger ones do not fit into a float


def convert(cfg: Any, prefix: str) -> None:
    """Converts every field of a new section to its declared type, or raises a UserError."""
    for name, hint in declared_types(type(cfg)).items():  # type: ignore[arg-type]
        value = _as_declared(getattr(cfg, name), hint)
        if not _fits(value, hint):
            raise UserError(f"{prefix}{name}={value!r} is not {_in_words(hint)}")
        object.__setattr__(cfg, name, value)  # frozen from here on


@functools.cache
def declared_types(kind: type) -> dict[str, Any]:
    """Returns the declared types of a section, cached because reading them takes a millisecond."""
    return typing.get_type_hints(kind)


def is_setting(cfg: Any, name: str) -> bool:
    """Whether there is a setting of this name, e.g. td3.gamma."""
    section, _, last = name.rpartition(".")
    owner = getattr(cfg, section, None) if section else cfg
    return dataclasses.is_dataclass(owner) and last in declared_types(type(owner))  # type: ignore[arg-type]


def _as_declared(value: Any, hint: Any) -> Any:
    """Converts lists and ranges to tuples, NumPy values to Python's, and 1 to 1.0 where a float is declared."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if typing.get_origin(hint) is tuple and isinstance(value, list | tuple | range):
        return tuple(_as_declared(item, typing.get_args(hint)[0]) for item in value)
    if typing.get_origin(hint) is dict and isinstance(value, Mapping):
        return {key: _as_toml(item) for key, item in value.items()}
    if hint is float and type(value) is int and abs(value) < LARGEST_WHOLE_FLOAT:
        return float(value)
    return value


def _as_toml(value: Any) -> Any:
    """Converts what TOML and JSON have no type for: tuples and NumPy's values."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: _as_toml(item) for key, item in value.items()}
    return [_as_toml(item) for item in value] if isinstance(value, list | tuple) else value


def is_toml(value: Any) -> bool:
    """Whether a value is the same after it was written as TOML or JSON and read again."""
    if type(value) is dict:
        return all(type(key) is str and is_toml(item) for key, item in value.items())
    if type(value) is list:
        return all(map(is_toml, value))
    return type(value) in (str, int, bool) or (type(value) is float and math.isfinite(value))


def _fits(value: Any, hint: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is dict:
        return type(value) is dict and is_toml(value)
    if origin is Literal:
        return value in arguments
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, arguments[0]) for item in value)
    if hint is float:
        return isinstance(value, float | int) and not isinstance(value, bool)
    return isinstance(value, hint) and not (hint is int and isinstance(value, bool))


def _in_words(hint: Any) -> str:
    if typing.get_origin(hint) is dict:
        return "a table of strings, finite numbers, true or false, and lists and tables of these"
    if typing.get_origin(hint) is Literal:
        return "one of " + ", ".join(typing.get_args(hint))
    if isinstance(hint, types.GenericAlias):
        return "a list of integers" if typing.get_args(hint)[0] is int else "a list of strings"
    words = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}
    return words.get(hint, f"a {getattr(hint, '__name__', hint)}")


def check_range(cfg: Any, prefix: str, **limits: tuple[float, float]) -> None:
    """Raises a UserError for a field outside its limits."""
    for name, (low, high) in limits.items():
        value = getattr(cfg, name)
        if not low <= value <= high:  # written so that NaN fails
            raise UserError(f"{prefix}{name}={value} is out of range; it must be between {low:g} and {high:g}")


def check_used(cfg: Any, prefix: str, owner: str, values: tuple[str, ...], *names: str) -> None:
    """Raises a UserError for a field that was changed although only other values of its owner use it."""
    if getattr(cfg, owner) in values:
        return
    for field in dataclasses.fields(cfg):
        value = getattr(cfg, field.name)
        if field.name in names and value != field.default:
            needed = " or ".join(values)
            raise UserError(f"{prefix}{field.name}={value} is used only with {prefix}{owner}={needed}")
