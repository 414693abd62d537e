"""Configurations as plain values: merged, compared, flattened, written as TOML and read again."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from t3d.config.fields import Section, declared_types
from t3d.config.other_names import instead_of, our_names
from t3d.config.settings import Config
from t3d.errors import UserError, did_you_mean
from t3d.files import read, readable

Settings = TypeVar("Settings", bound=Section)
MOST_TOML_BYTES = 2**20
FORMER_VALUES = {("engine", "graph"): "capture"}  # in files of older versions
FORMER_NAMES = {"rule": "algo"}


def merge(base: Settings, data: Mapping[str, Any], *, prefix: str = "") -> Settings:
    """Copies a configuration with the values of a nested mapping; unknown keys and wrong types are errors."""
    hints = declared_types(type(base))
    changes: dict[str, Any] = {}
    for given, value in data.items():
        key = FORMER_NAMES.get(f"{prefix}{given}", given)
        name = f"{prefix}{key}"
        if key not in hints:
            ours = " and ".join(our_names(name, flat(Config())))
            has_moved = ours.rpartition(".")[2] == key  # since an older version wrote the file
            known_as = f"is called {ours} now" if has_moved else f"is {ours} here"
            unknown = instead_of(name) or f"unknown key {name}{did_you_mean(str(key), hints)}"
            raise UserError(f"{name} {known_as}" if ours else unknown)
        current = getattr(base, key)
        if not isinstance(current, Section):
            changes[key] = FORMER_VALUES.get((name, value), value) if isinstance(value, str) else value
        elif isinstance(value, Mapping):
            changes[key] = merge(current, value, prefix=f"{name}.")
        else:
            raise UserError(f"{name}={value!r} must be a table of settings, e.g. [{name}]")
    return dataclasses.replace(base, **changes)


def merge_named(cfg: Config, values: Mapping[str, Any]) -> Config:
    """Copies a configuration with other values, which are given by their dotted names: td3.gamma, env.args.wind."""
    nested: dict[str, Any] = {}
    for name, value in values.items():
        *sections, key = name.split(".", 2)
        table, current = nested, cfg
        for section in sections:
            current = getattr(current, section, None)  # type: ignore[assignment]
            table = table.setdefault(section, {**current} if isinstance(current, dict) else {})
        table[key] = value
    return merge(cfg, nested)


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
    if isinstance(value, dict):
        return ",".join(f"{name}={item}" for name, item in value.items()) or "no arguments"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def to_toml(cfg: Config) -> str:
    """Formats a configuration as TOML; load_toml and merge read it back."""
    values = to_dict(cfg)
    if cfg.td7 == type(cfg.td7)() and cfg.algo != "td7":
        del values["td7"]
    lines = [f"{key} = {_toml_value(value)}" for key, value in values.items() if not isinstance(value, dict)]
    for section, content in values.items():
        if isinstance(content, dict) and content:
            lines += ["", f"[{section}]"]
            lines += [f"{key} = {_toml_value(value)}" for key, value in content.items()]
    return "\n".join(lines) + "\n"


def load_toml(path: Path) -> dict[str, Any]:
    """Reads the nested values of a TOML file."""
    try:
        return tomllib.loads(read(path, MOST_TOML_BYTES).decode())
    except OSError as error:
        raise UserError(f"cannot read the configuration {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # not TOML, not text, too deep, or not a plain file
        raise UserError(f"{path} is not valid TOML: {error}") from None


def load_config(path: Path) -> Config:
    """Reads a configuration; an error names the file."""
    values = load_toml(path)
    try:
        return merge(Config(), values)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        keys = {key: key if key.isascii() and key.isidentifier() else _toml_value(key) for key in value}
        return "{" + ", ".join(f"{keys[key]} = {_toml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    if isinstance(value, float):
        return repr(value)  # JSON and TOML agree on strings, integers, booleans and lists, but not on 1e-05
    text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML alone forbids a bare DEL
    if readable(text) != text:
        raise UserError(f"{readable(text)} has a character that is not UTF-8, and settings are text; rename that file")
    return text
