"""Evaluations beside training: what is in progress, and the processes of this machine that play the episodes."""

from __future__ import annotations

import itertools
import os
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from t3d.actors.protocols import Evaluated
from t3d.actors.shared_memory import Policies
from t3d.actors.supervisor import Slot, WorkerLog, WorkerSlot, end_all, for_workers, starting
from t3d.config import Config
from t3d.config.networks import actor_architecture
from t3d.errors import NobodyLeft
from t3d.files import to_count, to_fields
from t3d.policy.acting import PolicySnapshot
from t3d.policy.spec import Spec
from t3d.types import EpisodeResult, Evaluation, State
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

    def __init__(self, cfg: Config, spec: Spec, log: WorkerLog) -> None:
        self.cfg, self.count, self.log = cfg, len(cfg.members), log  # count: number of members
        self.network = actor_architecture(spec, cfg.td3)
        self.pending: list[Pending] = []
        self._notes: list[str] = []
        self._waited = 0.0
        self._stopped: set[int] = set()
        self._diverged: dict[int, str] = {}  # members, and which action was not finite

    @abstractmethod
    def _begin(self, evaluation: Pending) -> None:
        """Passes the policy of a new evaluation on and has its episodes played."""

    @abstractmethod
    def _supervise(self) -> None:
        """Stores what has arrived, and looks after those who evaluate."""

    def has_room(self) -> bool:
        return len(self.pending) < MAX_PENDING

    def submit(self, snapshot: PolicySnapshot, step: int) -> bool:
        """Starts evaluating every living member of the snapshot; there must be room."""
        evaluation = Pending(step, self._without_stopped(snapshot), None, [[] for _ in range(self.count)])
        self._begin(evaluation)
        return True

    def poll(self, *, wait: bool = False) -> Evaluated:
        """Returns the evaluations that are complete, each once; with wait, after a moment if there is no room."""
        if wait and not self.has_room():
            self._wait()
        self._supervise()
        ready: list[Evaluation] = []
        while self.pending and self._is_complete(self.pending[0]):
            evaluation = self.pending.pop(0)
            ready += [
                Evaluation(evaluation.step, member, evaluation.snapshot, played)
                for member, played in self._living(evaluation).items()
            ]
        notes, self._notes = [*self._notes, *self.log.news()], []
        return Evaluated(ready, notes, [pair for pair in self._diverged.items() if pair[0] not in self._stopped])

    def stop(self, member: int) -> None:
        self._stopped.add(member)

    def state(self) -> State:
        return {
            str(index): {"step": evaluation.step, **evaluation.snapshot.to_dict()}
            for index, evaluation in enumerate(self.pending)
        }

    def restore(self, state: State) -> list[int]:
        steps: list[int] = []
        if len(state) > MAX_PENDING:
            raise ValueError(f"{len(state)} evaluations are under way")
        for index in range(len(state)):
            saved = to_fields(state[str(index)])
            snapshot = PolicySnapshot.from_dict(saved, self.count, self.network).checked()
            steps.append(to_count(saved["step"], least=steps[-1] + 1 if steps else 0))
            self.submit(snapshot, steps[-1])
        return steps

    def _store(self, member: int, step: int, first: int, results: list[Any]) -> None:
        """Stores the results of some episodes, given as their fields, unless they have come before."""
        for evaluation in self.pending:
            if evaluation.step == step and len(evaluation.played[member]) == first:
                evaluation.played[member] += [EpisodeResult(*fields) for fields in results]

    def _reassign_members(self, slots: list[Any], lost: Slot, why: str) -> list[tuple[Any, int]]:
        """Records the fault of an evaluator; if it is given up, the others take over its members: who takes whom."""
        lost.record_fault(min_delivered=1)
        self._notes.append(f"an evaluator process was lost: {why}; its evaluation is repeated")
        if not lost.given_up:
            return []
        slots.remove(lost)
        if not slots:
            raise NobodyLeft(f"the evaluation keeps failing: {why}")
        reassigned = []
        for member in lost.members:
            successor = min(slots, key=lambda other: len(other.members))
            successor.members.append(member)
            reassigned.append((successor, member))
        return reassigned

    def _without_stopped(self, snapshot: PolicySnapshot) -> PolicySnapshot:
        """Zeroes the policies of stopped members: what is not finite must not reach a checkpoint."""
        if not self._stopped:
            return snapshot
        living = np.isin(np.arange(self.count), [*self._stopped], invert=True)
        return snapshot._replace(flat=np.where(living[:, None], snapshot.flat, np.float32(0)))

    def _missing(self, evaluation: Pending, member: int) -> range:
        """The episodes of a member that are still to be played; none if it has stopped."""
        first = len(evaluation.played[member])
        return range(first, first if member in self._stopped else self.cfg.eval.episodes)

    def _is_complete(self, evaluation: Pending) -> bool:
        return all(len(played) == self.cfg.eval.episodes for played in self._living(evaluation).values())

    def _living(self, evaluation: Pending) -> dict[int, list[EpisodeResult]]:
        return {member: played for member, played in enumerate(evaluation.played) if member not in self._stopped}

    def _wait(self) -> None:
        time.sleep(WAIT_SECONDS)
        before, self._waited = self._waited, self._waited + WAIT_SECONDS
        if before < REPORTED_WAIT <= self._waited:
            self._notes.append(
                f"training has waited {self._waited:.0f} s for evaluations so far, which take longer than the training "
                "between them; --eval.every-steps and --eval.episodes control how many there are"
            )


REPEAT_SECONDS = 5.0  # idle time of a process that has open requests, after which they are sent again; chosen


class ProcessSlot(WorkerSlot):
    """A slot for one evaluator process."""

    waited = 0.0  # idle seconds of the process up to the last request sent to it


class ProcessEvaluator(PendingEvaluations):
    """Evaluates in processes on this machine."""

    def __init__(self, cfg: Config, spec: Spec, make_env: EnvFactory, log: WorkerLog) -> None:
        super().__init__(for_workers(cfg, make_env), spec, log)
        self.policies = Policies(self.count, self.network, MAX_PENDING)
        processes = min(self.count, len(os.sched_getaffinity(0)))  # at a lower priority than actors
        self.slots = [ProcessSlot(first, range(first, self.count, processes)) for first in range(processes)]

    def close(self) -> None:
        end_all(self.slots)
        self.policies.close()

    def _begin(self, evaluation: Pending) -> None:
        evaluation.policy = min({*range(MAX_PENDING)} - {other.policy for other in self.pending})
        self.policies.put(evaluation.policy, evaluation.snapshot)
        self.pending.append(evaluation)
        for slot in self.slots:
            self._request(slot, slot.members, [evaluation])

    def _supervise(self) -> None:
        for slot in [*self.slots]:  # a copy: one may be removed
            self._supervise_one(slot)

    def _supervise_one(self, slot: ProcessSlot) -> None:
        if self.pending and slot.due:
            with starting():
                task = {"role": "evaluator", "policies": self.policies.handle}
                slot.start(self.cfg, task, [self.policies], self.log.fd)
            self._request(slot, slot.members, self.pending)
        if slot.worker is None:
            return
        fault = slot.worker.fault(self.cfg.env.hang_seconds)
        for message in slot.worker.receive():  # after fault(): an ended process has sent everything
            slot.delivered += 1
            if "diverged" in message:
                self._diverged[message["member"]] = message["diverged"]
            else:
                self._store(**message)
        if slot.worker.error is not None:
            raise slot.worker.error
        if fault:
            why = slot.worker.crash_reason or fault
            slot.worker.end()
            slot.close()
            for successor, member in self._reassign_members(self.slots, slot, why):
                self._request(successor, [member], self.pending)
        elif slot.worker.heartbeat.waited - slot.waited > REPEAT_SECONDS:
            self._request(slot, slot.members, self.pending)

    def _request(self, slot: ProcessSlot, members: list[int], evaluations: list[Pending]) -> None:
        """Requests the missing episodes of these members, if the process is running."""
        if slot.worker is not None:
            for evaluation, member in itertools.product(evaluations, members):
                if missing := self._missing(evaluation, member):
                    slot.worker.send(
                        member=member, step=evaluation.step, policy_slot=evaluation.policy, first=missing[0]
                    )
            slot.waited = slot.worker.heartbeat.waited
            slot.wake()
