"""Reports: one HTML file about runs, with verdict, curves, comparison, configuration and the card of the policy."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from t3d.config import plain
from t3d.config.sweeps import swept
from t3d.files import readable
from t3d.insight.best_member import Choice
from t3d.insight.comparison import Comparison, score_table
from t3d.insight.curves import DrawnRun
from t3d.insight.html import Html, document, element, folded, joined, listed, section, table
from t3d.insight.ranges import range_rows
from t3d.insight.report_charts import charts
from t3d.insight.report_facts import MOST_VIDEO_BYTES, Best, Facts, Video, card, fresh_mean, gather, verdict
from t3d.insight.wording import IN_HEADING, members_text, metric_texts, number_text, size_text, source_of
from t3d.store.best import Fresh
from t3d.store.details import changed_settings, config_source, difference, session_of
from t3d.store.summary import Summary
from t3d.version import __version__

MOST_ROWS = 30  # of ranges that are shown at once; more are folded away


def report(paths: Sequence[Path], comparison: Comparison | None, refused: str) -> str:
    """Returns the page about some runs; refused says why they are not compared."""
    runs, video_bytes = list[Facts](), MOST_VIDEO_BYTES
    names = [readable(path.resolve().name) for path in paths]
    for path, name in zip(paths, names, strict=True):
        title = name if names.count(name) == 1 else readable(str(path))
        runs.append(gather(path, title, video_bytes))
        video = runs[-1].video
        video_bytes -= len(video.content) if video and video.content else 0
    written = f"Written by T3D {__version__} on {datetime.now().astimezone():%Y-%m-%d at %H:%M %Z}."
    complete = " This file is complete: it runs no script and loads nothing from anywhere."
    footer = element("footer", None, written + complete)
    compared = None if comparison is None else _comparison(comparison, runs)
    if len(runs) == 1:
        return document(f"{runs[0].name}: report", _run(runs[0], 0, compared, _curves(runs)), footer)
    title = f"Report of {len(runs)} runs"
    links = (element("a", {"href": f"#run-{number}"}, facts.name) for number, facts in enumerate(runs))
    same_task = len({facts.run.cfg.env.title for facts in runs}) == 1
    return document(
        title,
        element("h1", None, title),
        element("nav", None, links),
        compared,
        element("p", {"class": "bad"}, f"These runs are not compared: {refused}.") if refused else None,
        _curves(runs) if same_task else None,
        (_run(facts, number, None, None if same_task else _curves([facts])) for number, facts in enumerate(runs)),
        footer,
    )


def _run(facts: Facts, number: int, comparison: Html | None, curves: Html | None) -> Html:
    """What is said of one run; comparison: of the values of a sweep."""
    summary, best = facts.summary, facts.best
    env, seeds = summary.env or "defined in Python", members_text(summary, named=True)
    about = f"{facts.run.cfg.rule_title} on {env}, {seeds}, preset {summary.preset}"
    badge = element("span", {"class": f"badge {summary.status}"}, summary.status)
    tags, note = summary.notes
    noted = [*([f"Tags: {', '.join(tags)}."] if tags else []), *note.splitlines()]
    alarms = [element("li", {"class": "bad"}, line[0].upper() + line[1:]) for line in facts.alarms]
    alarms += [element("li", None, text) for text in facts.notes]
    terms = (joined(element("dt", None, term), element("dd", None, text)) for term, text in card(facts))
    return element(
        "article",
        {"id": f"run-{number}"},
        element("h1", None, facts.name),
        element("p", {"class": "quiet"}, about, ", ", badge, f" started {summary.started:%Y-%m-%d %H:%M}"),
        (element("p", None, line) for line in noted),
        element(
            "div",
            {"class": "verdict alarmed" if facts.alarms or facts.run.stopped else "verdict"},
            element("h2", None, "Verdict"),
            listed(verdict(facts)),
        ),
        section("Alarms and notes", element("ul", None, alarms)) if alarms else None,
        comparison,
        section("Model card", element("dl", None, terms)),
        _fresh(best.fresh, best.choice) if best and best.fresh else None,
        _video(facts.video) if facts.video else None,
        curves,
        _ranges(best) if best and (best.ranges or best.fresh_ranges) else None,
        _configuration(facts),
        _machine(summary),
    )


def _comparison(comparison: Comparison, runs: Sequence[Facts]) -> Html:
    settings = difference({facts.name: facts.summary for facts in runs}) if len(runs) > 1 else {}
    differing = [[key, *(_value(row[facts.name]) for facts in runs)] for key, row in settings.items()]
    return section(
        f"Comparison on {', '.join(comparison.tasks)}",
        element("div", {"class": "verdict"}, listed(comparison.sentences)),
        score_table(comparison),
        element("h3", None, "Settings in which the runs differ") if differing else None,
        table(("setting", *(facts.name for facts in runs)), differing, "words") if differing else None,
    )


def _fresh(fresh: Fresh, choice: Choice | None) -> Html:
    numbers = [number_text(value) for value in (fresh.std, fresh.lowest, fresh.highest, fresh.mean_length)]
    metrics = metric_texts(fresh.metrics)
    heads = ("episodes", "mean return", "std", "lowest", "highest", "mean length", *metrics)
    meaning = (
        "In brackets the 95 % interval of the mean over episodes of this one policy; training again would give another "
        "policy."
    )
    parts = [table(heads, [[str(fresh.episodes), fresh_mean(fresh), *numbers, *metrics.values()]])]
    parts.append(element("p", {"class": "quiet"}, meaning))
    if choice is not None:
        which = "these" if fresh.of > 1 else f"{choice.episodes} other"
        parts.append(element("p", None, f"All seeds' best policies on {which} fresh episodes:"))
        parts.append(table(("", "mean return"), [[member.title, choice.text(member)] for member in choice.ranked]))
    return section("Returns on fresh episodes", *parts)


def _video(video: Video) -> Html:
    if video.content is None:
        most = f"which holds {size_text(MOST_VIDEO_BYTES)} of video at most"
        return section("Video", element("p", None, f"{video.name}, is not in this report, {most}."))
    data = f"data:video/mp4;base64,{base64.b64encode(video.content).decode()}"
    player = element("video", {"controls": "", "loop": "", "muted": "", "playsinline": "", "src": data})
    about = element("p", {"class": "quiet"}, f"{video.name}. {video.about}")
    return element("div", {"class": "only-screen"}, section("Video", player, about))


def _curves(runs: Sequence[Facts]) -> Html:
    drawn = [DrawnRun(facts.name, facts.columns, facts.summary.started.timestamp()) for facts in runs]
    alarms = [alarm for facts in runs for alarm in facts.columns.alarms]
    try:
        groups = charts(drawn, alarms)
    except ImportError as error:
        return section("Curves", element("p", None, f"There are no pictures without matplotlib ({error})."))
    means = "Lines are means over seeds, bands their 95 % intervals (bootstrap over seeds), thin lines single seeds."
    about = means if any(len(facts.summary.seeds) > 1 for facts in runs) else ""
    about = about if groups else "Nothing has been reported yet."
    return section("Curves", element("p", {"class": "quiet"}, about), *groups)


def _ranges(best: Best) -> Html:
    rows = range_rows(best.ranges, best.fresh_ranges, best.policy.spec)
    cells = [
        [name, *(element("span", {"class": "bad" if is_beyond else None}, edge) for edge in edges)]
        for name, edges, is_beyond in rows
    ]
    ranges = table(("", "training from", "to", "fresh episodes from", "to"), cells)
    about = [
        "Training: what the replay of the newest checkpoint holds, exploration noise included." if best.ranges else "",
        "Fresh: the episodes above." if best.fresh_ranges else "",
        "Red: fresh episodes went beyond training." if any(is_beyond for *_, is_beyond in rows) else "",
        "Images are not listed." if best.policy.spec.images else "",
    ]
    return section(
        "What was seen",
        element("p", {"class": "quiet"}, " ".join(filter(None, about))),
        folded(f"All {len(rows)} ranges", ranges) if len(rows) > MOST_ROWS else ranges,
    )


def _configuration(facts: Facts) -> Html:
    summary, elsewhere = facts.summary, (*IN_HEADING, *swept(facts.run.cfg.members))
    rows = [
        [key, _value(pair["default"]), _value(pair["value"]), source_of(key, pair["value"], summary.preset)]
        for key, pair in changed_settings(summary, facts.run.cfg).items()
        if key not in elsewhere
    ]
    heads = ("setting", "default", "this run", "source")
    return section(
        "Configuration",
        element("p", {"class": "quiet"}, "What differs from the defaults."),
        table(heads, rows, "words") if rows else element("p", None, "All settings are the defaults."),
        folded("All settings (config.toml)", element("pre", None, config_source(summary.path))),
    )


def _value(value: Any) -> str:
    return "-" if value is None else plain(tuple(value) if isinstance(value, list) else value)


def _machine(summary: Summary) -> Html:
    session = session_of(summary)
    versions = session["versions"] if isinstance(session["versions"], dict) else {}
    named = {name: session[name] for name in ("host", "device", "engine", "threads")}
    rows = [[name, str(value)] for name, value in {**named, **versions}.items() if value not in (None, "")]
    parameters, replay, why = (session[name] for name in ("parameters", "replay_bytes", "engine_reason"))
    rows += [["parameters of a member", f"{parameters:,}"]] if isinstance(parameters, int) else []
    rows += [["replay", size_text(replay)]] if isinstance(replay, int) else []
    reason = element("p", {"class": "quiet"}, str(why)) if why else None
    return section("Machine and versions", table((), rows, "words"), reason)
