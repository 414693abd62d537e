"""How settings are declared: what is known about one stands on its field, and tables of settings are derived."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypedDict, TypeVar, Unpack, cast

import numpy as np

from t3d.errors import UserError

MOST_BITS_SHOWN = 1024  # Python refuses to write integers of more than 4,300 digits
LARGEST_WHOLE_FLOAT = 2**1023  # larger ones do not fit into a float
ANYTHING = (-math.inf, math.inf)
HAND_WRITTEN = ("fused", "graph")  # engines that compute only what someone derived
Default = TypeVar("Default")


class About(TypedDict, total=False):
    """What may be known about a setting, besides its type, its default and its description."""

    between: tuple[float, float]  # its lowest and highest value; of a list, those of each item
    used_with: tuple[str, ...]  # (owner, *values): used only if owner, of its section, has one of these values
    extreme: Any  # a value that changes what is learned beyond doubt, for tests and checks to try
    sweep: bool  # whether the members of a run may differ in it
    optional: bool  # whether a rule of the user's own may take no notice of it; a run that sets it is refused then
    computed_by: tuple[str, ...]  # hand-written engines that compute other values than the default; else all of them
    # What a resume may do; it must leave settings without this as they were. ignored: say otherwise, to no effect;
    # changed: change it; edited: change it in config.toml only; moved: name the same file in another folder.
    resume: Literal["ignored", "changed", "edited", "moved"]
    left_to_machine: bool  # whether its default, also in the config.toml of a resumed run, lets the machine choose
    learning: bool  # False: it does not affect what is learned, so runs that differ in it pool their seeds
    in_heading: bool  # whether it stands above tables of settings, and so not in them


def setting(default: Default, **about: Unpack[About]) -> Default:
    """Declares a field of a section: its default, and what is known about it."""
    return dataclasses.field(default=default, metadata=about)


class Section:
    """A dataclass of settings, converted to their types and checked when it is created."""

    prefix = ""  # of its settings' names, e.g. td3.

    def __init_subclass__(cls, prefix: str | None = None) -> None:
        cls.prefix = cls.prefix if prefix is None else prefix

    def __post_init__(self) -> None:
        types_of = declared_types(type(self))
        for field in dataclasses.fields(self):  # type: ignore[arg-type]  # its subclasses are dataclasses
            name, value = self.prefix + field.name, _as_declared(getattr(self, field.name), types_of[field.name])
            if not _fits(value, types_of[field.name]):
                raise UserError(f"{name}={_shown(value)} is not {_in_words(types_of[field.name])}")
            _check_range(name, value, *_about(field).get("between", ANYTHING))
            object.__setattr__(self, field.name, value)  # frozen from here on
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            owner, *values = _about(field).get("used_with", ("",))
            value = getattr(self, field.name)
            if owner and value != field.default and getattr(self, owner) not in values:
                needed = f"{self.prefix}{owner}={' or '.join(values)}"
                raise UserError(f"{self.prefix}{field.name}={value} is used only with {needed}")


def known_settings(kind: type) -> dict[str, About]:
    """Returns what is known about each setting of a section and of the sections in it, by its name, e.g. td3.gamma."""
    return _known_settings(kind)


@functools.cache
def _known_settings(kind: Any) -> dict[str, About]:
    known: dict[str, About] = {}
    for field in dataclasses.fields(kind):
        section = declared_types(kind)[field.name]
        if dataclasses.is_dataclass(section):
            known |= {f"{field.name}.{name}": about for name, about in known_settings(cast(type, section)).items()}
        else:
            known[field.name] = _about(field)
    return known


def settings_where(kind: type, holds: Callable[[About], bool]) -> tuple[str, ...]:
    """Returns the names of the settings about which something is known."""
    return tuple(name for name, about in known_settings(kind).items() if holds(about))


def declared_types(kind: type) -> dict[str, Any]:
    """Returns the declared types of a section, cached because reading them takes a millisecond."""
    return _type_hints(kind)


_type_hints: Callable[[Any], dict[str, Any]] = functools.cache(typing.get_type_hints)


def is_toml(value: Any) -> bool:
    """Whether a value is the same after it was written as TOML or JSON and read again."""
    if type(value) is dict:
        return all(type(key) is str and is_toml(item) for key, item in value.items())
    if type(value) is list:
        return all(map(is_toml, value))
    return type(value) in (str, int, bool) or (type(value) is float and math.isfinite(value))


def _about(field: dataclasses.Field[Any]) -> About:
    return cast(About, field.metadata)


def _shown(value: Any) -> str:
    is_huge = isinstance(value, int) and value.bit_length() > MOST_BITS_SHOWN
    return f"an integer of {value.bit_length():,} bits" if is_huge else repr(value)


def _check_range(name: str, value: Any, low: float, high: float) -> None:
    if (low, high) == ANYTHING:
        return
    for number in value if isinstance(value, tuple) else (value,):
        if not low <= number <= high:  # written so that NaN fails
            shown = _shown(number)
            problem = f" contains {shown}; each" if isinstance(value, tuple) else f"={shown} is out of range; it"
            raise UserError(f"{name}{problem} must be between {low:,} and {high:,}")


def _as_declared(value: Any, hint: Any) -> Any:
    """Converts lists and ranges to tuples, NumPy values to Python's, and 1 to 1.0 where a float is declared."""
    value = _plain(value)
    if typing.get_origin(hint) is tuple and isinstance(value, list):
        return tuple(_as_declared(item, typing.get_args(hint)[0]) for item in value)
    if hint is float and type(value) is int and abs(value) < LARGEST_WHOLE_FLOAT:
        return float(value)
    return value


def _plain(value: Any) -> Any:
    """Converts what TOML and JSON have no type for: tuples, ranges and NumPy's values."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple | range) else value


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
