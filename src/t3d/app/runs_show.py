"""`t3d runs show RUN`: one run in detail, from its status to its files."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from rich.console import Console
from rich.table import Table
from rich.text import Text

from t3d.alarms.watch import alarm_lines, notes_in_words
from t3d.app.tables import clean, fits, print_sweep, table
from t3d.config import Member, plain
from t3d.config.sweeps import noun, swept
from t3d.events import ActorEvent, Alarm, Eval, Note
from t3d.insight.wording import (
    IN_HEADING,
    duration_text,
    env_text,
    number_text,
    returned,
    seeds_text,
    size_text,
    source_of,
)
from t3d.store.columns import read_columns
from t3d.store.details import messages_of
from t3d.store.log import damage_in_words
from t3d.store.members import Evals, Evaluated, best_of
from t3d.store.summary import Summary, changes, contents

COLOURS = {"finished": "green", "stopped": "yellow", "failed": "red", "died": "magenta"}
COLOURS |= {"running": "cyan", "paused": "blue"}
RESUMABLE = ("stopped", "failed", "died")
SETTINGS = ("setting", "default", "this run", "source")


def status_text(run: Summary) -> Text:
    """The status in its colour."""
    return clean(run.status, COLOURS.get(run.status, ""))


def show(run: Summary, console: Console) -> None:
    """Prints a run."""
    sweep = f", sweep {plain(tuple(run.config['sweep']))}" if run.config.get("sweep") else ""
    seeds = f"{'seed' if len(run.seeds) == 1 else 'seeds'} {seeds_text(run.seeds)}{sweep}"
    console.print(clean(run.path.resolve().name, "bold"), soft_wrap=True)
    console.print(clean(f"{env_text(run.env)}, preset {run.preset}, {seeds}"), soft_wrap=True)
    console.print(
        status_text(run),
        f"at {run.step:,} of {run.total_steps:,} steps, started {run.started:%Y-%m-%d %H:%M:%S}, "
        f"took {duration_text(run.took)}",
    )
    for line in run.failure.splitlines():
        console.print(clean(line, "red"), soft_wrap=True)
    if run.status == "died":
        console.print("Its process is gone and never wrote an end: killed, out of memory, or the machine crashed.")
    if run.checkpoint and run.status in RESUMABLE:
        console.print(clean(f"t3d resume {run.path} continues from checkpoint {run.checkpoint}"), soft_wrap=True)
    columns = read_columns(run.path, [Eval], run.members)
    messages = messages_of(columns, Note, Alarm, ActorEvent)
    damage = [damage_in_words(columns.damaged, "events.jsonl")] if columns.damaged else []
    for member, event in columns.stopped.items():
        console.print(
            clean(f"{member.title} diverged at step {event.step:,} and stopped: {event.text}", "red"), soft_wrap=True
        )
    for text in alarm_lines(messages, run.members):
        console.print(clean(text, "yellow"), soft_wrap=True)
    for text in [*notes_in_words(messages), *damage]:
        console.print(clean(f"note: {text}", "yellow"), soft_wrap=True)
    show_results(run, columns.evaluations(), set(columns.stopped), console)
    _show_settings(run, console)
    _show_files(run, console)


def show_results(run: Summary, evals: Evals, stopped: set[Member], console: Console) -> None:
    """Prints the returns, of a sweep also those of each value."""
    if not evals:
        console.print("\nNo evaluation yet.")
        return
    console.print("\n", clean(_fresh_in_words(run)), sep="", soft_wrap=True)
    if swept(run.members):
        print_sweep(run.members, evals, stopped, console)
    made = _results(run, evals, stopped)
    if not fits(made, console):
        made = _results(run, evals, stopped, narrow=True)
    console.print(made)


def _fresh_in_words(run: Summary) -> str:
    if run.fresh is None:
        return f"Its best policy has not played fresh episodes yet: t3d eval {run.path} plays them."
    whose = next((one.title for one in run.members if one.name == run.chosen), run.chosen)
    return f"Best policy of {whose}: mean return {returned(run.fresh)}."


def _results(run: Summary, evals: Evals, stopped: set[Member], *, narrow: bool = False) -> Table:
    """Returns a row for each member; if narrow, only its best and last returns."""
    who = noun(run.members)
    kept = ["best", "last"] if narrow else ["before", "best", "at step", "last", "at step"]
    count = max(map(len, evals.values()))
    made = table(f"Mean return in evaluation (best: the highest of {count})", who, *kept, words=["member"])
    for member in run.members:
        name = f"{member.name if member.values else member.seed}{' (diverged)' if member in stopped else ''}"
        cells = _result_cells(evals.get(member, []))
        made.add_row(name, *([cells[1], cells[3]] if narrow else cells))
    living = [column for member, column in evals.items() if member not in stopped]
    if len(evals) > 1 and living and who == "seed":
        kinds = [[column[0], best_of(column), column[-1]] for column in living]
        before, best, last = (number_text(fmean(one.mean_return for one in kind)) for kind in zip(*kinds, strict=True))
        made.add_section()
        name = f"mean of {len(living)}" if stopped else "mean"
        made.add_row(name, *([best, last] if narrow else [before, best, "", last, ""]))
    return made


def _result_cells(evals: Sequence[Evaluated]) -> list[str]:
    if not evals:
        return ["-"] * 5
    best, last = best_of(evals), evals[-1]
    return [number_text(evals[0].mean_return), _spread(best), f"{best.step:,}", _spread(last), f"{last.step:,}"]


def _spread(one: Evaluated) -> str:
    return f"{number_text(one.mean_return)} ± {number_text(one.std_return)}"


def _show_settings(run: Summary, console: Console) -> None:
    elsewhere = [*IN_HEADING, *swept(run.members)]
    differing = {key: pair for key, pair in changes(run.config).items() if key not in elsewhere}
    if not differing:
        console.print("\nAll settings are the defaults.")
        return
    made = table("Settings that differ from the defaults", *SETTINGS, words=SETTINGS)
    for key, (default, value) in differing.items():
        source = clean(source_of(key, value, run.preset))
        made.add_row(clean(key), "-" if default is None else plain(default), clean(plain(value)), source)
    console.print(made)


def _show_files(run: Summary, console: Console) -> None:
    stored = contents(run.path)
    made = table("Files", "name", "files", "size", words=["name"])
    for name, (files, size) in stored.items():
        made.add_row(clean(name), str(files) if name.endswith("/") else "", size_text(size))
    made.add_section()
    made.add_row(
        "total", str(sum(one.files for one in stored.values())), size_text(sum(one.bytes for one in stored.values()))
    )
    console.print(made)
    console.print(clean(str(run.path.resolve()), "dim"), soft_wrap=True)
