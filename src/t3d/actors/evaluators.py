"""Evaluations beside training: what is in progress, and the processes of this machine that play the episodes."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from t3d.actors.protocols import Evaluated
from t3d.actors.shared_memory import Policies
from t3d.actors.supervisor import Slot, WorkerLog, WorkerSlot, end_all, for_workers, starting
from t3d.config import Config
from t3d.errors import NobodyLeft
from t3d.files import to_count, to_fields
from t3d.policy.acting import PolicySnapshot
from t3d.policy.architectures import Architecture
from t3d.types import EpisodeResult, Evaluation, State
from t3d.world.evaluate import evaluations_of
from t3d.world.guard import EnvFactory

MAX_PENDING = 2  # evaluations in progress; if another is due, training waits rather than skip it; chosen
WAIT_SECONDS = 0.05
REPORTED_WAIT = 10.0  # seconds that training has waited for evaluations; reported once; chosen


@dataclass
class Pending:
    """An evaluation in progress."""

    step: int
    snapshot: PolicySnapshot
    policy: Any  # where those who evaluate find it
    played: list[list[EpisodeResult]]  # by member: its first episodes


class PendingEvaluations(ABC):
    """Evaluates snapshots in parallel with training, and returns the results in the order of submission."""

    slots: Any  # of those who evaluate, each with its members

    def __init__(self, cfg: Config, log: WorkerLog) -> None:
        self.cfg, self.count, self.log = cfg, len(cfg.members), log  # count: number of members
        self.pending: list[Pending] = []
        self._notes: list[str] = []
        self._waited = 0.0
        self._stopped: set[int] = set()
        self._diverged: dict[int, str] = {}  # members, and which action was not finite

    @abstractmethod
    def _share(self, snapshot: PolicySnapshot) -> Any:
        """Puts the policy of a new evaluation where those who evaluate find it."""

    @abstractmethod
    def _supervise(self) -> None:
        """Stores what has arrived, and looks after those who evaluate."""

    def has_room(self) -> bool:
        return len(self.pending) < MAX_PENDING

    def submit(self, snapshot: PolicySnapshot, step: int) -> bool:
        if self._stopped:  # what is not finite must not reach a checkpoint
            living = np.isin(np.arange(self.count), [*self._stopped], invert=True)
            snapshot = snapshot._replace(flat=np.where(living[:, None], snapshot.flat, np.float32(0)))
        self.pending.append(Pending(step, snapshot, self._share(snapshot), [[] for _ in range(self.count)]))
        return True

    def poll(self, *, wait: bool = False) -> Evaluated:
        if wait and not self.has_room():
            time.sleep(WAIT_SECONDS)
            before, self._waited = self._waited, self._waited + WAIT_SECONDS
            if before < REPORTED_WAIT <= self._waited:
                self._notes.append(
                    f"training has waited {self._waited:.0f} s for evaluations so far, which take longer than the "
                    "training between them; --eval.every-steps and --eval.episodes control how many there are"
                )
        self._supervise()
        ready: list[Evaluation] = []
        while self.pending:
            step, snapshot, played = self.pending[0].step, self.pending[0].snapshot, self.pending[0].played
            living = [member for member in range(self.count) if member not in self._stopped]
            if any(len(played[member]) < self.cfg.eval.all_episodes for member in living):
                break
            for member in living:
                ready += evaluations_of(self.cfg, step, member, snapshot, played[member])
            self.pending.pop(0)
        notes, self._notes = [*self._notes, *self.log.news()], []
        return Evaluated(ready, notes, [pair for pair in self._diverged.items() if pair[0] not in self._stopped])

    def stop(self, member: int) -> None:
        self._stopped.add(member)

    def state(self) -> State:
        return {
            str(index): {"step": evaluation.step, **evaluation.snapshot.to_dict()}
            for index, evaluation in enumerate(self.pending)
        }

    def restore(self, state: State, architecture: Architecture) -> list[int]:
        steps: list[int] = []
        if len(state) > MAX_PENDING:
            raise ValueError(f"{len(state)} evaluations are under way")
        for index in range(len(state)):
            saved = to_fields(state[str(index)])
            snapshot = PolicySnapshot.from_dict(saved, self.count, architecture).checked()
            steps.append(to_count(saved["step"], least=steps[-1] + 1 if steps else 0))
            self.submit(snapshot, steps[-1])
        return steps

    def _next_question(self, slot: Slot) -> tuple[Pending, int] | None:
        """Returns an evaluation of which episodes are missing, and whose, for a slot that is free."""
        for evaluation in self.pending:
            for member in slot.members:
                if member not in self._stopped and self._is_missing(evaluation, member):
                    return evaluation, member
        return None

    def _is_missing(self, evaluation: Pending, member: int) -> bool:
        return len(evaluation.played[member]) < self.cfg.eval.all_episodes and member not in self._diverged

    def _store(self, slot: Slot, question: Any, results: Sequence[Any] = (), diverged: str = "") -> None:
        evaluation, member = question
        if diverged:
            self._diverged[member] = diverged
        slot.delivered += len(results)
        evaluation.played[member] += [EpisodeResult(*fields) for fields in results]

    def _on_lost(self, slot: Slot, why: str) -> None:
        """Records the fault of an evaluator; if it is given up, the others take over its members."""
        slot.record_fault(min_delivered=1)
        self._notes.append(f"an evaluator process was lost: {why}; its evaluation is repeated")
        if slot.given_up:
            self.slots.remove(slot)
            if not self.slots:
                raise NobodyLeft(f"the evaluation keeps failing: {why}")
            for member in slot.members:
                min(self.slots, key=lambda other: len(other.members)).members.append(member)


class ProcessEvaluator(PendingEvaluations):
    """Evaluates in processes on this machine."""

    def __init__(self, cfg: Config, make_env: EnvFactory, log: WorkerLog) -> None:
        super().__init__(for_workers(cfg, make_env), log)
        self.policies: Policies | None = None  # from the first evaluation on
        processes = min(self.count, len(os.sched_getaffinity(0)))  # at a lower priority than actors
        self.slots = [WorkerSlot(first, range(first, self.count, processes)) for first in range(processes)]

    def close(self) -> None:
        end_all(self.slots)
        if self.policies is not None:
            self.policies.close()

    def _share(self, snapshot: PolicySnapshot) -> int:
        self.policies = self.policies or Policies(self.count, snapshot.architecture, MAX_PENDING)
        free: int = min({*range(MAX_PENDING)} - {evaluation.policy for evaluation in self.pending})
        self.policies.put(free, snapshot)
        return free

    def _supervise(self) -> None:
        for slot in [*self.slots]:  # a copy: one may be removed
            if self.pending and self.policies and slot.worker is None and slot.may_start:
                with starting():
                    task = {"role": "evaluator", "policies": self.policies.handle}
                    slot.start(self.cfg, task, [self.policies], self.log.fd)
            if slot.worker is None:
                continue
            fault = slot.worker.fault(self.cfg.env.hang_seconds)
            for message in slot.worker.receive():  # after fault(): an ended process has sent everything
                self._store(slot, slot.question, **message)
            if slot.worker.error is not None:
                raise slot.worker.error
            if fault:
                why = slot.worker.crash_reason or fault
                slot.worker.end()
                slot.close()
                self._on_lost(slot, why)
            elif slot.question is not None and self._is_missing(*slot.question):
                continue
            elif question := self._next_question(slot):
                slot.question, (evaluation, member) = question, question
                slot.worker.send(member=member, policy_slot=evaluation.policy, first=len(evaluation.played[member]))
                slot.wake()
