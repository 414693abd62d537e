"""Tables without frames, and results as JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import itemgetter
from statistics import fmean
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from t3d.app.terminal import Output
from t3d.config import Member, plain
from t3d.config.sweeps import by_values, counted, short, swept, value_text
from t3d.errors import UserError
from t3d.events import finite
from t3d.insight.wording import IN_HEADING, metrics_text, number_text, source_of
from t3d.store.metrics import Evals, StoredEvaluation, best_of, highest, last_means, trained
from t3d.types import mean_metrics, sample_std

SETTINGS = ("setting", "default", "value", "source")
UNLIMITED = 10_000  # characters; wider than any table
WIDEST_HEAD = 14  # characters; longer names of swept settings are broken at an underscore


def table(title: str, *columns: str, words: Collection[str] = ()) -> Table:
    """Returns a table without a frame: numbers are right-aligned, the columns of words are folded if they are long."""
    frameless = Table(title=f"\n{title}" if title else None, title_justify="left", title_style="bold")
    frameless.box, frameless.show_edge, frameless.pad_edge = box.SIMPLE_HEAD, False, False
    frameless.padding = (0, 0, 0, 1)
    for name in columns:
        if name in words:
            frameless.add_column(name, overflow="fold")
        else:
            frameless.add_column(name, justify="right", no_wrap=True)
    return frameless


def fits(content: Table, console: Console) -> bool:
    """Whether a table can be printed without folding or cutting anything."""
    unlimited = console.options.update(width=UNLIMITED)
    return console.measure(content, options=unlimited).maximum <= console.width


def clean(text: str, style: str = "") -> Text:
    """Makes text from a file safe to print: markup is literal, unprintable characters become question marks."""
    return Text("".join(letter if letter.isprintable() else "?" for letter in text), style)


def print_settings(
    changes: Mapping[str, tuple[Any, Any]], members: Sequence[Member], preset: str, console: Console
) -> None:
    """Prints the settings that differ from the defaults, except those in the heading of a run."""
    shown = {key: pair for key, pair in changes.items() if key not in (*IN_HEADING, *swept(members))}
    console.print(settings_table(shown, preset) if shown else "\nAll settings are the defaults.")


def settings_table(changes: Mapping[str, tuple[Any, Any]], preset: str) -> Table:
    """Returns settings with their defaults and, unless it is about the preset itself, whether they come from it."""
    columns = SETTINGS if preset else SETTINGS[:-1]
    settings = table("Settings that differ from the defaults" if preset else "", *columns, words=columns)
    for key, (default, value) in changes.items():
        cells = (key, "-" if default is None else plain(default), plain(value), source_of(key, value, preset))
        settings.add_row(*map(clean, cells[: len(columns)]))
    return settings


def print_sweep(members: Sequence[Member], evals: Evals, diverged: Collection[Member], console: Console) -> None:
    """Prints the returns of a sweep: what is in the table and, if it fits, the best returns too."""
    count = len(members) // len(by_values(members))
    seeds = "one seed each" if count == 1 else f"mean over {counted(count, 'seed')}, ± std over seeds"
    console.print(Text(f"\nReturn by {', '.join(swept(members))}: {seeds}", "bold"), soft_wrap=True)
    full = sweep_table(members, evals, diverged)
    console.print(full if fits(full, console) else sweep_table(members, evals, diverged, with_best=False))


def print_other_sets(
    members: Sequence[Member], evals: Evals, sets: Mapping[str, Evals], diverged: Collection[Member], console: Console
) -> None:
    """Prints the returns in evaluation sets that do not choose the best, of a sweep by value."""
    best = {member: best_of(column).step for member, column in evals.items()}
    for name, of_set in sets.items():
        living = {member: column for member, column in of_set.items() if member not in diverged}
        chosen = [each for member, column in living.items() for each in column if each.step == best.get(member)]
        bests = _over_seeds([[each] for each in chosen], best_of) + metrics_text(
            mean_metrics([each.metrics for each in chosen])
        )
        first, last = (_over_seeds([*living.values()], itemgetter(index)) for index in (0, -1))
        changed = f"mean return of the best policies {bests}; {last} when last evaluated, {first} at first"
        console.print(clean(f"  {name}: {'' if swept(members) else changed}"), soft_wrap=True)
        if swept(members):
            print_sweep(members, of_set, diverged, console)


def sweep_table(
    members: Sequence[Member], evals: Evals, diverged: Collection[Member], *, with_best: bool = True
) -> Table:
    """Returns a row for each combination of values, the one with the highest mean of its last returns marked."""
    results = table("", *map(_head, swept(members)), *(["best"] if with_best else []), "last", "")
    marked = highest(last_means(members, evals, diverged))
    for values, group in by_values(members).items():
        living = [evals[member] for member in group if member in evals and member not in diverged]
        lost = sum(member in diverged for member in group)
        mark = f"{lost} diverged" if lost else "highest" if values == marked else ""
        best = [_over_seeds(list(filter(None, map(trained, living))), best_of)] if with_best else []
        cells = [*best, _over_seeds(living, lambda column: column[-1]), mark]
        results.add_row(*(value_text(value) for _, value in values), *cells, style="bold" if values == marked else "")
    results.columns[-1].justify = "left"
    return results


def _head(field: str) -> str:
    lines = textwrap.wrap(short(field).replace("_", "_ "), WIDEST_HEAD, break_long_words=False)
    return "\n".join(line.replace("_ ", "_") for line in lines)


def _over_seeds(
    columns: Sequence[Sequence[StoredEvaluation]], chosen: Callable[[Sequence[StoredEvaluation]], StoredEvaluation]
) -> str:
    returns = [chosen(column).mean_return for column in columns]
    if not returns:
        return "-"
    return number_text(fmean(returns)) + (f" ± {number_text(sample_std(returns))}" if len(returns) > 1 else "")


def write_json(value: Any, output: Output) -> None:
    """Writes one value, in ASCII, so that no name can control a terminal; non-finite numbers become null."""
    try:
        print(json.dumps(finite(value), allow_nan=False), file=output, flush=True)
    except RecursionError:
        raise UserError("its settings are nested too deeply to be written as JSON") from None
