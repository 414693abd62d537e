"""How numbers, intervals, seeds, times and settings are written, wherever people read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from t3d import events
from t3d.alarms.watch import alarm_heading, alarm_text
from t3d.config import Config, flat
from t3d.config.fields import settings_where
from t3d.config.metrics import SUCCESS
from t3d.config.presets import PRESETS, preset
from t3d.config.sweeps import by_values, counted, swept
from t3d.insight.statistics import Estimate
from t3d.store.best import Fresh
from t3d.store.summary import Summary

IN_HEADING = settings_where(Config, lambda about: about.get("in_heading", False))


def number_text(value: float | None) -> str:
    """Formats a return."""
    if value is None:
        return "-"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:#.3g}"


def metric_text(name: str, value: float) -> str:
    """Formats what episodes said of themselves: 92 % of success, 12.3 of anything else."""
    return f"{100 * value:.0f} %" if name == SUCCESS else number_text(value)


def metrics_text(metrics: Mapping[str, float]) -> str:
    """Formats metrics to follow a return: ", success 92 %, energy 12.3"."""
    return "".join(f", {name} {text}" for name, text in metric_texts(metrics).items())


def metric_texts(metrics: Mapping[str, float]) -> dict[str, str]:
    """Formats each metric; success comes first."""
    names = sorted(metrics, key=lambda name: name != SUCCESS)
    return {name: metric_text(name, metrics[name]) for name in names}


def returned(fresh: Fresh) -> str:
    """Formats what a policy returned on fresh episodes."""
    spread = f" ± {number_text(fresh.std)}" if fresh.episodes > 1 else ""
    over = f" over {counted(fresh.episodes, 'fresh episode')}"
    return f"{number_text(fresh.mean)}{spread}{metrics_text(fresh.metrics)}{over}"


def estimated(estimate: Estimate | None, text: Callable[[float], str] = number_text) -> str:
    """Formats a value and its interval, e.g. 4,391.0 [4,100.2, 4,650.9]."""
    if estimate is None:
        return ""
    within = "no interval" if estimate.interval is None else ", ".join(map(text, estimate.interval))
    return f"{text(estimate.value)} [{within}]"


def notice_of(event: events.Event, who: str) -> tuple[str, str, str] | None:  # noqa: PLR0911 (one for each kind)
    """Says what an event tells at once, as a label, its colour and a text; None: nothing. who is whom it is about."""
    match event:
        case events.Saved() if event.reason == "asked":
            return "", "", f"saved at step {event.step:,}: {event.checkpoint}"
        case events.Paused():
            return "", "", f"paused at step {event.step:,}, as asked; Ctrl-C stops the run"
        case events.Continued():
            return "", "", f"continues at step {event.step:,} after {event.paused_seconds:,.0f} s"
        case events.SaveFailed():
            return "not saved:", "red", f"{event.text}; the run continues ({event.failures} failed so far)"
        case events.BadValueFound():
            where = f"{who or 'the run'}, environment {event.env}, episode {event.episode}, step {event.episode_step}"
            answer = {"skip": "the episode ends", "clip": "fixed"}.get(event.handling, event.handling)
            return "bad value", "yellow", f"no. {event.count}: {where}: {event.text} ({answer})"
        case events.SeedStopped():
            return f"{who} has diverged", "red", f"at step {event.step:,}: {event.text}; it stops"
        case events.ActorEvent():
            return f"actor {event.actor}", "yellow", f"{event.what} at step {event.step:,}: {event.text}"
        case events.Alarm():
            return f"{alarm_heading(event, who)}:", "yellow", alarm_text(event)
        case events.Note():
            return "note:", "yellow", event.text
    return None


def source_of(key: str, value: Any, preset_name: str) -> str:
    """Says where a setting that is not the default comes from, as far as its value tells."""
    of_preset = flat(preset(preset_name)) if preset_name in PRESETS else {}
    return f"preset {preset_name}" if of_preset.get(key) == value else "flag or file"


def members_text(run: Summary, *, named: bool = False) -> str:
    """Formats what a run trains: its seeds, or of a sweep how many members those and its values make."""
    combinations, fields, seeds = len(by_values(run.members)), swept(run.members), counted(len(run.seeds), "seed")
    noun = "values" if len(fields) == 1 else "combinations"
    name = f"{'seed' if len(run.seeds) == 1 else 'seeds'} " if named else ""
    text = f"{len(run.members)} = {combinations} {noun} x {seeds}" if fields else name + seeds_text(run.seeds)
    return text + (f"; {len(run.diverged)} diverged" if run.diverged else "")


def seeds_text(seeds: tuple[int, ...]) -> str:
    """Formats seeds: 0-9 if they are consecutive, only the first two and the count if there are many."""
    if len(seeds) > 2 and seeds == tuple(range(seeds[0], seeds[0] + len(seeds))):
        return f"{seeds[0]}-{seeds[-1]}"
    if len(seeds) > 4:
        return f"{seeds[0]}, {seeds[1]}.. ({len(seeds)})"
    return ", ".join(map(str, seeds))


def steps_text(steps: int) -> str:
    """Formats 142292 as 142.2k: never rounded up, so that only a finished run looks finished."""
    if steps < 10_000:
        return f"{steps:,}"
    return f"{steps // 100 / 10:g}k" if steps < 1_000_000 else f"{steps // 10_000 / 100:g}M"


def when_text(started: datetime) -> str:
    """Formats when a run started: with the time of day if that was this year."""
    return f"{started:%d %b %H:%M}" if started.year == datetime.now().year else f"{started:%d %b %Y}"


def duration_text(took: timedelta) -> str:
    """Formats a duration as hours, minutes and seconds."""
    seconds = round(took.total_seconds())
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def size_text(size: int) -> str:
    """Formats a number of bytes."""
    for unit, count in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= count:
            return f"{size / count:,.1f} {unit}"
    return f"{size} B"
