"""Actors on a Ray cluster, which fill the replay while the learner learns.

The learner orders blocks of transitions, never more than the governor allows, and keeps two orders in flight for each
actor, so that none waits for the network. It assigns the environments: those of an actor that is lost go to the others
at once, and an actor that joins takes some over.
"""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError

from t3d.actors.checkup_worker import Checkup
from t3d.actors.failures import user_error
from t3d.actors.governor import Governor
from t3d.actors.local import GATHER_SECONDS, LONGEST_WAIT, MIN_DELIVERED, shares
from t3d.actors.protocols import Collected
from t3d.actors.ray_actor import Actor, Order, Unit, packed_policy
from t3d.actors.ray_checks import Started
from t3d.actors.ray_cluster import Connection
from t3d.actors.ray_orders import (
    IN_FLIGHT,
    ActorSlot,
    Claims,
    Window,
    give_all,
    in_use,
    members_of,
    places_by_member,
    take_share,
)
from t3d.actors.ray_slots import end_actors, in_words, patience
from t3d.actors.received import Received
from t3d.actors.statistics import ActingStatistics, ActingTotals
from t3d.actors.supervisor import Silence, for_workers
from t3d.config import Config
from t3d.errors import UserError
from t3d.policy.snapshots import PolicySnapshot, Scaling
from t3d.types import State
from t3d.world.guard import EnvFactory

SKIPPED = (1, 4, 16, 64, 256, 1024)  # episodes after each loss in a row; two orders have at most 1,024; chosen
PATIENCE_SECONDS = 30.0  # after which the environments of an actor that does not run yet go to others; chosen


class RayCollector:
    """Collects in actors on a Ray cluster: not deterministic."""

    keeps_episodes = False

    def __init__(self, cfg: Config, make_env: EnvFactory, checkup: Checkup, connection: Connection) -> None:
        self.cfg, self.worker_cfg, self.governor = cfg, connection.for_actors(for_workers(cfg, make_env)), Governor(cfg)
        self.spec, self.connection, self.received = checkup.spec, connection, Received(cfg, checkup.spec)
        dealt = [[tuple(unit) for unit in units] for units in shares(cfg, as_one=checkup.vector)]
        self.slots = [ActorSlot(number, units) for number, units in enumerate(dealt)]
        self.episodes = np.full((len(cfg.members), cfg.num_envs), -1)
        self.bad_values = np.zeros_like(self.episodes)
        self._losses = np.zeros_like(self.episodes)  # of the actor of an environment, since it answered last
        self.updates, self.claims, self.window = 0, Claims(cfg, self.spec), Window(cfg)
        self._acted_with: list[tuple[int, int]] = []  # of what poll returns next: transitions, updates of the policy
        self._policy: PolicySnapshot | None = None
        self._policy_ref: Any = None  # on the cluster, once an order has needed it
        self._version, self._numbers = 0, itertools.count(1)
        self._waiting_for: dict[Any, ActorSlot] = {}  # references to answers
        self._kind = ray.remote(Actor)
        self._checked_at, self._waited, self._lived = 0.0, 0.0, 0.0
        self._statistics = ActingStatistics()

    def publish(self, snapshot: PolicySnapshot, updates: int) -> None:
        """Has the next orders carry this policy, as far as the governor allows; the first one starts the actors."""
        scaling = None if snapshot.scaling is None else Scaling(*(part.copy() for part in snapshot.scaling))
        self._policy = snapshot._replace(flat=snapshot.flat.copy(), scaling=scaling)  # the caller may reuse its own
        self._policy_ref, self._version, self.updates = None, self._version + 1, updates
        self._set_limit()
        self.supervise()
        self._send_orders()

    def poll(self) -> Collected:
        """Returns the transitions received, a block for each member; waits a moment if there are none."""
        self.received.raise_error()
        self.supervise()
        self._receive(0.0)
        waited = 0.0 if self.received.has_rows else self._wait()
        self._statistics.learner_waited += waited if min(self.received.living) < self.cfg.total_steps else 0.0
        if self.received.has_rows and self.updates > 0:
            self.window.adapt(waited=waited > 0)
            self._set_limit()
        self._send_orders()
        for count, updates in self._acted_with:
            self._statistics.add_ages(np.full(count, self.updates - updates))
        self._acted_with = []
        return self.received.take()

    def stop(self, member: int) -> None:
        """Orders nothing more for this member."""
        self.received.stopped.add(member)

    def totals(self) -> ActingTotals:
        """Returns the acting statistics since the start."""
        restarts, now = sum(max(0, slot.starts - 1) for slot in self.slots), time.monotonic()
        running = [slot for slot in self.slots if slot.runs]
        lived = self._lived + sum(now - slot.started for slot in running)
        return self._statistics.totals(self._waited, lived, len(running), restarts)

    def state(self) -> State:
        """Returns every member's count, and the numbers of the episodes in progress, which are abandoned."""
        return self.received.state(self.episodes, self.bad_values)

    def restore(self, state: State, stop: threading.Event) -> list[str]:
        """Restores what state() returned; every environment continues with its next episode."""
        self.received.restore(state, self.episodes, self.bad_values)
        self.claims.arrived = [*self.received.taken]
        return []

    def close(self) -> None:
        """Ends the actors and closes their environments."""
        if not self.connection.lost():  # Ray would wait long for a cluster that is gone
            end_actors(self.slots)

    def supervise(self) -> None:
        """Asks for actors that are due, and handles those that are lost or hang; ten times a second."""
        if time.monotonic() - self._checked_at < LONGEST_WAIT or self.received.error is not None:
            return
        self._checked_at = time.monotonic()
        if lost := self.connection.lost():
            self.received.error = UserError(lost)
            return
        self._receive(0.0)
        for slot in self.slots:
            if slot.given_up:
                give_all(slot, self.slots)  # once another runs
            elif slot.handle is None and slot.may_start:
                slot.start(self._kind, self.worker_cfg)
                self._waiting_for[slot.ready_ref] = slot
            elif slot.ready_ref is not None and time.monotonic() - slot.asked_at > PATIENCE_SECONDS:
                give_all(slot, self.slots)
            elif slot.orders and (
                fault := slot.silence.fault(slot.answers, self._patience(slot), ready=not slot.is_opening)
            ):
                self._lose(slot, fault)

    def _patience(self, slot: ActorSlot) -> float:
        return patience(self.cfg, max(map(len, slot.units), default=1))

    def _wait(self) -> float:
        """Waits for the first answer, and then briefly for others; returns the seconds waited."""
        started = time.monotonic()
        if not self._waiting_for:
            time.sleep(LONGEST_WAIT / 2)
        self._receive(LONGEST_WAIT, at_least=1)
        if self.received.has_rows:
            self._receive(GATHER_SECONDS)
        return time.monotonic() - started

    def _receive(self, seconds: float, at_least: int = 0) -> None:
        """Takes the answers that have arrived; waits for all of them, or for at_least so many."""
        if not self._waiting_for:
            return
        ready, _ = ray.wait([*self._waiting_for], num_returns=at_least or len(self._waiting_for), timeout=seconds)
        for ref in ready:
            slot = self._waiting_for.pop(ref, None)
            if slot is None:  # of an actor that was lost meanwhile
                continue
            try:
                answer = ray.get(ref)
            except RayError as error:
                self._lose(slot, in_words(error))
                continue
            if ref == slot.ready_ref:
                self._on_started(slot, Started(*answer))
            else:
                self._take(slot, answer)

    def _take(self, slot: ActorSlot, answer: dict[str, Any]) -> None:
        """Takes an answer, unless it has come before or is of an actor that is lost.

        One that has overtaken another on its way waits for it: transitions are stored in the order they happened.
        """
        if answer["number"] not in slot.orders:
            return
        slot.early_answers[answer["number"]] = answer
        while (oldest := next(iter(slot.orders), 0)) in slot.early_answers:
            self._take_next(slot, slot.orders.pop(oldest), slot.early_answers.pop(oldest))

    def _take_next(self, slot: ActorSlot, order: Order, answer: dict[str, Any]) -> None:
        """Takes the answer to an actor's oldest order."""
        slot.answers, slot.newest_answer = slot.answers + 1, order.number
        self._waited += answer["waited"]
        for unit, counters in answer["counters"].items():
            for (member, env), (episode, bad_values) in zip(unit, counters, strict=True):
                self.episodes[member, env], self.bad_values[member, env] = episode, bad_values
                self._losses[member, env] = 0
        self.claims.settle(order)
        for member in order.claims:
            block = answer["blocks"][member]
            slot.speed[member] = len(block.get("rows", ())) / max(answer["seconds"], 1e-9)
            self._take_block(slot, member, answer["updates"], **block)
        if error := user_error(answer):  # not the actor's fault: the run ends with this error
            self.received.error = self.received.error or error
        elif "crash" in answer:
            self._lose(slot, answer["crash"])

    def _take_block(
        self,
        slot: ActorSlot,
        member: int,
        updates: int,
        random: int,
        rows: Any = None,
        origins: Any = None,
        **reports: Any,
    ) -> None:
        """Takes the transitions of one member in an answer."""
        self.received.add_reports(member, **reports)
        if rows is None:
            return
        self.received.add_rows(member, rows, origins)
        self.claims.arrived[member] += len(rows)
        slot.delivered += len(rows)
        self._statistics.add_traffic(steps=len(rows), size=rows.nbytes + origins.nbytes)
        self._acted_with.append((len(rows) - random, updates))

    def _set_limit(self) -> None:
        assert self._policy is not None  # noqa: S101 (there is one from the first publish on)
        self.claims.limit = self.governor.limit(self._policy.updates, self.window.ahead)

    def _send_orders(self) -> None:
        """Orders what the governor allows, from those first who have the fewest orders and have waited the longest."""
        open_slots = [slot for slot in self.slots if slot.runs and len(slot.orders) < IN_FLIGHT]
        if not open_slots or self._policy is None or self.received.error is not None:
            return
        ended = self.received.stopped | {*self.received.diverged}
        places = {member: n for member, n in places_by_member(self.slots).items() if member not in ended}
        while open_slots and any(self.claims.next(*one) for one in places.items()):
            slot = min(open_slots, key=lambda one: (len(one.orders), one.newest_order))
            if not self._order(slot, places) or len(slot.orders) == IN_FLIGHT:
                open_slots.remove(slot)

    def _order(self, slot: ActorSlot, places: dict[int, int]) -> bool:
        """Sends an actor its next order, if there is something to order from it."""
        units = [unit for unit in slot.units if unit in slot.open_units or not in_use(unit, self.slots)]
        counts = {member: self.claims.next(member, n) for member, n in places.items() if member in members_of(units)}
        orders = slot.orders.values()
        claims = {member: (self.claims.start(member, orders), count) for member, count in counts.items() if count}
        if not claims:
            return False
        units = [unit for unit in units if unit[0][0] not in self.received.stopped]
        counters = {unit: self._counters(unit) for unit in units if unit not in slot.open_units}
        order = Order(next(self._numbers), units, counters, claims, self._version, slot.newest_answer)
        if not slot.orders:
            slot.silence = Silence()
        slot.orders[order.number], slot.open_units, slot.newest_order = order, {*units}, order.number
        self.claims.add(order, slot.speed)
        self._waiting_for[slot.handle.act.remote(tuple(order), self._newest_policy())] = slot
        return True

    def _counters(self, unit: Unit) -> list[tuple[int, int]]:
        return [(int(self.episodes[pair]), int(self.bad_values[pair])) for pair in unit]

    def _newest_policy(self) -> Any:
        """Puts the newest policy onto the cluster, once, and returns the reference that orders carry."""
        if self._policy_ref is None:
            assert self._policy is not None  # noqa: S101 (orders are sent only once there is one)
            self._policy_ref = ray.put(packed_policy(self._policy))
            arrays = [self._policy.flat, *(self._policy.scaling or ())]
            self._statistics.add_traffic(versions=1, size=sum(array.nbytes for array in arrays))
        return self._policy_ref

    def _on_started(self, slot: ActorSlot, started: Started) -> None:
        """Lets an actor that runs now take over environments of those who have the most."""
        slot.mark_running(started)
        if slot.starts > 1:
            self.received.report(slot, "back", f"restarted on {started.host}")
        if warning := self.connection.warning(started):
            self.received.report(slot, "warning", warning)
        take_share(slot, self.slots)

    def _lose(self, slot: ActorSlot, why: str) -> None:
        """Gives up the orders of a lost actor, moves its environments at once, and lets a replacement be asked for.

        Nobody knows how far it came with them. Their next episode is skipped, as it may be what has ended the actor,
        and more of them with each loss in a row: an order can hold many.
        """
        self._waiting_for = {ref: other for ref, other in self._waiting_for.items() if other is not slot}
        for pair in {pair for order in slot.orders.values() for unit in order.units for pair in unit}:
            self.episodes[pair] += SKIPPED[min(self._losses[pair], len(SKIPPED) - 1)]
            self._losses[pair] += 1
        for order in slot.orders.values():
            self.claims.settle(order)
        slot.orders, slot.early_answers, slot.open_units, slot.speed = {}, {}, set(), {}
        if slot.runs:
            self._lived += time.monotonic() - slot.started
            slot.record_fault(MIN_DELIVERED)
        else:
            slot.record_failed_start()
        slot.end()
        give_all(slot, self.slots)
        others = any(not other.hopeless for other in self.slots)
        if slot.failed_starts <= 1 or not others:  # the same every ten seconds would be no news
            self.received.report_fault(slot, why, others=others)
