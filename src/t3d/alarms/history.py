"""What alarms remember of one member: its newest events and a few extremes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import TypeVar

from t3d.events import Diagnosed, EpisodeEnd, Eval, Event

NEWEST = 4  # events of a kind that are remembered: enough to see growth in spite of noise; chosen

Kind = TypeVar("Kind", bound=Event)


@dataclass
class History:
    """What is remembered of one member."""

    events: dict[type[Event], deque[Event]] = field(default_factory=dict)
    first: Eval | None = None
    best: Eval | None = None
    means: list[float] = field(default_factory=list)  # of the first evaluation and of all after updates
    largest_return: float = 0.0  # discounted, that critics were compared with
    largest_reward: float = 0.0  # of all rewards until the newest look
    never_changed: set[int] | None = None  # components of the observation, in all those batches; None: before the first
    longest_episode: int = 0  # in steps, of training and of evaluations
    last_length: int = 0
    terminated_alike: int = 0  # newest episodes in a row that were terminated after the same number of steps

    def add(self, event: Event) -> None:
        """Remembers an event."""
        self.events.setdefault(type(event), deque(maxlen=NEWEST)).append(event)
        if isinstance(event, EpisodeEnd):
            is_alike = event.terminated and event.length == self.last_length
            self.terminated_alike = self.terminated_alike + 1 if is_alike else int(event.terminated)
            self.last_length, self.longest_episode = event.length, max(self.longest_episode, event.length)
        if isinstance(event, Eval):
            self.longest_episode = max([self.longest_episode, *event.lengths])
            if self.first is None or event.updates:
                self.means.append(event.mean_return)
            self.first = self.first or event
            self.best = event if self.best is None or event.mean_return > self.best.mean_return else self.best
        if isinstance(event, Diagnosed):
            self.largest_return = max(self.largest_return, abs(or_nan(event.q_return)))
            constant = set(event.constant_observations)
            self.never_changed = constant if self.never_changed is None else self.never_changed & constant
            self.largest_reward = event.largest_reward or 0.0  # its scale may change, so only the newest counts

    @property
    def usual_change(self) -> float:
        """The median change of the mean return from one evaluation to the next."""
        return median(abs(new - old) for old, new in pairwise(self.means)) if len(self.means) > 1 else 0.0

    def newest(self, kind: type[Kind]) -> list[Kind]:
        """Returns the newest events of a kind, in order."""
        return [event for event in self.events.get(kind, ()) if isinstance(event, kind)]


def or_nan(value: float | None) -> float:
    """Returns a number, or NaN, which is neither above nor below anything, if there is none."""
    return float("nan") if value is None else value
