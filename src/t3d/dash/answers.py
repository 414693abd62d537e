"""What the server answers: one function for each request that reads, from a library and the words of an address."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import chain
from typing import Any

from starlette.datastructures import QueryParams

from t3d.dash.details import config_of, details, difference
from t3d.dash.library import SORTS, Library, Listed
from t3d.dash.steps import steps_of
from t3d.errors import UserError
from t3d.insight.curves import DrawnRun, Window, find, lines
from t3d.insight.groups import pooled
from t3d.store.metrics import Metric

MOST_METRICS, MOST_RUNS = 40, 30  # of one request; chosen
FEWEST_POINTS, MOST_POINTS = 20, 5_000


def run_list(library: Library, asked: QueryParams) -> dict[str, Any]:
    """Lists the runs that a search finds."""
    found, skipped = library.runs()
    words = asked.get("search", "").lower().split()
    chosen = [
        one
        for one in found
        if all(word in one.text for word in words)
        and asked.get("status", "") in ("", one.entry.status)
        and asked.get("tag", "") in ("", *one.notes.tags)
    ]
    key, largest_first = SORTS[_choice(asked, "sort", [*SORTS])]
    listed = sorted(chosen, key=key, reverse=largest_first)
    glances = library.glances.of(one.entry for one in listed)
    return {
        "runs": [
            one.fields
            | {"alarms": None if kinds is None else sum(kinds.values()), "alarm_kinds": kinds, "curve": curve}
            for one, (kinds, curve) in zip(listed, glances, strict=True)
        ],
        "complete": not any(None in glance for glance in glances),
        "of": len(found),
        "tags": sorted({tag for one in found for tag in one.notes.tags}),
        "skipped": [{"name": one.path.name, "reason": one.reason} for one in skipped],
    }


def run_page(library: Library, name: str) -> dict[str, Any]:
    """Returns everything about a run but its curves."""
    index, complete = library.index(name)
    with index.lock:
        return details(library.run(name), index, complete=complete)


def run_config(library: Library, name: str, asked: QueryParams) -> dict[str, Any]:
    """Returns the settings of a run."""
    against = asked.get("against")
    return config_of(library.run(name), None if against is None else library.run(against))


def run_steps(library: Library, name: str, asked: QueryParams) -> dict[str, Any]:
    """Returns the fifteen steps of a run."""
    index, _ = library.index(name)
    with index.lock:
        return steps_of(index, asked.get("member"))


def run_series(library: Library, name: str, asked: QueryParams) -> dict[str, Any]:
    """Returns curves of one run."""
    metrics, window = _metrics(asked), _window(asked)
    drawn, complete = _drawn(library, library.run(name))
    with drawn.data.lock:
        found = {name: find([drawn], name) for name in metrics}
        series = [_series([[drawn]], metric, window) for metric in dict.fromkeys(chain.from_iterable(found.values()))]
        size = drawn.data.size
    missing = [name for name, known in found.items() if not known]
    return {"run": name, "size": size, "complete": complete, "series": series, "missing": missing}


def comparison(library: Library, asked: QueryParams) -> dict[str, Any]:
    """Returns curves of several runs; those that differ only in their seeds are one line."""
    names = [*dict.fromkeys(asked.getlist("run"))]
    if not 1 <= len(names) <= MOST_RUNS:
        raise UserError(f"name 1 to {MOST_RUNS} runs to compare")
    metrics, window = _metrics(asked), _window(asked)
    listed = {name: library.run(name) for name in names}
    drawn, complete = {}, True
    with library.using(names):
        for name, run in listed.items():
            drawn[name], whole = _drawn(library, run)
            complete = complete and whole
    is_pooled = _choice(asked, "pool", ["yes", "no"]) == "yes"
    pools = pooled([*drawn.values()]) if is_pooled else [[run] for run in drawn.values()]
    with ExitStack() as held:
        for name in sorted(drawn):  # in the same order everywhere, so that nobody waits for each other
            held.enter_context(drawn[name].data.lock)
        found = dict.fromkeys(metric for name in metrics for metric in find(drawn.values(), name))
        missing = {name: [one for one in metrics if not find([run], one)] for name, run in drawn.items()}
        series = [_series(pools, metric, window) for metric in found]
        alarms = {name: Counter(one.kind for one in run.data.alarms) for name, run in drawn.items()}
    return {
        "series": series,
        "missing": missing,
        "settings": difference(listed),
        "alarms": alarms,
        "complete": complete,
    }


def _drawn(library: Library, run: Listed) -> tuple[DrawnRun, bool]:
    name = run.entry.path.name
    index, complete = library.index(name)
    return DrawnRun(name, index, run.entry.started.timestamp()), complete


def _series(pools: Sequence[Sequence[DrawnRun]], metric: Metric, window: Window) -> dict[str, Any]:
    """Returns the lines of a metric as plain values."""
    drawn = [line for pool in pools for line in lines(pool, metric, window)]
    return {"metric": metric.name, "event": metric.kind.event, "lines": drawn}


def _metrics(asked: QueryParams) -> list[str]:
    metrics = [*dict.fromkeys(asked.getlist("metric"))]
    if not 1 <= len(metrics) <= MOST_METRICS:
        raise UserError(f"name 1 to {MOST_METRICS} metrics, e.g. metric=return")
    return metrics


def _window(asked: QueryParams) -> Window:
    points = int(_number(asked, "points", Window().points, FEWEST_POINTS, MOST_POINTS))
    return Window(points, _number(asked, "from", -1.0, -1.0, 1e18), _number(asked, "to", 1e18, -1.0, 1e18))


def _number(asked: QueryParams, name: str, default: float, low: float, high: float) -> float:
    try:
        value = float(asked.get(name, default))
    except ValueError:
        value = high + 1
    if not low <= value <= high:
        raise UserError(f"{name} is a number from {low:g} to {high:g}")
    return value


def _choice(asked: QueryParams, name: str, known: Sequence[str]) -> str:
    chosen = asked.get(name, known[0])
    if chosen not in known:
        raise UserError(f"{name} is one of {', '.join(known)}")
    return chosen
