"""What the server answers: one function for each request that reads."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import groupby
from typing import Any

from starlette.datastructures import QueryParams
from starlette.requests import Request

from t3d.config import Member, flat
from t3d.dash.library import Library
from t3d.errors import UserError
from t3d.files import CORRUPT_ERRORS, read
from t3d.insight.curves import DrawnRun, Window, find, lines
from t3d.insight.fifteen_steps import LETTERS, Text, fifteen_texts
from t3d.insight.groups import pooled
from t3d.insight.td7_steps import LETTERS as TD7_LETTERS
from t3d.insight.td7_steps import STEPS
from t3d.policy.files import MOST_JSON_BYTES, read_description
from t3d.store import details
from t3d.store.columns import Columns
from t3d.store.control import request_of
from t3d.store.details import videos_of
from t3d.store.log import newest_session
from t3d.store.reader import Run
from t3d.store.summary import ALIVE, SORTS, Summary, contents, selected

MOST_METRICS, MOST_RUNS = 40, 30  # of one request; chosen
FEWEST_POINTS, MOST_POINTS = 20, 5_000


def run_list(library: Library, request: Request) -> dict[str, Any]:
    """Lists the runs that a search finds."""
    query, (runs, skipped) = request.query_params, library.runs()
    matching = [
        run
        for run in selected(runs, query.get("search", ""), _choice(query, "sort", [*SORTS]))
        if query.get("status", "") in ("", run.status) and query.get("tag", "") in ("", *run.notes.tags)
    ]
    curves = library.curves(matching)
    return {
        "runs": [
            listed_fields(run) | {"alarm_kinds": run.alarm_kinds, "curve": curve}
            for run, curve in zip(matching, curves, strict=True)
        ],
        "complete": None not in curves,
        "of": len(runs),
        "tags": sorted({tag for run in runs for tag in run.notes.tags}),
        "skipped": [{"name": folder.path.name, "reason": folder.reason} for folder in skipped],
    }


def state(library: Library, query: QueryParams) -> tuple[list[dict[str, Any]], str]:
    """Says in what state runs are, or all, and a tag that changes with anything that pages show of them."""
    names = [*dict.fromkeys(query.getlist("run"))]
    if len(names) > MOST_RUNS:
        raise UserError(f"at most {MOST_RUNS} runs can be watched at once")
    runs, stamps = [], []
    for name, stamp, run in library.look(names):
        if isinstance(run, Summary):
            status, step = run.status, run.step
            runs.append({"name": name, "size": stamp[0][1], "status": status, "step": step})
            stamps.append((name, stamp, status))
        else:
            stamps.append((name, stamp, run.reason))
    return runs, f'"{hashlib.sha256(repr(stamps).encode()).hexdigest()}"'


def run_page(library: Library, request: Request) -> dict[str, Any]:
    """Returns everything about a run but its curves."""
    name = request.path_params["name"]
    columns, complete = library.columns(name)
    run = library.run(name)
    with columns.lock:
        metrics = groupby(columns.metrics(), lambda metric: metric.kind)
        return {
            **listed_fields(run),
            "session": details.session_of(run),
            "members": [
                {
                    "name": member.name,
                    "seed": member.seed,
                    "values": dict(member.values),
                    "title": member.title,
                    **fields,
                }
                for member, fields in ((result.member, result.fields) for result in details.results_of(columns))
            ],
            "settings": details.changed_settings(run, columns.cfg),
            "alarms": [details.alarm_fields(alarm, columns.members) | {"time": alarm.time} for alarm in columns.alarms],
            "news": details.news_of(run.path, columns),
            "videos": videos_of(run.path),
            "metrics": {kind.event: [metric.full_name for metric in of_kind] for kind, of_kind in metrics},
            "control": request_of(run.path, newest_session(run.path) or {})._asdict() if run.status in ALIVE else None,
            "files": {name: stored.bytes for name, stored in contents(run.path).items()},
            "damaged_lines": columns.damaged,
            "size": columns.size,
            "complete": complete,
        }


def run_config(library: Library, request: Request) -> dict[str, Any]:
    """Returns the settings of a run, as it was started and as config.toml says them, and what another has instead."""
    run, against = library.run(request.path_params["name"]), request.query_params.get("against")
    return {
        "config": run.config,
        "source": details.config_source(run.path),
        "diff": None if against is None else details.difference({"this": run, "other": library.run(against)}),
        "against": against,
    }


def run_steps(library: Library, request: Request) -> dict[str, Any]:
    """Returns the steps of one member, the first unless named, with the numbers of its newest report."""
    columns, _ = library.columns(request.path_params["name"])
    with columns.lock:
        run, query = Run(columns.path, columns.cfg, {member: [] for member in columns.members}), request.query_params
        member = run.member(query["member"]) if "member" in query else columns.members[0]
        event, cfg = columns.newest_update(member), columns.cfg.of(member)
    values = {} if event is None else {str(name): value for name, value in event.values.items()}
    settings, own = flat(cfg), cfg.settings_of()
    texts: Sequence[Text] = STEPS if cfg.algo == "td7" else []
    if cfg.algo == "td3":
        texts = fifteen_texts(cfg, own, images=_observes_images(columns, member))
    return {
        "member": member.name,
        "updates": event and event.updates,
        "step": event and event.step,
        "time": event and event.time,
        "letters": TD7_LETTERS if cfg.algo == "td7" else LETTERS,
        "values": values,
        "steps": [
            {
                "number": number,
                **text._asdict(),
                "values": {name: values[name] for name in text.values if name in values},
                "settings": {name: settings[name] for name in text.settings},
            }
            for number, text in enumerate(texts, 1)
        ],
    }


def run_series(library: Library, request: Request) -> dict[str, Any]:
    """Returns curves of one run."""
    name = request.path_params["name"]
    curves, _, size = _curves(library, [name], request.query_params, pool=False)
    return {"run": name, "size": size, **curves, "missing": curves["missing"][name]}


def comparison(library: Library, request: Request) -> dict[str, Any]:
    """Returns curves of several runs; those that differ only in their seeds are one line."""
    query = request.query_params
    names = [*dict.fromkeys(query.getlist("run"))]
    if not 1 <= len(names) <= MOST_RUNS:
        raise UserError(f"name 1 to {MOST_RUNS} runs to compare")
    curves, alarms, _ = _curves(library, names, query, pool=_choice(query, "pool", ["yes", "no"]) == "yes")
    settings = details.difference({name: library.run(name) for name in names})
    return {**curves, "settings": settings, "alarms": alarms}


def _curves(
    library: Library, names: Sequence[str], query: QueryParams, *, pool: bool
) -> tuple[dict[str, Any], dict[str, Counter[str]], int]:
    """Returns the curves of metrics of runs, their alarms by kind, and how much of the first one's log that is."""
    metrics = [*dict.fromkeys(query.getlist("metric"))]
    if not 1 <= len(metrics) <= MOST_METRICS:
        raise UserError(f"name 1 to {MOST_METRICS} metrics, e.g. metric=return")
    points = int(_number(query, "points", Window().points, FEWEST_POINTS, MOST_POINTS))
    window = Window(points, _number(query, "from", -1.0, -1.0, 1e18), _number(query, "to", 1e18, -1.0, 1e18))
    started = {name: library.run(name).started.timestamp() for name in names}
    library.keep(names)
    read = {name: library.columns(name) for name in names}
    runs = [DrawnRun(name, columns, started[name]) for name, (columns, _) in read.items()]
    pools = pooled(runs) if pool else [[run] for run in runs]
    with ExitStack() as locks:
        for run in sorted(runs, key=lambda run: run.name):  # the same order everywhere, so that nobody waits for ever
            locks.enter_context(run.data.lock)
        known = dict.fromkeys(metric for name in metrics for metric in find(runs, name))
        series = [
            {
                "metric": metric.full_name,
                "event": metric.kind.event,
                "lines": [line for pool in pools for line in lines(pool, metric, window)],
            }
            for metric in known
        ]
        missing = {run.name: [name for name in metrics if not find([run], name)] for run in runs}
        alarms = {run.name: Counter(alarm.kind for alarm in run.data.alarms) for run in runs}
        complete = all(is_complete for _, is_complete in read.values())
        return {"series": series, "missing": missing, "complete": complete}, alarms, runs[0].data.size


def listed_fields(run: Summary) -> dict[str, Any]:
    """Returns what the list shows of a run."""
    return run.fields | {"tags": list(run.notes.tags), "note": run.notes.note}


def _number(query: QueryParams, name: str, default: float, low: float, high: float) -> float:
    try:
        value = float(query.get(name, default))
    except ValueError:
        value = high + 1
    if not low <= value <= high:
        raise UserError(f"{name} is a number from {low:g} to {high:g}")
    return value


def _choice(query: QueryParams, name: str, known: Sequence[str]) -> str:
    chosen = query.get(name, known[0])
    if chosen not in known:
        raise UserError(f"{name} is one of {', '.join(known)}")
    return chosen


def _observes_images(columns: Columns, member: Member) -> bool:
    """Whether the policy's file says so; settings say it only of images that T3D renders itself."""
    try:
        about = read_description(read(columns.path / "last" / f"{member.name}.json", MOST_JSON_BYTES))
        return bool(about.get("images"))
    except CORRUPT_ERRORS:
        return columns.cfg.env.pixels > 0
