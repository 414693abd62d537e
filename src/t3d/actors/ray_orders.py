"""Which actor on the cluster has which environments, and how many transitions it is asked for."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from t3d.actors.ray_actor import Order, Unit, order_seconds
from t3d.actors.ray_slots import RaySlot
from t3d.config import Config
from t3d.policy.spec import Spec
from t3d.types import row_sizes

IN_FLIGHT = 2  # orders for each actor: one that it works on, and the next; chosen
MOST_ROWS, MOST_BYTES = 512, 2**22  # of one member in an order; chosen
CALM_SECONDS = 60.0  # without waiting, after which the learner needs less; chosen


class ActorSlot(RaySlot):
    """A slot for one actor, its environments and its orders in flight."""

    def __init__(self, number: int, units: list[Unit]) -> None:
        super().__init__(number)
        self.units = units
        self.open_units: set[Unit] = set()  # the units of its newest order
        self.orders: dict[int, Order] = {}  # in flight, the oldest first
        self.early_answers: dict[int, dict[str, Any]] = {}  # answers that have overtaken an older one
        self.newest_order, self.newest_answer = 0, 0  # the numbers of its newest order and its newest answer
        self.speed: dict[int, float] = {}  # of its newest answer: transitions a second of each member

    def give(self, other: ActorSlot) -> None:
        """Gives another slot one of its units, which is opened there and closed here with the next orders."""
        unit = self.units.pop()
        self.open_units.discard(unit)
        other.units.append(unit)

    @property
    def is_opening(self) -> bool:
        """Whether an order in flight has it open environments, which may take long."""
        return any(order.counters for order in self.orders.values())


def take_share(slot: ActorSlot, slots: Sequence[ActorSlot]) -> None:
    """Has an actor take over environments from those who have the most, until it has as many."""
    others = [other for other in slots if other is not slot]
    while others:
        most_loaded = max(others, key=lambda other: len(other.units))
        if len(most_loaded.units) - len(slot.units) < 2:
            break
        most_loaded.give(slot)


def give_all(slot: ActorSlot, slots: Sequence[ActorSlot]) -> None:
    """Gives a slot's environments to actors that run, if there are any."""
    running = [other for other in slots if other.runs and other is not slot]
    while running and slot.units:
        slot.give(min(running, key=lambda other: len(other.units)))


def in_use(unit: Unit, slots: Sequence[ActorSlot]) -> bool:
    """Whether an order in flight steps these environments, whose next episode is unknown until it is answered."""
    return any(unit in order.units for slot in slots for order in slot.orders.values())


def members_of(units: Sequence[Unit]) -> set[int]:
    """Whose environments these are."""
    return {unit[0][0] for unit in units}


def places_by_member(slots: Sequence[ActorSlot]) -> dict[int, int]:
    """How many orders for each member can be in flight."""
    members = [member for slot in slots if slot.runs for member in members_of(slot.units)]
    return {member: IN_FLIGHT * count for member, count in Counter(members).items()}


class Window:
    """How many transitions actors may be ahead: as few as keep the learner busy, so that policies are not older.

    It starts with two orders at a time, and ends at max_ahead: two orders for every actor.
    """

    def __init__(self, cfg: Config) -> None:
        self.most = cfg.most_ahead
        self.least = max(1, self.most // max(1, cfg.actors_of_a_seed))
        self.ahead, self._changed_at = self.least, time.monotonic()
        self._effect_seconds = order_seconds(cfg)  # after which a change has shown its effect

    def adapt(self, *, waited: bool) -> None:
        """Doubles it if the learner had to wait for transitions, and halves it if it never had to for a minute."""
        seconds = time.monotonic() - self._changed_at
        if waited and seconds >= self._effect_seconds:
            self.ahead = min(2 * self.ahead, self.most)
        elif not waited and seconds >= CALM_SECONDS:
            self.ahead = max(self.ahead // 2, self.least)
        else:
            return
        self._changed_at = time.monotonic()


class Claims:
    """Transitions that each member has, and those that are ordered: never more than the governor allows.

    Of these a slow actor delivers fewer, when its time is up. What to expect of each order, at the actor's last speed,
    says how many transitions the member will have, and so when random actions end.
    """

    def __init__(self, cfg: Config, spec: Spec) -> None:
        self.cfg, self.limit = cfg, 0
        self.arrived = [0 for _ in cfg.members]  # transitions received
        self.claimed = [0 for _ in cfg.members]  # ordered and not yet received
        self._expected = [0 for _ in cfg.members]  # of these, if actors are as fast as they were
        self._expected_of: dict[int, dict[int, int]] = {}  # by the number of an order in flight, and member
        self._seconds = order_seconds(cfg)
        width = sum(row_sizes(spec)) * np.dtype(spec.observation_dtype).itemsize
        self._most = max(1, min(MOST_ROWS, MOST_BYTES // width))

    def granted(self, member: int) -> int:
        """Transitions that a member has or will have."""
        return self.arrived[member] + self.claimed[member]

    def next(self, member: int, places: int) -> int:
        """How many transitions of a member to order next, if so many orders for it can be in flight; 0 for none.

        It is a fair share of what is allowed. Less than such a share of max_ahead is not worth a message yet, unless
        nothing else is on its way.
        """
        free = self.limit - self.granted(member)
        if free <= 0:
            return 0
        least = max(1, min(self._most, self.cfg.most_ahead // places))
        count = min(self._most, max(least, free // places), free)
        too_few = count < least and self.claimed[member] > 0 and self.limit < self.cfg.total_steps
        return 0 if too_few else count

    def start(self, member: int, orders: Iterable[Order]) -> int:
        """How many transitions a member will have when an actor with these orders in flight begins its next one.

        Its own orders count in full: it knows how much of them it has not done. Of one whose speed is not known yet
        nothing is expected, so that the random steps become more rather than fewer.
        """
        own = sum(
            order.claims[member][1] - self._expected_of[order.number][member]
            for order in orders
            if member in order.claims
        )
        return self.arrived[member] + self._expected[member] + own

    def add(self, order: Order, speed: Mapping[int, float]) -> None:
        """Notes what an order asks for, given the actor's speed in transitions a second of each member."""
        expected = self._expected_of[order.number] = {}
        for member, (_, count) in order.claims.items():
            expected[member] = min(count, int(self._seconds * speed.get(member, 0.0)))
            self.claimed[member] += count
            self._expected[member] += expected[member]

    def settle(self, order: Order) -> None:
        """Takes back what an order asked for, once it is answered or its actor is lost."""
        expected = self._expected_of.pop(order.number)
        for member, (_, count) in order.claims.items():
            self.claimed[member] -= count
            self._expected[member] -= expected[member]
