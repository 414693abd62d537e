"""`t3d runs`: lists the runs in a folder; `t3d runs show RUN`: shows one of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.text import Text

from t3d.app.flags import RootFlag, RunFlags, read_flags
from t3d.app.json_output import member_fields, write_json
from t3d.app.runs_show import show, status_text
from t3d.app.tables import clean, table
from t3d.app.terminal import PlainConsole, standard_output
from t3d.config.sweeps import swept
from t3d.errors import UserError, did_you_mean
from t3d.events import ActorEvent, Eval, Note
from t3d.insight.wording import duration_text, env_text, members_text, number_text, steps_text, when_text
from t3d.store.columns import Columns, read_columns
from t3d.store.details import Result, about_fields, alarm_fields, last_return, messages_of, results_of
from t3d.store.log import Unreadable
from t3d.store.reader import locate
from t3d.store.summary import SORTS, Summary, changes, contents, read_summaries, read_summary

PIPED_WIDTH = 200  # characters, so that a file or grep gets one line per run
NARROW = 100  # characters; below this the list omits some columns
IF_NARROW = ("steps", "return", "best eval", "status")
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
    diverged = [one.member.name for one in results if one.stopped or one.member in run.diverged]
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
