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
from t3d.actors.ray_actor import Evaluator, packed_policy
from t3d.actors.ray_checks import Started
from t3d.actors.ray_cluster import Connection
from t3d.actors.ray_slots import RaySlot, end_actors, in_words, patience
from t3d.actors.supervisor import Silence, for_workers
from t3d.actors.worker_log import WorkerLog
from t3d.config import Config
from t3d.errors import NobodyLeft, UserError
from t3d.world.guard import EnvFactory


class RayEvaluatorSlot(RaySlot):
    """A slot for one evaluator on the cluster, and the members it evaluates."""

    def __init__(self, number: int, members: list[int]) -> None:
        super().__init__(number)
        self.members = members
        self.asked: tuple[Pending, int, int] | None = None  # evaluation, member and first episode
        self.answer: Any = None  # the reference to its answer
        self.opened: set[int] = set()  # members whose environments exist

    @property
    def awaited(self) -> Any:
        """The reference to what it shall answer next, if it was asked anything."""
        return self.ready_ref if self.answer is None else self.answer


class RayEvaluator(PendingEvaluations):
    """Evaluates in actors on a Ray cluster, which reserve no CPU there: each always finds a place."""

    def __init__(
        self, cfg: Config, checkup: Checkup, make_env: EnvFactory, connection: Connection, log: WorkerLog
    ) -> None:
        super().__init__(cfg, checkup.spec, log)
        self._patience = patience(cfg, cfg.num_envs if checkup.vector else 1)
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
        awaited = [ref for slot in self.slots if (ref := slot.awaited) is not None]
        ready = ray.wait(awaited, num_returns=len(awaited), timeout=0)[0] if awaited else []
        for slot in [*self.slots]:  # a copy: one may be removed
            if slot.handle is None and self.pending and slot.may_start:
                slot.start(self._kind, self.worker_cfg, num_cpus=0)
            elif slot.awaited in ready:
                self._receive(slot, slot.awaited)
            elif slot.answer is not None and (fault := self._hangs(slot)):
                self._lose(slot, fault)
            if slot.runs and slot.asked is None:
                self._ask(slot)

    def _receive(self, slot: RayEvaluatorSlot, ref: Any) -> None:
        """Takes an evaluator's answer, which has arrived."""
        try:
            answer = ray.get(ref)
        except RayError as error:
            self._lose(slot, in_words(error))
            return
        if not slot.runs:
            slot.mark_running(Started(*answer))
            if warning := self.connection.warning(Started(*answer)):
                self._notes.append(warning)
        else:
            self._take(slot, answer)

    def _hangs(self, slot: RayEvaluatorSlot) -> str:
        assert slot.asked is not None  # noqa: S101 (an answer is awaited)
        return slot.silence.fault(slot.answers, self._patience, ready=slot.asked[1] in slot.opened)

    def _take(self, slot: RayEvaluatorSlot, answer: dict[str, Any]) -> None:
        """Stores the results in an answer; one without results says that the episodes are not over yet."""
        assert slot.asked is not None  # noqa: S101 (an answer was awaited)
        (one, member, first), slot.asked, slot.answer = slot.asked, None, None
        slot.answers += 1
        slot.opened.add(member)
        if "results" in answer:
            slot.delivered += 1
            self._store(member, one.step, first, **answer)
        elif "diverged" in answer:
            self._diverged[member] = answer["diverged"]
        elif error := user_error(answer):
            raise error
        elif "crash" in answer:
            self._lose(slot, answer["crash"])

    def _ask(self, slot: RayEvaluatorSlot) -> None:
        """Asks for the next episodes that are missing."""
        for one in self.pending:
            for member in slot.members:
                missing = self._missing(one, member)
                if missing and member not in self._diverged:
                    slot.asked, slot.silence = (one, member, missing[0]), Silence()
                    slot.answer = slot.handle.play.remote(member, one.step, missing[0], one.policy)
                    return

    def _lose(self, slot: RayEvaluatorSlot, why: str) -> None:
        """Ends an evaluator, to be replaced; what it was asked for is asked again."""
        slot.asked, slot.answer, slot.opened = None, None, set()
        if slot.runs:
            slot.end()
            self._reassign_members(self.slots, slot, why)
        else:
            slot.end()
            self._record_failed_start(slot, why)

    def _record_failed_start(self, slot: RayEvaluatorSlot, why: str) -> None:
        """Tries again later: another node may have room. Ends the run if no evaluator can be created at all."""
        slot.record_failed_start()
        if slot.failed_starts == 1:
            self._notes.append(f"an evaluator was lost: {why}")
        if all(other.hopeless for other in self.slots):
            raise NobodyLeft(f"no evaluator is left: {why}")


def _cpus(cfg: Config) -> int:
    """CPUs of the cluster. One of our own claims to have as many as its actors reserve."""
    if not cfg.ray_address:
        return len(os.sched_getaffinity(0))
    return max(1, int(ray.cluster_resources().get("CPU", 1)))  # type: ignore[no-untyped-call]
