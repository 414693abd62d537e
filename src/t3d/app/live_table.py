"""The table in a terminal while a run trains: a row for each seed, in a sweep for each combination of values."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from rich import box
from rich.table import Table

from t3d.app.history import EvalHistory, groups_of, sparkline
from t3d.config import Member
from t3d.config.sweeps import counted, short, swept

COLUMNS = {
    "evaluation": "eval",
    "best": "best",
    "last\nepisode": "episode",
    "critic\nloss": "critic_loss",
    "actor\nloss": "actor_loss",
    "Q": "q_mean",
}
IN_A_SWEEP = ("evaluation", "best", "critic\nloss", "Q")  # the values of up to three settings need the room
CURVE, NARROWEST, GAP = 10, 8, 2  # characters


def live_table(
    members: Sequence[Member],
    newest: Sequence[Mapping[str, Any]],
    diverged: Collection[int],
    room: int,
    caption: str,
    history: EvalHistory | None = None,
    width: int = 80,
) -> Table:
    """Shows the newest figures of each member, of a combination their mean over seeds, in at most `room` rows.

    With the history of evaluations it also draws their curves. Columns that do not fit are left out.
    """
    fields, groups = swept(members), groups_of(members)
    made = Table(expand=True, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 0, 0, 1))
    made.add_column(", ".join(map(short, fields)) or "seed", justify="right", overflow="fold")
    left, columns = width - max(map(len, ["seed", *(group.name for group in groups)])), list[str]()
    for name in [name for name in COLUMNS if not fields or name in IN_A_SWEEP]:
        needed = max(NARROWEST, len(name.partition("\n")[0]))
        left -= needed + GAP
        if left >= 0:
            columns.append(name)
            made.add_column(name, justify="right", min_width=needed)
    draws = history is not None and left >= CURVE + GAP
    if draws:
        made.add_column("curve", min_width=CURVE, no_wrap=True)
    for name, places in groups[:room]:
        living = [newest[place] for place in places if place not in diverged]
        cells = [_number(_mean(figures.get(COLUMNS[column]) for figures in living)) for column in columns]
        curve = [sparkline(history.curve(places), CURVE)] if history is not None and draws else []
        made.add_row(name, *([*cells, *curve] if living else ["diverged"]))
    hidden = len(groups) - room
    more = f"; {counted(hidden, 'more combination' if fields else 'more seed')}" if hidden > 0 else ""
    made.caption = f"{caption}{more}"
    return made


def _mean(values: Iterable[float | None]) -> float | None:
    """Averages what is known."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}"
