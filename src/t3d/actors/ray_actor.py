"""Runs in a Ray actor: acts as the learner orders, and answers with what happened. Imports no torch, has one thread.

Orders and answers are plain values and arrays. Errors are part of an answer and never raised to Ray.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from t3d.actors.local import Unit
from t3d.actors.worker import EVALUATION_NICENESS, reported
from t3d.config import Config, merge
from t3d.config.networks import sent_architecture
from t3d.errors import Diverged
from t3d.policy.acting import MemberPolicy, PolicySnapshot
from t3d.process import lower_priority
from t3d.types import EpisodeResult, Rollout
from t3d.version import __version__
from t3d.world.episode import EpisodeCounters, MemberActor
from t3d.world.evaluate import MemberEvaluator
from t3d.world.make import env_factory

ORDER_SECONDS = 0.5  # after which an order is answered with what there is, at least; chosen
ORDERS_A_SECOND = 100  # of all actors that run out of time: their orders last longer if they are many; chosen


class Started(NamedTuple):
    """Where an actor runs, and what its node runs."""

    host: str
    pid: int
    node: str  # Ray's id of it
    versions: str


def installed_versions() -> str:
    """Says what this machine runs; it must be the same everywhere."""
    import ray  # noqa: PLC0415 (an extra)

    return f"Ray {ray.__version__}, Python {platform.python_version()} and T3D {__version__}"


def started_here() -> Started:
    """Returns where this process, an actor, runs."""
    import ray  # noqa: PLC0415

    host: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return Started(host, os.getpid(), ray.get_runtime_context().get_node_id(), installed_versions())


class Order(NamedTuple):
    """What an actor shall do next."""

    units: list[Unit]  # the environments it owns from now on: others are closed, new ones opened
    counters: dict[Unit, list[tuple[int, int]]]  # of new ones: newest episode and bad values of each environment
    claims: dict[int, tuple[int, int]]  # by member: transitions that it has or will have before, and how many to take
    version: int  # of the policy


def order_seconds(cfg: Config) -> float:
    """Seconds after which an order is answered with what there is. Each costs the learner time, so many last longer."""
    return max(ORDER_SECONDS, cfg.async_actors / ORDERS_A_SECOND)


def packed_policy(snapshot: PolicySnapshot, network: str) -> dict[str, Any]:
    """Converts a policy to plain values and arrays; network is the name by which actors find that of the policy."""
    return {"network": {**snapshot.architecture.to_dict(), "name": network}, **snapshot.to_dict()}


def unpacked_policy(policy: dict[str, Any]) -> PolicySnapshot:
    """The inverse of packed_policy."""
    return PolicySnapshot.from_dict(policy, len(policy["flat"]), sent_architecture(policy["network"]))


class Actor:
    """Steps the environments that it is told to, with the policy that comes with an order."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.cfg = merge(Config(), config)
        self.make_env: Callable[..., Any] | None = None
        self.units: dict[Unit, MemberActor] = {}
        self.policies: dict[int, MemberPolicy] = {}
        self.version, self.updates = -1, 0  # of the policies
        self._idle_since = time.monotonic()

    def ready(self) -> tuple[Any, ...]:
        return tuple(started_here())

    def act(self, order: tuple[Any, ...], policy: dict[str, Any]) -> dict[str, Any]:
        """Acts until every claim is met or order_seconds have passed, and returns a block of transitions."""
        waited, order = time.monotonic() - self._idle_since, Order(*order)
        blocks: dict[int, list[Rollout]] = {member: [] for member in order.claims}
        failure: dict[str, Any] = {}
        try:
            if order.version != self.version or not set(order.claims) <= set(self.policies):
                snapshot = unpacked_policy(policy)
                self.version, self.updates = order.version, snapshot.updates
                self.policies = {member: MemberPolicy(snapshot, member) for member in order.claims}
                self._use(merge(Config(), policy["config"]) if "config" in policy else self.cfg)
            self._own(order)
            self._act(order.claims, blocks, time.monotonic() + order_seconds(self.cfg))
        except Exception as error:
            failure = reported(error)
        self._idle_since = time.monotonic()
        actors = self.units.values()
        return {
            "updates": self.updates,
            "blocks": {member: _packed(block) for member, block in blocks.items()},
            "counters": {unit: actor.counts for unit, actor in self.units.items()},
            "diverged": {actor.member: actor.error.what for actor in actors if isinstance(actor.error, Diverged)},
            "waited": waited,
            **failure,
        }

    def close(self) -> bool:
        for unit in [*self.units]:
            self.units.pop(unit).env_batch.close()
        return True

    def _use(self, cfg: Config) -> None:
        self.cfg = cfg
        for member_actor in self.units.values():
            member_actor.use(cfg)

    def _own(self, order: Order) -> None:
        """Closes environments that have moved elsewhere, even if they have come back since, and opens new ones."""
        for unit in [*self.units]:
            if unit not in order.units or unit in order.counters:
                self.units.pop(unit).env_batch.close()
        self.make_env = self.make_env or env_factory(self.cfg.env)
        for unit in order.units:
            if unit not in self.units:
                counters = EpisodeCounters(*np.full((2, self.cfg.num_envs), -1))
                indices = [index for _, index in unit]
                counters.episodes[indices], counters.bad_values[indices] = zip(*order.counters[unit], strict=True)
                self.units[unit] = MemberActor(self.cfg, unit[0][0], self.make_env, indices, counters)
                others = max(order.claims.values(), default=(0, 0))  # who are about as far as a member without a claim
                self.units[unit].taken, _ = order.claims.get(unit[0][0], others)
                self.units[unit].begin()

    def _act(self, claims: dict[int, tuple[int, int]], blocks: dict[int, list[Rollout]], until: float) -> None:
        """Steps each unit in turn; the one that was stepped last comes last in the next order, too."""
        counts, acted = dict.fromkeys(claims, 0), True
        while acted:
            acted = False
            for unit, member_actor in [*self.units.items()]:
                member = member_actor.member
                start, wanted = claims.get(member, (0, 0))
                # A claim is for whole steps of a VectorEnv; the last one of a run may be for fewer environments.
                enough = counts.get(member, 0) >= min(wanted, self.cfg.total_steps - start)
                if enough or member_actor.error is not None:
                    continue
                if time.monotonic() >= until:
                    return
                member_actor.taken = start + counts[member]
                blocks[member].append(member_actor.step(self.policies[member]))
                counts[member] += len(blocks[member][-1].rows)
                self.units[unit], acted = self.units.pop(unit), True
                if member_actor.error is not None and not isinstance(member_actor.error, Diverged):
                    raise member_actor.error


class Evaluator:
    """Plays evaluation episodes, a part of an order at a time, so that it is seen to be alive."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.cfg = merge(Config(), config)
        self.member_evaluators: dict[int, MemberEvaluator] = {}
        self._question: tuple[int, int, int] | None = None  # member, step and first episode of what is being played
        self._playing: Iterator[list[EpisodeResult]] = iter(())
        self._results: list[EpisodeResult] = []
        lower_priority(EVALUATION_NICENESS)  # before environments exist: what they start inherits it

    def ready(self) -> tuple[Any, ...]:
        return tuple(started_here())

    def play(self, member: int, step: int, first: int, policy: dict[str, Any]) -> dict[str, Any]:
        """Plays the episodes from the first on, as many at once as there are environments, for ORDER_SECONDS.

        Returns their results once they are over; asked again, it goes on where it was.
        """
        until = time.monotonic() + ORDER_SECONDS
        try:
            if self._question != (member, step, first):
                if member not in self.member_evaluators:
                    self.member_evaluators[member] = MemberEvaluator(self.cfg, member, env_factory(self.cfg.env))
                evaluator = self.member_evaluators[member]
                playing = evaluator.play(unpacked_policy(policy), evaluator.next_episodes(first))
                self._playing, self._results = playing, []
                self._question = (member, step, first)
            for ended in self._playing:
                self._results += ended
                if time.monotonic() >= until:
                    return {}
            self._question = None
            return {"results": [tuple(result) for result in sorted(self._results, key=lambda result: result.episode)]}
        except Exception as error:
            self._question = None
            return {"diverged": error.what} if isinstance(error, Diverged) else reported(error)

    def close(self) -> bool:
        for evaluator in self.member_evaluators.values():
            evaluator.close()
        return True


def _packed(rollouts: list[Rollout]) -> dict[str, Any]:
    names = ("rows", "origins") if rollouts else ()
    arrays = {name: np.concatenate([getattr(rollout, name) for rollout in rollouts]) for name in names}
    episodes = [tuple(episode) for rollout in rollouts for episode in rollout.episodes]
    faults = [tuple(fault) for rollout in rollouts for fault in rollout.faults]
    return {**arrays, "episodes": episodes, "faults": faults}
