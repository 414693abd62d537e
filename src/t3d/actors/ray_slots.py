"""Ray actors as the learner sees them: asked for, watched, and replaced by the learner, never by Ray itself."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from t3d.actors.ray_actor import order_seconds
from t3d.actors.ray_checks import Started
from t3d.actors.ray_cluster import actor_options
from t3d.actors.supervisor import GRACE_SECONDS, MAX_FAULTS, Silence, Slot
from t3d.config import Config, to_dict

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
LONGEST_REASON = 300  # characters; chosen


class RaySlot(Slot):
    """A slot for one Ray actor: its handle while there is one, and whether it runs yet.

    An actor for which the cluster has no CPU waits until a node joins; that is no fault. Nor is one that cannot be
    created: its node may be broken, and is asked again, less and less often.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.handle: Any = None
        self.ready_ref: Any = None  # ready once the actor runs
        self.runs = False
        self.failed_starts = 0  # in a row
        self.host, self.pid, self.node = "", 0, ""  # where it runs; Ray's id of the node
        self.asked_at = self.started = 0.0
        self.answers = 0
        self.silence = Silence()

    def start(self, kind: Any, cfg: Config, **options: Any) -> None:
        """Asks the cluster for an actor."""
        self.record_start()
        self.handle = kind.options(**{**actor_options(cfg), **options}).remote(to_dict(cfg))
        self.ready_ref, self.asked_at = self.handle.ready.remote(), time.monotonic()

    @property
    def hopeless(self) -> bool:
        """Whether it is given up, or could not be created so often that the run must not wait for it alone."""
        return self.given_up or self.failed_starts > MAX_FAULTS

    def mark_running(self, started: Started) -> None:
        """Notes that the actor runs, and where."""
        self.ready_ref, self.runs, self.started, self.failed_starts = None, True, time.monotonic(), 0
        self.host, self.pid, self.node = started.host, started.pid, started.node

    def record_failed_start(self) -> None:
        """Notes that the actor could not be created."""
        self.failed_starts += 1
        self.back_off(self.failed_starts)

    def end(self) -> None:
        """Kills the actor, if there is one."""
        if self.handle is not None:
            ray.kill(self.handle)
        self.handle, self.ready_ref, self.runs = None, None, False


def patience(cfg: Config, environments: int) -> float:
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


def in_words(error: RayError) -> str:
    """Says in a line why a Ray actor was lost: Ray says it in twenty, in colour."""
    lines = [line.strip() for line in COLOUR.sub("", str(error)).splitlines() if line.strip()]
    if "creation task" in lines[0]:
        return f"it could not be started: {lines[-1]}"
    because = next((line for line in lines if "because" in line), lines[0])
    return ". ".join(because.split(". ")[:2]).rstrip(".")[:LONGEST_REASON]


def waiting_for_cpus(cfg: Config) -> list[str]:
    """Says so if the cluster has no CPUs free for some of the actors."""
    free = ray.available_resources().get("CPU", 0.0)  # type: ignore[no-untyped-call]
    fitting = math.floor(free / cfg.ray_cpus) if cfg.ray_cpus else cfg.async_actors
    if fitting >= cfg.async_actors:
        return []
    return [
        f"the Ray cluster has {free:g} CPUs free, and each of {cfg.async_actors} actors reserves {cfg.ray_cpus:g}: "
        f"{cfg.async_actors - fitting} of them wait until there are more; --ray-cpus lets several share one"
    ]
