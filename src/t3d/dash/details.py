"""Everything a run page shows beside its curves, as plain values; docs/dashboard.md describes each."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from t3d.store.columns import Columns
from t3d.store.control import asked_of
from t3d.store.details import (
    Result,
    alarm_fields,
    changed_settings,
    config_source,
    difference,
    news_of,
    results_of,
    session_of,
)
from t3d.store.journal import newest_session
from t3d.store.summary import ALIVE, Summary, contents
from t3d.store.videos import videos_of


def listed_fields(run: Summary) -> dict[str, Any]:
    """Returns what the list shows of a run."""
    return run.fields | {"tags": list(run.notes.tags), "note": run.notes.note}


def details(run: Summary, columns: Columns, *, complete: bool) -> dict[str, Any]:
    """Returns what a run page shows."""
    return {
        **listed_fields(run),
        "session": session_of(run),
        "members": [_member(result) for result in results_of(columns)],
        "settings": changed_settings(run, columns.cfg),
        "alarms": [alarm_fields(alarm, columns.members) | {"time": alarm.time} for alarm in columns.alarms],
        "news": news_of(run.path, columns),
        "videos": videos_of(run.path),
        "metrics": {
            kind.event: [metric.name for metric in of_kind]
            for kind, of_kind in groupby(columns.metrics(), lambda metric: metric.kind)
        },
        "control": asked_of(run.path, newest_session(run.path) or {}) if run.status in ALIVE else None,
        "files": {name: stored.bytes for name, stored in contents(run.path).items()},
        "damaged_lines": columns.damaged,
        "size": columns.size,
        "complete": complete,
    }


def config_of(run: Summary, other: Summary | None) -> dict[str, Any]:
    """Returns the settings of a run, as it was started and as config.toml says them, and what another has instead."""
    return {
        "config": run.config,
        "source": config_source(run.path),
        "diff": None if other is None else difference({"this": run, "other": other}),
        "against": other and other.path.name,
    }


def _member(result: Result) -> dict[str, Any]:
    member = result.member
    about = {"name": member.name, "seed": member.seed, "values": dict(member.values), "title": member.title}
    return about | result.fields
