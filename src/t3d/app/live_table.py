"""The table in a terminal while a run trains: a row for each seed, in a sweep for each combination of values."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from rich.table import Table

from t3d.config import Member
from t3d.config.sweeps import by_values, counted, short, swept, value_text

COLUMNS = {
    "evaluation": "eval",
    "best": "best",
    "last episode": "episode",
    "critic loss": "critic_loss",
    "actor loss": "actor_loss",
    "Q": "q_mean",
}
IN_A_SWEEP = ("evaluation", "best", "critic loss", "Q")  # the values of up to three settings need the room


def live_table(
    members: Sequence[Member], newest: Sequence[Mapping[str, Any]], diverged: Collection[int], room: int, caption: str
) -> Table:
    """Shows the newest figures of each member, of a combination their mean over seeds, in at most `room` rows."""
    fields = swept(members)
    columns = [name for name in COLUMNS if not fields or name in IN_A_SWEEP]
    made = Table(expand=True)
    made.add_column(", ".join(map(short, fields)) or "seed", justify="right", overflow="fold")
    for name in columns:
        made.add_column(name, justify="right", min_width=8)
    rows = _rows(members)
    for name, places in rows[:room]:
        living = [newest[place] for place in places if place not in diverged]
        cells = [_number(_mean(figures.get(COLUMNS[column]) for figures in living)) for column in columns]
        made.add_row(name, *(cells if living else ["diverged"]))
    more = f"; {counted(len(rows) - room, 'more combination' if fields else 'more seed')}" if len(rows) > room else ""
    made.caption = f"{caption}{more}"
    return made


def _rows(members: Sequence[Member]) -> list[tuple[str, list[int]]]:
    """Returns what each row is called, and the places of its members."""
    if not swept(members):
        return [(str(member.seed), [place]) for place, member in enumerate(members)]
    places = {member: place for place, member in enumerate(members)}
    return [
        (", ".join(value_text(value) for _, value in values), [places[member] for member in group])
        for values, group in by_values(members).items()
    ]


def _mean(values: Iterable[float | None]) -> float | None:
    """Averages what is known."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}"
