"""Evaluates in separate processes, so that training does not wait."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import numpy as np

from t3d.actors.protocols import Evaluated
from t3d.actors.shared_memory import Policies
from t3d.actors.supervisor import WorkerSlot, end_all, for_workers, starting
from t3d.actors.worker_log import WorkerLog
from t3d.architectures import actor_architecture
from t3d.config import Config
from t3d.errors import NobodyLeft
from t3d.files import to_count
from t3d.snapshots import PolicySnapshot, packed, unpacked
from t3d.types import Evaluation, Spec, State
from t3d.world.guard import EnvFactory

MAX_PENDING = 2  # evaluations in progress; if another is due, training waits rather than skip it; chosen
WAIT_SECONDS = 0.05
REPEAT_SECONDS = 5.0  # idle time of a process that has open requests, after which they are sent again; chosen
REPORTED_WAIT = 10.0  # seconds that training has waited for evaluations; reported once; chosen


@dataclass
class Pending:
    """An evaluation in progress."""

    step: int
    snapshot: PolicySnapshot
    policy_slot: int
    played: list[list[tuple[float, int]]]  # by member: return and length of its first episodes
    bad_values: list[int]  # by member


class EvaluatorSlot(WorkerSlot):
    """A slot for one evaluator process, and the members it evaluates."""

    def __init__(self, members: list[int]) -> None:
        super().__init__()
        self.members = members
        self.waited = 0.0  # idle seconds of the process up to the last request sent to it


class ProcessEvaluator:
    """Evaluates snapshots in parallel with training, and returns the results in the order of submission."""

    def __init__(self, cfg: Config, spec: Spec, make_env: EnvFactory, log: WorkerLog) -> None:
        self.cfg, self.count, self.log = for_workers(cfg, make_env), len(cfg.members), log  # count: number of members
        self.policies = Policies(self.count, actor_architecture(spec, cfg.td3), MAX_PENDING)
        processes = min(self.count, len(os.sched_getaffinity(0)))  # at a lower priority than actors
        self.slots = [EvaluatorSlot(list(range(first, self.count, processes))) for first in range(processes)]
        self.pending: list[Pending] = []
        self._notes: list[str] = []
        self._waited = 0.0
        self._stopped: set[int] = set()
        self._diverged: dict[int, str] = {}  # members, and which action was not finite

    def has_room(self) -> bool:
        """Whether another evaluation can start."""
        return len(self.pending) < MAX_PENDING

    def submit(self, snapshot: PolicySnapshot, step: int) -> bool:
        """Starts evaluating every living member of the snapshot; there must be room."""
        snapshot = self._without_stopped(snapshot)
        policy_slot = min({*range(MAX_PENDING)} - {one.policy_slot for one in self.pending})
        one = Pending(step, snapshot, policy_slot, [[] for _ in range(self.count)], [0] * self.count)
        self.policies.put(policy_slot, snapshot)
        self.pending.append(one)
        for slot in self.slots:
            self._request(slot, slot.members, one)
        return True

    def poll(self, *, wait: bool = False) -> Evaluated:
        """Returns the evaluations that are complete, each once; with wait, after a moment if there is no room."""
        if wait and not self.has_room():
            self._wait()
        for slot in [*self.slots]:  # a copy: one may be removed
            self._supervise(slot)
        ready: list[Evaluation] = []
        while self.pending and self._is_complete(self.pending[0]):
            one = self.pending.pop(0)
            for member, played in self._living(one).items():
                returns, lengths = zip(*played, strict=True)
                figures = np.array(returns), np.array(lengths), one.bad_values[member]
                ready.append(Evaluation(one.step, member, one.snapshot, *figures))
        notes, self._notes = [*self._notes, *self.log.news()], []
        return Evaluated(ready, notes, [pair for pair in self._diverged.items() if pair[0] not in self._stopped])

    def stop(self, member: int) -> None:
        """Evaluates this member no more."""
        self._stopped.add(member)

    def _without_stopped(self, snapshot: PolicySnapshot) -> PolicySnapshot:
        """Zeroes the policies of stopped members: what is not finite must not reach a checkpoint."""
        if not self._stopped:
            return snapshot
        living = np.isin(np.arange(self.count), [*self._stopped], invert=True)
        return snapshot._replace(flat=np.where(living[:, None], snapshot.flat, np.float32(0)))

    def _is_complete(self, one: Pending) -> bool:
        return all(len(played) == self.cfg.eval.episodes for played in self._living(one).values())

    def _living(self, one: Pending) -> dict[int, list[tuple[float, int]]]:
        """Returns the episodes of members that have not stopped."""
        return {member: played for member, played in enumerate(one.played) if member not in self._stopped}

    def _wait(self) -> None:
        time.sleep(WAIT_SECONDS)
        before, self._waited = self._waited, self._waited + WAIT_SECONDS
        if before < REPORTED_WAIT <= self._waited:
            self._notes.append(
                f"training has waited {self._waited:.0f} s for evaluations so far, which take longer than the training "
                "between them; --eval.every-steps and --eval.episodes control how many there are"
            )

    def state(self) -> State:
        """Returns the evaluations in progress, which a resumed run starts again."""
        return {str(index): {"step": one.step, **packed(one.snapshot)} for index, one in enumerate(self.pending)}

    def restore(self, state: State) -> list[int]:
        """Starts the saved evaluations again and returns their steps."""
        steps: list[int] = []
        if len(state) > MAX_PENDING:
            raise ValueError(f"{len(state)} evaluations are under way")
        for index in range(len(state)):
            saved = state[str(index)]
            snapshot = unpacked(saved, self.count, self.policies.network)
            steps.append(to_count(saved["step"], least=steps[-1] + 1 if steps else 0))
            self.submit(snapshot, steps[-1])
        return steps

    def close(self) -> None:
        """Ends the processes."""
        end_all(self.slots)
        self.policies.close()

    def _supervise(self, slot: EvaluatorSlot) -> None:
        if self.pending and slot.due:
            self._start(slot)
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
            self._handle_fault(slot, slot.worker.crash_reason or fault)
        elif slot.worker.heartbeat.waited - slot.waited > REPEAT_SECONDS:
            for one in self.pending:
                self._request(slot, slot.members, one)

    def _start(self, slot: EvaluatorSlot) -> None:
        """Starts a process and sends it all open requests."""
        with starting():
            task = {"role": "evaluator", "policies": self.policies.handle}
            slot.start(self.cfg, task, [self.policies], self.log.fd)
        for one in self.pending:
            self._request(slot, slot.members, one)

    def _request(self, slot: EvaluatorSlot, members: list[int], one: Pending) -> None:
        """Requests the missing episodes of these members, if the process is running."""
        if slot.worker is not None:
            for member in members:
                if member in self._stopped:
                    continue
                first = len(one.played[member])
                if first < self.cfg.eval.episodes:
                    slot.worker.send(member=member, step=one.step, policy_slot=one.policy_slot, first=first)
            slot.waited = slot.worker.heartbeat.waited
            slot.wake()

    def _store(self, member: int, step: int, first: int, results: list[tuple[float, int]], bad_values: int) -> None:
        """Stores the results of some episodes, unless a repeated request has delivered them before."""
        for one in self.pending:
            if one.step == step and len(one.played[member]) == first:
                one.played[member] += results
                one.bad_values[member] += bad_values

    def _handle_fault(self, slot: EvaluatorSlot, why: str) -> None:
        """Ends the process, to be restarted; if that has failed too often, the others take over its members."""
        assert slot.worker is not None  # noqa: S101 (the caller has checked)
        slot.worker.end()
        slot.close()
        slot.record_fault(min_delivered=1)
        self._notes.append(f"an evaluator process was lost: {why}; its evaluation is repeated")
        if not slot.given_up:
            return
        self.slots.remove(slot)
        if not self.slots:
            raise NobodyLeft(f"the evaluation keeps failing: {why}")
        for member in slot.members:
            successor = min(self.slots, key=lambda other: len(other.members))
            successor.members.append(member)
            for one in self.pending:
                self._request(successor, [member], one)
