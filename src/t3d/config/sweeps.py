"""Sweeps: settings that differ between the members of a run."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from itertools import product
from typing import NamedTuple

from t3d.errors import UserError

Values = tuple[tuple[str, float], ...]  # fields, e.g. td3.gamma, and their values
FORM = "write FIELD=V1,V2 with numbers, commas and no spaces, e.g. td3.gamma=0.98,0.99"
ENV_ARGS = "env.args."  # of each argument of the environment, which members may differ in
FIELD = re.compile(
    r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)?|env\.args\.[A-Za-z_]\w*", re.ASCII
)  # its last part is in file names
MOST_FIELDS = 3  # chosen: members' names are file names
MOST_MEMBERS = 1000  # chosen


class Member(NamedTuple):
    """One of the policies that a run trains: its seed and, in a sweep, its values."""

    seed: int
    values: Values = ()

    @property
    def name(self) -> str:
        """As in file names: seed-0, or gamma-0.98-seed-0."""
        return "-".join([*(f"{short(field)}-{value_text(value)}" for field, value in self.values), f"seed-{self.seed}"])

    @property
    def title(self) -> str:
        """In words: seed 0, or td3.gamma=0.98, seed 0."""
        return ", ".join([*filter(None, [values_title(self.values)]), f"seed {self.seed}"])


def parse_all(words: Iterable[str]) -> dict[str, tuple[float, ...]]:
    """Reads the sweeps of a run, each FIELD=V1,V2,... of a different field: the values that members have for it."""
    sweeps: dict[str, tuple[float, ...]] = {}
    for word in words:
        field, _, listed = word.partition("=")
        field = field.strip().replace("-", "_")
        try:
            values = tuple(map(float, listed.split(",")))
        except ValueError:
            values = ()
        if not FIELD.fullmatch(field) or not values or not all(map(math.isfinite, values)):
            raise UserError(f"sweep={word!r} cannot be read; {FORM}")
        if len(values) < 2 or len({*values}) < len(values):
            raise UserError(f"sweep={word!r} needs two or more values, each only once; or set {field} itself")
        if field in sweeps:
            raise UserError(f"sweep names {field} twice; give all its values at once")
        sweeps[field] = values
    if len(sweeps) > MOST_FIELDS:
        raise UserError(f"sweep names {len(sweeps)} settings; a run sweeps at most {MOST_FIELDS}")
    return sweeps


def refuse_field(field: str, can: Iterable[str]) -> None:
    """Refuses to sweep a setting that is not among those that can be swept."""
    if field not in can:
        raise UserError(
            f"{field} cannot be swept; these can: {', '.join(can)} and {ENV_ARGS}NAME; train a run for each of its "
            "values instead, and compare them with t3d compare"
        )


def members_of(seeds: Sequence[int], sweeps: dict[str, tuple[float, ...]]) -> tuple[Member, ...]:
    """Returns a member for each combination of values and each seed, the seeds of a combination together."""
    combinations = math.prod(map(len, sweeps.values()))
    if (count := combinations * len(seeds)) > MOST_MEMBERS:
        product_of = f"{combinations:,} combinations of values x {counted(len(seeds), 'seed')}"
        raise UserError(f"{count:,} members ({product_of}) are too many; a run has at most {MOST_MEMBERS:,}")
    each = product(*sweeps.values())
    return tuple(Member(seed, tuple(zip(sweeps, values, strict=True))) for values in each for seed in seeds)


def by_values(members: Iterable[Member]) -> dict[Values, list[Member]]:
    """Groups members that differ only in their seeds."""
    groups: dict[Values, list[Member]] = {}
    for member in members:
        groups.setdefault(member.values, []).append(member)
    return groups


def swept(members: Iterable[Member]) -> list[str]:
    """Returns the fields in which members differ; none if the run is not a sweep."""
    return list(dict.fromkeys(field for member in members for field, _ in member.values))


def noun(members: Iterable[Member]) -> str:
    """What to call them: seed, in a sweep member."""
    return "member" if swept(members) else "seed"


def counted(count: int, word: str) -> str:
    """Formats a number of things: 1 seed, 2 seeds."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def values_title(values: Values) -> str:
    """Formats a member's values: td3.gamma=0.98, td3.tau=0.01."""
    return ", ".join(f"{field}={value_text(value)}" for field, value in values)


def short(field: str) -> str:
    """The last part of a setting's name: gamma for td3.gamma."""
    return field.rpartition(".")[2]


def value_text(value: float) -> str:
    """Formats a swept value, in full."""
    return repr(value).removesuffix(".0")
