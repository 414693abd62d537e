"""Sweeps: settings that differ between the members of a run."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from itertools import chain, product
from typing import NamedTuple

from t3d.errors import UserError

Values = tuple[tuple[str, float], ...]  # fields, e.g. td3.gamma, and their values
Sweeps = dict[tuple[str, ...], tuple[tuple[float, ...], ...]]  # the values of fields that change together
FORM = "write FIELD=V1,V2 with numbers, commas and no spaces, e.g. td3.gamma=0.98,0.99"
ENV_ARGS = "env.args."  # of each argument of the environment, which members may differ in
FIELD = re.compile(
    r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)?|env\.args\.[A-Za-z_]\w*", re.ASCII
)  # its last part is in file names
MOST_FIELDS = 6  # chosen: members' names are file names
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


def parse_all(words: Iterable[str]) -> Sweeps:
    """Reads the sweeps of a run, each FIELD=V1,V2,... of a different field, or FIELD:OTHER=V1:W1,V2:W2,... of several
    that change together: the values that members have for these fields.
    """
    sweeps: Sweeps = {}
    for word in words:
        names, _, listed = word.partition("=")
        fields = tuple(name.strip().replace("-", "_") for name in names.split(":"))
        try:
            points = tuple(tuple(map(float, point.split(":"))) for point in listed.split(","))
        except ValueError:
            points = ()
        is_whole = all(len(point) == len(fields) and all(map(math.isfinite, point)) for point in points)
        if not all(map(FIELD.fullmatch, fields)) or not points or not is_whole:
            raise UserError(f"sweep={word!r} cannot be read; {FORM}")
        if len(points) < 2 or len({*points}) < len(points):
            raise UserError(f"sweep={word!r} needs two or more values, each only once; or set {names} itself")
        known = [*fields, *chain(*sweeps)]
        if twice := next((field for field in known if known.count(field) > 1), None):
            raise UserError(f"sweep names {twice} twice; give all its values at once")
        sweeps[fields] = points
    if (count := len([*chain(*sweeps)])) > MOST_FIELDS:
        raise UserError(f"sweep names {count} settings; a run sweeps at most {MOST_FIELDS}")
    return sweeps


def format_sweep(fields: Sequence[str], points: Iterable[Sequence[float]]) -> str:
    """Formats settings that change together, and their values, as parse_all reads them."""
    return f"{':'.join(fields)}={','.join(':'.join(map(value_text, point)) for point in points)}"


def refuse_field(field: str, can: Iterable[str]) -> None:
    """Refuses to sweep a setting that is not among those that can be swept."""
    if field not in can:
        raise UserError(
            f"{field} cannot be swept; these can: {', '.join(can)} and {ENV_ARGS}NAME; train a run for each of its "
            "values instead, and compare them with t3d compare"
        )


def members_of(seeds: Sequence[int], sweeps: Sweeps) -> tuple[Member, ...]:
    """Returns a member for each combination of values and each seed, the seeds of a combination together."""
    combinations = math.prod(map(len, sweeps.values()))
    if (count := combinations * len(seeds)) > MOST_MEMBERS:
        product_of = f"{combinations:,} combinations of values x {counted(len(seeds), 'seed')}"
        raise UserError(f"{count:,} members ({product_of}) are too many; a run has at most {MOST_MEMBERS:,}")
    fields, each = [*chain(*sweeps)], (chain(*points) for points in product(*sweeps.values()))
    combined = [tuple(zip(fields, values, strict=True)) for values in each]
    return tuple(Member(seed, values) for values in combined for seed in seeds)


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
    return repr(float(value)).removesuffix(".0")
