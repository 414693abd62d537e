"""Formats alarms: each as it sounds, and what a run's log holds of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from t3d.alarms.alarms import SYMPTOMS
from t3d.alarms.symptoms import NEVER_CHANGED
from t3d.config import Member
from t3d.config.sweeps import noun
from t3d.events import Alarm, Event, Note
from t3d.store.members import member_of

ORDER = {symptom.kind: place for place, symptom in enumerate(SYMPTOMS)}
CONSTANT = "constant-observation"  # an alarm before 0.5
SAID_BY_DOCTOR = {  # in a note before training, of what an alarm or a later note says with figures of the training
    "large-rewards": "rewards reach ",
    CONSTANT: " never changed; leave it out",
    "slow-environment": "one step takes ",
    "time-limit-terminates": "every episode was terminated after exactly ",
}


def heading(alarm: Alarm, who: str) -> str:
    """Says when it sounded, and for whom if not for the whole run."""
    return f"alarm at step {alarm.step:,}{who and f', {who}'}"


def words(alarm: Alarm) -> str:
    """Says what looks wrong and what to try."""
    return f"{alarm.text} Try: {alarm.advice}"


def summary(events: Iterable[Event], members: Sequence[Member]) -> list[str]:
    """Returns one line for each kind of alarm, the gravest first: when, in which seeds, and what the last one said."""
    kinds: dict[str, list[Alarm]] = {}
    for event in events:
        if isinstance(event, Alarm):
            kinds.setdefault(event.kind, []).append(event)
    gravest_first = sorted(kinds, key=lambda kind: ORDER.get(kind, len(ORDER)))
    return [f"{_when(kinds[kind], members)}: {words(kinds[kind][-1])}" for kind in gravest_first]


def repeated(events: Sequence[Event]) -> list[str]:
    """Returns words by which to know the notes of the doctor that alarms and later notes repeat."""
    kinds = {event.kind for event in events if isinstance(event, Alarm)}
    kinds |= {CONSTANT for event in events if isinstance(event, Note) and NEVER_CHANGED in event.text}
    return [words for kind, words in SAID_BY_DOCTOR.items() if kind in kinds]


def _when(alarms: list[Alarm], members: Sequence[Member]) -> str:
    """Says when alarms of one kind sounded, and in which seeds or members."""
    first, last = alarms[0], alarms[-1]
    names = [member.title if member else "" for member in (member_of(one, members) for one in alarms)]
    if len(alarms) == 1:
        return heading(last, names[0])
    if len(seeds := {*names} - {""}) > 1:
        often = f"alarm in {len(seeds)} of {len(members)} {noun(members)}s"
        return f"{often}, first at step {first.step:,} ({names[0]}), last at step {last.step:,} ({names[-1]})"
    return f"{heading(last, names[-1])} (the last of {len(alarms)}; the first was at step {first.step:,})"
