"""`t3d runs`: lists the runs in a folder; `t3d runs show RUN`: shows one of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from t3d.alarms.watch import alarm_lines, notes_in_words
from t3d.app.flags import RootFlag, RunFlags, read_flags
from t3d.app.json_output import member_fields, write_json
from t3d.app.tables import clean, fits, print_sweep, table
from t3d.app.terminal import PlainConsole, standard_output
from t3d.config import Member, plain
from t3d.config.sweeps import noun, swept
from t3d.errors import UserError, did_you_mean
from t3d.events import ActorEvent, Alarm, Eval, Note
from t3d.insight.wording import (
    IN_HEADING,
    duration_text,
    env_text,
    members_text,
    number_text,
    returned,
    seeds_text,
    size_text,
    source_of,
    steps_text,
    when_text,
)
from t3d.store.columns import Columns, read_columns
from t3d.store.details import Result, about_fields, alarm_fields, last_return, messages_of, results_of
from t3d.store.log import Unreadable, damage_in_words
from t3d.store.members import Evals, Evaluated, best_of
from t3d.store.reader import locate
from t3d.store.summary import SORTS, Summary, changes, contents, read_summaries, read_summary

PIPED_WIDTH = 200  # characters, so that a file or grep gets one line per run
NARROW = 100  # characters; below this the list omits some columns
IF_NARROW = ("steps", "return", "best eval", "status")
COLOURS = {"finished": "green", "stopped": "yellow", "failed": "red", "died": "magenta"}
COLOURS |= {"running": "cyan", "paused": "blue"}
RESUMABLE = ("stopped", "failed", "died")
SETTINGS = ("setting", "default", "this run", "source")
WORDS = ("name", "environment", "preset", "seeds", "status")


@dataclass(frozen=True, kw_only=True)
class RunsArgs(RootFlag):
    """List the runs in a folder. `t3d runs show RUN` prints one of them in detail."""

    search: Annotated[str, tyro.conf.arg(metavar="TEXT")] = ""
    """List only runs whose name, environment, preset, sweep, status, tags or note contain all these words."""
    sort: Literal["time", "return", "name", "steps"] = "time"
    """Newest first, highest return first (on fresh episodes, else in evaluation), by name, or most steps first."""
    json: bool = False
    """Print the runs as a JSON array."""


@dataclass(frozen=True, kw_only=True)
class ShowArgs(RunFlags):
    """Print one run: its status, results per seed, settings and files."""

    json: bool = False
    """Print the run as one JSON object."""


def status_text(run: Summary) -> Text:
    """The status in its colour."""
    return clean(run.status, COLOURS.get(run.status, ""))


COLUMNS: dict[str, Callable[[Summary], Text]] = {
    "preset": lambda run: clean(run.preset),
    "seeds": lambda run: clean(members_text(run)),
    "steps": lambda run: clean(f"{steps_text(run.step)}/{steps_text(run.total_steps)}"),
    "return": lambda run: clean(number_text(run.fresh.mean if run.fresh else None)),
    "best eval": lambda run: clean(number_text(run.best_return)),
    "status": status_text,
    "started": lambda run: clean(when_text(run.started)),
    "took": lambda run: clean(duration_text(run.took)),
}


def main(arguments: list[str]) -> int:
    """Lists the runs, or shows one."""
    console = PlainConsole()
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    if arguments[:1] == ["show"]:
        shown = read_flags(ShowArgs, arguments[1:], "t3d runs show")
        run = read_summary(locate(shown.run, shown.root))
        if shown.json:
            write_json(shown_fields(run), standard_output())
        else:
            show(run, console)
        return 0
    if arguments and not arguments[0].startswith("-"):
        hint = did_you_mean(arguments[0], ["show"]) or f"; t3d runs show {arguments[0]} prints one run"
        raise UserError(f"t3d runs does not know what to do with {arguments[0]}{hint}")
    args = read_flags(RunsArgs, arguments, "t3d runs")
    runs, skipped = read_summaries(args.root)
    words, (key, largest_first) = args.search.lower().split(), SORTS[args.sort]
    chosen = [run for run in runs if all(word in run.searched_text for word in words)]
    chosen.sort(key=key, reverse=largest_first)
    if args.json:
        write_json([listed_fields(run) for run in chosen], standard_output())
    else:
        _list(chosen, len(runs), args, console)
    _print_skipped(skipped, PlainConsole(stderr=True) if args.json else console)
    return 0


def listed_fields(run: Summary) -> dict[str, Any]:
    """Returns one run of the list as JSON."""
    return _fields(run, _columns(run))


def shown_fields(run: Summary) -> dict[str, Any]:
    """Returns one run in detail as JSON."""
    columns = _columns(run)
    messages = messages_of(columns, Note, ActorEvent) if columns else []
    return {
        **_fields(run, columns),
        "settings": {key: {"default": old, "value": new} for key, (old, new) in changes(run.config).items()},
        "results": [member_fields(result.member) | result.fields for result in _results(run, columns)],
        "notes": [
            {**about_fields(event, run.members), "kind": event.event, "text": event.text}
            for event in messages
            if isinstance(event, Note | ActorEvent)
        ],
        "alarms": [alarm_fields(alarm, run.members) for alarm in (columns.alarms if columns else [])],
        "damaged_lines": columns.damaged if columns else 0,
        "files": {name: stored.bytes for name, stored in contents(run.path).items()},
    }


def _fields(run: Summary, columns: Columns | None) -> dict[str, Any]:
    results = _results(run, columns)
    diverged = [result.member.name for result in results if result.stopped or result.member in run.diverged]
    return {"path": str(run.path), **run.fields, "diverged": diverged, "last_return": last_return(results)}


def _columns(run: Summary) -> Columns | None:
    """Reads what the log says of a run; a run whose log cannot be read is listed all the same."""
    with suppress(UserError):
        return read_columns(run.path, [Eval], run.members)
    return None


def _results(run: Summary, columns: Columns | None) -> list[Result]:
    return results_of(columns) if columns else [Result(member, None, []) for member in run.members]


def _list(runs: list[Summary], of: int, args: RunsArgs, console: Console) -> None:
    if not of:
        console.print(clean(f"No runs in {args.root} yet; t3d train Pendulum-v1 --preset quick starts one."))
        return
    if not runs:
        console.print(clean(f"None of the {of} runs in {args.root} matches {args.search!r}."))
        return
    columns = COLUMNS if console.width >= NARROW else {name: COLUMNS[name] for name in IF_NARROW}
    listed = table("", "name", "environment", *columns, words=WORDS)
    listed.columns[1].max_width = max(11, console.width // 4)
    for run in runs:
        env = clean(env_text(run.env))
        listed.add_row(clean(run.path.name, "bold"), env, *(cell(run) for cell in columns.values()))
    console.print(listed)
    sweeps = ", of a sweep the highest mean of last ones" if any(swept(run.members) for run in runs) else ""
    number = f"{len(runs)} of {of} runs" if len(runs) < of else f"{of} runs" if of > 1 else "1 run"
    about = "return: of the best policy on fresh episodes (t3d eval plays them); best eval: mean over seeds of their"
    console.print(clean(f"{number} in {args.root}; {about} best evaluations{sweeps}", "dim"), soft_wrap=True)


def _print_skipped(skipped: list[Unreadable], console: Console) -> None:
    for folder in skipped:
        console.print(clean(f"skipped {folder.path.name}: {folder.reason}", "dim"), soft_wrap=True)


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
    show_results(run, columns.evaluations(), set(columns.stopped), console, columns.task_began)
    _show_settings(run, console)
    _show_files(run, console)


def show_results(
    run: Summary, evals: Evals, stopped: set[Member], console: Console, task_began: float = -math.inf
) -> None:
    """Prints the returns, of a sweep also those of each value."""
    if not evals:
        console.print("\nNo evaluation yet.")
        return
    console.print("\n", clean(_fresh_in_words(run)), sep="", soft_wrap=True)
    if swept(run.members):
        print_sweep(run.members, evals, stopped, console)
    compared = max(sum(one.time >= task_began for one in column) for column in evals.values())
    results = _results_table(run, evals, stopped, compared)
    if not fits(results, console):
        results = _results_table(run, evals, stopped, compared, narrow=True)
    console.print(results)


def _fresh_in_words(run: Summary) -> str:
    if run.fresh is None:
        return f"Its best policy has not played fresh episodes yet: t3d eval {run.path} plays them."
    whose = next((one.title for one in run.members if one.name == run.chosen), run.chosen)
    return f"Best policy of {whose}: mean return {returned(run.fresh)}."


def _results_table(run: Summary, evals: Evals, stopped: set[Member], compared: int, *, narrow: bool = False) -> Table:
    """Returns a row for each member; if narrow, only its best and last returns."""
    who = noun(run.members)
    kept = ["best", "last"] if narrow else ["before", "best", "at step", "last", "at step"]
    made = table(f"Mean return in evaluation (best: the highest of {compared})", who, *kept, words=["member"])
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
