"""What the server answers: one function for each request that reads, from a library and the words of an address."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import chain
from typing import Any

from starlette.datastructures import QueryParams

from t3d.config import Config, Member, TD3Config
from t3d.dash.details import config_of, details, difference
from t3d.dash.library import SORTS, Library, Listed
from t3d.errors import UserError
from t3d.files import CORRUPT_ERRORS, read
from t3d.insight.curves import DrawnRun, Window, find, lines
from t3d.insight.fifteen_steps import LETTERS, fifteen_texts
from t3d.insight.groups import pooled
from t3d.policy.files import MOST_JSON_BYTES, read_description
from t3d.store.columns import Columns
from t3d.store.metrics import Metric
from t3d.store.reader import Run

MOST_METRICS, MOST_RUNS = 40, 30  # of one request; chosen
FEWEST_POINTS, MOST_POINTS = 20, 5_000
STEP_OF = {  # which step makes each part of a trace; types.UpdateTrace says the same
    "pi2": 5,
    **{"eps": 6, "a2": 6},
    "q2": 7,
    "v2": 8,
    "y": 9,
    "q": 10,
    **{"td": 11, "loss": 11, "weight": 11},
    **{"pi": 13, "q_pi": 13, "actor_loss": 13},
}


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


def state(library: Library, query: QueryParams) -> tuple[list[dict[str, Any]], str]:
    """Says in what state runs are, or all, and a tag that changes with anything that pages show of them."""
    names = [*dict.fromkeys(query.getlist("run"))]
    if len(names) > MOST_RUNS:
        raise UserError(f"at most {MOST_RUNS} runs can be watched at once")
    runs, seen = [], []
    for name, stamp, run in library.look(names):
        if isinstance(run, Listed):
            status, step = run.entry.status, run.entry.step
            runs.append({"name": name, "size": stamp[0][1], "status": status, "step": step})
            seen.append((name, stamp, status))
        else:
            seen.append((name, stamp, run.reason))
    return runs, f'"{hashlib.sha256(repr(seen).encode()).hexdigest()}"'


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
    library.use(names)
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


def steps_of(index: Columns, asked: str | None) -> dict[str, Any]:
    """Returns the steps of a member, the first unless one is asked for by its name or seed."""
    member = index.members[0] if asked is None else _member(index, asked)
    event = index.newest_update(member)
    values = {} if event is None else {str(name): value for name, value in event.values.items()}
    about = {
        "member": member.name,
        "updates": event and event.updates,
        "step": event and event.step,
        "time": event and event.time,
        "letters": LETTERS,
        "values": values,
    }
    if index.cfg.rule != "td3":
        return {**about, "steps": []}
    td3 = index.cfg.td3_of(member)
    texts = fifteen_texts(index.cfg, td3, images=_observes_images(index, member))
    steps = [
        {
            "number": number,
            **text._asdict(),
            "values": {name: value for name, value in values.items() if STEP_OF.get(name) == number},
            "settings": settings_of_step(index.cfg, td3).get(number, {}),
        }
        for number, text in enumerate(texts, 1)
    ]
    return {**about, "steps": steps}


def settings_of_step(cfg: Config, td3: TD3Config) -> dict[int, dict[str, Any]]:
    """Returns the settings that the formula of each step is about, by their names."""
    return {
        1: {"replay.capacity": cfg.replay.capacity},
        2: {"td3.actor_hidden": list(td3.actor_hidden)},
        3: {"td3.critics": td3.critics, "td3.critic_hidden": list(td3.critic_hidden)},
        4: {"td3.batch_size": td3.batch_size},
        6: {"td3.target_noise": td3.target_noise, "td3.target_noise_clip": td3.target_noise_clip},
        8: {"td3.aggregate": td3.aggregate},
        9: {"td3.gamma": td3.gamma},
        11: {"td3.critic_loss": td3.critic_loss},
        12: {"td3.critic_lr": td3.critic_lr},
        13: {"td3.policy_delay": td3.policy_delay, "td3.actor_lr": td3.actor_lr},
        14: {"td3.policy_delay": td3.policy_delay, "td3.tau": td3.tau},
        15: {"td3.policy_delay": td3.policy_delay, "td3.tau": td3.tau},
    }


def _member(index: Columns, asked: str) -> Member:
    return Run(index.path, index.cfg, {member: [] for member in index.members}).member(asked)


def _observes_images(index: Columns, member: Member) -> bool:
    """Whether the policy's file says so; settings say it only of images that T3D renders itself."""
    try:
        return bool(read_description(read(index.path / "last" / f"{member.name}.json", MOST_JSON_BYTES)).get("images"))
    except CORRUPT_ERRORS:
        return index.cfg.env.pixels > 0
