"""Everything a run page shows beside its curves, as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from t3d.config import Member, dotted, flat
from t3d.dash.library import Listed
from t3d.dash.videos import videos_of
from t3d.events import (
    ActorEvent,
    Alarm,
    BadValueMet,
    Continued,
    End,
    Eval,
    Note,
    Paused,
    Resumed,
    Saved,
    SaveFailed,
    Start,
)
from t3d.files import read
from t3d.store.columns import Columns
from t3d.store.control import asked_of
from t3d.store.journal import journal_lines, newest_session
from t3d.store.log import fields_of
from t3d.store.members import member_of
from t3d.store.metrics import MEAN_RETURN, STD_RETURN, Metric
from t3d.store.summary import ALIVE, changes, contents

MOST_TOLD = 200  # news, the newest
LARGEST_SOURCE = 2**20  # bytes of config.toml
LONGEST_TEXT = 2_000  # characters of one piece of news
OF_SESSION = ("pid", "host", "versions", "parameters", "replay_bytes", "engine_reason")
PLACED = ("device", "engine", "threads")


def details(listed: Listed, index: Columns, *, complete: bool) -> dict[str, Any]:
    """Returns what a run page shows."""
    path, entry = listed.entry.path, listed.entry
    session, chosen = newest_session(path) or {}, flat(index.cfg)
    return {
        **listed.fields,
        "session": {
            **{name: session.get(name) for name in OF_SESSION},
            **{name: entry.config.get(name) for name in PLACED},
            "started": session.get("time"),
        },
        "members": [_member(index, member) for member in index.members],
        "settings": {
            key: {"default": old, "value": new}
            for key, (old, new) in changes(entry.config).items()
            if key not in chosen or chosen[key] != old  # else the machine chose it
        },
        "alarms": [_alarm(event, index.members) for event in index.alarms],
        "news": news(path, index),
        "videos": videos_of(path),
        "metrics": _names(index.metrics()),
        "control": asked_of(path, session) if entry.status in ALIVE else None,
        "files": {name: stored.bytes for name, stored in contents(path).items()},
        "damaged_lines": index.damaged,
        "size": index.size,
        "complete": complete,
    }


def news(path: Path, index: Columns) -> list[dict[str, Any]]:
    """Returns what happened to a run, oldest first: from its journal, and what its events say in words."""
    told = [event for kind in (Note, ActorEvent, BadValueMet) for event in index.messages[kind]]
    found = [_told(vars(event) | {"event": event.event}) for event in told]
    found += [_told(fields) for fields in map(fields_of, journal_lines(path)[-MOST_TOLD:]) if fields]
    known = [one for one in found if isinstance(one["time"], int | float) and isinstance(one["step"], int)]
    return sorted(known, key=lambda one: one["time"])[-MOST_TOLD:]


def config_of(listed: Listed, other: Listed | None) -> dict[str, Any]:
    """Returns the settings of a run, as it was started and as config.toml says them, and what another has instead."""
    entry = listed.entry
    try:
        source = read(entry.path / "config.toml", LARGEST_SOURCE).decode()
    except (OSError, ValueError):
        source = ""
    differing = None if other is None else difference({"this": listed, "other": other})
    against = other and other.entry.path.name
    return {"config": entry.config, "source": source, "diff": differing, "against": against}


def difference(runs: dict[str, Listed]) -> dict[str, dict[str, Any]]:
    """Returns the settings in which runs differ, by setting and the name given to each run."""
    settings = {name: dotted(run.entry.config) for name, run in runs.items()}
    keys = dict.fromkeys(key for one in settings.values() for key in one)
    table = {key: {name: one.get(key) for name, one in settings.items()} for key in keys}
    return {
        key: row
        for key, row in table.items()
        if key not in ("run.name", "run.root") and len({str(value) for value in row.values()}) > 1
    }


def _member(index: Columns, member: Member) -> dict[str, Any]:
    found, stop = evaluations(index, member), index.stopped.get(member)
    return {
        "name": member.name,
        "seed": member.seed,
        "values": dict(member.values),
        "title": member.title,
        "diverged": None if stop is None else {"step": stop.step, "text": stop.text},
        "evaluations": len(found),
        "first": found[0] if found else None,
        "best": max(found, key=lambda one: one["mean"]) if found else None,
        "last": found[-1] if found else None,
    }


def evaluations(index: Columns, member: Member) -> list[dict[str, Any]]:
    """Returns what is listed of a member's evaluations, in order."""
    rows = index.tables[Eval].reports(index.members.index(member), MEAN_RETURN, STD_RETURN, Metric(Eval, "updates"))
    return [
        {"step": int(step), "updates": int(updates), "mean": mean, "std": std}
        for step, _, mean, std, updates in np.nan_to_num(rows).T.tolist()
    ]


def _alarm(event: Alarm, members: Sequence[Member]) -> dict[str, Any]:
    whom = member_of(event, members)
    about = {"kind": event.kind, "text": event.text, "advice": event.advice}
    return {"step": event.step, "time": event.time, "member": whom and whom.name, **about}


def _told(fields: dict[str, Any]) -> dict[str, Any]:
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
    elif kind == Paused.event:
        text = "paused"
    elif kind == Continued.event:
        text = "continued"
    elif kind == End.event:
        text = f"{fields.get('reason')}{f': {text}' if text else ''}"
    return {"event": kind, "step": fields.get("step"), "time": fields.get("time"), "text": text[:LONGEST_TEXT]}


def _names(metrics: Iterable[Metric]) -> dict[str, list[str]]:
    return {kind.event: [one.name for one in of_kind] for kind, of_kind in groupby(metrics, lambda one: one.kind)}
