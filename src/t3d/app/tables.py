"""Tables without frames, and how figures are written in them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import fmean, pstdev

from rich import box
from rich.table import Table
from rich.text import Text

from t3d.config import Member
from t3d.config.sweeps import by_values, swept
from t3d.events import Eval
from t3d.store.reader import best_of

TEXT_COLUMNS = ("name", "environment", "preset", "seeds", "status", "setting", "default", "this run", "member")


def table(title: str, *columns: str) -> Table:
    """Returns a table without a frame, with right-aligned numbers."""
    made = Table(title=f"\n{title}" if title else None, title_justify="left", title_style="bold")
    made.box, made.show_edge, made.pad_edge, made.padding = box.SIMPLE_HEAD, False, False, (0, 0, 0, 1)
    for name in columns:
        words = name in TEXT_COLUMNS
        made.add_column(name, justify="left" if words else "right", no_wrap=not words, overflow="ellipsis")
    return made


def clean(text: str, style: str = "") -> Text:
    """Makes text from a file safe to print: markup is literal, unprintable characters become question marks."""
    return Text("".join(one if one.isprintable() else "?" for one in text), style)


def figure(value: float | None) -> str:
    """Formats a return."""
    if value is None:
        return "-"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:#.3g}"


def sweep_table(members: Sequence[Member], evals: Mapping[Member, list[Eval]], diverged: Collection[Member]) -> Table:
    """Returns the returns of a sweep: a row for each combination of values, the best last returns marked."""
    title = "Mean return over seeds, ± std over seeds"
    made = table(title, *swept(members), "seeds", "best", "last", "")
    groups = by_values(members)
    living = {
        values: [evals[one] for one in group if one in evals and one not in diverged]
        for values, group in groups.items()
    }
    lasts = {values: fmean(one[-1].mean_return for one in columns) for values, columns in living.items() if columns}
    highest = max(lasts, key=lambda values: lasts[values], default=None)
    for values, group in groups.items():
        count = sum(one in diverged for one in group)
        seeds = f"{len(group)}, {count} diverged" if count else str(len(group))
        cells = [_over_seeds(living[values], best_of), _over_seeds(living[values], lambda one: one[-1])]
        mark, style = ("highest", "bold") if values == highest else ("", "")
        made.add_row(*(f"{value!r}".removesuffix(".0") for _, value in values), seeds, *cells, mark, style=style)
    return made


def _over_seeds(columns: list[list[Eval]], chosen: Callable[[list[Eval]], Eval]) -> str:
    returns = [chosen(column).mean_return for column in columns]
    if not returns:
        return "-"
    return figure(fmean(returns)) + (f" ± {figure(pstdev(returns))}" if len(returns) > 1 else "")
