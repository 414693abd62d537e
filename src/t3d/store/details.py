"""What a run folder says beside its curves: results of each member, alarms, news, settings, machine, videos."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple

from t3d import events
from t3d.config import Config, Member, dotted, flat, plain
from t3d.config.sweeps import swept
from t3d.files import CORRUPT_ERRORS, Refused, open_plain, read, replace, to_count, to_json
from t3d.store.columns import Columns
from t3d.store.log import fields_of, journal_lines, newest_session
from t3d.store.metrics import StoredEvaluation, best_of, last_means, member_of
from t3d.store.summary import Summary, changes

MOST_NEWS = 200  # the newest
LARGEST_SOURCE = 2**20  # bytes of config.toml
LONGEST_TEXT = 2_000  # characters of one piece of news
OF_SESSION = ("pid", "host", "versions", "parameters", "replay_bytes", "engine_reason")
PLACED = ("device", "engine", "threads")
VIDEO_NAME = re.compile(r"(?P<member>[\w.-]+)-step-(?P<step>\d{1,18})\.mp4")
MOST_JSON = 2**10  # bytes of video.json


class Result(NamedTuple):
    """What became of one member."""

    member: Member
    stopped: events.SeedStopped | None  # when and how it diverged
    evals: Sequence[StoredEvaluation]  # in order
    other_sets: Mapping[str, Sequence[StoredEvaluation]] = MappingProxyType({})  # those that do not choose the best

    @property
    def fields(self) -> dict[str, Any]:
        stop = self.stopped
        evals = {"first": self.evals[0], "best": best_of(self.evals), "last": self.evals[-1]} if self.evals else {}
        return {
            "diverged": None if stop is None else {"step": stop.step, "text": stop.text},
            "evaluations": len(self.evals),
            **dict.fromkeys(("first", "best", "last")),
            **{name: _said(evaluation) for name, evaluation in evals.items()},
            "sets": {name: _said(evals[-1]) for name, evals in self.other_sets.items()},
        }


def _said(evaluation: StoredEvaluation) -> dict[str, Any]:
    mean, std = evaluation.mean_return, evaluation.std_return
    about = {"step": evaluation.step, "updates": evaluation.updates, "mean": mean, "std": std}
    return {**about, "metrics": dict(evaluation.metrics)}


def results_of(columns: Columns) -> list[Result]:
    """Returns what became of each member."""
    evals, stopped, others = columns.evaluations(), columns.stopped, columns.other_sets.items()
    sets = {member: {name: of[member] for name, of in others if member in of} for member in columns.members}
    return [Result(member, stopped.get(member), evals.get(member, []), of) for member, of in sets.items()]


def last_return(results: Sequence[Result]) -> float | None:
    """Returns the mean over seeds of their last evaluations; of a sweep the highest such mean."""
    evals = {result.member: result.evals for result in results if result.evals}
    stopped = {result.member for result in results if result.stopped}
    members = [result.member for result in results]
    if swept(members):
        return max(last_means(members, evals, stopped).values(), default=None)
    living = [column[-1].mean_return for member, column in evals.items() if member not in stopped]
    return fmean(living) if living else None


def messages_of(columns: Columns, *kinds: type[events.Event]) -> list[events.Event]:
    """Returns what events of some kinds say in words, in the order in which they happened."""
    messages = [event for kind in kinds for event in columns.messages[kind]]
    return sorted(messages, key=lambda event: event.time if isinstance(event.time, int | float) else 0.0)


def alarm_fields(alarm: events.Alarm, members: Sequence[Member]) -> dict[str, Any]:
    """Returns an alarm as plain values."""
    return {**about_fields(alarm, members), "kind": alarm.kind, "text": alarm.text, "advice": alarm.advice}


def about_fields(event: events.Event, members: Sequence[Member]) -> dict[str, Any]:
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
    messages = messages_of(columns, events.Note, events.ActorEvent, events.BadValueFound, events.SettingsChanged)
    lines = [vars(event) | {"event": event.event} for event in messages]
    news: list[dict[str, Any]] = []
    for fields in filter(None, (*lines, *map(fields_of, journal_lines(path)[-MOST_NEWS:]))):
        kind, text, step, time = str(fields["event"])[:40], str(fields.get("text", "")), fields["step"], fields["time"]
        texts = {
            events.Start.event: f"started on {fields.get('host') or 'some machine'} as process {fields.get('pid')}",
            events.Resumed.event: f"resumed from {fields.get('checkpoint') or 'the start'} on {fields.get('host')}",
            events.Saved.event: f"checkpoint {fields.get('checkpoint')} ({fields.get('reason')})",
            events.SaveFailed.event: f"could not be written: {text}",
            events.Paused.event: kind,
            events.Continued.event: kind,
            events.SettingsChanged.event: f"{plain(fields.get('values'))} from here on",
            events.End.event: f"{fields.get('reason')}{f': {text}' if text else ''}",
        }
        if isinstance(time, int | float) and isinstance(step, int):
            news.append({"event": kind, "step": step, "time": time, "text": texts.get(kind, text)[:LONGEST_TEXT]})
    return sorted(news, key=lambda item: item["time"])[-MOST_NEWS:]


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


def videos_of(path: Path) -> list[dict[str, Any]]:
    """Lists the videos of a run folder by the step of the policy that they show; others come last."""
    recorded = [] if (path / "videos").is_symlink() else (path / "videos").glob("*.mp4")
    videos = [_about(path / "video.mp4", ""), *(_about(file, "videos/") for file in recorded)]
    return sorted(filter(None, videos), key=lambda video: (video["step"] is None, video["step"] or 0, video["file"]))


def describe_video(path: Path, member: str, step: int) -> None:
    """Notes in video.json whose policy the run folder's video.mp4 shows."""
    with suppress(OSError, ValueError):  # then it is not known
        size = (path / "video.mp4").stat().st_size
        replace(path / "video.json", to_json({"bytes": size, "member": member, "step": step}))


def open_video(path: Path, name: str) -> BinaryIO | None:
    """Opens a video that videos_of lists; links are none."""
    with suppress(OSError, Refused):
        return open_plain(path / name) if name in [video["file"] for video in videos_of(path)] else None
    return None


def _about(path: Path, folder: str) -> dict[str, Any] | None:
    try:
        with open_plain(path) as file:
            stat = os.fstat(file.fileno())
    except (OSError, Refused):
        return None
    match = VIDEO_NAME.fullmatch(path.name)
    member, step = (match["member"], int(match["step"])) if match else _described(path, stat.st_size)
    return {"file": folder + path.name, "bytes": stat.st_size, "time": stat.st_mtime, "step": step, "member": member}


def _described(path: Path, size: int) -> tuple[str | None, int | None]:
    """Returns whose policy video.mp4 shows and of which step, if what was noted is of this file."""
    with suppress(TypeError, *CORRUPT_ERRORS):
        fields = json.loads(read(path.with_suffix(".json"), MOST_JSON))
        if fields["bytes"] == size and VIDEO_NAME.fullmatch(f"{fields['member']}-step-{to_count(fields['step'])}.mp4"):
            return fields["member"], fields["step"]
    return None, None
