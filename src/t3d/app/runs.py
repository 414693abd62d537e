"""`t3d runs`: lists the runs in a folder; `t3d runs show RUN`: shows one of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from t3d.alarms.watch import alarm_lines, notes_in_words
from t3d.app.flags import RootFlag, RunFlags, read_flags
from t3d.app.tables import clean, fits, print_other_sets, print_settings, print_sweep, table, write_json
from t3d.app.terminal import PlainConsole, standard_output
from t3d.config import Member, plain
from t3d.config.metrics import SUCCESS
from t3d.config.sweeps import noun, swept
from t3d.errors import UserError
from t3d.events import ActorEvent, Alarm, Eval, Note
from t3d.insight import wording
from t3d.store.columns import read_columns
from t3d.store.details import Result, about_fields, alarm_fields, last_return, messages_of, results_of
from t3d.store.log import damage_in_words
from t3d.store.metrics import Evals, StoredEvaluation, best_of
from t3d.store.reader import locate
from t3d.store.summary import Summary, changes, contents, read_summaries, read_summary, selected

UNNAMED = "defined in Python"  # an environment without an id
PIPED_WIDTH = 200  # characters, so that a file or grep gets one line per run
NARROW = 100  # characters; below this the list omits some columns
IF_NARROW = ("steps", "return", "best eval", "status")
COLOURS = {"finished": "green", "stopped": "yellow", "failed": "red", "died": "magenta"}
COLOURS |= {"running": "cyan", "paused": "blue"}
RESUMABLE = ("stopped", "failed", "died")
WORDS = ("name", "environment", "preset", "seeds", "status", "started from")
RETURNS = ("before", "best", "at step", "last", "at step")
COLUMNS: dict[str, Callable[[Summary], str]] = {
    "preset": lambda run: run.preset,
    "seeds": wording.members_text,
    "steps": lambda run: f"{wording.steps_text(run.step)}/{wording.steps_text(run.total_steps)}",
    "return": lambda run: wording.number_text(run.fresh.mean if run.fresh else None),
    "best eval": lambda run: wording.number_text(run.best_return),
    "status": lambda run: run.status,
    "started": lambda run: wording.when_text(run.started),
    "took": lambda run: wording.duration_text(run.took),
    "started from": lambda run: run.origin,
}


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


def main(arguments: list[str]) -> int:
    """Lists the runs, or shows one."""
    console = PlainConsole(piped_width=PIPED_WIDTH)
    if arguments[:1] == ["show"]:
        shown = read_flags(ShowArgs, arguments[1:], "t3d runs show")
        run = read_summary(locate(shown.run, shown.root))
        if shown.json:
            write_json(shown_fields(run), standard_output())
        else:
            show(run, console)
        return 0
    if arguments and not arguments[0].startswith("-"):
        raise UserError(f"t3d runs lists all runs of a folder; t3d runs show {arguments[0]} prints one run")
    args = read_flags(RunsArgs, arguments, "t3d runs")
    runs, skipped = read_summaries(args.root)
    matching = selected(runs, args.search, args.sort)
    if args.json:
        write_json([listed_fields(run) for run in matching], standard_output())
        console = PlainConsole(stderr=True)
    else:
        _list(matching, len(runs), args, console)
    for folder in skipped:
        console.print(clean(f"skipped {folder.path.name}: {folder.reason}", "dim"), soft_wrap=True)
    return 0


def listed_fields(run: Summary) -> dict[str, Any]:
    """Returns one run of the list as JSON; one whose log cannot be read is listed all the same."""
    try:
        results = results_of(read_columns(run.path, [Eval], run.members))
    except UserError:
        results = [Result(member, None, []) for member in run.members]
    return _fields(run, results)


def shown_fields(run: Summary) -> dict[str, Any]:
    """Returns one run in detail as JSON."""
    columns = read_columns(run.path, [Eval], run.members)
    results = results_of(columns)
    return {
        **_fields(run, results),
        "settings": {key: {"default": old, "value": new} for key, (old, new) in changes(run.config).items()},
        "results": [
            {"member": who.name, "seed": who.seed, "values": dict(who.values), **fields}
            for who, fields in ((result.member, result.fields) for result in results)
        ],
        "notes": [
            {**about_fields(event, run.members), "kind": event.event, "text": event.text}
            for event in messages_of(columns, Note, ActorEvent)
            if isinstance(event, Note | ActorEvent)
        ],
        "alarms": [alarm_fields(alarm, run.members) for alarm in columns.alarms],
        "damaged_lines": columns.damaged,
        "files": {name: stored.bytes for name, stored in contents(run.path).items()},
    }


def _fields(run: Summary, results: Sequence[Result]) -> dict[str, Any]:
    diverged = [result.member.name for result in results if result.stopped or result.member in run.diverged]
    return {"path": str(run.path), **run.fields, "diverged": diverged, "last_return": last_return(results)}


def _list(runs: list[Summary], of: int, args: RunsArgs, console: Console) -> None:
    if not runs:
        none = f"No runs in {args.root} yet; t3d train Pendulum-v1 --preset quick starts one."
        console.print(clean(f"None of the {of} runs in {args.root} matches {args.search!r}." if of else none))
        return
    wide = [name for name in COLUMNS if name != "started from" or any(run.origin for run in runs)]
    columns = {name: COLUMNS[name] for name in (wide if console.width >= NARROW else IF_NARROW)}
    listed = table("", "name", "environment", *columns, words=WORDS)
    listed.columns[1].max_width = max(11, console.width // 4)
    for run in runs:
        texts = (column(run) for column in columns.values())
        cells = (clean(text, COLOURS.get(text, "")) for text in texts)
        listed.add_row(clean(run.path.name, "bold"), clean(run.env or UNNAMED), *cells)
    console.print(listed)
    sweeps = ", of a sweep the highest mean of last ones" if any(swept(run.members) for run in runs) else ""
    number = f"{len(runs)} of {of} runs" if len(runs) < of else f"{of} runs" if of > 1 else "1 run"
    about = "return: of the best policy on fresh episodes (t3d eval plays them); best eval: mean over seeds of their"
    console.print(clean(f"{number} in {args.root}; {about} best evaluations{sweeps}", "dim"), soft_wrap=True)


def show(run: Summary, console: Console) -> None:
    """Prints a run."""

    def say(text: str, style: str = "") -> None:
        console.print(clean(text, style), soft_wrap=True)

    sweep = f", sweep {plain(tuple(run.config['sweep']))}" if run.config.get("sweep") else ""
    seeds = f"{'seed' if len(run.seeds) == 1 else 'seeds'} {wording.seeds_text(run.seeds)}{sweep}"
    say(run.path.resolve().name, "bold")
    say(f"{run.env or UNNAMED}, preset {run.preset}, {seeds}")
    if run.origin:
        say(f"started from {run.origin}")
    console.print(
        clean(run.status, COLOURS.get(run.status, "")),
        f"at {run.step:,} of {run.total_steps:,} steps, started {run.started:%Y-%m-%d %H:%M:%S}, "
        f"took {wording.duration_text(run.took)}",
    )
    for line in run.failure.splitlines():
        say(line, "red")
    if run.status == "died":
        say("Its process is gone and never wrote an end: killed, out of memory, or the machine crashed.")
    if run.checkpoint and run.status in RESUMABLE:
        say(f"t3d resume {run.path} continues from checkpoint {run.checkpoint}")
    columns = read_columns(run.path, [Eval], run.members)
    messages = messages_of(columns, Note, Alarm, ActorEvent)
    damage = [damage_in_words(columns.damaged, "events.jsonl")] if columns.damaged else []
    for member, event in columns.stopped.items():
        say(f"{member.title} diverged at step {event.step:,} and stopped: {event.text}", "red")
    for text in [*alarm_lines(messages, run.members), *(f"note: {note}" for note in notes_in_words(messages) + damage)]:
        say(text, "yellow")
    show_results(run, columns.evaluations(), set(columns.stopped), console, columns.task_began)
    print_other_sets(run.members, columns.evaluations(), columns.other_sets, set(columns.stopped), console)
    print_settings(changes(run.config), run.members, run.preset, console)
    if kept := sorted(int(folder.name[5:]) for folder in (run.path / "policies").glob("step-[1-9]*")):
        file = f"policies/step-{kept[-1]}/{run.members[0].name}.safetensors"
        say(f"policies kept of {len(kept)} steps, {kept[0]:,} to {kept[-1]:,}: t3d eval {run.path}/{file}")
    counts, sizes = zip(*contents(run.path).values(), strict=True)
    say(f"{run.path.resolve()}: {sum(counts):,} files, {wording.size_text(sum(sizes))}", "dim")


def show_results(
    run: Summary, evals: Evals, stopped: set[Member], console: Console, task_began: float = -math.inf
) -> None:
    """Prints the returns, of a sweep also those of each value."""
    if not evals:
        console.print("\nNo evaluation yet.")
        return
    best = f"Its best policy has not played fresh episodes yet: t3d eval {run.path} plays them."
    if run.fresh is not None:
        whose = next((member.title for member in run.members if member.name == run.chosen), run.chosen)
        best = f"Best policy of {whose}: mean return {wording.returned(run.fresh)}."
    console.print("\n", clean(best), sep="", soft_wrap=True)
    if swept(run.members):
        print_sweep(run.members, evals, stopped, console)
    compared = max(sum(evaluation.time >= task_began for evaluation in column) for column in evals.values())
    results = _results_table(run, evals, stopped, compared, range(len(RETURNS)))
    if not fits(results, console):
        results = _results_table(run, evals, stopped, compared, [RETURNS.index("best"), RETURNS.index("last")])
    console.print(results)


def _results_table(run: Summary, evals: Evals, stopped: set[Member], compared: int, kept: Sequence[int]) -> Table:
    """Returns a row for each member, with some of the columns."""
    success = " and success" if any(SUCCESS in column[-1].metrics for column in evals.values()) else ""
    chosen = "by eval.best_by, of" if "eval.best_by" in changes(run.config) else "the highest of"
    title, who = f"Mean return{success} in evaluation (best: {chosen} {compared})", noun(run.members)
    results = table(title, who, *(RETURNS[column] for column in kept), words=["member"])
    for member in run.members:
        name = f"{member.name if member.values else member.seed}{' (diverged)' if member in stopped else ''}"
        cells = _result_cells(evals.get(member, []))
        results.add_row(name, *(cells[column] for column in kept))
    living = [evaluations for member, evaluations in evals.items() if member not in stopped]
    if len(evals) > 1 and living and who == "seed":
        kinds = zip(*((column[0], best_of(column), column[-1]) for column in living), strict=True)
        before, best, last = (
            wording.number_text(fmean(evaluation.mean_return for evaluation in kind)) for kind in kinds
        )
        cells = [before, best, "", last, ""]
        results.add_section()
        results.add_row(f"mean of {len(living)}" if stopped else "mean", *(cells[column] for column in kept))
    return results


def _result_cells(evals: Sequence[StoredEvaluation]) -> list[str]:
    if not evals:
        return ["-"] * len(RETURNS)
    cells = [wording.number_text(evals[0].mean_return)]
    for evaluation in (best_of(evals), evals[-1]):
        success = "".join(f", {100 * value:.0f} %" for name, value in evaluation.metrics.items() if name == SUCCESS)
        spread = f"{wording.number_text(evaluation.mean_return)} ± {wording.number_text(evaluation.std_return)}"
        cells += [spread + success, f"{evaluation.step:,}"]
    return cells
