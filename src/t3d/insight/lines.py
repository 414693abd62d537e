"""The lines of a plot: which members of which runs each is the mean of, and what it is called."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np

from t3d.config import Member
from t3d.config.sweeps import Values, by_values, counted, short, swept, value_text
from t3d.errors import UserError
from t3d.files import readable
from t3d.insight.figures import RETURN, Figure, Series, find_figures, series
from t3d.insight.groups import joined, pooled
from t3d.insight.statistics import Array, differ, on_common_steps
from t3d.store.reader import Run
from t3d.types import sample_std

MOST_DRAWN, DRAWN_OF_MORE = 24, 12  # combinations of a sweep: one for each colour and style; the second is chosen

Pool = Sequence[Run]  # runs of the same settings, whose seeds are drawn as one line


class Curves(NamedTuple):
    """A figure of some members, at the steps that all of them have reached."""

    x: Array  # (T,)
    values: Array  # (members, T)
    band: Array | None  # (T,): deviation over members, or over the episodes of a single one


class Line(NamedTuple):
    """A line of the plot: the mean of some members."""

    members: list[Series]
    diverged: list[Series]  # drawn one by one, up to where they stopped
    label: str
    label_diverged: str = ""
    of_sweep: bool = False  # else each member is drawn too, as a thin line


class MemberSeries(NamedTuple):
    """A member and what it reported."""

    run: Run
    member: Member
    series: Series

    @property
    def diverged(self) -> bool:
        return self.member in self.run.stopped


def pools_of(runs: Sequence[Run], *, pool: bool) -> list[Pool]:
    """Returns the runs that are drawn together."""
    return [*pooled(runs)] if pool else [[run] for run in runs]


def lines_of(pools: Sequence[Pool], metric: str, seed: int | str | None) -> list[Line]:
    """Returns one line for each pool of runs, in a sweep one for each combination of values; or those of one member."""
    figures = find_figures([run for pool in pools for run in pool], metric)
    lines = []
    for pool in pools:
        of_run = f"{joined([readable(run.path.name) for run in pool])}: " if len(pools) > 1 else ""
        for figure in figures:
            prefix = of_run + (f"{figure.entry}: " if len(figures) > 1 else "")
            lines += _lines(pool, figure, seed, prefix, pools)
    if len(figures) > 1 and len(lines) > MOST_DRAWN:
        names = joined([figure.name for figure in figures])
        raise UserError(f"{metric} would make {len(lines)} lines; choose one of its entries: {names}")
    return lines


def _lines(pool: Pool, figure: Figure, seed: int | str | None, prefix: str, pools: Sequence[Pool]) -> list[Line]:
    found = [(run, series(run, figure)) for run in pool]
    whole = [known[None] for _, known in found if None in known]
    if whole:
        return [Line(whole, [], prefix + (f"mean of {len(whole)} runs, ± std" if len(whole) > 1 else "the whole run"))]
    members = [
        MemberSeries(run, member, one) for run, known in found for member, one in known.items() if member is not None
    ]
    if seed is not None:
        chosen = [one for one in members if one.member == one.run.member(seed)]
        return [Line([one.series for one in chosen], [], prefix + _in_words([one.member for one in chosen], figure))]
    groups = by_values(one.member for one in members)
    lines = []
    for values in _drawn(members, [*groups]):
        mine = [one for one in members if one.member.values == values]
        living, diverged = ([one for one in mine if one.diverged is gone] for gone in (False, True))
        lost = f"seed{'s' if len(diverged) > 1 else ''} {', '.join(str(one.member.seed) for one in diverged)} diverged"
        label, of_values = _in_words([one.member for one in living], figure), ""
        if values:
            label = _combination(values) + _count(len(living), seeds_of(pool), pools)
            of_values = f"{_combination(values)}: "
        label += _cut(living)
        columns = [one.series for one in living], [one.series for one in diverged]
        lines.append(Line(*columns, prefix + label, f"{prefix}{of_values}{lost}", of_sweep=bool(values)))
    return lines


def curves_of(members: list[Series], x: str, smooth: int) -> Curves:
    """Returns what a line is drawn from."""
    steps, values = on_common_steps([one.steps for one in members], [one.values for one in members])
    band = sample_std(values, axis=0) if len(members) > 1 else members[0].spread
    minutes = [np.interp(steps, one.steps, one.times - one.times[0]) / 60 for one in members]
    positions = steps if x == "steps" else np.mean(minutes, axis=0)
    smoothed = np.array([_average(row, smooth) for row in values])
    return Curves(positions, smoothed, None if band is None else _average(band, smooth))


def legend_title(pools: Sequence[Pool], *, banded: bool) -> str | None:
    """Says what the lines of sweeps are."""
    sweeps = [pool[0] for pool in pools if swept(pool[0].cfg.members)]
    if not sweeps:
        return None
    grids = dict.fromkeys(", ".join(map(short, swept(run.cfg.members))) for run in sweeps)
    names = [names for names in grids if ", " in names]
    counts = _seed_counts(pools)
    seeds = f"{max(counts)} seeds" if len(counts) == 1 else "seeds"
    what = "one seed each" if max(counts) == 1 else f"mean of {seeds}{', ± std over seeds' if banded else ''}"
    return "\n".join([*names, what])


def seeds_of(pool: Pool) -> int:
    """Returns how many seeds runs have together."""
    return sum(len(run.cfg.seeds) for run in pool)


def _seed_counts(pools: Sequence[Pool]) -> set[int]:
    return {seeds_of(pool) for pool in pools if swept(pool[0].cfg.members)}


def _combination(values: Values) -> str:
    """Formats values: gamma=0.98, or only the values of several settings, whose names the legend's title has."""
    if len(values) > 1:
        return ", ".join(value_text(value) for _, value in values)
    return ", ".join(f"{short(field)}={value_text(value)}" for field, value in values)


def _count(living: int, seeds: int, pools: Sequence[Pool]) -> str:
    """Says how many seeds a line is the mean of, where it is not what the legend's title says."""
    if living < seeds:
        return f" ({living} of {counted(seeds, 'seed')})"
    return "" if len(_seed_counts(pools)) == 1 else f" ({counted(seeds, 'seed')})"


def _cut(living: Sequence[MemberSeries]) -> str:
    """Says where a mean ends, if some of its seeds went on."""
    ends = [float(one.series.steps[-1]) for one in living]
    if not differ(ends):
        return ""
    return f"; to step {min(ends):,.0f}, where {living[ends.index(min(ends))].member.title} ends"


def _drawn(members: Sequence[MemberSeries], groups: list[Values]) -> list[Values]:
    """Returns the combinations to draw: all, or of very many those with the highest last values."""
    if len(groups) <= MOST_DRAWN:
        return groups

    def last(values: Values) -> float:
        living = [one.series.values[-1] for one in members if one.member.values == values and not one.diverged]
        return fmean(living) if living else -np.inf

    best = sorted(groups, key=last, reverse=True)[:DRAWN_OF_MORE]
    return [values for values in groups if values in best]


def _average(row: Array, width: int) -> Array:
    """Averages each value with the ones before it, at most width in total."""
    return np.array([row[max(0, end - width) : end].mean() for end in range(1, len(row) + 1)])


def _in_words(members: list[Member], figure: Figure) -> str:
    if len(members) == 1:
        return f"{members[0].title}{', ± std of its episodes' if figure.name == RETURN else ''}"
    return f"mean of {len(members)} seeds, ± std over seeds; thin: single seeds"
