"""Actors on a Ray cluster, which fill the replay while the learner learns, and evaluators.

The learner orders blocks of transitions, two at a time for each actor, so that none waits for the network.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Collection
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError

from t3d.actors.checkup import Checkup
from t3d.actors.evaluators import WAIT_SECONDS, PendingEvaluations
from t3d.actors.governor import Governor
from t3d.actors.inbox import Inbox
from t3d.actors.local import GATHER_SECONDS, LONGEST_WAIT, MIN_DELIVERED, shares
from t3d.actors.protocols import ActingTotals, Collected
from t3d.actors.ray_actor import Actor, Evaluator, Order, Started, packed_policy
from t3d.actors.ray_cluster import Connection
from t3d.actors.ray_orders import (
    IN_FLIGHT,
    ActorSlot,
    Claims,
    RaySlot,
    Window,
    answer_timeout,
    answers,
    end_actors,
    reason_of,
)
from t3d.actors.supervisor import WorkerLog, acting_by, for_workers, user_error
from t3d.config import Config, to_dict
from t3d.errors import NobodyLeft, UserError
from t3d.policy.acting import PolicySnapshot
from t3d.types import State
from t3d.world.guard import EnvFactory

SKIPPED = (1, 4, 16, 64, 256, 1024)  # episodes after each loss in a row; two orders have at most 1,024; chosen
JOIN_SECONDS = 30.0  # after which the environments of an actor that does not run yet go to others; chosen


class RayCollector:
    """Collects in actors on a Ray cluster: not deterministic."""

    keeps_episodes = takes_turns = False

    def __init__(self, cfg: Config, make_env: EnvFactory, checkup: Checkup, connection: Connection) -> None:
        self.cfg, self.worker_cfg, self.governor = cfg, connection.for_actors(for_workers(cfg, make_env)), Governor(cfg)
        self.spec, self.connection, self.inbox = checkup.spec, connection, Inbox(cfg, checkup.spec)
        self.slots = [ActorSlot(number, units) for number, units in enumerate(shares(cfg, as_one=checkup.vector))]
        self.episodes = np.full((len(cfg.members), cfg.num_envs), -1)
        self.bad_values = np.zeros_like(self.episodes)
        self._losses = np.zeros_like(self.episodes)  # of the actor of an environment, since it answered last
        step = cfg.num_envs if checkup.vector else 1  # environments that are stepped, and reset, together
        self._timeout = answer_timeout(cfg, step)
        self.updates, self.claims, self.window = 0, Claims(cfg, self.spec, step), Window(cfg)
        self._acted_with: list[tuple[int, int]] = []  # of what poll returns next: transitions, updates of the policy
        self._policy: PolicySnapshot | None = None
        self._policy_ref: Any = None  # on the cluster, once an order has needed it
        self._version, self._numbers = 0, itertools.count(1)
        self._news: dict[str, Any] = {}  # settings that have changed, which go with policies
        self._kind = ray.remote(Actor)
        self._checked_at, self._totals = 0.0, ActingTotals()  # of actors: those that have ended

    def publish(self, snapshot: PolicySnapshot, updates: int) -> None:
        self._policy = deepcopy(snapshot)  # the caller may reuse its arrays
        self._policy_ref, self._version, self.updates = None, self._version + 1, updates
        self._set_limit()
        self.supervise()
        self._send_orders()

    def poll(self) -> Collected:
        self.inbox.raise_error()
        self.supervise()
        self._receive(0.0)
        waited = 0.0 if self.inbox.has_rows else self._wait()
        self._totals.learner_waited += waited if min(self.inbox.living) < self.cfg.total_steps else 0.0
        if self.inbox.has_rows and self.updates > 0:
            self.window.adapt(waited=waited > 0)
            self._set_limit()
        self._send_orders()
        for count, updates in self._acted_with:
            self._totals.add_ages(np.full(count, self.updates - updates))
        self._acted_with = []
        return self.inbox.take()

    def use(self, cfg: Config) -> None:
        self.worker_cfg = acting_by(cfg, self.worker_cfg)
        self._news = {"config": to_dict(self.worker_cfg)}
        self._policy_ref, self._version = None, self._version + 1

    def stop(self, member: int) -> None:
        self.inbox.stopped.add(member)

    def rest(self, members: Collection[int]) -> None:
        wait = f"algo={self.cfg.algo} learns between episodes, and orders to Ray's actors know no episodes"
        raise UserError(f"{wait}; use --actors local:N, or inline")

    def totals(self) -> ActingTotals:
        restarts, now = sum(max(0, slot.starts - 1) for slot in self.slots), time.monotonic()
        running = [slot for slot in self.slots if slot.runs]
        lived = self._totals.actors_lived + sum(now - slot.started for slot in running)
        return replace(self._totals, at=now, actors_lived=lived, actors=len(running), restarts=restarts)

    def state(self) -> State:
        return self.inbox.state(self.episodes, self.bad_values)

    def restore(self, state: State, stop: threading.Event) -> list[str]:
        self.inbox.restore(state, self.episodes, self.bad_values)
        self.claims.arrived = [*self.inbox.taken]
        return []

    def close(self) -> None:
        if not self.connection.lost():  # Ray would wait long for a cluster that is gone
            end_actors(self.slots)

    def supervise(self) -> None:
        if time.monotonic() - self._checked_at < LONGEST_WAIT or self.inbox.error is not None:
            return
        self._checked_at = time.monotonic()
        if lost := self.connection.lost():
            self.inbox.error = UserError(lost)
            return
        self._receive(0.0)
        for slot in self.slots:
            is_opening = any(order.counters for order in slot.orders)  # environments, which may take long
            if slot.given_up:
                slot.give_all(self.slots)  # once another runs
            elif slot.handle is None and slot.may_start:
                slot.start(self._kind, self.worker_cfg, self.cfg.ray_cpus)
            elif not slot.runs and slot.handle is not None and time.monotonic() - slot.asked_at > JOIN_SECONDS:
                slot.give_all(self.slots)
            elif slot.orders and (fault := slot.hang_detector.fault(slot.answers, self._timeout, ready=not is_opening)):
                self._lose(slot, fault)

    def _wait(self) -> float:
        started = time.monotonic()
        if not any(slot.open_questions for slot in self.slots):
            time.sleep(LONGEST_WAIT / 2)
        self._receive(LONGEST_WAIT, at_least=1)
        if self.inbox.has_rows:
            self._receive(GATHER_SECONDS)
        return time.monotonic() - started

    def _receive(self, seconds: float, at_least: int = 0) -> None:
        """Takes the answers that have arrived; waits for one of each actor, or for at_least so many."""
        for slot, order, answer in answers(self.slots, seconds, at_least):
            if isinstance(answer, RayError):
                self._lose(slot, reason_of(answer), order)
            elif order is None:
                self._on_started(slot, Started(*answer))
            else:
                self._take(slot, order, answer)

    def _take(self, slot: ActorSlot, order: Order, answer: dict[str, Any]) -> None:
        self._totals.actors_waited += answer["waited"]
        for unit, counters in answer["counters"].items():
            for pair, (episode, bad_values) in zip(unit, counters, strict=True):
                self.episodes[pair], self.bad_values[pair], self._losses[pair] = episode, bad_values, 0
        self.claims.settle(order)
        for member in order.claims:
            block = answer["blocks"][member]
            self.inbox.add_reports(member, block["episodes"], block["faults"], answer["diverged"].get(member, ""))
            if "rows" in block:
                rows, origins = block["rows"], block["origins"]
                if self.claims.arrived[member] >= self.cfg.random_actions:
                    self._acted_with.append((len(rows), answer["updates"]))
                self.inbox.add_rows(member, rows, origins)
                self.claims.arrived[member] += len(rows)
                slot.delivered += len(rows)
                self._totals.traffic = np.add(self._totals.traffic, [len(rows), rows.nbytes + origins.nbytes, 0, 0])
        if error := user_error(answer):  # not the actor's fault: the run ends with this error
            self.inbox.error = self.inbox.error or error
        elif "crash" in answer:
            self._lose(slot, answer["crash"])

    def _set_limit(self) -> None:
        assert self._policy is not None  # noqa: S101 (there is one from the first publish on)
        self.claims.limit = self.governor.limit(self._policy.updates, self.window.ahead)

    def _send_orders(self) -> None:
        """Orders what the governor allows, from those first who have the fewest orders and have waited the longest."""
        open_slots = [slot for slot in self.slots if slot.runs and len(slot.orders) < IN_FLIGHT]
        if not open_slots or self._policy is None or self.inbox.error is not None:
            return
        ended = self.inbox.stopped | {*self.inbox.diverged}
        actors = Counter(member for slot in self.slots if slot.runs for member in {unit[0][0] for unit in slot.units})
        in_flight = {member: IN_FLIGHT * count for member, count in actors.items() if member not in ended}
        while open_slots and any(itertools.starmap(self.claims.next, in_flight.items())):
            slot = min(open_slots, key=lambda slot: (len(slot.orders), slot.newest_order))
            if not self._order(slot, in_flight) or len(slot.orders) == IN_FLIGHT:
                open_slots.remove(slot)

    def _order(self, slot: ActorSlot, in_flight: dict[int, int]) -> bool:
        in_use = {unit for other in self.slots for order in other.orders for unit in order.units}
        units = [unit for unit in slot.units if unit in slot.open_units or unit not in in_use]
        members = {unit[0][0] for unit in units}
        counts = {member: self.claims.next(member, most) for member, most in in_flight.items() if member in members}
        claims = {member: (self.claims.granted(member), count) for member, count in counts.items() if count}
        if not claims:
            return False
        units = [unit for unit in units if unit[0][0] not in self.inbox.stopped]
        counters = {
            unit: [(int(self.episodes[pair]), int(self.bad_values[pair])) for pair in unit]
            for unit in units
            if unit not in slot.open_units
        }
        order = Order(units, counters, claims, self._version)
        slot.open_units, slot.newest_order = {*units}, next(self._numbers)
        self.claims.add(order)
        if self._policy_ref is None:  # once for all orders
            assert self._policy is not None  # noqa: S101 (orders are sent only once there is one)
            packed = packed_policy(self._policy, self.connection.network_there(self._policy.architecture.name))
            self._policy_ref = ray.put({**packed, **self._news})
            arrays = [self._policy.flat, *(self._policy.scaling or ())]
            self._totals.traffic = np.add(self._totals.traffic, [0, 0, 1, sum(array.nbytes for array in arrays)])
        slot.ask("act", order, tuple(order), self._policy_ref)
        return True

    def _on_started(self, slot: ActorSlot, started: Started) -> None:
        slot.mark_running(started)
        if slot.starts > 1:
            self.inbox.report(slot, "back", f"restarted on {started.host}")
        if warning := self.connection.warning(started):
            self.inbox.report(slot, "warning", warning)
        slot.take_share(self.slots)

    def _lose(self, slot: ActorSlot, why: str, *failed: Order | None) -> None:
        """Gives up the orders of a lost actor, moves its environments at once, and lets a replacement be asked for.

        Nobody knows how far it came with them. Their next episode is skipped, as it may be what has ended the actor,
        and more of them with each loss in a row: an order can hold many.
        """
        orders = [*filter(None, failed), *slot.orders]
        for pair in {pair for order in orders for unit in order.units for pair in unit}:
            self.episodes[pair] += SKIPPED[min(self._losses[pair], len(SKIPPED) - 1)]
            self._losses[pair] += 1
        for order in orders:
            self.claims.settle(order)
        slot.open_units = set()
        self._totals.actors_lived += time.monotonic() - slot.started if slot.runs else 0.0
        slot.record_loss(MIN_DELIVERED)
        slot.give_all(self.slots)
        others = any(not other.hopeless for other in self.slots)
        if slot.failed_starts <= 1 or not others:  # the same every ten seconds would be no news
            self.inbox.report_fault(slot, why, others=others)


class RayEvaluator(PendingEvaluations):
    """Evaluates in actors on a Ray cluster, which reserve no CPU there: each always finds a place."""

    def __init__(
        self, cfg: Config, checkup: Checkup, make_env: EnvFactory, connection: Connection, log: WorkerLog
    ) -> None:
        super().__init__(cfg, log)
        self._timeout = answer_timeout(cfg, cfg.num_envs if checkup.vector else 1)
        self._checked_at = 0.0
        self.worker_cfg, self.connection = connection.for_actors(for_workers(cfg, make_env)), connection
        # A cluster of our own claims to have as many CPUs as its actors reserve.
        cpus = ray.cluster_resources().get("CPU", 1) if cfg.ray_address else len(os.sched_getaffinity(0))  # type: ignore[no-untyped-call]
        actors = min(self.count, max(1, int(cpus)))
        self.slots = [RaySlot(first, range(first, self.count, actors)) for first in range(actors)]
        self._opened: set[tuple[int, int]] = set()  # slots, and the members whose environments exist there
        self._kind = ray.remote(Evaluator)

    def close(self) -> None:
        if not self.connection.lost():  # Ray would wait long for a cluster that is gone
            end_actors(self.slots)

    def _share(self, snapshot: PolicySnapshot) -> Any:
        return ray.put(packed_policy(snapshot, self.connection.network_there(snapshot.architecture.name)))

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
            elif slot.runs and slot.open_questions:
                _, (_, member) = slot.open_questions[0]
                is_open = (slot.number, member) in self._opened
                if fault := slot.hang_detector.fault(slot.answers, self._timeout, ready=is_open):
                    self._lose(slot, fault)
            if slot.runs and not slot.open_questions and (question := self._next_question(slot)):
                evaluation, member = question
                slot.ask("play", question, member, evaluation.step, len(evaluation.played[member]), evaluation.policy)

    def _take(self, slot: RaySlot, question: Any, answer: Any) -> None:
        """Stores the results in an answer; one without results says that the episodes are not over yet."""
        if isinstance(answer, RayError):
            self._lose(slot, reason_of(answer))
        elif question is None:
            slot.mark_running(Started(*answer))
            self._notes += filter(None, [self.connection.warning(Started(*answer))])
        elif error := user_error(answer):
            raise error
        elif "crash" in answer:
            self._lose(slot, answer["crash"])
        else:
            self._opened.add((slot.number, question[1]))
            self._store(slot, question, **answer)

    def _lose(self, slot: RaySlot, why: str) -> None:
        """Ends an evaluator, to be replaced; what it was asked for is asked again."""
        self._opened = {pair for pair in self._opened if pair[0] != slot.number}
        if slot.runs:
            slot.end()
            self._on_lost(slot, why)
            return
        slot.record_loss(1)
        if slot.failed_starts == 1:
            self._notes.append(f"an evaluator was lost: {why}")
        if all(other.hopeless for other in self.slots):
            raise NobodyLeft(f"no evaluator is left: {why}")
