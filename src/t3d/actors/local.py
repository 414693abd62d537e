"""Actor processes on this machine, which fill the replay while the learner learns.

Each has a ring of transitions to the learner, and reads the newest policy and its step limit from shared memory.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from dataclasses import replace

import numpy as np

from t3d.actors.checkup import Checkup
from t3d.actors.governor import Governor
from t3d.actors.inbox import Inbox
from t3d.actors.protocols import ActingTotals, Collected
from t3d.actors.shared_memory import RANDOM, Ring, SharedState, Torn, Wakeup
from t3d.actors.supervisor import WorkerLog, WorkerSlot, acting_by, end_all, for_workers, starting
from t3d.config import Config, to_dict
from t3d.errors import UserError
from t3d.policy.acting import PolicySnapshot
from t3d.types import State, row_sizes
from t3d.world.guard import EnvFactory

LONGEST_WAIT = 0.1  # seconds that poll waits for transitions, and between two checks of the actors
RING_ROWS, RING_BYTES = 1024, 2**26  # a ring holds RING_ROWS + max_ahead rows, within RING_BYTES; chosen
# Transitions per member that poll waits for; fewer if max_ahead is small. A block costs as many small copies however
# long it is: with 10 rows the learner of ten seeds could not keep an H200 busy.
BLOCK = 32
GATHER_SECONDS, NAP_SECONDS = 0.002, 0.0005  # how long it waits for them, and sleeps between two checks; chosen
MIN_DELIVERED = 100  # transitions after which the count of faults in a row starts over; chosen
Unit = tuple[tuple[int, int], ...]  # (member, environment) pairs that are stepped together: one, or a VectorEnv's


class ActorSlot(WorkerSlot):
    """A slot for one actor: its environments, and its ring while the process runs."""

    def __init__(self, number: int, units: list[Unit]) -> None:
        super().__init__(number)
        self.units = units
        self.transitions: Ring | None = None

    def close(self) -> None:
        super().close()
        if self.transitions is not None:
            self.transitions.close()
        self.transitions = None


class LocalCollector:
    """Collects in actor processes: fast, and not deterministic."""

    keeps_episodes = takes_turns = False

    def __init__(self, cfg: Config, make_env: EnvFactory, checkup: Checkup, log: WorkerLog) -> None:
        self.cfg, self.worker_cfg, self.governor = cfg, for_workers(cfg, make_env), Governor(cfg)
        self.spec, self.log = checkup.spec, log
        self.slots = [ActorSlot(number, units) for number, units in enumerate(shares(cfg, as_one=checkup.vector))]
        members, actors = len(cfg.members), cfg.async_actors
        self.shared_state = SharedState(members, cfg.num_envs, actors)
        self.shared_state.episodes[:] = -1
        self.learner_wakeup = Wakeup()
        self.inbox = Inbox(cfg, self.spec)
        self._received = np.zeros((members, actors), np.int64)
        self._resting: Collection[int] | None = None  # None unless a rule hears episodes
        self._reported = np.zeros((members, cfg.num_envs), np.int64)  # episodes that have ended, as actors said
        self._returned = self._reported.copy()  # those of which poll has told
        self.updates, self._checked_at = 0, 0.0
        self._block = max(1, min(BLOCK, cfg.most_ahead // 3))
        self._totals = ActingTotals()  # of actors: those that have ended

    def publish(self, snapshot: PolicySnapshot, updates: int) -> None:
        self.updates = updates
        with starting():
            self.shared_state.publish(snapshot, self.governor.limit(snapshot.updates))
        self.supervise()
        for slot in self.slots:
            slot.wake()

    def poll(self) -> Collected:
        self.inbox.raise_error()
        if self._resting is not None:
            self._release(self._resting)
        self.supervise()
        if not self.inbox.has_rows and self._somebody_acts():
            waited = self._wait()
            self._totals.learner_waited += waited if min(self.inbox.living) < self.cfg.total_steps else 0.0
        self._receive_all()
        self._returned[:] = self._reported
        return self.inbox.take()

    def use(self, cfg: Config) -> None:
        self.worker_cfg = acting_by(cfg, self.worker_cfg)
        for slot in self.slots:
            if slot.worker is not None:
                slot.worker.send(config=to_dict(self.worker_cfg))
                slot.wake()

    def stop(self, member: int) -> None:
        self.shared_state.stopped[member] = 1
        self.inbox.stopped.add(member)

    def rest(self, members: Collection[int]) -> None:
        """Others may act from the next poll on, when the policy that they act by is published."""
        self.governor.updates = 0  # so that no limit depends on updates
        self._resting = members
        self.shared_state.stopped[list(members)] = 1

    def _release(self, resting: Collection[int]) -> None:
        """Lets members act that do not rest, and episodes begin where the rule has heard of those before."""
        shared = self.shared_state
        stopped = [member in resting or member in self.inbox.stopped for member in range(len(self.cfg.members))]
        if np.array_equal(shared.stopped, stopped) and np.array_equal(shared.heard, self._returned):
            return
        shared.stopped[:], shared.heard[:] = stopped, self._returned
        for slot in self.slots:
            slot.wake()

    def _somebody_acts(self) -> bool:
        resting, taken = self._resting or (), self.inbox.taken
        left = [m for m in range(len(taken)) if m not in self.inbox.stopped and taken[m] < self.cfg.total_steps]
        return not resting or any(member not in resting for member in left)

    def totals(self) -> ActingTotals:
        restarts = sum(max(0, slot.starts - 1) for slot in self.slots)
        now, running = time.monotonic(), [slot.worker for slot in self.slots if slot.worker is not None]
        waited = self._totals.actors_waited + sum(worker.heartbeat.waited for worker in running)
        lived = self._totals.actors_lived + sum(now - worker.started for worker in running)
        acting = replace(self._totals, at=now, actors_waited=waited, actors_lived=lived)
        return replace(acting, actors=len(running), restarts=restarts)

    def state(self) -> State:
        return self.inbox.state(self.shared_state.episodes, self.shared_state.bad_values)

    def restore(self, state: State, stop: threading.Event) -> list[str]:
        self.inbox.restore(state, self.shared_state.episodes, self.shared_state.bad_values)
        self.shared_state.taken[:, -1] = self.inbox.taken
        return []

    def close(self) -> None:
        end_all(self.slots)
        self.shared_state.close()
        self.learner_wakeup.close()

    def supervise(self) -> None:
        if time.monotonic() - self._checked_at < LONGEST_WAIT or self.inbox.error is not None:
            return
        self._checked_at = time.monotonic()
        for slot in self.slots:
            if slot.worker is None and slot.may_start:
                self._start(slot)
            elif slot.worker is not None:
                fault = slot.worker.fault(self.cfg.env.hang_seconds)
                self._receive_messages(slot)  # it may have become ready; and a full socket would block it
                if fault:
                    self._handle_fault(slot, fault)

    def _start(self, slot: ActorSlot) -> None:
        width, dtype = sum(row_sizes(self.spec)), np.dtype(self.spec.observation_dtype)
        rows = min(RING_ROWS + self.cfg.most_ahead, RING_BYTES // (dtype.itemsize * width))
        with starting():
            ring = slot.transitions = Ring(width, dtype.name, max(rows, 2 * self.cfg.num_envs))
            task = {
                "role": "actor",
                "actor": slot.number,
                "envs": [pair for unit in slot.units for pair in unit],
                "ring": ring.handle,
                "shared_state": self.shared_state.handle,
                "policies": self.shared_state.policies.handle,
                "learner_wakeup": self.learner_wakeup.fd,
                "hears_episodes": self._resting is not None,
            }
            shared = (ring, self.shared_state, self.shared_state.policies, self.learner_wakeup)
            slot.start(self.worker_cfg, task, shared, self.log.fd)
        if slot.starts > 1:
            self.inbox.report(slot, "back", "restarted")

    def _handle_fault(self, slot: ActorSlot, why: str) -> None:
        assert slot.worker is not None  # noqa: S101 (the caller has checked it)
        slot.worker.end()
        self._receive(slot)
        for member, env in (pair for unit in slot.units for pair in unit):
            self.shared_state.ended[member, env] = self._reported[member, env]
        why, user_error = slot.worker.crash_reason or why, slot.worker.error is not None
        self._totals.actors_waited += slot.worker.heartbeat.waited
        self._totals.actors_lived += time.monotonic() - slot.worker.started
        slot.close()
        self.shared_state.taken[:, slot.number] = self._received[:, slot.number]
        if user_error:  # not the actor's fault: the run ends with this error
            return
        slot.record_fault(MIN_DELIVERED)
        others = [other for other in self.slots if not other.given_up]
        self.inbox.report_fault(slot, why, others=bool(others))
        if not (slot.given_up and others):
            return
        for unit in slot.units:
            successor = min(others, key=lambda other: len(other.units))
            successor.units.append(unit)
            if successor.worker is not None:
                successor.worker.send(envs=unit)
        slot.units = []

    def _wait(self) -> float:
        started = time.monotonic()
        if not self._waiting():
            self.learner_wakeup.wait(LONGEST_WAIT)
        enough, until = self._block * len(self.inbox.living), time.monotonic() + GATHER_SECONDS
        while 0 < self._waiting() < enough and time.monotonic() < until:
            time.sleep(NAP_SECONDS)
        return time.monotonic() - started

    def _waiting(self) -> int:
        return sum(slot.transitions.waiting for slot in self.slots if slot.transitions is not None)

    def _receive_all(self) -> None:
        rings = [slot.transitions for slot in self.slots if slot.transitions is not None]
        self._totals.fills += sum(ring.waiting for ring in rings) / max(1, sum(ring.capacity for ring in rings))
        self._totals.looks += 1
        for slot in self.slots:
            if slot.worker is not None:
                self._receive(slot)

    def _receive(self, slot: ActorSlot) -> None:
        self._take_rows(slot)
        self._receive_messages(slot)

    def _take_rows(self, slot: ActorSlot) -> None:
        assert slot.worker is not None and slot.transitions is not None  # noqa: S101 (the caller has checked them)
        try:
            rows, about = slot.transitions.receive()
        except Torn as error:
            slot.worker.crash_reason = str(error)
            slot.worker.process.kill()
            return
        if len(rows):
            slot.wake()  # there is room again
            slot.delivered += len(rows)
            for member in {member for unit in slot.units for member, _ in unit}:
                mine = about["member"] == member
                self.inbox.add_rows(member, rows[mine], about["origin"][mine])
                self._received[member, slot.number] += mine.sum()
            self._totals.add_ages(self.updates - about["updates"][about["updates"] != RANDOM])

    def _receive_messages(self, slot: ActorSlot) -> None:
        """Receives an actor's messages. A user error is raised once everything before it has been returned."""
        assert slot.worker is not None  # noqa: S101 (the caller has checked it)
        for message in slot.worker.receive():
            self.inbox.add_reports(**message)
            for env, episode, *_ in message["episodes"]:
                self._reported[message["member"], env] = episode + 1
        if slot.worker.error is not None:
            self.inbox.error = self.inbox.error or slot.worker.error
            self._take_rows(slot)


def shares(cfg: Config, *, as_one: bool) -> list[list[Unit]]:
    """Deals environments to actors round-robin, one of every member at a time; a VectorEnv is one.

    All members wait for the slowest, so none may depend on one busy actor alone.
    """
    members, envs, actors = range(len(cfg.members)), range(cfg.num_envs), cfg.async_actors
    each_env: list[Unit] = [((member, env),) for env in envs for member in members]
    units = [tuple((member, env) for env in envs) for member in members] if as_one else each_env
    if len(units) < actors:
        advice = (
            "a VectorEnv is stepped by one actor; use as many actors as seeds, or fewer"
            if as_one
            else f"set --env.num-envs {-(-actors // len(members))}, or use fewer actors"
        )
        raise UserError(f"actors={cfg.actors}, but there is work for only {len(units)}: {advice}")
    return [units[number::actors] for number in range(actors)]
