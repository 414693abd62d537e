"""What other tools are told of a run: named numbers, with the names of Stable-Baselines3 where it has one."""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Callable, Iterator
from statistics import fmean
from typing import NamedTuple

from t3d.config import Config, TD3Config
from t3d.events import ActingEvent, Diagnosed, EpisodeEnd, Eval, Event, Update
from t3d.store.members import member_of
from t3d.store.metrics import LISTED, entries

FOLDERS = {Eval: "eval", Update: "train", Diagnosed: "diagnostics", ActingEvent: "acting"}  # before T3D's own names
THEIRS = {  # Stable-Baselines3's names
    (Eval, "mean_return"): "eval/mean_reward",
    (Eval, "mean_length"): "eval/mean_ep_length",
    (Update, "updates"): "train/n_updates",
    (Update, "steps_per_second"): "time/fps",
}
NOT_SCALARS = {"step", "member", "seed", "time", "since", "summary", "best"}
WINDOW = 100  # episodes that rollout/ep_rew_mean averages, as in Stable-Baselines3
WHOLE_RUN = "all-seeds"
LEFT: dict[str, Callable[[float], float]] = {  # of the learning rates, as in algo/adam.py
    "linear": lambda progress: 1 - progress,
    "cosine": lambda progress: (1 + math.cos(math.pi * progress)) / 2,
}


class Point(NamedTuple):
    """Numbers of one member, or of the whole run, at one step."""

    name: str  # of the member
    step: int
    time: float
    values: dict[str, float]


class Scalars:
    """Turns events, in their order, into points. Episodes that end in the same step are one point."""

    def __init__(self, cfg: Config) -> None:
        self.members = cfg.members
        self._td3 = {member.name: cfg.td3_of(member) for member in cfg.members}
        self._episodes: dict[str, deque[EpisodeEnd]] = {}
        self._counts: dict[str, int] = {}
        self._ended: dict[str, EpisodeEnd] = {}  # by member: its newest episode, as long as no point tells of it

    def of(self, event: Event) -> Iterator[Point]:
        """Yields what an event tells; nothing of one that contradicts itself, because a file may say anything."""
        member = member_of(event, self.members)
        if isinstance(event, ActingEvent) and event.member is None and not event.summary:
            yield Point(WHOLE_RUN, event.step, event.time, plain_values(event))
        if member is None:
            return
        before = self._ended.get(member.name)
        if before is not None and before.step != event.step:
            yield self._rollout(member.name)
        if isinstance(event, EpisodeEnd):
            self._episodes.setdefault(member.name, deque(maxlen=WINDOW)).append(event)
            self._counts[member.name] = self._counts.get(member.name, 0) + 1
            self._ended[member.name] = event
            return
        values = plain_values(event)
        if isinstance(event, Update):
            values |= learning_rates(self._td3[member.name], event.updates)
            values["time/total_timesteps"] = float(event.step)
        yield Point(member.name, event.step, event.time, values)

    def rest(self) -> Iterator[Point]:
        """Yields what is left when no more events come."""
        for name in [*self._ended]:
            yield self._rollout(name)

    def _rollout(self, name: str) -> Point:
        event, recent = self._ended.pop(name), self._episodes[name]
        lengths = [episode.length for episode in recent]
        values = {"rollout/ep_len_mean": fmean(lengths), "time/episodes": self._counts[name]}
        rewards = [episode.total_reward for episode in recent]
        if rewards := [reward for reward in rewards if reward is not None]:  # None: it was not finite
            values["rollout/ep_rew_mean"] = fmean(rewards)
        return Point(name, event.step, event.time, values)


def plain_values(event: Event) -> dict[str, float]:
    """Returns the numbers of an event by the names that they have elsewhere; lists without names are left out."""
    values: dict[str, float] = {}
    for field in dataclasses.fields(event):
        value = getattr(event, field.name)
        if field.name in NOT_SCALARS or (isinstance(value, list) and field.name not in LISTED):
            continue
        own = f"{FOLDERS[type(event)]}/{field.name}"
        for entry, number in entries(value, field.name).items():
            if isinstance(number, int | float) and math.isfinite(number):
                name = f"{own}.{entry}" if entry else THEIRS.get((type(event), field.name), own)
                values[name] = float(number)
    return values


def learning_rates(td3: TD3Config, updates: int) -> dict[str, float]:
    """Returns the learning rates after some updates; the actor's only if it is another one than the critics'."""
    left = 1.0
    if td3.lr_schedule != "constant":
        progress = min(1.0, updates / td3.lr_updates)
        left = td3.lr_final + (1 - td3.lr_final) * LEFT[td3.lr_schedule](progress)
    rates = {"train/learning_rate": td3.critic_lr * left}
    return rates if td3.actor_lr == td3.critic_lr else rates | {"train/actor_learning_rate": td3.actor_lr * left}
