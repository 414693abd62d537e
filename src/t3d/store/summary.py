"""What a run is, as one value, without reading all of its log; details.py adds what logs say."""

from __future__ import annotations

import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from t3d.config import Config, Member, dotted, flat
from t3d.config.merging import FORMER_NAMES
from t3d.config.settings import POLICY_FILE, short_id, with_args
from t3d.config.sweeps import members_of, parse_all, swept
from t3d.errors import UserError
from t3d.events import Continued, Eval, Paused, Resumed, Start
from t3d.files import CORRUPT_ERRORS, read, to_count, to_fields, to_list, to_number
from t3d.policy.files import read_description
from t3d.store.best import Fresh, read_fresh
from t3d.store.checkpoint import folders
from t3d.store.columns import read_columns
from t3d.store.control import Notes, read_notes
from t3d.store.log import LONGEST_NAME, Unreadable, alarm_kinds, journal_lines, newest_session, prefixes, read_ends
from t3d.store.metrics import best_of, last_means, stored_name

STATES = prefixes((Start, Resumed, Paused, Continued))
LARGEST_NOTE = 2**24  # bytes; a larger one is not read
ALIVE = ("running", "paused")  # status of runs whose process may end without a change to a file
CLOCK_SLACK = 60.0  # seconds that clock and boot time may disagree by
LONGEST_FAILURE = 10_000  # characters shown of what a file says


class Summary(NamedTuple):
    """What a list says of a run."""

    path: Path
    config: dict[str, Any]  # as the run wrote it, in whatever version
    env: str
    preset: str
    seeds: tuple[int, ...]
    members: tuple[Member, ...]
    diverged: tuple[Member, ...]  # those that have stopped, as far as its end says
    step: int
    total_steps: int
    best_return: float | None  # mean over seeds of their best evaluations; of a sweep the highest of last ones
    status: str  # finished | stopped | failed | running | paused | died
    failure: str
    started: datetime
    took: timedelta
    checkpoint: str  # the newest one's name; empty: there is none
    alarm_kinds: dict[str, int]  # how many of each it has sounded, as its journal says
    chosen: str  # the member whose best policy is shown: the only one, or the best on fresh episodes; empty: not known
    fresh: Fresh | None  # what that policy returned there
    notes: Notes  # what people say of it
    origin: str  # what it started from, e.g. step 9,000 of calm (seed-0); empty: from scratch

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def sweep(self) -> list[str]:
        return [str(word) for word in self.config.get("sweep", [])]

    @property
    def alarms(self) -> int:
        return sum(self.alarm_kinds.values())

    @property
    def sorted_return(self) -> float:
        """On fresh episodes or, where none were played, the best evaluations'."""
        known = self.best_return if self.fresh is None else self.fresh.mean
        return -math.inf if known is None else known

    @property
    def searched_text(self) -> str:
        about = [self.path.name, self.env, self.preset, self.status, self.origin, *self.sweep, *self.notes.tags]
        return "\n".join([*about, self.notes.note]).lower()

    @property
    def fields(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "status": self.status,
            "env": self.env,
            "preset": self.preset,
            "seeds": list(self.seeds),
            "sweep": self.sweep,
            "members": [member.name for member in self.members],
            "diverged": [member.name for member in self.diverged],
            "steps": self.step,
            "total_steps": self.total_steps,
            "fresh": self.fresh and {"member": self.chosen, **self.fresh.fields},
            "best_return": self.best_return,
            "started": self.started.astimezone().isoformat(timespec="seconds"),
            "took_seconds": round(self.took.total_seconds(), 3),
            "checkpoint": self.checkpoint or None,
            "origin": self.origin or None,
            "failure": self.failure or None,
            "alarms": self.alarms,
        }


SORTS: dict[str, tuple[Callable[[Summary], Any], bool]] = {  # key, and whether the largest comes first
    "time": (lambda run: run.started, True),
    "return": (lambda run: run.sorted_return, True),
    "name": (lambda run: run.path.name.lower(), False),
    "steps": (lambda run: run.step, True),
}


def selected(runs: Sequence[Summary], search: str = "", sort: str = "time") -> list[Summary]:
    """Returns the runs whose text has all these words, newest first or as SORTS has it."""
    if sort not in SORTS:
        raise UserError(f"runs are sorted by {', '.join(SORTS)}, not by {sort}")
    words, (key, largest_first) = search.lower().split(), SORTS[sort]
    matching = [run for run in runs if all(word in run.searched_text for word in words)]
    return sorted(matching, key=key, reverse=largest_first)


class Stored(NamedTuple):
    """How much a file or a folder holds."""

    files: int
    bytes: int


def read_summaries(root: Path) -> tuple[list[Summary], list[Unreadable]]:
    """Lists the runs in a folder by name, and the folders in it that are not runs."""
    try:
        paths = sorted(root.iterdir())
        if (root / "events.jsonl").is_file():
            raise UserError(f"{root} is a run itself; t3d runs show {root} prints it")
    except OSError as error:
        raise UserError(f"cannot list runs in {root}: {error.strerror}; name their folder with --root") from None
    summaries: list[Summary] = []
    skipped: list[Unreadable] = []
    for path in paths:
        if not os.path.isdir(path):  # noqa: PTH112 (Path.is_dir raises where this says no)
            continue
        try:
            summaries.append(read_summary(path))
        except Unreadable as error:
            skipped.append(error)
    return summaries, skipped


def read_summary(path: Path) -> Summary:
    """Reads a run from its first and its last event, and from the notes in best/."""
    try:
        start, last = read_ends(path)
        session = newest_session(path) or start
        config = to_fields(session["config"])
        seeds = tuple(map(to_count, to_list(config["seeds"])))
        env = to_fields(config["env"])
        env_name = str(env.get("name") or short_id(str(env["id"])))
        status = _status(path, session, last)
        members = members_of(seeds, parse_all(str(word) for word in to_list(config.get("sweep", []))))
        has_ended, began = last["event"] == "end", to_number(start["time"])
        stopped = [stored_name(name) for name in to_list(last.get("diverged", []))] if has_ended else []
        diverged = tuple(member for member in members if member.name in stopped)
        if has_ended:
            seconds = to_number(last["seconds"])
        else:
            seconds = max(0.0, (time.time() if status in ALIVE else to_number(last["time"])) - began)
        fresh = read_fresh(path)
        return Summary(
            path=path,
            config=config,
            env=with_args(env_name, to_fields(env.get("args", {})))[:LONGEST_NAME],
            preset=str(config["preset"])[:LONGEST_NAME],
            seeds=seeds,
            members=members,
            diverged=diverged,
            step=to_count(last["step"]),
            total_steps=to_count(config["total_steps"]),
            best_return=_best_return(path, members, diverged),
            status=status,
            failure=str(last.get("text", ""))[:LONGEST_FAILURE] if status == "failed" else "",
            started=datetime.fromtimestamp(began),
            took=timedelta(seconds=seconds),
            checkpoint=next((folder.name for folder in folders(path / "checkpoints")), ""),
            alarm_kinds=alarm_kinds(journal_lines(path)),
            chosen=(chosen := members[0].name if len(members) == 1 else fresh.chosen),
            fresh=fresh.by_member.get(chosen),
            notes=read_notes(path),
            origin=_origin(to_fields(session.get("origin") or {})),
        )
    except Unreadable:
        raise
    except OSError as error:
        raise Unreadable(path, error.strerror or str(error)) from None
    except UserError as error:
        raise Unreadable(path, f"its events.jsonl is not T3D's ({error})") from None
    except CORRUPT_ERRORS as error:
        raise Unreadable(path, f"its events.jsonl is not T3D's ({type(error).__name__})") from None


def peek(path: Path) -> tuple[str, int]:
    """Reads only the status and the step of a run, which is quick however long its log is."""
    try:
        start, last = read_ends(path)
        return _status(path, newest_session(path) or start, last), to_count(last["step"])
    except CORRUPT_ERRORS as error:
        raise Unreadable(path, f"its events.jsonl is not T3D's ({type(error).__name__})") from None


def changes(config: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Returns settings that differ from the defaults: dotted key -> (default or None, the run's)."""
    defaults = flat(Config())
    named = ((FORMER_NAMES.get(key, key), value) for key, value in dotted(config).items())
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in named}
    values |= {"env.num_envs": 0} if values.get("env.num_envs") == 1 else {}  # as much as the default, 1 before 0.5
    return {key: (defaults.get(key), value) for key, value in values.items() if defaults.get(key) != value}


def contents(path: Path) -> dict[str, Stored]:
    """Lists what a run folder contains, by name, without links; a folder inside it counts with all that it holds."""
    stored: dict[str, Stored] = {}
    for folder, _, names in os.walk(path):
        inside = Path(folder).relative_to(path).parts
        for name in names:
            if (Path(folder) / name).is_symlink():
                continue
            key = f"{inside[0]}/" if inside else name
            before = stored.get(key, Stored(0, 0))
            with suppress(OSError):  # a live run replaces its files
                stored[key] = Stored(before.files + 1, before.bytes + (Path(folder) / name).stat().st_size)
    return dict(sorted(stored.items()))


def _origin(about: dict[str, Any]) -> str:
    if not about:
        return ""
    path, names = Path(str(about["path"])), dict.fromkeys(map(stored_name, to_list(about["members"])))
    of = "/".join(path.parts[-3:]) if path.suffix == POLICY_FILE else f"{path.name} ({', '.join(names)})"
    replay = " with its replay" if about["replay"] is True else ""
    return f"step {to_count(about['step']):,} of {of}{replay}"[:LONGEST_NAME]


def _status(path: Path, start: dict[str, Any], last: dict[str, Any]) -> str:
    if last["event"] == "end":
        return str(last["reason"])[:LONGEST_NAME]
    here = start.get("host") in (None, "", platform.node())
    if not here or not _alive(to_count(start["pid"]), to_number(start["time"])):
        return "died"
    state = next((line for line in reversed(journal_lines(path)) if line.startswith(STATES)), b"")
    return "paused" if state.startswith(prefixes([Paused])) else "running"


def _alive(pid: int, started: float) -> bool:
    """Whether the process that started a run is alive; a later process may have been given the same id."""
    try:
        process = psutil.Process(pid)
        return bool(process.status() != psutil.STATUS_ZOMBIE and process.create_time() <= started + CLOCK_SLACK)
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True


def _best_return(path: Path, members: tuple[Member, ...], diverged: tuple[Member, ...]) -> float | None:
    """Reads the notes beside the best policies, which is cheap; the evaluations of a sweep, or if notes are missing."""
    if swept(members):
        columns = read_columns(path, [Eval], members)
        return max(last_means(members, columns.evaluations(), columns.stopped).values(), default=None)
    living = [member for member in members if member not in diverged]
    known: list[float] = []
    for member in living:
        with suppress(*CORRUPT_ERRORS):
            description = read_description(read(path / "best" / f"{member.name}.json", LARGEST_NOTE))
            known.append(to_number(description["mean_return"]))
    if len(known) < len(living):
        evals = read_columns(path, [Eval], members).evaluations()
        known = [best_of(evals[member]).mean_return for member in living if member in evals]
    mean = statistics.fmean(known) if known else math.nan
    return mean if math.isfinite(mean) else None
