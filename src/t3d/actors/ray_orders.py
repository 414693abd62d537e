"""Ray actors as the learner sees them: what they are asked, which environments they have, and how much is ordered."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import ray
from ray.exceptions import RayError

from t3d.actors.local import Unit
from t3d.actors.ray_actor import Order, Started, order_seconds
from t3d.actors.supervisor import GRACE_SECONDS, MAX_FAULTS, HangDetector, Slot
from t3d.config import Config, to_dict
from t3d.policy.spec import Spec
from t3d.types import row_sizes

IN_FLIGHT = 2  # orders for each actor: one that it works on, and the next; chosen
MOST_ROWS, MOST_BYTES = 512, 2**22  # of one member in an order; chosen
CALM_SECONDS = 60.0  # without waiting, after which the learner needs less; chosen
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
LONGEST_REASON = 300  # characters; chosen


class RaySlot(Slot):
    """A slot for one Ray actor: its handle while there is one, and what it was asked and has not answered.

    An actor for which the cluster has no CPU waits until a node joins; that is no fault. Nor is one that cannot be
    created: its node may be broken, and is asked again, less and less often. Ray itself never restarts an actor:
    nothing may happen twice.
    """

    def __init__(self, number: int, members: Iterable[int] = ()) -> None:
        super().__init__(number, members)
        self.handle: Any = None
        # References to the answers, and the questions; the oldest first.
        self.open_questions: deque[tuple[Any, Any]] = deque()
        self.asked_at = self.started = 0.0
        self.runs = False
        self.failed_starts = 0  # in a row
        self.pid, self.node = 0, ""  # where it runs; Ray's id of the node
        self.answers = 0
        self.hang_detector = HangDetector()

    def start(self, kind: Any, cfg: Config, cpus: float) -> None:
        self.record_start()
        options = {"scheduling_strategy": "SPREAD", "max_restarts": 0, "max_task_retries": 0}
        self.handle, self.asked_at = kind.options(num_cpus=cpus, **options).remote(to_dict(cfg)), time.monotonic()
        self.ask("ready", None)

    def ask(self, method: str, question: Any, *arguments: Any) -> None:
        """Calls a method of the actor, which answers one call after the other."""
        if self.runs and not self.open_questions:
            self.hang_detector = HangDetector()
        self.open_questions.append((getattr(self.handle, method).remote(*arguments), question))

    @property
    def hopeless(self) -> bool:
        """Whether it is given up, or could not be created so often that the run must not wait for it alone."""
        return self.given_up or self.failed_starts > MAX_FAULTS

    def mark_running(self, started: Started) -> None:
        self.runs, self.started, self.failed_starts = True, time.monotonic(), 0
        self.pid, self.node = started.pid, started.node

    def record_loss(self, min_delivered: int) -> None:
        if self.runs:
            self.record_fault(min_delivered)
        else:
            self.failed_starts += 1
            self.back_off(self.failed_starts)
        self.end()

    def end(self) -> None:
        if self.handle is not None:
            ray.kill(self.handle)
        self.handle, self.runs = None, False
        self.open_questions.clear()


S = TypeVar("S", bound=RaySlot)


def answers(slots: Sequence[S], seconds: float, at_least: int = 0) -> Iterator[tuple[S, Any, Any]]:
    """Yields answers that have arrived, or the RayError instead: slot, question and answer, in the order of asking.

    Waits for an answer of each actor, or for at_least so many.
    """
    waiting = {slot.open_questions[0][0]: slot for slot in slots if slot.open_questions}
    while waiting:
        ready, _ = ray.wait([*waiting], num_returns=at_least or len(waiting), timeout=seconds)
        if not ready:
            return
        for ref in ready:
            slot = waiting.pop(ref)
            if not slot.open_questions or slot.open_questions[0][0] is not ref:  # it was lost meanwhile
                continue
            _, question = slot.open_questions.popleft()
            slot.answers += 1
            try:
                answer = ray.get(ref)
            except RayError as error:
                answer = error
            yield slot, question, answer
            if slot.open_questions:
                waiting[slot.open_questions[0][0]] = slot
        seconds, at_least = 0.0, 0


def answer_timeout(cfg: Config, environments: int) -> float:
    """Seconds that an answer may take: the order's own time, then one more step, and a reset of each that ends with it.

    That step and the first reset share hang_seconds: it is rare that both are slow, and what hangs is noticed sooner.
    """
    return order_seconds(cfg) + cfg.env.hang_seconds * environments


def end_actors(slots: Sequence[RaySlot]) -> None:
    """Gives actors a moment to close their environments, then kills them."""
    closing = [slot.handle.close.remote() for slot in slots if slot.runs]
    if closing and ray.is_initialized():
        ray.wait(closing, num_returns=len(closing), timeout=GRACE_SECONDS)
    for slot in slots:
        slot.end()


def reason_of(error: RayError) -> str:
    """Says in a line why a Ray actor was lost: Ray says it in twenty, in colour."""
    text = COLOUR.sub("", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if "creation task" in lines[0]:
        host = re.search(r"ip=([^,)\s]+)", text)
        return f"it could not be started{f' on node {host[1]}' if host else ''}: {lines[-1]}"
    because = next((line for line in lines if "because" in line), lines[0])
    return ". ".join(because.split(". ")[:2]).rstrip(".")[:LONGEST_REASON]


class ActorSlot(RaySlot):
    """A slot for one actor and its environments; the questions that are not None are orders."""

    def __init__(self, number: int, units: list[Unit]) -> None:
        super().__init__(number)
        self.units = units
        self.open_units: set[Unit] = set()  # the units of its newest order
        self.newest_order = 0  # its number

    @property
    def orders(self) -> list[Order]:
        return [order for _, order in self.open_questions if order is not None]

    def give(self, other: ActorSlot) -> None:
        """Gives another slot one of its units, which is opened there and closed here with the next orders."""
        unit = self.units.pop()
        self.open_units.discard(unit)
        other.units.append(unit)

    def give_all(self, slots: Sequence[ActorSlot]) -> None:
        running = [other for other in slots if other.runs and other is not self]
        while running and self.units:
            self.give(min(running, key=lambda other: len(other.units)))

    def take_share(self, slots: Sequence[ActorSlot]) -> None:
        """Takes over environments from those who have the most, until it has as many."""
        while len((other := max(slots, key=lambda slot: len(slot.units))).units) - len(self.units) > 1:
            other.give(self)


class Window:
    """How many transitions actors may be ahead: as few as keep the learner busy, so that policies are not older.

    It starts with two orders at a time, and ends at max_ahead: two orders for every actor.
    """

    def __init__(self, cfg: Config) -> None:
        self.most = cfg.most_ahead
        self.least = max(1, self.most // max(1, min(cfg.async_actors, cfg.num_envs)))
        self.ahead, self._changed_at = self.least, time.monotonic()
        self._effect_seconds = order_seconds(cfg)  # after which a change has shown its effect

    def adapt(self, *, waited: bool) -> None:
        """Doubles it if the learner had to wait for transitions, and halves it if it never had to for a minute."""
        seconds = time.monotonic() - self._changed_at
        if seconds >= (self._effect_seconds if waited else CALM_SECONDS):
            self.ahead = min(2 * self.ahead, self.most) if waited else max(self.ahead // 2, self.least)
            self._changed_at = time.monotonic()


class Claims:
    """Transitions that each member has, and those that are ordered: never more than the governor allows.

    Of these a slow actor delivers fewer, when its time is up; the rest is ordered again. Until all random transitions
    have arrived no others are ordered, so there are as many of them as in one process.
    """

    def __init__(self, cfg: Config, spec: Spec, step: int = 1) -> None:
        self.cfg, self.limit = cfg, 0
        self._step = step  # transitions of a step: a VectorEnv's environments are stepped together
        self.arrived = [0 for _ in cfg.members]  # transitions received
        self.claimed = [0 for _ in cfg.members]  # ordered and not yet received
        self.orders = [0 for _ in cfg.members]  # in flight
        width = sum(row_sizes(spec)) * np.dtype(spec.observation_dtype).itemsize
        self._most = max(1, min(MOST_ROWS, MOST_BYTES // width))

    def granted(self, member: int) -> int:
        return self.arrived[member] + self.claimed[member]

    def next(self, member: int, orders: int) -> int:
        """How many transitions of a member to order next, if so many orders for it can be in flight; 0 for none.

        It is a fair share of what is allowed. Less than such a share of max_ahead is not worth a message yet, unless
        nothing else is on its way; random transitions are: others wait for the last of them.
        """
        is_random = self.arrived[member] < self.cfg.random_actions
        free = (min(self.limit, self.cfg.random_actions) if is_random else self.limit) - self.granted(member)
        if free <= 0:
            return 0
        if is_random:
            count = min(self._most, -(-free // max(1, orders - self.orders[member])))
        else:
            least = max(1, min(self._most, self.cfg.most_ahead // orders))
            count = min(self._most, max(least, free // orders), free)
            if count < least and self.claimed[member] > 0 and self.limit < self.cfg.total_steps:
                return 0
        return -(-count // self._step) * self._step

    def add(self, order: Order, sign: int = 1) -> None:
        for member, (_, count) in order.claims.items():
            self.claimed[member] += sign * count
            self.orders[member] += sign

    def settle(self, order: Order) -> None:
        self.add(order, -1)
