"""Evaluates on a Ray cluster, so that training does not wait."""

from __future__ import annotations

import os
import time
from typing import Any

import ray
from ray.exceptions import RayError

from t3d.actors.checkup_worker import Checkup
from t3d.actors.failures import user_error
from t3d.actors.pending import WAIT_SECONDS, Pending, PendingEvaluations
from t3d.actors.ray_actor import Evaluator, Started, packed_policy
from t3d.actors.ray_cluster import Connection
from t3d.actors.ray_orders import RaySlot, answer_timeout, answers, end_actors, reason_of
from t3d.actors.supervisor import for_workers
from t3d.actors.worker_log import WorkerLog
from t3d.config import Config
from t3d.errors import NobodyLeft, UserError
from t3d.world.guard import EnvFactory


class RayEvaluatorSlot(RaySlot):
    """A slot for one evaluator on the cluster, and the members it evaluates.

    What it is asked is an evaluation, a member and the first episode.
    """

    def __init__(self, number: int, members: list[int]) -> None:
        super().__init__(number)
        self.members = members
        self.opened: set[int] = set()  # members whose environments exist


class RayEvaluator(PendingEvaluations):
    """Evaluates in actors on a Ray cluster, which reserve no CPU there: each always finds a place."""

    def __init__(
        self, cfg: Config, checkup: Checkup, make_env: EnvFactory, connection: Connection, log: WorkerLog
    ) -> None:
        super().__init__(cfg, checkup.spec, log)
        self._timeout = answer_timeout(cfg, cfg.num_envs if checkup.vector else 1)
        self._checked_at = 0.0
        self.worker_cfg, self.connection = connection.for_actors(for_workers(cfg, make_env)), connection
        actors = min(self.count, _cpus(cfg))
        self.slots = [RayEvaluatorSlot(first, list(range(first, self.count, actors))) for first in range(actors)]
        self._kind = ray.remote(Evaluator)

    def close(self) -> None:
        """Ends the evaluators."""
        if not self.connection.lost():  # Ray would wait long for a cluster that is gone
            end_actors(self.slots)

    def _start_one(self, one: Pending) -> None:
        one.policy = ray.put(packed_policy(one.snapshot))
        self.pending.append(one)

    def _supervise(self) -> None:
        if time.monotonic() - self._checked_at < WAIT_SECONDS:
            return
        self._checked_at = time.monotonic()
        if self.pending and (lost := self.connection.lost()):
            raise UserError(lost)
        for slot, question, answer in answers(self.slots, 0.0):
            self._take(slot, question, answer)
        for slot in [*self.slots]:  # a copy: one may be removed
            if slot.handle is None and self.pending and slot.may_start:
                slot.start(self._kind, self.worker_cfg, 0)
            elif slot.runs and slot.asked and (fault := self._hangs(slot)):
                self._lose(slot, fault)
            if slot.runs and not slot.asked:
                self._ask(slot)

    def _hangs(self, slot: RayEvaluatorSlot) -> str:
        _, (_, member, _) = slot.asked[0]
        return slot.hang_detector.fault(slot.answers, self._timeout, ready=member in slot.opened)

    def _take(self, slot: RayEvaluatorSlot, question: Any, answer: Any) -> None:
        """Stores the results in an answer; one without results says that the episodes are not over yet."""
        if isinstance(answer, RayError):
            self._lose(slot, reason_of(answer))
            return
        if question is None:
            slot.mark_running(Started(*answer))
            self._notes += filter(None, [self.connection.warning(Started(*answer))])
            return
        pending, member, first = question
        slot.opened.add(member)
        if "results" in answer:
            slot.delivered += 1
            self._store(member, pending.step, first, **answer)
        elif "diverged" in answer:
            self._diverged[member] = answer["diverged"]
        elif error := user_error(answer):
            raise error
        elif "crash" in answer:
            self._lose(slot, answer["crash"])

    def _ask(self, slot: RayEvaluatorSlot) -> None:
        """Asks for the next episodes that are missing."""
        for pending in self.pending:
            for member in slot.members:
                missing = self._missing(pending, member)
                if missing and member not in self._diverged:
                    question = pending, member, missing[0]
                    slot.ask("play", question, member, pending.step, missing[0], pending.policy)
                    return

    def _lose(self, slot: RayEvaluatorSlot, why: str) -> None:
        """Ends an evaluator, to be replaced; what it was asked for is asked again."""
        slot.opened, has_run = set(), slot.runs
        if has_run:
            slot.end()
            self._reassign_members(self.slots, slot, why)
            return
        slot.record_loss(1)
        if slot.failed_starts == 1:
            self._notes.append(f"an evaluator was lost: {why}")
        if all(other.hopeless for other in self.slots):
            raise NobodyLeft(f"no evaluator is left: {why}")


def _cpus(cfg: Config) -> int:
    """CPUs of the cluster. One of our own claims to have as many as its actors reserve."""
    if not cfg.ray_address:
        return len(os.sched_getaffinity(0))
    return max(1, int(ray.cluster_resources().get("CPU", 1)))  # type: ignore[no-untyped-call]
