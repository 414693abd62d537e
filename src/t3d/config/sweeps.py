"""Sweeps: settings that differ between the members of a run. Imports no torch."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from itertools import product
from typing import NamedTuple

from t3d.errors import UserError

Values = tuple[tuple[str, float], ...]  # fields, e.g. td3.gamma, and their values
EXAMPLE = "td3.gamma=0.98,0.99"
FIELD = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)?")  # its last part is in file names, so nothing else may be
MOST_FIELDS = 3  # chosen: members' names are file names


class Member(NamedTuple):
    """One of the policies that a run trains: its seed and, in a sweep, its values."""

    seed: int
    values: Values = ()

    @property
    def name(self) -> str:
        """As in file names: seed-0, or gamma-0.98-seed-0."""
        return "-".join([*(f"{_last(field)}-{_text(value)}" for field, value in self.values), f"seed-{self.seed}"])

    @property
    def title(self) -> str:
        """In words: seed 0, or td3.gamma=0.98, seed 0."""
        return ", ".join([*filter(None, [setting(self.values)]), f"seed {self.seed}"])

    @property
    def key(self) -> int | str:
        """How files and users name it: by its seed, which is enough without a sweep, or by its name."""
        return self.name if self.values else self.seed


class Sweep(NamedTuple):
    """A field and the values that members have for it."""

    field: str
    values: tuple[float, ...]

    def __str__(self) -> str:
        return f"{self.field}={','.join(map(_text, self.values))}"


def parse(text: str) -> Sweep:
    """Reads FIELD=V1,V2,..."""
    field, _, listed = text.partition("=")
    field, words = field.strip().replace("-", "_"), [word.strip() for word in listed.split(",")]
    if not FIELD.fullmatch(field) or not all(words):
        raise UserError(f"sweep={text!r} is not of the form FIELD=VALUE,VALUE,..., e.g. {EXAMPLE}")
    values = tuple(_number(word, field) for word in words)
    if len(values) < 2:
        raise UserError(f"sweep={text!r} has one value; give at least two, or set {field} itself")
    if len(set(values)) < len(values):
        raise UserError(f"sweep={text!r} has a value twice; give each only once")
    return Sweep(field, values)


def parse_all(texts: Iterable[str]) -> list[Sweep]:
    """Reads the sweeps of a run, each of a different field."""
    sweeps = [parse(text) for text in texts]
    fields = [sweep.field for sweep in sweeps]
    twice = [field for field in fields if fields.count(field) > 1]
    if twice:
        raise UserError(f"sweep names {twice[0]} twice; give all its values at once, e.g. {EXAMPLE}")
    if len(sweeps) > MOST_FIELDS:
        raise UserError(f"sweep names {len(sweeps)} settings; a run sweeps at most {MOST_FIELDS}")
    return sweeps


def members_of(seeds: Sequence[int], texts: Iterable[str], most: int) -> tuple[Member, ...]:
    """Returns a member for each combination of values and each seed, the seeds of a combination together."""
    sweeps = parse_all(texts)
    count = len(seeds) * math.prod(len(sweep.values) for sweep in sweeps)
    if count > most:
        raise UserError(
            f"the sweep has {count:,} members, {len(seeds):,} of each combination; a run has at most {most:,}"
        )
    fields = [sweep.field for sweep in sweeps]
    combinations = product(*(sweep.values for sweep in sweeps))
    return tuple(Member(seed, tuple(zip(fields, values, strict=True))) for values in combinations for seed in seeds)


def by_values(members: Iterable[Member]) -> dict[Values, list[Member]]:
    """Groups members that differ only in their seeds."""
    groups: dict[Values, list[Member]] = {}
    for member in members:
        groups.setdefault(member.values, []).append(member)
    return groups


def swept(members: Iterable[Member]) -> list[str]:
    """Returns the fields in which members differ."""
    return list(dict.fromkeys(field for member in members for field, _ in member.values))


def setting(values: Values) -> str:
    """Formats a member's values: td3.gamma=0.98, td3.tau=0.01."""
    return ", ".join(f"{field}={_text(value)}" for field, value in values)


def _number(word: str, field: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"sweep: {field}={word} is not a number; only numbers can be swept, e.g. {EXAMPLE}")
    return value


def _text(value: float) -> str:
    return repr(value).removesuffix(".0")


def _last(field: str) -> str:
    return field.rpartition(".")[2]
