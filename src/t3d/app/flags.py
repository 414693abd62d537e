"""Parses the command line with tyro; a mistake becomes a UserError of one sentence."""

from __future__ import annotations

import dataclasses
import io
import re
import typing
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from t3d.config.other_names import instead_of, our_names
from t3d.config.schedules import value_of
from t3d.errors import UserError, did_you_mean

Args = TypeVar("Args")
VALUES = ConstructorRegistry()
WHOLE = re.compile(r"\d+(\.\d+)?[eE]\+?\d+")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
SHORTER: tuple[tuple[str, Any], ...] = (  # what tyro says of a mistake, and the same without its detours
    (r"Error parsing (\S+): ", r"\1 "),
    (r"Missing from (.+): ([A-Z]+) (.*?)\.? \(required\)", r"\1 needs \2: \3"),
    (r"needs [A-Z]+: \w", lambda start: start[0][:-1] + start[0][-1].lower()),
    (r"^\[?\{\S+\}\]? must", "the argument must"),
    (r"Missing value for argument '(\S+)'\. Expected .*", r"\1 needs a value"),
)


@dataclass(frozen=True)
class RootFlag:
    """What commands about runs share."""

    root: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("runs")
    """Folder that contains the runs."""


@dataclass(frozen=True, kw_only=True)
class RunFlags(RootFlag):
    """What commands about one run share."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The run's folder, or its name under --root."""


@dataclass(frozen=True, kw_only=True)
class ShowFlags:
    """How a run is shown while it trains and afterwards."""

    video: bool = True
    """Record a video of the best policy after training."""
    quiet: bool = False
    """Print only errors, warnings of the doctor and, at the end, the result and the run's folder."""
    json: bool = False
    """Write events to standard output as lines of JSON as they happen; all messages go to standard error."""


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
    keywords: dict[str, Any] = {} if default is None else {"default": default}
    errors, prog_and_words = io.StringIO(), f"{prog} {words}".strip()
    try:
        with redirect_stderr(errors):
            args, rest = tyro.cli(
                kind, args=arguments, prog=prog_and_words, return_unknown_args=True, registry=VALUES, **keywords
            )
    except SystemExit as left:
        if not errors.getvalue():  # it was --help
            raise
        raise UserError(f"{_first_paragraph(errors.getvalue())} ({prog} --help lists the options)") from left
    for flag in (word.partition("=")[0] for word in rest if word.startswith("-")):
        flags = [*_flags(kind)]
        ours = our_names(flag.removeprefix("--"), {known.removeprefix("--").replace("-", "_") for known in flags})
        here = " and ".join("--" + name.replace("_", "-").replace("=", " ") for name in ours)
        unknown = instead_of(flag) or f"unknown flag {flag}{did_you_mean(flag, flags)}"
        problem = f"{flag} is {here} here" if ours else unknown
        raise UserError(f"{problem} ({prog} --help lists them)")
    return args, rest


def is_flag(word: str) -> bool:
    """Whether a word is a flag, and not a negative number."""
    return word.startswith("-") and not word[1:2].isdigit()


@VALUES.primitive_rule
def _value(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Reads numbers, choices and lists of them, and says in plain words what a flag takes; tyro reads the rest."""
    kind: Any = info.type
    if NoneType in typing.get_args(kind):  # it may be left out
        kind = next(option for option in typing.get_args(kind) if option is not NoneType)
    is_list = typing.get_origin(kind) is tuple and tyro.conf.Positional not in info.markers
    kind = typing.get_args(kind)[0] if is_list else kind
    choices = sorted(typing.get_args(kind)) if typing.get_origin(kind) is Literal else []
    if kind not in (int, float) and not choices and not is_list:
        return None
    metavar = f"{{{','.join(typing.get_args(kind))}}}" if choices else kind.__name__.upper()

    def read(words: list[str]) -> Any:
        # --seeds 0,1,2 is --seeds 0 1 2, but NAME=V1,V2, as in --sweep, stays one word
        split = [word.split(",") if is_list and "=" not in word else [word] for word in words]
        values = tuple(_read_word(part.strip(), kind, choices) for parts in split for part in parts if part)
        if not values:
            raise ValueError("has no value; give one or several, separated by spaces or commas")
        return values if is_list else values[0]

    return PrimitiveConstructorSpec(
        nargs="*" if is_list else 1,
        metavar=f"[{metavar} [{metavar} ...]]" if is_list else metavar,
        instance_from_str=read,
        is_instance=lambda value: True,
        str_from_instance=lambda value: list(map(str, value)) if is_list else [str(value)],
    )


@VALUES.primitive_rule
def _table(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Reads arguments, NAME=VALUE each, or sets of them, SET:NAME=VALUE,NAME=VALUE each."""
    if typing.get_origin(info.type) is not dict:
        return None
    of_sets = info.type == dict[str, dict[str, Any]]
    return PrimitiveConstructorSpec(
        nargs="*",
        metavar="SET:NAME=VALUE,... ..." if of_sets else "NAME=VALUE ...",
        instance_from_str=lambda words: _named(map(_set, words) if of_sets else map(_argument, words), words),
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=lambda value: [f"{name}={item}" for name, item in value.items()],
    )


def _named(pairs: Iterable[tuple[str, Any]], words: Sequence[str]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for name, value in pairs:
        if name in table:
            raise ValueError(f"names {name} twice; give it once")
        table[name] = value
    if not words:
        raise ValueError("has no value; give one or several NAME=VALUE, separated by spaces")
    return table


def _argument(word: str) -> tuple[str, Any]:
    """Reads NAME=VALUE: a value of TOML or, as it is, a bare word."""
    name, equals, text = word.partition("=")
    if not (name and equals and text):
        raise ValueError(f"takes NAME=VALUE, not {word!r}; ENV comes before the flags")
    if text in ("True", "False"):
        raise ValueError(f"says {word}; write {word.lower()}")
    try:
        return name, value_of(text)
    except ValueError:
        raise ValueError(f"says {word}, whose value TOML cannot read; quote it, e.g. 'gains=[1, 2]'") from None


def _set(word: str) -> tuple[str, dict[str, Any]]:
    """Reads SET:NAME=VALUE,NAME=VALUE, in which lists have commas of their own; a set alone has no arguments."""
    name, _, rest = word.partition(":")
    if "=" in name:
        raise ValueError(f"takes SET:NAME=VALUE,NAME=VALUE, e.g. windy:wind=2, not {word!r}")
    words = re.split(r",(?=\w+=)", rest) if rest else []
    return name, _named(map(_argument, words), words or [name])


def _read_word(word: str, kind: Any, choices: list[str]) -> Any:
    if choices and word not in choices:
        raise ValueError(f"must be one of {', '.join(choices)}, not {word!r}")
    if kind is int and WHOLE.fullmatch(word) and float(word).is_integer():
        return int(float(word))  # 1e6
    try:
        return kind(word) if kind in (int, float) else word
    except ValueError:
        raise ValueError(f"must be {'an integer' if kind is int else 'a number'}, not {word!r}") from None


def _flags(kind: Any, prefix: str = "") -> Iterator[str]:
    """Yields every flag of a dataclass of arguments."""
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        extras, word = getattr(hint, "__metadata__", ()), name.replace("_", "-")
        value = typing.get_type_hints(kind)[name]
        if tyro.conf.Positional in extras or tyro.conf.Suppress in extras:
            continue
        if dataclasses.is_dataclass(value):
            given = next((extra.name for extra in extras if getattr(extra, "name", None) is not None), word)
            yield from _flags(value, f"{prefix}{given}." if given else prefix)
            continue
        yield f"--{prefix}{word}"
        if value is bool:
            yield f"--{prefix}no-{word}"


def _first_paragraph(box: str) -> str:
    """Returns tyro's first paragraph in one line, without its title, its frame and the help that follows."""
    _, *lines = (line.strip("│╭╮╰╯ ") for line in COLOUR.sub("", box).strip().splitlines())
    paragraphs = (list(group) for is_text, group in groupby(lines, lambda line: bool(line.strip("─-"))) if is_text)
    text = " ".join(next(paragraphs, [box]))
    for theirs, ours in SHORTER:
        text = re.sub(theirs, ours, text)
    return text
