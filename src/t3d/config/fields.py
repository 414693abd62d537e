"""How settings are declared: what is known about one stands on its field, and tables of settings are derived."""

from __future__ import annotations

import dataclasses
import functools
import math
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypedDict, TypeVar, Unpack

import numpy as np

from t3d.errors import UserError

MOST_BITS_SHOWN = 1024  # Python refuses to write integers of more than 4,300 digits
IN_WORDS = {
    int: "an integer",
    float: "a number",
    str: "a string",
    bool: "true or false",
    tuple[int, ...]: "a list of integers",
    tuple[str, ...]: "a list of strings",
    dict[str, dict[str, Any]]: "tables of arguments by the names of sets, e.g. {windy = {wind = 2}}",
    dict[str, Any]: "a table of strings, finite numbers, true or false, and lists and tables of these",
}
Default = TypeVar("Default")
# The declared types of a section, cached because reading them takes a millisecond.
declared_types: Callable[[type], dict[str, Any]] = functools.cache(typing.get_type_hints)


class About(TypedDict, total=False):
    """What may be known about a setting, besides its type, its default and its description."""

    between: tuple[float, float]  # its lowest and highest value; of a list, those of each item
    used_with: tuple[str, ...]  # (owner, *values): used only if owner, of its section, has one of these values, or any
    extreme: Any  # a value that changes what is learned beyond doubt, for tests and checks to try
    sweep: bool  # whether the members of a run may differ in it
    no_effect_without: str  # another setting of its section: where that is 0, this one changes nothing
    optional: bool  # whether a rule of the user's own may take no notice of it; a run that sets it is refused then
    fused: tuple[Any, ...]  # the values that the engine fused computes, whose gradients someone derived; else all
    live: bool  # whether run.set() may change it while the run trains
    # What a resume may do; it must leave settings without this as they were. ignored: say otherwise, to no effect;
    # changed: change it; edited: change it in config.toml only; moved: name the same file in another folder.
    resume: Literal["ignored", "changed", "edited", "moved"]
    left_to_machine: bool  # whether its default, also in the config.toml of a resumed run, lets the machine choose
    must_fit: bool  # whether a run that starts from another's checkpoint must have what that had
    learning: bool  # False: it does not affect what is learned, so runs that differ in it pool their seeds
    in_heading: bool  # whether it stands above tables of settings, and so not in them


def setting(default: Default, **about: Unpack[About]) -> Default:
    """Declares a field of a section: its default, and what is known about it."""
    return dataclasses.field(default=default, metadata=about)


@typing.dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
@dataclasses.dataclass(frozen=True)
class Section:
    """Settings, converted to their types and checked when they are created; its classes become frozen dataclasses."""

    prefix = ""  # of its settings' names, e.g. td3.

    def __init_subclass__(cls, prefix: str | None = None) -> None:
        dataclasses.dataclass(frozen=True)(cls)
        cls.prefix = cls.prefix if prefix is None else prefix

    def __post_init__(self) -> None:
        hints = declared_types(type(self))
        for field in dataclasses.fields(self):
            name, hint, value = self.prefix + field.name, hints[field.name], _plain(getattr(self, field.name))
            if typing.get_origin(hint) is tuple and isinstance(value, list):
                value = tuple(value)
            if not _fits(value, hint):
                choices = typing.get_args(hint) if typing.get_origin(hint) is Literal else ()
                needed = f"one of {', '.join(choices)}" if choices else IN_WORDS.get(hint) or f"a {hint.__name__}"
                raise UserError(f"{name}={_shown(value)} is not {needed}")
            if "between" in field.metadata:
                _check_range(name, value, *field.metadata["between"])
            # It is frozen from here on.
            object.__setattr__(self, field.name, float(value) if hint is float else value)
        for field in dataclasses.fields(self):
            if "used_with" in field.metadata and getattr(self, field.name) != field.default:
                owner, *values = field.metadata["used_with"]
                if not (getattr(self, owner) in values if values else getattr(self, owner)):
                    needed = f"{self.prefix}{owner}" + (f"={' or '.join(values)}" if values else "")
                    value = getattr(self, field.name)
                    raise UserError(f"{self.prefix}{field.name}={value} is used only with {needed}")


def known_settings(kind: type[Section]) -> dict[str, Mapping[str, Any]]:
    """Returns what is known about each setting of a section and of the sections in it, by its name, e.g. td3.gamma."""
    known: dict[str, Mapping[str, Any]] = {}
    for field in dataclasses.fields(kind):
        hint = declared_types(kind)[field.name]
        if isinstance(hint, type) and issubclass(hint, Section):
            known |= {f"{field.name}.{name}": about for name, about in known_settings(hint).items()}
        else:
            known[field.name] = field.metadata
    return known


def settings_where(kind: type[Section], holds: Callable[[Mapping[str, Any]], bool]) -> tuple[str, ...]:
    """Returns the names of the settings about which something is known."""
    return tuple(name for name, about in known_settings(kind).items() if holds(about))


def is_toml(value: Any) -> bool:
    """Whether a value is the same after it was written as TOML or JSON and read again."""
    if type(value) is dict:
        return all(type(key) is str and is_toml(item) for key, item in value.items())
    if type(value) is list:
        return all(map(is_toml, value))
    return type(value) in (str, int, bool) or (type(value) is float and math.isfinite(value))


def _shown(value: Any) -> str:
    is_huge = isinstance(value, int) and value.bit_length() > MOST_BITS_SHOWN
    return f"an integer of {value.bit_length():,} bits" if is_huge else repr(value)


def _check_range(name: str, value: Any, low: float, high: float) -> None:
    for number in value if isinstance(value, tuple) else (value,):
        if not low <= number <= high:  # written so that NaN fails
            shown = _shown(number)
            problem = f" contains {shown}; each" if isinstance(value, tuple) else f"={shown} is out of range; it"
            raise UserError(f"{name}{problem} must be between {low:,} and {high:,}")


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
        is_nested = arguments[1] is Any or all(type(item) is dict for item in value.values())
        return type(value) is dict and is_toml(value) and is_nested
    if origin is Literal:
        return value in arguments
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, arguments[0]) for item in value)
    kinds = (int, float) if hint is float else hint
    return isinstance(value, kinds) and (hint is bool or not isinstance(value, bool))
