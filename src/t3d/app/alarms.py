"""Formats alarms: each as it sounds, and what a run's log holds of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from t3d.config import Member
from t3d.events import Alarm, Event
from t3d.store.members import member_of


def heading(alarm: Alarm, who: str) -> str:
    """Says when it sounded, and for whom if not for the whole run."""
    return f"alarm at step {alarm.step:,}{who and f', {who}'}"


def words(alarm: Alarm) -> str:
    """Says what looks wrong and what to try."""
    return f"{alarm.text} Try: {alarm.advice}"


def summary(events: Iterable[Event], members: Sequence[Member]) -> list[str]:
    """Returns one line for each kind of alarm: the last that sounded, and how many there were."""
    kinds: dict[str, list[Alarm]] = {}
    for event in events:
        if isinstance(event, Alarm):
            kinds.setdefault(event.kind, []).append(event)
    lines = []
    for *earlier, last in kinds.values():
        member = member_of(last, members)
        often = f" (the last of {len(earlier) + 1}; the first was at step {earlier[0].step:,})" if earlier else ""
        lines.append(f"{heading(last, member.title if member else '')}{often}: {words(last)}")
    return lines
