"""Follows a run's events.jsonl and writes it for other tools as named numbers, in a process beside the training.

A resumed run has cut its log back to the checkpoint. Every process writes its files from the first event on, so that
they hold what the log holds: without gaps, and nothing twice.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import methodcaller
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from t3d.config import Config, RuleConfig, TD3Config, load_config, merge_named
from t3d.config.metrics import SUCCESS
from t3d.errors import UserError
from t3d.events import ActingEvent, Diagnosed, EpisodeEnd, Eval, Event, Logged, SettingsChanged, Update
from t3d.files import Refused, error_text, open_log, read
from t3d.run.background import begin
from t3d.store.lock import try_lock
from t3d.store.log import START, event_of, prefixes, read_lines
from t3d.store.metrics import KINDS, LISTED, OF_EPISODES, entries, member_of

LOCK = "sinks.lock"  # names the tools for which all of the log was written
LONGEST = 1000  # bytes of that file
EVERY = 1.0  # seconds between two looks at the log; chosen
PATIENCE = 60.0
NICE = 10
WANTED = prefixes((*KINDS, SettingsChanged))
FOLDERS = {  # before T3D's own names
    **{Eval: "eval", Update: "train", Diagnosed: "diagnostics"},
    **{ActingEvent: "acting", Logged: "logged"},
}
THEIRS = {  # Stable-Baselines3's names
    (Eval, "mean_return"): "eval/mean_reward",
    (Eval, "mean_length"): "eval/mean_ep_length",
    (Update, "updates"): "train/n_updates",
    (Update, "steps_per_second"): "time/fps",
}
RATES = {SUCCESS: "success_rate"}  # metrics of info that have another name there
NOT_SCALARS = {"step", "member", "seed", "time", "since", "summary", "best", "chooses", "metric_counts"}
WINDOW = 100  # episodes that rollout/ep_rew_mean averages, as in Stable-Baselines3
WHOLE_RUN = "all-seeds"


class Point(NamedTuple):
    """Numbers of one member, or of the whole run, at one step."""

    name: str  # of the member
    step: int
    time: float
    values: dict[str, float]


class Scalars:
    """Turns events, in their order, into points. Episodes that end in the same step are one point."""

    def __init__(self, cfg: Config) -> None:
        self.members, self._cfg = cfg.members, cfg
        self._episodes = defaultdict[str, deque[EpisodeEnd]](lambda: deque(maxlen=WINDOW))  # by member
        self._counts: dict[str, int] = {}
        self._ended: dict[str, EpisodeEnd] = {}  # by member: its newest episode, as long as no point tells of it

    def of(self, event: Event) -> Iterator[Point]:
        """Yields what an event tells; nothing of one that contradicts itself, because a file may say anything."""
        member = member_of(event, self.members)
        if isinstance(event, SettingsChanged):
            with suppress(UserError):
                self._cfg = merge_named(self._cfg, event.values)
        if event.member is None and isinstance(event, Logged | ActingEvent) and not getattr(event, "summary", False):
            yield Point(WHOLE_RUN, event.step, event.time, _values(event))
        if member is None:
            return
        name = member.name
        if name in self._ended and self._ended[name].step != event.step:
            yield self._rollout(name)
        if isinstance(event, EpisodeEnd):
            args = {f"args.{key}": value for key, value in event.args.items() if type(value) in (int, float)}
            self._episodes[name].append(dataclasses.replace(event, metrics={**event.metrics, **args}))
            self._counts[name] = self._counts.get(name, 0) + 1
            self._ended[name] = event
            return
        values = _values(event)
        if isinstance(event, Update):
            values |= learning_rates(self._cfg.settings_of(member), event.updates)
            values["time/total_timesteps"] = float(event.step)
        yield Point(name, event.step, event.time, values)

    def rest(self) -> Iterator[Point]:
        """Yields what is left when no more events come."""
        for name in [*self._ended]:
            yield self._rollout(name)

    def _rollout(self, name: str) -> Point:
        event, recent = self._ended.pop(name), self._episodes[name]
        values = {
            "rollout/ep_len_mean": fmean(episode.length for episode in recent),
            "time/episodes": self._counts[name],
        }
        rewards = [episode.total_reward for episode in recent]
        if rewards := [reward for reward in rewards if reward is not None]:  # None: it was not finite
            values["rollout/ep_rew_mean"] = fmean(rewards)
        for metric in dict.fromkeys(metric for episode in recent for metric in episode.metrics):
            known = [value for episode in recent if (value := episode.metrics.get(metric)) is not None]
            values |= {f"rollout/{RATES.get(metric, metric)}": fmean(known)} if known else {}
        return Point(name, event.step, event.time, values)


def _values(event: Event) -> dict[str, float]:
    """Returns the numbers of an event by the names that they have elsewhere; lists without names are left out."""
    values: dict[str, float] = {}
    for field in dataclasses.fields(event):
        value = getattr(event, field.name)
        if field.name in NOT_SCALARS or (isinstance(value, list) and field.name not in LISTED):
            continue
        own = THEIRS.get((type(event), field.name), f"{FOLDERS[type(event)]}/{field.name}")
        if isinstance(event, Eval) and not event.chooses:
            own = own.replace("/", f"_{event.set}/", 1)
        for entry, number in entries(value, field.name).items():
            if isinstance(number, int | float) and math.isfinite(number):
                name = f"{own}.{entry}" if entry else own
                if field.name == OF_EPISODES:
                    name = f"{own.partition('/')[0]}/{RATES.get(entry, entry)}"
                values[name] = float(number)
    return values


def learning_rates(rule: RuleConfig, updates: int) -> dict[str, float]:
    """Returns the learning rates after some updates; the actor's only if it is another one than the critics'."""
    left = 1.0
    if isinstance(rule, TD3Config) and rule.lr_schedule != "constant":  # as in algo/adam.py, without torch
        progress = min(1.0, updates / rule.lr_updates)
        share = 1 - progress if rule.lr_schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
        left = rule.lr_final + (1 - rule.lr_final) * share
    rates = {"train/learning_rate": rule.critic_lr * left}
    return rates if rule.actor_lr == rule.critic_lr else rates | {"train/actor_learning_rate": rule.actor_lr * left}


class Follower:
    """Passes everything that a log tells to sinks, once; one that fails is reported and left out from then on."""

    def __init__(self, path: Path, names: Iterable[str], report: Callable[[str], None]) -> None:
        self.path, self.report = path, report
        cfg = load_config(path / "config.toml")
        self._position, self._scalars = START, Scalars(cfg)
        self.sinks: dict[str, Any] = {}  # with write(points), flush() and close(), as in tensorboard.py
        for name in names:
            with self._reported(name):
                self.sinks[name] = importlib.import_module(f"t3d.sinks.{name}").SINK(path, cfg)

    def read_on(self) -> bool:
        """Passes on what is new; returns whether this is still the same log, which no resume has cut back."""
        while self.sinks:
            try:
                lines, self._position, restarted = read_lines(self.path, self._position)
            except (OSError, Refused):  # it was removed
                return False
            if restarted:
                return False
            points = [point for event in _events(lines) for point in self._scalars.of(event)]
            self._each(methodcaller("write", points))
            if not lines:
                break
        self._each(methodcaller("flush"))
        return True

    def close(self) -> None:
        self._each(methodcaller("write", [*self._scalars.rest()]))
        self._each(methodcaller("close"))

    def _each(self, do: Callable[[Any], None]) -> None:
        for name, sink in [*self.sinks.items()]:
            with self._reported(name):
                do(sink)

    @contextmanager
    def _reported(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # of whatever kind: other people's packages
            self.sinks.pop(name, None)
            self.report(
                f"{name} gets nothing more: {error_text(error)}; t3d sinks RUN --to {name} writes all of it again"
            )


def follow(
    path: Path, names: Sequence[str], stop: threading.Event, report: Callable[[str], None], patience: float = 0.0
) -> bool:
    """Follows a log until `stop`, then to its end; false: another process still did, `patience` seconds after."""
    with open_log(path / LOCK) as lock:
        while not try_lock(lock):
            if stop.is_set() and patience <= 0:
                return False
            patience -= EVERY if stop.is_set() else 0
            time.sleep(EVERY)
        lock.truncate(0)
        follower = Follower(path, names, report)
        while follower.sinks:
            is_over = stop.is_set()
            if not follower.read_on():
                return False  # another process follows what the log is now
            if is_over:
                break
            stop.wait(EVERY)
        follower.close()
        lock.write(" ".join(follower.sinks).encode())
    return True


def written_for(path: Path) -> list[str]:
    """Returns the tools that have all of a run, as far as it went."""
    try:
        return read(path / LOCK, LONGEST).decode(errors="replace").split()
    except (OSError, Refused):
        return []


def main() -> None:
    """Follows the run that the first line of standard input names, until that is closed."""
    stop = threading.Event()
    task = begin(NICE, stop.set)
    path, report = Path(task["path"]), lambda text: print(f"note: {text}", flush=True)  # noqa: T201
    follow(path, task["sinks"], stop, report, PATIENCE)


def _events(lines: Iterable[bytes]) -> Iterator[Event]:
    """Yields the events that carry numbers; damaged lines are left out, as everywhere."""
    for line in lines:
        event = event_of(line) if line.startswith(WANTED) else None
        if event is not None and 0 <= event.step < 2**62:  # which fits into other tools' files
            yield event


if __name__ == "__main__":
    main()
