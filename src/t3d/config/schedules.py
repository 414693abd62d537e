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
MOST_CHOICES = 100  # all of which are tried before a run starts; chosen


class Schedule(NamedTuple):
    """The values that one argument takes."""

    at: Callable[[int, float], Any]  # (step of the member, number drawn from [0, 1)) -> value
    examples: tuple[Any, ...]  # its ends, or all its choices


def parse_schedules(table: Mapping[str, Any]) -> dict[str, Schedule]:
    """Reads env.schedule: how each argument changes, by its name."""
    schedules = {}
    for name, text in table.items():
        try:
            schedules[name] = _parse(text)
        except ValueError as error:
            raise UserError(f"env.schedule: {name}={text} {error}") from None
    return schedules


def value_of(text: str) -> Any:
    """Reads a value of TOML or, as it is, a bare word; raises ValueError where quotes or brackets do not match."""
    try:
        fields = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        if not set(text).isdisjoint("[]{}\"'\n"):
            raise ValueError("is no value of TOML; quote words with brackets") from None
        return text
    is_value = [*fields] == ["value"] and is_toml(fields["value"])  # it has no type for dates, and no infinite numbers
    return fields["value"] if is_value else text


def _parse(text: Any) -> Schedule:
    if not isinstance(text, str):
        raise ValueError(f"stays the same, so it belongs in env.args; a schedule is {FORM}")
    kind, colon, rest = text.partition(":")
    if not colon:
        return _ramp(text)
    if kind not in KINDS:
        raise ValueError(f"cannot be read{did_you_mean(kind, KINDS) or f'; write {FORM}'}")
    return KINDS[kind](rest)


def _ramp(text: str) -> Schedule:
    """Changes in a straight line between two steps of the member, and is constant before and after."""
    match = RAMP.fullmatch(text)
    if match is None:
        raise ValueError(f"lacks the steps; write {text}@STEPS" if ".." in text else f"cannot be read; write {FORM}")
    low, high, first, last = _numbers(match[1], match[2], match[3] or "0", match[4])
    if low == high:
        raise ValueError("stays the same; give two values, or use env.args")
    if not 0 <= first < last or first % 1 or last % 1:
        raise ValueError("must end at a whole step, after the one at which it begins")
    return Schedule(
        lambda step, _: _between(low, high, min(1.0, max(0.0, (step - first) / (last - first)))), (low, high)
    )


def _uniform(text: str) -> Schedule:
    low, high = _range(text)
    return Schedule(lambda _, share: _between(low, high, share), (low, high))


def _loguniform(text: str) -> Schedule:
    low, high = _range(text)
    if low <= 0:
        raise ValueError("needs numbers above 0, whose logarithms are drawn; use uniform instead")
    logs = math.log(low), math.log(high)
    return Schedule(lambda _, share: min(max(math.exp(_between(*logs, share)), low), high), (low, high))


def _choice(text: str) -> Schedule:
    values = tuple(map(value_of, text.split(",")))
    if not 2 <= len(values) <= MOST_CHOICES or len({*map(repr, values)}) < len(values) or "" in values:
        raise ValueError(f"needs two to {MOST_CHOICES} values, each only once, e.g. choice:door,window")
    return Schedule(lambda _, share: values[int(share * len(values))], values)


KINDS: dict[str, Callable[[str], Schedule]] = {"uniform": _uniform, "loguniform": _loguniform, "choice": _choice}


def _range(text: str) -> list[float]:
    low_and_high = _numbers(*text.split(":"))
    if len(low_and_high) != 2 or low_and_high[0] >= low_and_high[1]:
        raise ValueError("needs two numbers, the lower one first, e.g. uniform:0:2")
    return low_and_high


def _numbers(*words: str) -> list[float]:
    values = [value_of(word) for word in words]
    if not all(type(value) in (int, float) for value in values):
        raise ValueError(f"needs finite numbers; write {FORM}")
    return list(map(float, values))


def _between(low: float, high: float, share: float) -> float:
    return min(max(low * (1 - share) + high * share, min(low, high)), max(low, high))  # rounding may leave the range
