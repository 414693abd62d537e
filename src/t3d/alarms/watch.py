"""Watches the events of a run and says what looks wrong, in plain words and with what to try.

The state of a watch is a function of the events it has seen: no clock, no randomness. So a resumed run rebuilds it by
reading its log again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from t3d.alarms.symptoms import SYMPTOMS, History, Symptom
from t3d.config import Config, Member, RuleConfig
from t3d.config.sweeps import noun
from t3d.events import ActorEvent, Alarm, Eval, Event, Note, SeedStopped
from t3d.store.log import read_events
from t3d.store.metrics import member_of

WATCHED_EVENTS = (*dict.fromkeys(kind for symptom in SYMPTOMS for kind in symptom.looks_at), SeedStopped)
GRAVITY = {symptom.kind: rank for rank, symptom in enumerate(SYMPTOMS)}  # the gravest first


@dataclass
class Debounce:
    """Reports once what has held for several looks in a row, and again only after it was over for as long."""

    holds: bool = False  # as far as reported
    opposite_looks: int = 0  # in a row

    def look(self, holds: bool, looks: int) -> bool:
        """Takes one look; returns whether to report now."""
        self.opposite_looks = 0 if holds == self.holds else self.opposite_looks + 1
        if self.opposite_looks < looks:
            return False
        self.holds, self.opposite_looks = holds, 0
        return holds


@dataclass
class Watch:
    """Sees the events of one run, in order; members do not influence each other."""

    cfg: Config
    histories: dict[int | None, History] = field(default_factory=dict)  # by member; None: the whole run
    debounces: dict[tuple[str, int | None], Debounce] = field(default_factory=dict)  # by kind of alarm and member
    stopped: set[int | None] = field(default_factory=set)  # members that have diverged

    def __post_init__(self) -> None:
        self._settings: dict[int | None, RuleConfig] = {None: self.cfg.settings_of()}
        self._settings.update((index, self.cfg.settings_of(member)) for index, member in enumerate(self.cfg.members))

    def with_alarms(self, events: Iterable[Event]) -> list[Event]:
        """Returns the events, each followed by the alarms that it sets off."""
        return [each for event in events for each in (event, *self.see(event))]

    def see(self, event: Event) -> list[Alarm | Note]:
        if isinstance(event, SeedStopped):
            self.stopped.add(event.member)
        symptoms = [symptom for symptom in SYMPTOMS if isinstance(event, symptom.looks_at)]
        if not symptoms or (isinstance(event, Eval) and not event.chooses):  # other conditions have other returns
            return []
        history = self.histories.setdefault(event.member, History())
        history.add(event)
        return [alarm for symptom in symptoms for alarm in self._look(symptom, event, history)]

    def _look(self, symptom: Symptom, event: Event, history: History) -> list[Alarm | Note]:
        """Looks for one symptom; the environment's own in one member only, because all have the same environment."""
        member, seed = event.member, event.seed
        if symptom.of_environment:
            living = (index for index in range(len(self.cfg.members)) if index not in self.stopped)
            if event.member not in (None, next(living, None)):
                return []
            member, seed = None, None
        finding = symptom.find(event, history, self.cfg, self._settings[event.member])
        debounce = self.debounces.setdefault((symptom.kind, member), Debounce())
        if not debounce.look(finding is not None, symptom.looks) or finding is None:
            return []
        text, advice = finding
        if symptom.is_note:
            return [Note(step=event.step, member=member, seed=seed, text=f"{text} {advice}")]
        advice = f"{advice} {symptom.then}"
        return [Alarm(step=event.step, member=member, seed=seed, kind=symptom.kind, text=text, advice=advice)]


def watch_over(cfg: Config, path: Path) -> Watch:
    """Returns a watch that has seen what the log of a run folder holds: nothing if the run is new."""
    watch = Watch(cfg)
    for event in read_events(path, kinds=WATCHED_EVENTS):
        if event.member is None or member_of(event, cfg.members) is not None:
            watch.see(event)
    return watch


def alarm_heading(alarm: Alarm, who: str) -> str:
    """Says when it sounded, and for whom if not for the whole run."""
    return f"alarm at step {alarm.step:,}{who and f', {who}'}"


def alarm_text(alarm: Alarm) -> str:
    """Says what looks wrong and what to try."""
    return f"{alarm.text} Try: {alarm.advice}"


def alarm_lines(events: Iterable[Event], members: Sequence[Member]) -> list[str]:
    """Returns one line for each kind of alarm, the gravest first: when, in which seeds, and what the last one said."""
    kinds: dict[str, list[Alarm]] = {}
    for event in events:
        if isinstance(event, Alarm):
            kinds.setdefault(event.kind, []).append(event)
    gravest_first = sorted(kinds, key=lambda kind: GRAVITY.get(kind, len(GRAVITY)))
    return [f"{_when(kinds[kind], members)}: {alarm_text(kinds[kind][-1])}" for kind in gravest_first]


def notes_in_words(events: Sequence[Event]) -> list[str]:
    """Returns notes, mostly the doctor's warnings, and what happened to lost actors."""
    told = [
        event for event in events if isinstance(event, Note) or (isinstance(event, ActorEvent) and event.what != "back")
    ]
    return [
        event.text if isinstance(event, Note) else f"actor {event.actor} {event.what}: {event.text}" for event in told
    ]


def _when(alarms: list[Alarm], members: Sequence[Member]) -> str:
    """Says when alarms of one kind sounded, and in which seeds or members."""
    first, last = alarms[0], alarms[-1]
    names = [member.title if member else "" for member in (member_of(alarm, members) for alarm in alarms)]
    if len(alarms) == 1:
        return alarm_heading(last, names[0])
    if len(seeds := {*names} - {""}) > 1:
        often = f"alarm in {len(seeds)} of {len(members)} {noun(members)}s"
        return f"{often}, first at step {first.step:,} ({names[0]}), last at step {last.step:,} ({names[-1]})"
    return f"{alarm_heading(last, names[-1])} (the last of {len(alarms)}; the first was at step {first.step:,})"
