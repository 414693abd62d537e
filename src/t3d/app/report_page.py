"""A report as one HTML file: no script, no other file, no other host."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import datetime

from t3d.alarms.watch import notes_in_words
from t3d.app.report_charts import charts
from t3d.app.report_comparison import comparison_section, value_of
from t3d.app.report_facts import MOST_VIDEO_BYTES, Facts
from t3d.app.report_words import card, fresh_mean, seen_rows, verdict, video_in_words
from t3d.app.runs_text import env_text, members_text, size_text
from t3d.app.tables import IN_HEADING, figure, source_of
from t3d.config.sweeps import swept
from t3d.events import Alarm
from t3d.insight.comparison import Comparison
from t3d.insight.curves import DrawnRun
from t3d.insight.html import Content, Html, document, element, folded, joined, listed, section, table
from t3d.store.details import changed_settings, config_source, session_of
from t3d.version import __version__

MOST_ROWS = 30  # of ranges that are shown at once; more are folded away
RANGES = ("", "training from", "to", "fresh episodes from", "to")


def page(runs: Sequence[Facts], comparison: Comparison | None, refused: str) -> str:
    """Returns the file; refused says why the runs are not compared."""
    alone = len(runs) == 1
    title = f"{runs[0].name}: report" if alone else f"Report of {len(runs)} runs"
    together = [] if comparison is None else [comparison_section(comparison, runs)]
    body: list[Content] = []
    if not alone:
        body = [element("h1", None, title), _links(runs), *together]
        body += [element("p", {"class": "bad"}, f"These runs are not compared: {refused}.")] if refused else []
    same_task = len({one.run.cfg.env.title for one in runs}) == 1
    body += [_curves(runs)] if not alone and same_task else []
    for place, one in enumerate(runs):
        own = [_curves([one])] if alone or not same_task else []
        body.append(_run(one, place, together if alone else [], own))
    body.append(element("footer", None, _written()))
    return document(title, body)


def _written() -> str:
    when = datetime.now().astimezone()
    return (
        f"Written by T3D {__version__} on {when:%Y-%m-%d at %H:%M %Z}. This file is complete: it runs no script and "
        "loads nothing from anywhere."
    )


def _links(runs: Sequence[Facts]) -> Html:
    return element("nav", None, (element("a", {"href": f"#run-{place}"}, one.name) for place, one in enumerate(runs)))


def _run(facts: Facts, place: int, comparison: Sequence[Html], curves: Sequence[Html]) -> Html:
    """What is said of one run; comparison: of the values of a sweep."""
    entry = facts.listed
    seeds = (
        members_text(entry) if entry.config.get("sweep") else f"{_plural('seed', entry.seeds)} {members_text(entry)}"
    )
    about = f"{facts.run.cfg.rule_title} on {env_text(entry.env)}, {seeds}, preset {entry.preset}"
    badge = element("span", {"class": f"badge {entry.status}"}, entry.status)
    started = f" started {entry.started:%Y-%m-%d %H:%M}"
    return element(
        "article",
        {"id": f"run-{place}"},
        element("h1", None, facts.name),
        element("p", {"class": "quiet"}, about, ", ", badge, started),
        _notes(facts),
        _verdict(facts),
        _alarms(facts),
        *comparison,
        section("Model card", element("dl", None, [_described(*row) for row in card(facts)])),
        _fresh(facts),
        _video(facts),
        *curves,
        _limits(facts),
        _configuration(facts),
        _machine(facts),
    )


def _described(term: str, said: str) -> Html:
    return joined(element("dt", None, term), element("dd", None, said))


def _notes(facts: Facts) -> Html | None:
    """What people noted about the run."""
    tags, note = facts.listed.notes
    said = [f"Tags: {', '.join(tags)}."] if tags else []
    return joined(*(element("p", None, one) for one in [*said, *note.splitlines()])) if tags or note else None


def _verdict(facts: Facts) -> Html:
    kind = "verdict alarmed" if facts.alarms or facts.run.stopped else "verdict"
    return element("div", {"class": kind}, element("h2", None, "Verdict"), listed(verdict(facts)))


def _alarms(facts: Facts) -> Html | None:
    """Alarms and notes in words."""
    alarms, notes = facts.alarms, [*dict.fromkeys(notes_in_words(facts.events))]
    if not alarms and not notes:
        return None
    lines = [element("li", {"class": "bad"}, f"{one[0].upper()}{one[1:]}") for one in alarms]
    return section("Alarms and notes", element("ul", None, lines, (element("li", None, one) for one in notes)))


def _fresh(facts: Facts) -> Html | None:
    fresh, choice = facts.fresh, facts.choice
    if fresh is None or facts.member is None:
        return None
    heads = ("episodes", "mean return", "std", "lowest", "highest", "mean length")
    figures = [figure(one) for one in (fresh.std, fresh.lowest, fresh.highest, fresh.mean_length)]
    parts = [table(heads, [[str(fresh.episodes), fresh_mean(fresh), *figures]])]
    parts.append(
        element(
            "p",
            {"class": "quiet"},
            "In brackets the 95 % interval of the mean over episodes of this one policy; ",
            "training again would give another policy.",
        )
    )
    if choice is not None:
        ranked = sorted(choice.mean_returns.items(), key=lambda one: -one[1])
        which = "these" if fresh.of > 1 else f"{choice.episodes} other"
        parts.append(element("p", None, f"All seeds' best policies on {which} fresh episodes:"))
        parts.append(table(("", "mean return"), [[member.title, figure(value)] for member, value in ranked]))
    return section("Returns on fresh episodes", *parts)


def _video(facts: Facts) -> Html | None:
    video = facts.video
    if video is None:
        return None
    if video.content is None:
        size = f"{video.file} has {size_text(video.size)} and is not in this report"
        return section(
            "Video", element("p", None, f"{size}, which holds {size_text(MOST_VIDEO_BYTES)} of video at most.")
        )
    data = f"data:video/mp4;base64,{base64.b64encode(video.content).decode()}"
    shown = element("video", {"controls": "", "loop": "", "muted": "", "playsinline": "", "src": data})
    about = element("p", {"class": "quiet"}, f"{video.file}, {size_text(video.size)}. {video_in_words(facts, video)}")
    return element("div", {"class": "only-screen"}, section("Video", shown, about))


def _curves(runs: Sequence[Facts]) -> Html:
    drawn = [DrawnRun(one.name, one.figures, one.listed.started.timestamp()) for one in runs]
    alarms = [event for one in runs for event in one.events if isinstance(event, Alarm)]
    several = any(len(one.listed.seeds) > 1 for one in runs)
    about = "Lines are means over seeds, bands their 95 % intervals (bootstrap over seeds), thin lines single seeds."
    try:
        made = charts(drawn, alarms)
    except ImportError as error:
        return section("Curves", element("p", None, f"There are no pictures without matplotlib ({error})."))
    said = (about if several else "") if made else "Nothing has been reported yet."
    return section("Curves", element("p", {"class": "quiet"}, said), *made)


def _limits(facts: Facts) -> Html | None:
    if facts.policy is None or (facts.seen is None and facts.seen_fresh is None):
        return None
    rows = seen_rows(facts, facts.policy.spec)
    made = table(RANGES, ([one.name, *(_marked(cell, one.is_beyond) for cell in one.cells)] for one in rows))
    if len(rows) > MOST_ROWS:
        made = folded(f"All {len(rows)} ranges", made)
    where = (
        "Training: what the replay of the newest checkpoint holds, exploration noise included." if facts.seen else ""
    )
    images = "Images are not listed." if facts.policy.spec.images else ""
    red = "Red: fresh episodes went beyond training." if any(one.is_beyond for one in rows) else ""
    said = " ".join(filter(None, [where, "Fresh: the episodes above." if facts.seen_fresh else "", red, images]))
    return section("What was seen", element("p", {"class": "quiet"}, said), made)


def _marked(cell: str, is_beyond: bool) -> Content:
    return element("span", {"class": "bad"}, cell) if is_beyond else cell


def _configuration(facts: Facts) -> Html:
    settings, preset = changed_settings(facts.listed, facts.run.cfg), facts.listed.preset
    elsewhere = (*IN_HEADING, *swept(facts.run.cfg.members))
    rows = [
        [key, value_of(pair["default"]), value_of(pair["value"]), source_of(key, pair["value"], preset)]
        for key, pair in settings.items()
        if key not in elsewhere
    ]
    heads = ("setting", "default", "this run", "source")
    differing = table(heads, rows, "words") if rows else element("p", None, "All settings are the defaults.")
    source = config_source(facts.run.path)
    whole = folded("All settings (config.toml)", element("pre", None, source))
    return section(
        "Configuration", element("p", {"class": "quiet"}, "What differs from the defaults."), differing, whole
    )


def _plural(word: str, things: Sequence[object]) -> str:
    return word if len(things) == 1 else f"{word}s"


def _machine(facts: Facts) -> Html:
    session = session_of(facts.listed)
    versions = session["versions"] if isinstance(session["versions"], dict) else {}
    named = {name: session[name] for name in ("host", "device", "engine", "threads")}
    rows = [[name, str(value)] for name, value in {**named, **versions}.items() if value not in (None, "")]
    rows += [["parameters of a member", f"{session['parameters']:,}"]] if isinstance(session["parameters"], int) else []
    replay = session["replay_bytes"]
    rows += [["replay", size_text(replay)]] if isinstance(replay, int) else []
    why = session["engine_reason"]
    said = element("p", {"class": "quiet"}, str(why)) if why else None
    return section("Machine and versions", table((), rows, "words"), said)
