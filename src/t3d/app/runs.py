"""`t3d runs`: lists the runs in a folder; `t3d runs show RUN`: shows one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from t3d.app import alarms
from t3d.app.flags import read_flags
from t3d.app.json_output import write_json
from t3d.app.plain_console import PlainConsole
from t3d.app.runs_json import entry_fields, shown_fields
from t3d.app.safe_output import standard_output
from t3d.app.tables import SHOWN_ELSEWHERE, clean, figure, fits, print_sweep, source_of, table
from t3d.config import Member, plain
from t3d.config.sweeps import by_values, counted, noun, swept
from t3d.errors import UserError, did_you_mean
from t3d.events import ActorEvent, Alarm, Eval, Event, Note, SeedStopped
from t3d.store.catalogue import Entry, catalogue, changes, contents, read_entry
from t3d.store.members import evals_by_member, stopped_members
from t3d.store.reader import Unreadable, best_of, damage_in_words, locate, read_log

COLOURS = {"finished": "green", "stopped": "yellow", "failed": "red", "running": "cyan", "died": "magenta"}
RESUMABLE = ("stopped", "failed", "died")
PIPED_WIDTH = 200  # characters, so that a file or grep gets one line per run
NARROW = 100  # characters; below this the list omits some columns
IF_NARROW = ("seeds", "steps", "return", "status")
SETTINGS = ("setting", "default", "this run", "source")
WORDS = ("name", "environment", "preset", "seeds", "status")
UNITS = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10}


@dataclass(frozen=True)
class RunsArgs:
    """List the runs in a folder. `t3d runs show RUN` prints one of them in detail."""

    root: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("runs")
    """Folder that contains the runs."""
    search: Annotated[str, tyro.conf.arg(metavar="TEXT")] = ""
    """List only runs whose name, environment, preset, sweep or status contains all these words."""
    sort: Literal["time", "return", "name", "steps"] = "time"
    """Newest first, highest return first, by name, or most steps first."""
    json: bool = False
    """Print the runs as a JSON array."""


@dataclass(frozen=True)
class ShowArgs:
    """Print one run: its status, results per seed, settings and files."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The run's folder, or its name under --root."""
    root: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("runs")
    """Folder that contains the runs."""
    json: bool = False
    """Print the run as one JSON object."""


SORTS: dict[str, tuple[Callable[[Entry], Any], bool]] = {  # key, and whether the largest comes first
    "time": (lambda entry: entry.started, True),
    "return": (lambda entry: float("-inf") if entry.best_return is None else entry.best_return, True),
    "name": (lambda entry: entry.path.name.lower(), False),
    "steps": (lambda entry: entry.step, True),
}


COLUMNS: dict[str, Callable[[Entry], Text]] = {
    "preset": lambda entry: clean(entry.preset),
    "seeds": lambda entry: clean(_members(entry)),
    "steps": lambda entry: clean(f"{_short(entry.step)}/{_short(entry.total_steps)}"),
    "return": lambda entry: clean(figure(entry.best_return)),
    "status": lambda entry: clean(entry.status, COLOURS.get(entry.status, "")),
    "started": lambda entry: clean(_when(entry.started)),
    "took": lambda entry: clean(_clock(entry.took)),
}


def main(arguments: list[str]) -> int:
    """Lists the runs, or shows one."""
    console = PlainConsole()
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    if arguments[:1] == ["show"]:
        shown = read_flags(ShowArgs, arguments[1:], "t3d runs show")
        entry = read_entry(locate(shown.run, shown.root))
        if shown.json:
            write_json(shown_fields(entry), standard_output())
        else:
            _show(entry, console)
        return 0
    if arguments and not arguments[0].startswith("-"):
        hint = did_you_mean(arguments[0], ["show"]) or f"; t3d runs show {arguments[0]} prints one run"
        raise UserError(f"t3d runs does not know what to do with {arguments[0]}{hint}")
    args = read_flags(RunsArgs, arguments, "t3d runs")
    entries, skipped = catalogue(args.root)
    chosen = _chosen(entries, args)
    if args.json:
        write_json([entry_fields(entry) for entry in chosen], standard_output())
    else:
        _list(chosen, len(entries), args, console)
    _print_skipped(skipped, PlainConsole(stderr=True) if args.json else console)
    return 0


def _chosen(entries: list[Entry], args: RunsArgs) -> list[Entry]:
    words = args.search.lower().split()
    found = [entry for entry in entries if all(word in _searched(entry) for word in words)]
    key, largest_first = SORTS[args.sort]
    return sorted(found, key=key, reverse=largest_first)


def _searched(entry: Entry) -> str:
    sweep = [str(word) for word in entry.config.get("sweep", [])]
    return "\n".join([entry.path.name, entry.env, entry.preset, entry.status, *sweep]).lower()


def _list(entries: list[Entry], of: int, args: RunsArgs, console: Console) -> None:
    if not of:
        console.print(clean(f"No runs in {args.root} yet; t3d train Pendulum-v1 --preset quick starts one."))
        return
    if not entries:
        console.print(clean(f"None of the {of} runs in {args.root} matches {args.search!r}."))
        return
    columns = COLUMNS if console.width >= NARROW else {name: COLUMNS[name] for name in IF_NARROW}
    made = table("", "name", "environment", *columns, words=WORDS)
    made.columns[1].max_width = max(11, console.width // 4)
    for entry in entries:
        env = clean(_env(entry.env))
        made.add_row(clean(entry.path.name, "bold"), env, *(cell(entry) for cell in columns.values()))
    console.print(made)
    sweeps = ", of a sweep the highest mean of last ones" if any(swept(entry.members) for entry in entries) else ""
    number = f"{len(entries)} of {of} runs" if len(entries) < of else f"{of} runs" if of > 1 else "1 run"
    console.print(clean(f"{number} in {args.root}; return: mean over seeds of their best evaluations{sweeps}", "dim"))


def _print_skipped(skipped: list[Unreadable], console: Console) -> None:
    for folder in skipped:
        console.print(clean(f"skipped {folder.path.name}: {folder.reason}", "dim"), soft_wrap=True)


def _show(entry: Entry, console: Console) -> None:
    sweep = f", sweep {plain(tuple(entry.config['sweep']))}" if entry.config.get("sweep") else ""
    seeds = f"{'seed' if len(entry.seeds) == 1 else 'seeds'} {_seeds(entry.seeds)}{sweep}"
    console.print(clean(entry.path.resolve().name, "bold"), soft_wrap=True)
    console.print(clean(f"{_env(entry.env)}, preset {entry.preset}, {seeds}"), soft_wrap=True)
    console.print(
        clean(entry.status, COLOURS.get(entry.status, "")),
        f"at {entry.step:,} of {entry.total_steps:,} steps, started {entry.started:%Y-%m-%d %H:%M:%S}, "
        f"took {_clock(entry.took)}",
    )
    for line in entry.failure.splitlines():
        console.print(clean(line, "red"), soft_wrap=True)
    if entry.status == "died":
        console.print("Its process is gone and never wrote an end: killed, out of memory, or the machine crashed.")
    if entry.checkpoint and entry.status in RESUMABLE:
        console.print(clean(f"t3d resume {entry.path} continues from checkpoint {entry.checkpoint}"), soft_wrap=True)
    log = read_log(entry.path, kinds=(Eval, Note, Alarm, ActorEvent, SeedStopped))
    damage = [damage_in_words(log.damaged, "events.jsonl")] if log.damaged else []
    stopped = stopped_members(log.events, entry.members)
    for member, event in stopped.items():
        console.print(
            clean(f"{member.title} diverged at step {event.step:,} and stopped: {event.text}", "red"), soft_wrap=True
        )
    for text in alarms.summary(log.events, entry.members):
        console.print(clean(text, "yellow"), soft_wrap=True)
    for text in [*_notes(log.events), *damage]:
        console.print(clean(f"note: {text}", "yellow"), soft_wrap=True)
    _show_results(entry, evals_by_member(log.events, entry.members), set(stopped), console)
    _show_settings(entry, console)
    _show_files(entry, console)


def _notes(events: list[Event]) -> list[str]:
    """Returns notes, mostly the doctor's warnings, unless an alarm repeats them, and what happened to lost actors."""
    repeated = alarms.repeated(events)
    return [
        event.text if isinstance(event, Note) else f"actor {event.actor} {event.what}: {event.text}"
        for event in events
        if (isinstance(event, Note) and not any(words in event.text for words in repeated))
        or (isinstance(event, ActorEvent) and event.what != "back")
    ]


def _show_results(entry: Entry, evals: dict[Member, list[Eval]], stopped: set[Member], console: Console) -> None:
    if not evals:
        console.print("\nNo evaluation yet.")
        return
    if swept(entry.members):
        print_sweep(entry.members, evals, stopped, console)
    made = _results(entry, evals, stopped)
    if not fits(made, console):
        made = _results(entry, evals, stopped, narrow=True)
    console.print(made)


def _results(entry: Entry, evals: dict[Member, list[Eval]], stopped: set[Member], *, narrow: bool = False) -> Table:
    """Returns a row for each member; if narrow, only its best and last returns."""
    who = noun(entry.members)
    kept = ["best", "last"] if narrow else ["before", "best", "at step", "last", "at step"]
    made = table("Mean return in evaluation", who, *kept, words=["member"])
    for member in entry.members:
        name = f"{member.name if member.values else member.seed}{' (diverged)' if member in stopped else ''}"
        cells = _result_cells(evals.get(member, []))
        made.add_row(name, *([cells[1], cells[3]] if narrow else cells))
    living = [column for member, column in evals.items() if member not in stopped]
    if len(evals) > 1 and living and who == "seed":
        kinds = [[column[0], best_of(column), column[-1]] for column in living]
        before, best, last = (figure(fmean(one.mean_return for one in kind)) for kind in zip(*kinds, strict=True))
        made.add_section()
        name = f"mean of {len(living)}" if stopped else "mean"
        made.add_row(name, *([best, last] if narrow else [before, best, "", last, ""]))
    return made


def _result_cells(evals: list[Eval]) -> list[str]:
    if not evals:
        return ["-"] * 5
    best, last = best_of(evals), evals[-1]
    return [figure(evals[0].mean_return), _spread(best), f"{best.step:,}", _spread(last), f"{last.step:,}"]


def _show_settings(entry: Entry, console: Console) -> None:
    elsewhere = [*SHOWN_ELSEWHERE, *swept(entry.members)]
    differing = {key: pair for key, pair in changes(entry.config).items() if key not in elsewhere}
    if not differing:
        console.print("\nAll settings are the defaults.")
        return
    made = table("Settings that differ from the defaults", *SETTINGS, words=SETTINGS)
    for key, (default, value) in differing.items():
        source = clean(source_of(key, value, entry.preset))
        made.add_row(clean(key), "-" if default is None else plain(default), clean(plain(value)), source)
    console.print(made)


def _show_files(entry: Entry, console: Console) -> None:
    stored = contents(entry.path)
    made = table("Files", "name", "files", "size", words=["name"])
    for name, (files, size) in stored.items():
        made.add_row(clean(name), str(files) if name.endswith("/") else "", _size(size))
    made.add_section()
    made.add_row(
        "total", str(sum(one.files for one in stored.values())), _size(sum(one.bytes for one in stored.values()))
    )
    console.print(made)
    console.print(clean(str(entry.path.resolve()), "dim"), soft_wrap=True)


def _env(name: str) -> str:
    return name or "defined in Python"


def _members(entry: Entry) -> str:
    """Formats what a run trains: its seeds, or of a sweep how many members those and its values make."""
    combinations, fields = len(by_values(entry.members)), swept(entry.members)
    what = "values" if len(fields) == 1 else "combinations"
    seeds = counted(len(entry.seeds), "seed")
    said = f"{len(entry.members)} = {combinations} {what} x {seeds}" if fields else _seeds(entry.seeds)
    return said + (f"; {len(entry.diverged)} diverged" if entry.diverged else "")


def _seeds(seeds: tuple[int, ...]) -> str:
    """Formats seeds: 0-9 if they are consecutive, only the first two and the count if there are many."""
    if len(seeds) > 2 and seeds == tuple(range(seeds[0], seeds[0] + len(seeds))):
        return f"{seeds[0]}-{seeds[-1]}"
    if len(seeds) > 4:
        return f"{seeds[0]}, {seeds[1]}.. ({len(seeds)})"
    return ", ".join(map(str, seeds))


def _short(steps: int) -> str:
    """Formats 142292 as 142.2k: never rounded up, so that only a finished run looks finished."""
    if steps < 10_000:
        return f"{steps:,}"
    return f"{steps // 100 / 10:g}k" if steps < 1_000_000 else f"{steps // 10_000 / 100:g}M"


def _spread(one: Eval) -> str:
    return f"{figure(one.mean_return)} ± {figure(one.std_return)}"


def _when(started: datetime) -> str:
    same_year = started.year == datetime.now().year
    return f"{started:%d %b %H:%M}" if same_year else f"{started:%d %b %Y}"


def _clock(took: timedelta) -> str:
    seconds = round(took.total_seconds())
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def _size(size: int) -> str:
    for unit, many in UNITS.items():
        if size >= many:
            return f"{size / many:,.1f} {unit}"
    return f"{size} B"
