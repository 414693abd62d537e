"""`t3d runs --json` and `t3d runs show RUN --json`: what docs/output.md describes."""

from __future__ import annotations

from contextlib import suppress
from statistics import fmean
from typing import Any

from t3d.app.json_output import member_fields
from t3d.config.sweeps import swept
from t3d.events import ActorEvent, Alarm, Eval, Event, Note, SeedStopped
from t3d.files import Refused
from t3d.store.listing import listed_fields
from t3d.store.log import Chunk, Place, read_log
from t3d.store.members import best_of, evals_by_member, last_means, member_of, stopped_members
from t3d.store.summary import Entry, changes, contents


def entry_fields(entry: Entry) -> dict[str, Any]:
    """Returns one run of the list."""
    return _fields(entry, _log(entry, Eval, SeedStopped).events)


def shown_fields(entry: Entry) -> dict[str, Any]:
    """Returns one run in detail."""
    log = _log(entry, Eval, SeedStopped, Note, ActorEvent, Alarm)
    return {
        **_fields(entry, log.events),
        "settings": {key: {"default": old, "value": new} for key, (old, new) in changes(entry.config).items()},
        "results": _results(entry, log.events),
        "notes": [
            {**_where(event, entry), "kind": event.event, "text": event.text}
            for event in log.events
            if isinstance(event, Note | ActorEvent)
        ],
        "alarms": [
            {**_where(event, entry), "kind": event.kind, "text": event.text, "advice": event.advice}
            for event in log.events
            if isinstance(event, Alarm)
        ],
        "damaged_lines": log.damaged,
        "files": {name: stored.bytes for name, stored in contents(entry.path).items()},
    }


def _log(entry: Entry, *kinds: type[Event]) -> Chunk:
    with suppress(OSError, Refused):  # listed all the same
        return read_log(entry.path, kinds=kinds)
    return Chunk([], Place(), 0, False)


def _fields(entry: Entry, events: list[Event]) -> dict[str, Any]:
    stopped = stopped_members(events, entry.members)
    return {
        "path": str(entry.path),
        **listed_fields(entry),
        "diverged": [member.name for member in entry.members if member in stopped or member in entry.diverged],
        "last_return": _last_return(entry, events),
    }


def _where(event: Event, entry: Entry) -> dict[str, Any]:
    member = member_of(event, entry.members)
    return {"step": event.step, "member": None if member is None else member.name}


def _last_return(entry: Entry, events: list[Event]) -> float | None:
    """Returns the mean over seeds of their last evaluations; of a sweep the highest such mean."""
    evals, stopped = evals_by_member(events, entry.members), stopped_members(events, entry.members)
    if swept(entry.members):
        return max(last_means(entry.members, evals, stopped).values(), default=None)
    living = [column[-1].mean_return for member, column in evals.items() if member not in stopped]
    return fmean(living) if living else None


def _results(entry: Entry, events: list[Event]) -> list[dict[str, Any]]:
    evals, stopped = evals_by_member(events, entry.members), stopped_members(events, entry.members)
    results = []
    for member in entry.members:
        column, stop = evals.get(member, []), stopped.get(member)
        results.append(
            {
                **member_fields(member),
                "diverged": None if stop is None else {"step": stop.step, "text": stop.text},
                "evaluations": len(column),
                "first": _evaluation(column[0]) if column else None,
                "best": _evaluation(best_of(column)) if column else None,
                "last": _evaluation(column[-1]) if column else None,
            }
        )
    return results


def _evaluation(event: Eval) -> dict[str, Any]:
    return {"step": event.step, "updates": event.updates, "mean": event.mean_return, "std": event.std_return}
