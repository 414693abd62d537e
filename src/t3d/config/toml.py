"""Writes and reads configurations as TOML."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from t3d.config.merging import merge, to_dict
from t3d.config.settings import Config
from t3d.errors import UserError
from t3d.files import read, readable

MOST_TOML_BYTES = 2**20


def to_toml(cfg: Config) -> str:
    """Formats a configuration as TOML; load_toml and merge read it back."""
    values = to_dict(cfg)
    lines = [f"{key} = {_toml_value(value)}" for key, value in values.items() if not isinstance(value, dict)]
    for section, content in values.items():
        if isinstance(content, dict):
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
