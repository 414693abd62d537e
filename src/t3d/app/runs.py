"""`t3d runs`: lists the runs in a folder; `t3d runs show RUN`: shows one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal

import tyro
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from t3d.app.flags import read_flags
from t3d.app.plain_console import PlainConsole, plain
from t3d.errors import UserError, did_you_mean
from t3d.events import ActorEvent, Eval, Event, Note, SeedStopped
from t3d.store.catalogue import Entry, catalogue, changes, contents, read_entry
from t3d.store.reader import Unreadable, best_of, damage_in_words, evals_by_seed, locate, read_log, stopped_seeds

COLOURS = {"finished": "green", "stopped": "yellow", "failed": "red", "running": "cyan", "died": "magenta"}
RESUMABLE = ("stopped", "failed", "died")
SHOWN_ELSEWHERE = ("env.id", "env.name", "preset", "run.root", "run.name", "device", "engine", "threads")
PIPED_WIDTH = 200  # characters, so that a file or grep gets one line per run
NARROW = 100  # characters; below this the list omits some columns
IF_NARROW = ("seeds", "steps", "return", "status")
TEXT_COLUMNS = ("name", "environment", "preset", "seeds", "status", "setting", "default", "this run")
UNITS = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10}


@dataclass(frozen=True)
class RunsArgs:
    """List the runs in a folder. `t3d runs show RUN` prints one of them in detail."""

    root: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("runs")
    """Folder that contains the runs."""
    search: Annotated[str, tyro.conf.arg(metavar="TEXT")] = ""
    """List only runs whose name, environment, preset or status contains all these words."""
    sort: Literal["time", "return", "name", "steps"] = "time"
    """Newest first, highest return first, by name, or most steps first."""


@dataclass(frozen=True)
class ShowArgs:
    """Print one run: its status, results per seed, settings and files."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The run's folder, or its name under --root."""
    root: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("runs")
    """Folder that contains the runs."""


SORTS: dict[str, tuple[Callable[[Entry], Any], bool]] = {  # key, and whether the largest comes first
    "time": (lambda entry: entry.started, True),
    "return": (lambda entry: float("-inf") if entry.best_return is None else entry.best_return, True),
    "name": (lambda entry: entry.path.name.lower(), False),
    "steps": (lambda entry: entry.step, True),
}


COLUMNS: dict[str, Callable[[Entry], Text]] = {
    "preset": lambda entry: _clean(entry.preset),
    "seeds": lambda entry: _clean(f"{_seeds(entry.seeds)}{_diverged(entry)}"),
    "steps": lambda entry: _clean(f"{_short(entry.step)}/{_short(entry.total_steps)}"),
    "return": lambda entry: _clean(_figure(entry.best_return)),
    "status": lambda entry: _clean(entry.status, COLOURS.get(entry.status, "")),
    "started": lambda entry: _clean(_when(entry.started)),
    "took": lambda entry: _clean(_clock(entry.took)),
}


def main(arguments: list[str]) -> int:
    """Lists the runs, or shows one."""
    console = PlainConsole()
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    if arguments[:1] == ["show"]:
        shown = read_flags(ShowArgs, arguments[1:], "t3d runs show")
        _show(read_entry(locate(shown.run, shown.root)), console)
        return 0
    if arguments and not arguments[0].startswith("-"):
        hint = did_you_mean(arguments[0], ["show"]) or f"; t3d runs show {arguments[0]} prints one run"
        raise UserError(f"t3d runs does not know what to do with {arguments[0]}{hint}")
    args = read_flags(RunsArgs, arguments, "t3d runs")
    entries, skipped = catalogue(args.root)
    _list(_chosen(entries, args), len(entries), args, console)
    _print_skipped(skipped, console)
    return 0


def _chosen(entries: list[Entry], args: RunsArgs) -> list[Entry]:
    words = args.search.lower().split()
    found = [entry for entry in entries if all(word in _searched(entry) for word in words)]
    key, largest_first = SORTS[args.sort]
    return sorted(found, key=key, reverse=largest_first)


def _searched(entry: Entry) -> str:
    return "\n".join([entry.path.name, entry.env, entry.preset, entry.status]).lower()


def _list(entries: list[Entry], of: int, args: RunsArgs, console: Console) -> None:
    if not of:
        console.print(_clean(f"No runs in {args.root} yet; t3d train Pendulum-v1 --preset quick starts one."))
        return
    if not entries:
        console.print(_clean(f"None of the {of} runs in {args.root} matches {args.search!r}."))
        return
    columns = COLUMNS if console.width >= NARROW else {name: COLUMNS[name] for name in IF_NARROW}
    table = _table("", "name", "environment", *columns)
    table.columns[0].overflow = table.columns[1].overflow = "fold"
    table.columns[1].max_width = max(11, console.width // 4)
    for entry in entries:
        env = _clean(_env(entry.env))
        table.add_row(_clean(entry.path.name, "bold"), env, *(cell(entry) for cell in columns.values()))
    console.print(table)
    number = f"{len(entries)} of {of} runs" if len(entries) < of else f"{of} runs" if of > 1 else "1 run"
    console.print(_clean(f"{number} in {args.root}; return: mean over seeds of their best evaluations", "dim"))


def _print_skipped(skipped: list[Unreadable], console: Console) -> None:
    for folder in skipped:
        console.print(_clean(f"skipped {folder.path.name}: {folder.reason}", "dim"), soft_wrap=True)


def _show(entry: Entry, console: Console) -> None:
    seeds = f"{'seed' if len(entry.seeds) == 1 else 'seeds'} {_seeds(entry.seeds)}"
    console.print(_clean(entry.path.resolve().name, "bold"), soft_wrap=True)
    console.print(_clean(f"{_env(entry.env)}, preset {entry.preset}, {seeds}"), soft_wrap=True)
    console.print(
        _clean(entry.status, COLOURS.get(entry.status, "")),
        f"at {entry.step:,} of {entry.total_steps:,} steps, started {entry.started:%Y-%m-%d %H:%M:%S}, "
        f"took {_clock(entry.took)}",
    )
    for line in entry.failure.splitlines():
        console.print(_clean(line, "red"), soft_wrap=True)
    if entry.status == "died":
        console.print("Its process is gone and never wrote an end: killed, out of memory, or the machine crashed.")
    if entry.checkpoint and entry.status in RESUMABLE:
        console.print(_clean(f"t3d resume {entry.path} continues from checkpoint {entry.checkpoint}"), soft_wrap=True)
    log = read_log(entry.path, kinds=(Eval, Note, ActorEvent, SeedStopped))
    damage = [damage_in_words(log.damaged, "events.jsonl")] if log.damaged else []
    for text in [*_notes(log.events), *damage]:
        console.print(_clean(f"note: {text}", "yellow"), soft_wrap=True)
    stopped = stopped_seeds(log.events)
    for seed, event in stopped.items():
        console.print(
            _clean(f"seed {seed} diverged at step {event.step:,} and stopped: {event.text}", "red"), soft_wrap=True
        )
    _show_results(entry, evals_by_seed(log.events), set(stopped), console)
    _show_settings(entry, console)
    _show_files(entry, console)


def _notes(events: list[Event]) -> list[str]:
    """Returns notes, mostly the doctor's warnings, and what happened to lost actors."""
    return [
        event.text if isinstance(event, Note) else f"actor {event.actor} {event.what}: {event.text}"
        for event in events
        if isinstance(event, Note) or (isinstance(event, ActorEvent) and event.what != "back")
    ]


def _show_results(entry: Entry, evals: dict[int, list[Eval]], stopped: set[int], console: Console) -> None:
    if not evals:
        console.print("\nNo evaluation yet.")
        return
    table = _table("Mean return in evaluation", "seed", "before", "best", "at step", "last", "at step")
    for seed in entry.seeds:
        name = f"{seed} (diverged)" if seed in stopped else str(seed)
        table.add_row(name, *_result_cells(evals.get(seed, [])))
    living = [column for seed, column in evals.items() if seed not in stopped]
    if len(evals) > 1 and living:
        kinds = [[column[0], best_of(column), column[-1]] for column in living]
        before, best, last = (fmean(one.mean_return for one in kind) for kind in zip(*kinds, strict=True))
        table.add_section()
        name = f"mean of {len(living)}" if stopped else "mean"
        table.add_row(name, _figure(before), _figure(best), "", _figure(last), "")
    console.print(table)


def _result_cells(evals: list[Eval]) -> list[str]:
    if not evals:
        return ["-"] * 5
    best, last = best_of(evals), evals[-1]
    return [_figure(evals[0].mean_return), _spread(best), f"{best.step:,}", _spread(last), f"{last.step:,}"]


def _show_settings(entry: Entry, console: Console) -> None:
    differing = {key: pair for key, pair in changes(entry.config).items() if key not in SHOWN_ELSEWHERE}
    if not differing:
        console.print("\nAll settings are the defaults.")
        return
    table = _table("Settings that differ from the defaults", "setting", "default", "this run")
    for key, (default, value) in differing.items():
        table.add_row(_clean(key), "-" if default is None else plain(default), _clean(plain(value)))
    console.print(table)


def _show_files(entry: Entry, console: Console) -> None:
    stored = contents(entry.path)
    table = _table("Files", "name", "files", "size")
    for name, (files, size) in stored.items():
        table.add_row(_clean(name), str(files) if name.endswith("/") else "", _size(size))
    table.add_section()
    table.add_row(
        "total", str(sum(one.files for one in stored.values())), _size(sum(one.bytes for one in stored.values()))
    )
    console.print(table)
    console.print(_clean(str(entry.path.resolve()), "dim"), soft_wrap=True)


def _table(title: str, *columns: str) -> Table:
    """Returns a table without a frame, with right-aligned numbers."""
    table = Table(title=f"\n{title}" if title else None, title_justify="left", title_style="bold")
    table.box, table.show_edge, table.pad_edge, table.padding = box.SIMPLE_HEAD, False, False, (0, 0, 0, 1)
    for name in columns:
        words = name in TEXT_COLUMNS
        table.add_column(name, justify="left" if words else "right", no_wrap=not words, overflow="ellipsis")
    return table


def _clean(text: str, style: str = "") -> Text:
    """Makes text from a file safe to print: markup is literal, unprintable characters become question marks."""
    return Text("".join(one if one.isprintable() else "?" for one in text), style)


def _env(name: str) -> str:
    return name or "defined in Python"


def _diverged(entry: Entry) -> str:
    return f", {len(entry.diverged)} diverged" if entry.diverged else ""


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


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:#.3g}"


def _spread(one: Eval) -> str:
    return f"{_figure(one.mean_return)} ± {_figure(one.std_return)}"


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
