"""Parses the command line with tyro; a mistake becomes a UserError of one sentence."""

from __future__ import annotations

import dataclasses
import io
import re
import typing
from collections.abc import Iterable, Mapping
from contextlib import redirect_stderr
from itertools import groupby
from typing import Any, TypeVar

import tyro

from t3d.config.other_names import our_names
from t3d.errors import UserError, did_you_mean

Args = TypeVar("Args")
MISSING = re.compile(r"Missing from (.+): ([A-Z]+) (\w)(.*?)\.? \(required\)")
NO_VALUE = re.compile(r"Missing value for argument '(\S+)'\. Expected .*")
NOT_NUMBERS = {  # what tyro says of a value that is no number
    r"could not convert string to float: ('.*')": "a number",
    r"invalid literal for int\(\) with base 10: ('.*')": "an integer",
    r"no type matching {None}\|FLOAT could be instantiated from \[('.*')\]\.": "a number",
    r"no type matching {None}\|INT could be instantiated from \[('.*')\]\.": "an integer",
}
CHOICES = re.compile(r"invalid choice ('.*') for argument '(\S+)'\. Expected one of \((.*)\) ?\.")
WHOLE = re.compile(r"\d+(\.\d+)?[eE]\+?\d+")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def read_flags(kind: type[Args], arguments: list[str], prog: str) -> Args:
    """Parses the arguments."""
    args, rest = read_known(kind, arguments, prog)
    if rest:
        raise UserError(f"{prog} does not know what to do with {' '.join(rest)} ({prog} --help lists its options)")
    return args


def read_known(
    kind: type[Args], arguments: list[str], prog: str, default: Args | None = None, words: str = ""
) -> tuple[Args, list[str]]:
    """Parses the arguments; also returns the words that belong to no flag (help calls them `words`)."""
    flags = _flags(kind)
    arguments = _spread_lists(arguments, {flag for flag, hint in flags.items() if typing.get_origin(hint) is tuple})
    arguments = _in_digits(arguments, flags)
    keywords: dict[str, Any] = {} if default is None else {"default": default}
    errors = io.StringIO()
    try:
        with redirect_stderr(errors):
            args, rest = tyro.cli(
                kind, args=arguments, prog=f"{prog} {words}".strip(), return_unknown_args=True, **keywords
            )
    except SystemExit as left:
        if not errors.getvalue():  # it was --help
            raise
        raise UserError(f"{_first_paragraph(errors.getvalue())} ({prog} --help lists the options)") from left
    for word in rest:
        if word.startswith("-"):
            raise UserError(f"{_unknown(word, flags)} ({prog} --help lists them)")
    return args, rest


def _unknown(word: str, flags: Iterable[str]) -> str:
    """Says what a flag that does not exist is called here, or might be."""
    flag, known = word.partition("=")[0], {flag.removeprefix("--").replace("-", "_") for flag in flags}
    if ours := our_names(flag.removeprefix("--"), known):
        return f"{flag} is {' and '.join('--' + name.replace('_', '-').replace('=', ' ') for name in ours)} here"
    return f"unknown flag {flag}{did_you_mean(word, flags)}"


def _flags(kind: Any, prefix: str = "") -> dict[str, Any]:
    """Maps every flag of a dataclass of arguments to the type of its value."""
    found: dict[str, Any] = {}
    plain_hints = typing.get_type_hints(kind)
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        extras, word = getattr(hint, "__metadata__", ()), name.replace("_", "-")
        if tyro.conf.Positional in extras:
            continue
        if dataclasses.is_dataclass(plain_hints[name]):
            given = next((extra.name for extra in extras if getattr(extra, "name", None) is not None), word)
            found |= _flags(plain_hints[name], f"{prefix}{given}." if given else prefix)
            continue
        if typing.get_origin(plain_hints[name]) is dict:
            continue  # only in TOML and in Python
        found[f"--{prefix}{word}"] = plain_hints[name]
        if plain_hints[name] is bool:
            found[f"--{prefix}no-{word}"] = bool
    return found


def _spread_lists(arguments: list[str], lists: set[str]) -> list[str]:
    """Splits lists written with commas: --seeds 0,1,2 is --seeds 0 1 2. A list without a value is an error.

    NAME=V1,V2, as in --sweep, stays one word.
    """
    out: list[str] = []
    rest = [*arguments]
    while rest:
        word = rest.pop(0)
        flag, _, value = word.partition("=")
        if flag.replace("_", "-") not in lists:
            out.append(word)
            continue
        words = [value]
        while rest and not is_flag(rest[0]):
            words.append(rest.pop(0))
        values = [one for word in words for one in ([word] if "=" in word else word.split(",")) if one]
        if not values:
            raise UserError(f"{flag} has no value; give one or several, separated by spaces or commas")
        out += [flag, *values]
    return out


def _in_digits(arguments: list[str], flags: Mapping[str, Any]) -> list[str]:
    """Rewrites whole numbers such as 1e6 as 1000000 where a flag takes integers."""
    out, hint = list[str](), None
    for word in arguments:
        flag, equals, value = word.partition("=") if is_flag(word) else ("", "", word)
        hint = flags.get(flag.replace("_", "-")) if flag else hint
        if int in (hint, *typing.get_args(hint)) and WHOLE.fullmatch(value) and float(value).is_integer():
            value = str(int(float(value)))
        if value and typing.get_origin(hint) is not tuple:
            hint = None
        out.append(f"{flag}{equals}{value}")
    return out


def is_flag(word: str) -> bool:
    """Whether a word is a flag, and not a negative number."""
    return word.startswith("-") and not word[1:2].isdigit()


def _first_paragraph(box: str) -> str:
    """Returns tyro's first paragraph in one line, without its title, its frame and the help that follows."""
    _, *lines = (line.strip("│╭╮╰╯ ") for line in COLOUR.sub("", box).strip().splitlines())
    paragraphs = (list(group) for is_text, group in groupby(lines, lambda line: bool(line.strip("─-"))) if is_text)
    text = " ".join(next(paragraphs, [box]))
    text = MISSING.sub(lambda found: f"{found[1]} needs {found[2]}: {found[3].lower()}{found[4]}", text)
    text = NO_VALUE.sub(r"\1 needs a value", text)
    for theirs, kind in NOT_NUMBERS.items():
        text = re.sub(rf"Error parsing (\S+): {theirs}", rf"\1 must be {kind}, not \2", text)
    return CHOICES.sub(_choices, text)


def _choices(found: re.Match[str]) -> str:
    """Names the values that a flag takes; None is not one of them but stands for leaving it out."""
    value, flag, choices = found.groups()
    names = sorted({*re.findall(r"'([^']+)'", choices)} - {"None"})
    return f"{flag} must be one of {', '.join(names)}, not {value}"
