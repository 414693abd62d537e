"""Evaluates in separate processes, so that training does not wait."""

from __future__ import annotations

import os

from t3d.actors.pending import MAX_PENDING, Pending, PendingEvaluations
from t3d.actors.shared_memory import Policies
from t3d.actors.supervisor import WorkerSlot, end_all, for_workers, starting
from t3d.actors.worker_log import WorkerLog
from t3d.config import Config
from t3d.policy.spec import Spec
from t3d.world.guard import EnvFactory

REPEAT_SECONDS = 5.0  # idle time of a process that has open requests, after which they are sent again; chosen


class ProcessSlot(WorkerSlot):
    """A slot for one evaluator process, and the members it evaluates."""

    def __init__(self, members: list[int]) -> None:
        super().__init__()
        self.members = members
        self.waited = 0.0  # idle seconds of the process up to the last request sent to it


class ProcessEvaluator(PendingEvaluations):
    """Evaluates in processes on this machine."""

    def __init__(self, cfg: Config, spec: Spec, make_env: EnvFactory, log: WorkerLog) -> None:
        super().__init__(for_workers(cfg, make_env), spec, log)
        self.policies = Policies(self.count, self.network, MAX_PENDING)
        processes = min(self.count, len(os.sched_getaffinity(0)))  # at a lower priority than actors
        self.slots = [ProcessSlot(list(range(first, self.count, processes))) for first in range(processes)]

    def close(self) -> None:
        """Ends the processes."""
        end_all(self.slots)
        self.policies.close()

    def _start_one(self, one: Pending) -> None:
        one.policy = min({*range(MAX_PENDING)} - {other.policy for other in self.pending})
        self.policies.put(one.policy, one.snapshot)
        self.pending.append(one)
        for slot in self.slots:
            self._request(slot, slot.members, one)

    def _supervise(self) -> None:
        for slot in [*self.slots]:  # a copy: one may be removed
            self._supervise_one(slot)

    def _supervise_one(self, slot: ProcessSlot) -> None:
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

    def _start(self, slot: ProcessSlot) -> None:
        """Starts a process and sends it all open requests."""
        with starting():
            task = {"role": "evaluator", "policies": self.policies.handle}
            slot.start(self.cfg, task, [self.policies], self.log.fd)
        for one in self.pending:
            self._request(slot, slot.members, one)

    def _request(self, slot: ProcessSlot, members: list[int], one: Pending) -> None:
        """Requests the missing episodes of these members, if the process is running."""
        if slot.worker is not None:
            for member in members:
                if missing := self._missing(one, member):
                    slot.worker.send(member=member, step=one.step, policy_slot=one.policy, first=missing[0])
            slot.waited = slot.worker.heartbeat.waited
            slot.wake()

    def _handle_fault(self, slot: ProcessSlot, why: str) -> None:
        """Ends the process, to be restarted; if that has failed too often, the others take over its members."""
        assert slot.worker is not None  # noqa: S101 (the caller has checked)
        slot.worker.end()
        slot.close()
        for successor, member in self._reassign_members(self.slots, slot, why):
            for one in self.pending:
                self._request(successor, [member], one)
