"""What logs say of a run beside its curves: results of each member, alarms, news, settings, machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from t3d.config import Config, Member, dotted, flat
from t3d.config.sweeps import swept
from t3d.events import (
    ActorEvent,
    Alarm,
    BadValueFound,
    Continued,
    End,
    Event,
    Note,
    Paused,
    Resumed,
    Saved,
    SaveFailed,
    SeedStopped,
    Start,
)
from t3d.files import read
from t3d.store.columns import Columns
from t3d.store.journal import journal_lines, newest_session
from t3d.store.log import fields_of
from t3d.store.members import Evaluated, best_of, last_means, member_of
from t3d.store.summary import Summary, changes

MOST_NEWS = 200  # the newest
LARGEST_SOURCE = 2**20  # bytes of config.toml
LONGEST_TEXT = 2_000  # characters of one piece of news
OF_SESSION = ("pid", "host", "versions", "parameters", "replay_bytes", "engine_reason")
PLACED = ("device", "engine", "threads")


class Result(NamedTuple):
    """What became of one member."""

    member: Member
    stopped: SeedStopped | None  # when and how it diverged
    evals: Sequence[Evaluated]  # in order

    @property
    def fields(self) -> dict[str, Any]:
        """The result as plain values."""
        evals, stop = self.evals, self.stopped
        return {
            "diverged": None if stop is None else {"step": stop.step, "text": stop.text},
            "evaluations": len(evals),
            "first": _evaluation(evals[0]) if evals else None,
            "best": _evaluation(best_of(evals)) if evals else None,
            "last": _evaluation(evals[-1]) if evals else None,
        }


def results_of(columns: Columns) -> list[Result]:
    """Returns what became of each member."""
    evals = columns.evaluations()
    return [Result(member, columns.stopped.get(member), evals.get(member, [])) for member in columns.members]


def last_return(results: Sequence[Result]) -> float | None:
    """Returns the mean over seeds of their last evaluations; of a sweep the highest such mean."""
    evals = {result.member: result.evals for result in results if result.evals}
    stopped = {result.member for result in results if result.stopped}
    members = [result.member for result in results]
    if swept(members):
        return max(last_means(members, evals, stopped).values(), default=None)
    living = [column[-1].mean_return for member, column in evals.items() if member not in stopped]
    return fmean(living) if living else None


def messages_of(columns: Columns, *kinds: type[Event]) -> list[Event]:
    """Returns what events of some kinds say in words, in the order in which they happened."""
    events = [event for kind in kinds for event in columns.messages[kind]]
    return sorted(events, key=lambda event: event.time if isinstance(event.time, int | float) else 0.0)


def alarm_fields(alarm: Alarm, members: Sequence[Member]) -> dict[str, Any]:
    """Returns an alarm as plain values."""
    return {**about_fields(alarm, members), "kind": alarm.kind, "text": alarm.text, "advice": alarm.advice}


def about_fields(event: Event, members: Sequence[Member]) -> dict[str, Any]:
    """Returns when an event happened, and to whom."""
    member = member_of(event, members)
    return {"step": event.step, "member": member and member.name}


def changed_settings(run: Summary, cfg: Config) -> dict[str, dict[str, Any]]:
    """Returns what differs from the defaults, but for what the machine chose: there config.toml has the default."""
    stored = flat(cfg)
    return {
        key: {"default": default, "value": value}
        for key, (default, value) in changes(run.config).items()
        if key not in stored or stored[key] != default
    }


def session_of(run: Summary) -> dict[str, Any]:
    """Returns what is known of the newest process of a run, and of its machine."""
    session = newest_session(run.path) or {}
    placed = {name: run.config.get(name) for name in PLACED}
    return {**{name: session.get(name) for name in OF_SESSION}, **placed, "started": session.get("time")}


def news_of(path: Path, columns: Columns) -> list[dict[str, Any]]:
    """Returns what happened to a run, oldest first: from its journal, and what its events say in words."""
    messages = messages_of(columns, Note, ActorEvent, BadValueFound)
    news = [_news(vars(event) | {"event": event.event}) for event in messages]
    news += [_news(fields) for fields in map(fields_of, journal_lines(path)[-MOST_NEWS:]) if fields]
    known = [item for item in news if isinstance(item["time"], int | float) and isinstance(item["step"], int)]
    return sorted(known, key=lambda item: item["time"])[-MOST_NEWS:]


def config_source(path: Path) -> str:
    """Returns config.toml as it is; nothing if it cannot be read."""
    try:
        return read(path / "config.toml", LARGEST_SOURCE).decode()
    except (OSError, ValueError):
        return ""


def difference(runs: Mapping[str, Summary]) -> dict[str, dict[str, Any]]:
    """Returns the settings in which runs differ, by setting and the name given to each run."""
    settings = {name: dotted(run.config) for name, run in runs.items()}
    keys = dict.fromkeys(key for of_run in settings.values() for key in of_run)
    table = {key: {name: of_run.get(key) for name, of_run in settings.items()} for key in keys}
    return {
        key: row
        for key, row in table.items()
        if key not in ("run.name", "run.root") and len({str(value) for value in row.values()}) > 1
    }


def _evaluation(evaluation: Evaluated) -> dict[str, Any]:
    about = {"step": evaluation.step, "updates": evaluation.updates}
    return {**about, "mean": evaluation.mean_return, "std": evaluation.std_return}


def _news(fields: dict[str, Any]) -> dict[str, Any]:
    """Says in words what happened; fields are those of an event, as a file says them."""
    kind, text = str(fields["event"])[:40], str(fields.get("text", ""))
    if kind == Start.event:
        text = f"started on {fields.get('host') or 'an unknown machine'} as process {fields.get('pid')}"
    elif kind == Resumed.event:
        text = f"resumed from {fields.get('checkpoint') or 'the start'} on {fields.get('host')}"
    elif kind == Saved.event:
        text = f"checkpoint {fields.get('checkpoint')} ({fields.get('reason')})"
    elif kind == SaveFailed.event:
        text = f"could not be written: {text}"
    elif kind in (Paused.event, Continued.event):
        text = kind
    elif kind == End.event:
        text = f"{fields.get('reason')}{f': {text}' if text else ''}"
    return {"event": kind, "step": fields.get("step"), "time": fields.get("time"), "text": text[:LONGEST_TEXT]}
