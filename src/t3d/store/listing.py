"""A run of a list as plain values, for JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from t3d.store.fresh import Fresh
from t3d.store.summary import Entry

SORTS: dict[str, tuple[Callable[[Entry], Any], bool]] = {  # key, and whether the largest comes first
    "time": (lambda entry: entry.started, True),
    "return": (lambda entry: entry.sorted_return, True),
    "name": (lambda entry: entry.path.name.lower(), False),
    "steps": (lambda entry: entry.step, True),
}


def listed_fields(entry: Entry) -> dict[str, Any]:
    """Returns what a list says of a run; docs/output.md describes each field."""
    return {
        "name": entry.path.resolve().name,
        "status": entry.status,
        "env": entry.env,
        "preset": entry.preset,
        "seeds": list(entry.seeds),
        "sweep": [str(word) for word in entry.config.get("sweep", [])],
        "members": [member.name for member in entry.members],
        "diverged": [member.name for member in entry.diverged],
        "steps": entry.step,
        "total_steps": entry.total_steps,
        "fresh": None if entry.fresh is None else {"member": entry.chosen, **_fresh_fields(entry.fresh)},
        "best_return": entry.best_return,
        "started": entry.started.astimezone().isoformat(timespec="seconds"),
        "took_seconds": round(entry.took.total_seconds(), 3),
        "checkpoint": entry.checkpoint or None,
        "failure": entry.failure or None,
        "alarms": entry.alarms,
    }


def _fresh_fields(fresh: Fresh) -> dict[str, Any]:
    return {name: value for name, value in vars(fresh).items() if name not in ("policy", "seen")}


def searched_text(entry: Entry) -> str:
    """Returns what a search looks through, in lower case."""
    sweep = [str(word) for word in entry.config.get("sweep", [])]
    return "\n".join([entry.path.name, entry.env, entry.preset, entry.status, *sweep]).lower()
