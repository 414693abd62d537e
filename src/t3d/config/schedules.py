"""Arguments of the environment that change while a run trains, or are drawn for each episode (env.schedule)."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from t3d.config.fields import is_toml
from t3d.errors import UserError, did_you_mean

FORM = "FROM..TO@STEPS, uniform:LOW:HIGH, loguniform:LOW:HIGH or choice:V1,V2, e.g. wind=0..2@100000"
RAMP = re.compile(r"([^@]+?)\.\.([^@]+)@(?:([^@]+?)\.\.)?([^@]+)")
MOST_CHOICES = 100  # all of which are tried before the run starts; chosen


class Schedule(NamedTuple):
    """The values that one argument takes."""

    at: Callable[[int, float], Any]  # (the member's step, a number drawn from [0, 1)) -> a value
    examples: tuple[Any, ...]  # its ends, or all its choices


def parse_schedules(table: Mapping[str, Any]) -> dict[str, Schedule]:
    """Reads env.schedule: how each argument changes, by its name."""
    return {name: _parse(f"env.schedule: {name}={text}", text) for name, text in table.items()}


def value_of(text: str) -> Any:
    """Reads a value of TOML or, as it is, a bare word; raises ValueError where quotes or brackets do not match."""
    try:
        fields = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        if not set(text).isdisjoint("[]{}\"'\n"):
            raise ValueError(f"{text} is no value of TOML") from None
        return text
    is_value = [*fields] == ["value"] and is_toml(fields["value"])  # it has no type for dates, and no infinite numbers
    return fields["value"] if is_value else text


def _parse(title: str, text: Any) -> Schedule:
    if not isinstance(text, str):
        raise UserError(f"{title} stays the same, so it belongs into env.args; a schedule is {FORM}")
    kind, colon, rest = text.partition(":")
    if colon and kind in KINDS:
        return KINDS[kind](title, rest)
    if colon:
        raise UserError(f"{title} cannot be read{did_you_mean(kind, KINDS)}; write {FORM}")
    return _ramp(title, text)


def _ramp(title: str, text: str) -> Schedule:
    """Changes in a straight line between two steps of the member, and is constant before and after."""
    if ".." in text and "@" not in text:
        raise UserError(f"{title} lacks the step at which it ends; write {text}@STEPS, e.g. {text}@100000")
    match = RAMP.fullmatch(text)
    if match is None:
        raise UserError(f"{title} cannot be read; write {FORM}")
    low, high, first, last = _numbers(title, [match[1], match[2], match[3] or "0", match[4]])
    if low == high:
        raise UserError(f"{title} stays the same; give two values, or use env.args")
    if not (0 <= first < last and first % 1 == last % 1 == 0):
        raise UserError(f"{title} must end at a whole step after the one at which it begins")

    def at(step: int, _: float) -> float:
        return _between(low, high, min(1.0, max(0.0, (step - first) / (last - first))))

    return Schedule(at, (low, high))


def _uniform(title: str, text: str) -> Schedule:
    low, high = _range(title, text)
    return Schedule(lambda _, share: _between(low, high, share), (low, high))


def _loguniform(title: str, text: str) -> Schedule:
    low, high = _range(title, text)
    if low <= 0:
        raise UserError(f"{title} needs numbers above 0, as their logarithms are drawn; use uniform instead")
    logs = math.log(low), math.log(high)
    return Schedule(lambda _, share: min(max(math.exp(_between(*logs, share)), low), high), (low, high))


def _choice(title: str, text: str) -> Schedule:
    try:
        values = tuple(map(value_of, text.split(",")))
    except ValueError as error:
        raise UserError(f"{title} cannot be read, as {error}; a choice has numbers, words, true or false") from None
    if not 2 <= len(values) <= MOST_CHOICES or len({*map(repr, values)}) < len(values) or "" in values:
        raise UserError(f"{title} needs two to {MOST_CHOICES} values, each only once, e.g. choice:door,window")
    return Schedule(lambda _, share: values[int(share * len(values))], values)


KINDS: dict[str, Callable[[str, str], Schedule]] = {
    "uniform": _uniform,
    "loguniform": _loguniform,
    "choice": _choice,
}


def _range(title: str, text: str) -> list[float]:
    words = text.split(":")
    if len(words) != 2:
        raise UserError(f"{title} needs two numbers, LOW:HIGH, e.g. uniform:0:2")
    low, high = _numbers(title, words)
    if low >= high:
        raise UserError(f"{title} needs the lower number first, and a higher one after it")
    return [low, high]


def _numbers(title: str, words: list[str]) -> list[float]:
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        numbers = [math.nan]
    if not all(map(math.isfinite, numbers)):
        raise UserError(f"{title} needs finite numbers; write {FORM}")
    return numbers


def _between(low: float, high: float, share: float) -> float:
    return min(max(low * (1 - share) + high * share, min(low, high)), max(low, high))
