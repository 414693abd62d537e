"""Watches the events of a run and says what looks wrong, in plain words and with what to try.

The state of a watch is a function of the events it has seen: no clock, no randomness. So a resumed run rebuilds it by
reading its log again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from t3d.alarms import symptoms
from t3d.alarms.history import History
from t3d.alarms.symptoms import EPISODES, Finding
from t3d.config import Config, TD3Config
from t3d.events import ActingEvent, Alarm, Diagnosed, EpisodeEnd, Eval, Event, Note, SeedStopped, Update

START_AGAIN = "Start again with t3d train: a resumed run keeps its settings, and what it has learned so far."
MENDED = "Start again with t3d train: a resumed run still learns from what it has stored of the old environment."
ONLY_SLOWER = "This run learns the same without, only more slowly; to change it, start again with t3d train."
RESUMED = "A resumed run can have fewer actors; for the others, start again with t3d train."


class Symptom(NamedTuple):
    """One row of the table: what to look for, in which events, and for how many in a row it must hold."""

    kind: str
    find: Callable[[Any, History, Config, TD3Config], Finding | None]  # the event is one of looks_at
    looks_at: tuple[type[Event], ...]
    looks: int
    then: str = START_AGAIN  # ends the advice: whether to resume or to start again
    of_environment: bool = False  # the same for all members, and so told once
    is_note: bool = False  # it may be as it should, so that nobody has to do anything


# Summaries have this order: what makes learning meaningless, then the environment, then speed.
SYMPTOMS = (
    Symptom("critics-diverging", symptoms.critics_diverging, (Update,), 10),  # largest_reward is of the last look
    Symptom("overestimation", symptoms.overestimation, (Diagnosed,), 3),
    Symptom("saturated-actor", symptoms.saturated_actor, (Diagnosed,), 3),
    Symptom("dead-units", symptoms.dead_units, (Diagnosed,), 3),
    Symptom("evaluation-collapsed", symptoms.evaluation_collapsed, (Eval,), 3),
    Symptom("time-limit-terminates", symptoms.time_limit_terminates, (EpisodeEnd,), EPISODES - 1, MENDED, True),
    Symptom("large-rewards", symptoms.large_rewards, (EpisodeEnd,), 10, of_environment=True),
    Symptom("constant-observation", symptoms.constant_observation, (Diagnosed,), 5, "", True, is_note=True),
    Symptom("update-ratio", symptoms.update_ratio, (ActingEvent,), 5, RESUMED),
    Symptom("slow-environment", symptoms.slow_environment, (Diagnosed, ActingEvent), 3, ONLY_SLOWER, True),
)
SEEN = (*dict.fromkeys(kind for symptom in SYMPTOMS for kind in symptom.looks_at), SeedStopped)  # by a watch


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
        self._td3: dict[int | None, TD3Config] = {None: self.cfg.td3}
        self._td3.update((place, self.cfg.td3_of(member)) for place, member in enumerate(self.cfg.members))

    def with_alarms(self, events: Iterable[Event]) -> list[Event]:
        """Returns the events, each followed by the alarms that it sets off."""
        return [one for event in events for one in (event, *self.see(event))]

    def see(self, event: Event) -> list[Alarm | Note]:
        """Takes note of an event; returns the alarms that it sets off, and notes."""
        if isinstance(event, SeedStopped):
            self.stopped.add(event.member)
        looks = [symptom for symptom in SYMPTOMS if isinstance(event, symptom.looks_at)]
        if not looks:
            return []
        history = self.histories.setdefault(event.member, History())
        history.add(event)
        return [alarm for symptom in looks for alarm in self._look(symptom, event, history)]

    def _look(self, symptom: Symptom, event: Event, history: History) -> list[Alarm | Note]:
        """Looks for one symptom; the environment's own in one member only, because all have the same environment."""
        member, seed = event.member, event.seed
        if symptom.of_environment:
            if event.member not in (None, self._first_living()):
                return []
            member, seed = None, None
        found = symptom.find(event, history, self.cfg, self._td3[event.member])
        debounce = self.debounces.setdefault((symptom.kind, member), Debounce())
        if not debounce.look(found is not None, symptom.looks) or found is None:
            return []
        if symptom.is_note:
            return [Note(step=event.step, member=member, seed=seed, text=f"{found.text} {found.advice}")]
        advice = f"{found.advice} {symptom.then}"
        return [Alarm(step=event.step, member=member, seed=seed, kind=symptom.kind, text=found.text, advice=advice)]

    def _first_living(self) -> int | None:
        return next((member for member in range(len(self.cfg.members)) if member not in self.stopped), None)
