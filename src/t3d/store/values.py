"""Checks that an event from a file has values that can be shown, compared and plotted: a file may say anything."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from t3d.events import ActingEvent, ActorEvent, Alarm, Diagnosed, EpisodeEnd, Eval, Event, Note, Update
from t3d.files import Refused, to_count

LARGEST = 1e300  # figures beyond this cannot be averaged or plotted
CHECKED = (ActingEvent, Alarm, Diagnosed, EpisodeEnd, Update)  # field by field


def check_values(event: Event) -> None:
    """Raises Refused if they are not what T3D writes."""
    valid = True
    if isinstance(event, Eval):
        for count in (event.step, event.seed, event.updates):
            to_count(count)
        valid = all(map(_is_number, (event.mean_return, event.std_return, event.time)))
        valid = valid and TYPES["list[int]"](event.lengths)
    elif isinstance(event, Note):
        valid = isinstance(event.text, str)
    elif isinstance(event, ActorEvent):
        valid = type(event.actor) is int and isinstance(event.what, str) and isinstance(event.text, str)
    elif type(event) in CHECKS:
        valid = all(check(getattr(event, name)) for name, check in CHECKS[type(event)])
    if not valid:
        raise Refused("its values are not what they should be")


def _is_count(value: Any) -> bool:
    return type(value) is int and abs(value) < LARGEST


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < LARGEST


def _is_figure(value: Any) -> bool:
    """A number, or None for one that is not finite or not known."""
    return value is None or _is_number(value)


def _list_of(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: type(value) is list and all(map(check, value))


def _dict_of(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: type(value) is dict and all(map(check, value.values()))


TYPES: dict[str, Callable[[Any], bool]] = {  # by annotation
    "str": lambda value: type(value) is str,
    "bool": lambda value: type(value) is bool,
    "int": _is_count,
    "int | None": lambda value: value is None or _is_count(value),
    "float": _is_figure,
    "float | None": _is_figure,
    "list[int]": _list_of(_is_count),
    "list[float]": _list_of(_is_figure),
    "dict[str, float]": _dict_of(_is_figure),
}
CHECKS: dict[type[Event], list[tuple[str, Callable[[Any], bool]]]] = {  # by kind: fields, found once
    kind: [(field.name, TYPES[str(field.type)]) for field in dataclasses.fields(kind)] for kind in CHECKED
}
