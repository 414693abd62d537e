"""Evaluation in processes of their own, so that training does not wait for it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import numpy as np

from t3d.actors.shared_memory import Policies
from t3d.actors.supervisor import WorkerSlot, end_all, for_workers, starting
from t3d.actors.worker_log import WorkerLog
from t3d.config import Config
from t3d.errors import NobodyLeft
from t3d.files import whole
from t3d.snapshots import PolicySnapshot, actor_sizes, packed, unpacked
from t3d.types import Evaluation, Spec, State
from t3d.world.guard import EnvFactory

MOST_PENDING = 2  # evaluations under way; when the next is due, training waits: none is left out; chosen
WAIT_SECONDS = 0.05
REPEAT_SECONDS = 5.0  # that a process has waited for something to do since it was asked: it was not reached; chosen
WORTH_TELLING = 10.0  # seconds that training has waited for evaluations; told once; chosen


@dataclass
class Pending:
    """An evaluation under way."""

    step: int
    snapshot: PolicySnapshot
    policy_slot: int
    played: list[list[tuple[float, int]]]  # by member: return and length of its first episodes
    bad_values: list[int]  # by member


class EvaluatorSlot(WorkerSlot):
    """One process's place, and whose policies it evaluates."""

    def __init__(self, members: list[int]) -> None:
        super().__init__()
        self.members = members
        self.waited = 0.0  # seconds that the process had waited for something to do when it was last asked


class ProcessEvaluator:
    """Evaluates snapshots beside the training, and hands the results out in the order they were asked for."""

    def __init__(self, cfg: Config, spec: Spec, make_env: EnvFactory, log: WorkerLog) -> None:
        self.cfg, self.count, self.log = for_workers(cfg, make_env), len(cfg.seeds), log  # count: of members
        sizes = actor_sizes(spec, cfg.td3)
        self.policies = Policies(self.count, sizes, MOST_PENDING)
        processes = min(self.count, len(os.sched_getaffinity(0)))  # they yield to actors
        self.slots = [EvaluatorSlot(list(range(first, self.count, processes))) for first in range(processes)]
        self.pending: list[Pending] = []
        self._news: list[str] = []
        self._waited = 0.0

    def has_room(self) -> bool:
        """Whether another evaluation can be begun; says no after a moment."""
        if len(self.pending) < MOST_PENDING:
            return True
        time.sleep(WAIT_SECONDS)
        before, self._waited = self._waited, self._waited + WAIT_SECONDS
        if before < WORTH_TELLING <= self._waited:
            self._news.append(
                f"training has waited {self._waited:.0f} s for evaluations so far, which take longer than the training "
                "between them; --eval.every-steps and --eval.episodes say how many there are"
            )
        return False

    def submit(self, snapshot: PolicySnapshot, step: int) -> bool:
        """Begins to evaluate every member of the snapshot, for which there must be room."""
        policy_slot = min({*range(MOST_PENDING)} - {one.policy_slot for one in self.pending})
        one = Pending(step, snapshot, policy_slot, [[] for _ in range(self.count)], [0] * self.count)
        self.policies.put(policy_slot, snapshot)
        self.pending.append(one)
        for slot in self.slots:
            self._ask(slot, slot.members, one)
        return True

    def poll(self) -> list[Evaluation]:
        """The evaluations that are complete; each is handed out once."""
        for slot in [*self.slots]:  # one may be given up
            self._supervise(slot)
        ready: list[Evaluation] = []
        while self.pending and all(len(played) == self.cfg.eval.episodes for played in self.pending[0].played):
            one = self.pending.pop(0)
            for member, played in enumerate(one.played):
                returns, lengths = zip(*played, strict=True)
                figures = np.array(returns), np.array(lengths), one.bad_values[member]
                ready.append(Evaluation(one.step, member, one.snapshot, *figures))
        return ready

    def news(self) -> list[str]:
        """What has happened to the processes since the last call."""
        news, self._news = [*self._news, *self.log.news()], []
        return news

    def state(self) -> State:
        """What is under way: it is begun again when the run goes on."""
        return {str(number): {"step": one.step, **packed(one.snapshot)} for number, one in enumerate(self.pending)}

    def restore(self, state: State) -> list[int]:
        """Begins what was under way, and returns the steps of it."""
        steps: list[int] = []
        if len(state) > MOST_PENDING:
            raise ValueError(f"{len(state)} evaluations are under way")
        for number in range(len(state)):
            saved = state[str(number)]
            snapshot = unpacked(saved, self.count, self.policies.sizes)
            steps.append(whole(saved["step"], least=steps[-1] + 1 if steps else 0))
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
        for message in slot.worker.receive():  # after the look: all that an ended process has said is there
            slot.delivered += 1
            self._take(**message)
        if slot.worker.error is not None:
            raise slot.worker.error
        if fault:
            self._lost(slot, slot.worker.last_words or fault)
        elif slot.worker.heartbeat.waited - slot.waited > REPEAT_SECONDS:
            for one in self.pending:
                self._ask(slot, slot.members, one)

    def _start(self, slot: EvaluatorSlot) -> None:
        """A process, and all that it has not answered yet."""
        with starting():
            task = {"role": "evaluator", "policies": self.policies.handle}
            slot.begin(self.cfg, task, [self.policies], self.log.fd)
        for one in self.pending:
            self._ask(slot, slot.members, one)

    def _ask(self, slot: EvaluatorSlot, members: list[int], one: Pending) -> None:
        """Asks a process, if there is one, for the episodes of these members that are missing."""
        if slot.worker is not None:
            for member in members:
                first = len(one.played[member])
                if first < self.cfg.eval.episodes:
                    slot.worker.send(member=member, step=one.step, policy_slot=one.policy_slot, first=first)
            slot.waited = slot.worker.heartbeat.waited
            slot.wake()

    def _take(self, member: int, step: int, first: int, results: list[tuple[float, int]], bad_values: int) -> None:
        """Keeps the results of some episodes, unless they are there already because they were asked for twice."""
        for one in self.pending:
            if one.step == step and len(one.played[member]) == first:
                one.played[member] += results
                one.bad_values[member] += bad_values

    def _lost(self, slot: EvaluatorSlot, why: str) -> None:
        """Begins the process anew, unless that has failed too often: then the others take its members over."""
        assert slot.worker is not None  # noqa: S101 (the caller has seen it)
        slot.worker.end()
        slot.close()
        slot.failed(good_work=1)
        self._news.append(f"a process that evaluates was lost: {why}; its evaluation is made again")
        if not slot.given_up:
            return
        self.slots.remove(slot)
        if not self.slots:
            raise NobodyLeft(f"the evaluation fails again and again: {why}")
        for member in slot.members:
            heir = min(self.slots, key=lambda other: len(other.members))
            heir.members.append(member)
            for one in self.pending:
                self._ask(heir, [member], one)
