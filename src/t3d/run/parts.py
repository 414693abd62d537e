"""What a run consists of, and everything that a checkpoint holds of it."""

from __future__ import annotations

import math
import os
import platform
import threading
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from t3d.actors.protocols import Collected, Collector, Evaluator
from t3d.algo.learner import RATE, Learner
from t3d.config import Config, merge_named, to_dict
from t3d.config.sweeps import noun, short
from t3d.data.memory import Memory, bytes_needed
from t3d.errors import Diverged, UserError
from t3d.events import NEW_TASK, Event, SeedStopped
from t3d.files import CORRUPT_ERRORS, to_count, to_fields, to_list
from t3d.modules import files_of
from t3d.policy.acting import PolicySnapshot
from t3d.policy.architectures import Architecture
from t3d.run.goal import Goal
from t3d.run.pace import Budgets, Steady
from t3d.store.best import BestPolicies
from t3d.store.checkpoint import Checkpoint
from t3d.store.contents import refuse_unlike
from t3d.store.folder import RunFolder, versions
from t3d.store.metrics import stored_name
from t3d.types import State
from t3d.world.fingerprint import difference, differences, outline
from t3d.world.make import own_names

LONGEST_SECONDS = 1e9  # thirty years
REPLAY_IS = {"cpu": "in host memory", "cuda": "on the GPU"}  # as its free memory decides at each start


@dataclass
class Counters:
    """How far a run has come."""

    step: int = 0
    evaluated: int = -1  # step of the newest evaluation, and of the newest submitted
    submitted: int = -1
    log_due: bool = False
    diagnosis_due: bool = False
    keeping_due: bool = False
    warned_out_of_support: bool = False  # that targets are beyond what categorical critics can predict
    reported_metrics: set[str] = field(default_factory=set)  # lacked by some episode, as a note says
    started: float = field(default_factory=time.monotonic)  # of this process, less the time that earlier ones took

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def state(self) -> State:
        saved = ("step", "evaluated", "submitted", "log_due", "diagnosis_due", "keeping_due", "seconds")
        warnings = {"told_outside": self.warned_out_of_support, "told": sorted(self.reported_metrics)}
        return {**{name: getattr(self, name) for name in saved}, **warnings}

    def restore(self, state: State) -> None:
        self.step, self.log_due = to_count(state["step"]), bool(state["log_due"])
        self.diagnosis_due = bool(state.get("diagnosis_due", False))  # this and the next three: since format 2 began
        self.keeping_due = bool(state.get("keeping_due", False))
        self.warned_out_of_support = bool(state.get("told_outside", False))
        self.reported_metrics = {str(name) for name in to_list(state.get("told", []))}
        self.evaluated = to_count(state["evaluated"], least=-1)
        self.submitted = to_count(state["submitted"], least=self.evaluated)
        if not 0 <= state["seconds"] <= LONGEST_SECONDS:
            raise ValueError(f"progress.seconds is {state['seconds']}")
        self.started = time.monotonic() - state["seconds"]


class Loaded(NamedTuple):
    """A checkpoint and the state in it."""

    checkpoint: Checkpoint
    state: State
    log_lengths: dict[str, int]  # when it was written


@dataclass
class Parts:
    """What acts, remembers, learns and evaluates."""

    cfg: Config  # resolved: nothing is "auto" any more
    collector: Collector
    memory: Memory
    learner: Learner
    evaluator: Evaluator
    environment: dict[str, Any]  # its fingerprint
    engine_reason: str = ""  # why a faster engine is not used
    task_changes: str = ""  # how it differs from the environment before a resume
    origin: dict[str, Any] = field(default_factory=dict)  # what the run started from; empty: from scratch
    changed: dict[str, Any] = field(default_factory=dict)  # settings that are not cfg's any more, by their names
    stopped: dict[int, str] = field(default_factory=dict)  # members that have diverged, and how it showed
    counters: Counters = field(default_factory=Counters)

    def __post_init__(self) -> None:
        self.best, self.goal = BestPolicies(len(self.cfg.members), self.cfg.criterion), Goal(self.cfg)
        self.living = list(range(len(self.cfg.members)))
        self.steps = [0] * len(self.cfg.members)  # of each member, as its collector has reported them
        self.pace = Steady(self) if self.learner.rule.hearing is None else Budgets(self)

    @property
    def added(self) -> list[int]:
        """Steps of each living member: what the run counts by."""
        return [self.steps[member] for member in self.living]

    def snapshot(self) -> PolicySnapshot:
        return self.memory.scaled(self.learner.snapshot())

    def change(self, values: dict[str, Any]) -> None:
        """Changes settings from here on; a checkpoint holds them beside those that the run was started with."""
        self.changed |= values
        self.collector.use(merge_named(self.cfg, self.changed))
        self.learner.set_rates(**{short(name): rate for name, rate in values.items() if name.endswith(RATE)})

    def stop(self, member: int, why: str) -> SeedStopped:
        self.stopped[member] = why
        self.living = [other for other in self.living if other != member]
        self.collector.stop(member)
        self.evaluator.stop(member)
        event = SeedStopped(step=self.counters.step, member=member, seed=self.cfg.members[member].seed, text=why)
        self.count_steps()
        return event

    def take(self, collected: Collected) -> None:
        """Stores and counts what a collector has returned, and lets the rule hear of the episodes that ended."""
        self.memory.add(*collected.rollouts)
        for member, steps in enumerate(collected.steps):
            self.steps[member] += steps
        for rollout in collected.rollouts:
            self.steps[rollout.member] += len(rollout.rows)
            for episode in rollout.episodes:
                self.pace.hear(rollout.member, episode)
        self.count_steps()

    def count_steps(self) -> None:
        """Sets the run's step, which every schedule counts by: the fewest steps of a living member."""
        self.counters.step = min(self.added, default=self.counters.step)

    def raise_if_all_diverged(self) -> None:
        """Raises if all members have diverged; their stops have been reported by now."""
        if not self.living:
            *others, last = self.stopped.values()
            all_of = f"all {noun(self.cfg.members)}s have diverged; the last one: " if others else ""
            raise Diverged(f"{all_of}{last} at step {self.counters.step}")

    def stop_diverged(self, trace: Any = None) -> list[Event]:
        """Stops members with a value that is not finite: a loss in the trace of an update, a network or a moment."""
        reasons = {} if trace is None else infinite_losses(trace, self.cfg, self.living)
        events: list[Event] = [self.stop(member, why) for member, why in reasons.items()]
        for name, member in self.learner.non_finite():
            if member not in self.stopped:
                part = f"the {name.replace('_', ' ')} of {self.cfg.members[member].title}"
                events.append(self.stop(member, f"{part} is not finite"))
        return events

    def about(self, folder: RunFolder) -> dict[str, Any]:
        spec, cfg = self.collector.spec, self.cfg
        return {
            "step": self.counters.step,
            "folder": str(folder.path),
            "config": to_dict(cfg),
            "members": cfg.member_names,
            "versions": versions(),
            "pid": os.getpid(),
            "host": platform.node(),
            "engine_reason": self.engine_reason,
            "parameters": self.learner.rule.parameters(spec, self.learner.cfg),
            "replay_bytes": bytes_needed(spec, cfg),
            "environment": self.environment,
            "origin": self.origin,
            "files": files_of(own_names(cfg)),
        }

    def state(self) -> State:
        """Returns everything that determines how the run continues, except the rows of the replay."""
        return {
            "members": self.cfg.member_names,
            "spec": outline(self.collector.spec),
            "environment": self.environment,
            "origin": self.origin,
            "config": to_dict(self.cfg),
            "changed": self.changed,
            "versions": versions(),
            "progress": self.counters.state(),
            "best": self.best.state(),
            "goal": self.goal.state(),
            "learner": self.learner.state(),
            "pace": self.pace.state(),
            "memory": self.memory.state(),
            "collector": self.collector.state(),
            "evaluator": self.evaluator.state(),
            "stopped": {self.cfg.member_names[member]: why for member, why in self.stopped.items()},
        }

    def restore(self, loaded: Loaded, stop: threading.Event) -> list[str]:
        """Restores everything; returns notes on what has changed."""
        checkpoint, state, _ = loaded
        try:
            refuse_unlike(state, self.state())
            self._refuse_another_run(loaded)
            stopped = {stored_name(stored): str(why) for stored, why in state.get("stopped", {}).items()}
            for member, name in enumerate(self.cfg.member_names):
                if name in stopped:
                    self.stop(member, stopped[name])
            self.origin = to_fields(state.get("origin", {}))  # not in older ones
            self.counters.restore(state["progress"])
            if settings := to_fields(state.get("changed", {})):  # not in older ones
                self.change(settings)
            self.best.restore(state["best"], self.learner.shipped.architecture)
            self.goal.restore(to_fields(state.get("goal", {})))
            checkpoint.restore_learning(state, self.cfg.member_names, self.learner, self.memory)
            self.steps = [to_count(state["collector"][member.name]["taken"]) for member in self.cfg.members]
            self.pace.restore(to_fields(state.get("pace", {})))  # not in older ones
            notes = self.collector.restore(state["collector"], stop)
            if not self.collector.keeps_episodes:
                self.memory.replay.links.end_episodes()
            architecture = self.learner.shipped.architecture
            restore_evaluations(self.counters, self.evaluator, state["evaluator"], architecture)
            self._refuse_contradictions()
            if changes := differences(state.get("environment"), self.environment):  # unknown before 0.5
                self._start_best_again(changes)
            now, before = self.memory.device.type, state["memory"].get("device")  # added in the course of format 2
            if before not in (None, now):
                replay = f"the replay was {REPLAY_IS[before]} and is {REPLAY_IS[now]} now"
                notes.append(f"{replay}: other batches are drawn from here on")
            here, then = versions(), state["versions"].items()
            if changed := [f"{name} {old} is now {here.get(name)}" for name, old in then if old != here.get(name)]:
                notes.append(f"bit for bit is not promised: {', '.join(changed)}")
            return notes
        except CORRUPT_ERRORS as error:
            raise UserError(f"{checkpoint.path} does not fit this run ({type(error).__name__}: {error})") from error

    def _start_best_again(self, changes: list[str]) -> None:
        """Forgets the best policies of another task, and has the current ones evaluated next."""
        self.task_changes = (
            f"the environment differs from the one trained on so far: {'; '.join(changes)}; returns in the two cannot "
            f"be compared, {NEW_TASK}"
        )
        self.best, self.goal = BestPolicies(len(self.cfg.members), self.cfg.criterion), Goal(self.cfg)
        self.learner.forget()
        if self.counters.submitted == self.counters.evaluated:  # otherwise an evaluation is in progress anyway
            self.counters.submitted = self.counters.evaluated = -1

    def _refuse_another_run(self, loaded: Loaded) -> None:
        checkpoint, state, _ = loaded
        if changed := difference(state["spec"], outline(self.collector.spec)):
            raise UserError(f"{self.cfg.env.title} is not what it was in {checkpoint.path}: {changed}")
        members = [stored_name(stored) for stored in to_list(state.get("members") or state["seeds"])]
        if members != self.cfg.member_names:
            raise ValueError(f"it holds {', '.join(members)}")

    def _refuse_contradictions(self) -> None:
        if not self.living:
            raise ValueError("all its seeds have diverged")
        collected = [self.memory.collected(member) for member in range(len(self.steps))]
        if self.steps != collected or self.counters.step != min(self.added) or not self.pace.is_possible():
            raise ValueError("its counters contradict each other")


def infinite_losses(trace: Any, cfg: Config, members: list[int]) -> dict[int, str]:
    """Returns the members that have a loss that is not finite, and which."""
    reasons: dict[int, str] = {}
    for name, values in trace.losses.items():
        for member in members:
            value = float(values[member])
            if not math.isfinite(value):
                reasons.setdefault(member, f"the {name} loss of {cfg.members[member].title} is {value}")
    return reasons


def restore_evaluations(counters: Counters, evaluator: Evaluator, state: State, architecture: Architecture) -> None:
    """Starts the saved evaluations again, which must be those that the run still waits for."""
    pending = evaluator.restore(state, architecture)
    if max([counters.evaluated, *pending]) != counters.submitted or counters.submitted > counters.step:
        raise ValueError("its evaluations contradict each other")
