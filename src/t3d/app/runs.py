"""`t3d runs`: lists the runs in a folder; `t3d runs show RUN`: shows one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.text import Text

from t3d.app.flags import read_flags
from t3d.app.json_output import write_json
from t3d.app.runs_json import entry_fields, shown_fields
from t3d.app.runs_show import show
from t3d.app.runs_text import duration_text, env_text, members_text, status_text, steps_text, when_text
from t3d.app.tables import clean, figure, table
from t3d.app.terminal import PlainConsole, standard_output
from t3d.config.sweeps import swept
from t3d.errors import UserError, did_you_mean
from t3d.store.listing import SORTS, searched_text
from t3d.store.log import Unreadable
from t3d.store.reader import locate
from t3d.store.summary import Entry, catalogue, read_entry

PIPED_WIDTH = 200  # characters, so that a file or grep gets one line per run
NARROW = 100  # characters; below this the list omits some columns
IF_NARROW = ("steps", "return", "best eval", "status")
WORDS = ("name", "environment", "preset", "seeds", "status")


@dataclass(frozen=True)
class RunsArgs:
    """List the runs in a folder. `t3d runs show RUN` prints one of them in detail."""

    root: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("runs")
    """Folder that contains the runs."""
    search: Annotated[str, tyro.conf.arg(metavar="TEXT")] = ""
    """List only runs whose name, environment, preset, sweep or status contains all these words."""
    sort: Literal["time", "return", "name", "steps"] = "time"
    """Newest first, highest return first (on fresh episodes, else in evaluation), by name, or most steps first."""
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


COLUMNS: dict[str, Callable[[Entry], Text]] = {
    "preset": lambda entry: clean(entry.preset),
    "seeds": lambda entry: clean(members_text(entry)),
    "steps": lambda entry: clean(f"{steps_text(entry.step)}/{steps_text(entry.total_steps)}"),
    "return": lambda entry: clean(figure(entry.fresh.mean if entry.fresh else None)),
    "best eval": lambda entry: clean(figure(entry.best_return)),
    "status": status_text,
    "started": lambda entry: clean(when_text(entry.started)),
    "took": lambda entry: clean(duration_text(entry.took)),
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
            show(entry, console)
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
    found = [entry for entry in entries if all(word in searched_text(entry) for word in words)]
    key, largest_first = SORTS[args.sort]
    return sorted(found, key=key, reverse=largest_first)


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
        env = clean(env_text(entry.env))
        made.add_row(clean(entry.path.name, "bold"), env, *(cell(entry) for cell in columns.values()))
    console.print(made)
    sweeps = ", of a sweep the highest mean of last ones" if any(swept(entry.members) for entry in entries) else ""
    number = f"{len(entries)} of {of} runs" if len(entries) < of else f"{of} runs" if of > 1 else "1 run"
    about = "return: of the best policy on fresh episodes (t3d eval plays them); best eval: mean over seeds of their"
    console.print(clean(f"{number} in {args.root}; {about} best evaluations{sweeps}", "dim"), soft_wrap=True)


def _print_skipped(skipped: list[Unreadable], console: Console) -> None:
    for folder in skipped:
        console.print(clean(f"skipped {folder.path.name}: {folder.reason}", "dim"), soft_wrap=True)
