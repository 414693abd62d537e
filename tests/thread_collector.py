"""A third collector, with a thread for each member: only to show that the contract is enough for another one."""

from __future__ import annotations

import queue
import threading
from collections.abc import Collection
from typing import Any

import numpy as np

from t3d.actors.governor import Governor
from t3d.actors.protocols import Collected
from t3d.config import Config
from t3d.errors import Diverged
from t3d.policy.acting import MemberPolicy, PolicySnapshot
from t3d.types import Rollout, State
from t3d.world.episode import EpisodeCounters, MemberActor


class ThreadCollector:
    keeps_episodes = takes_turns = False

    def __init__(self, cfg: Config, make_env: Any) -> None:
        self.cfg, self.governor, envs = cfg, Governor(cfg), cfg.num_envs
        counters = [EpisodeCounters(np.full(envs, -1), np.zeros(envs, np.int64)) for _ in cfg.seeds]
        self.actors = [MemberActor(cfg, member, make_env, range(envs), one) for member, one in enumerate(counters)]
        for actor in self.actors:
            actor.begin()
        self.spec, self.taken = self.actors[0].env_batch.spec, [0] * len(self.actors)
        self.waiting: queue.Queue[Rollout | Exception] = queue.Queue()
        self.changed, self.closed, self.limit = threading.Condition(), False, 0
        self.error: Exception | None = None
        self.stopped: set[int] = set()
        self.diverged: dict[int, str] = {}
        self.threads: list[threading.Thread] = []

    def publish(self, snapshot: PolicySnapshot, updates: int) -> None:
        with self.changed:
            self.policies = [MemberPolicy(snapshot, member) for member in range(len(self.actors))]
            self.limit = self.governor.limit(updates)
            self.changed.notify_all()
        if not self.threads:
            self.threads = [threading.Thread(target=self._act, args=(actor,), daemon=True) for actor in self.actors]
            for thread in self.threads:
                thread.start()

    def _act(self, actor: MemberActor) -> None:
        try:
            while True:
                with self.changed:
                    self.changed.wait_for(
                        lambda: self.closed or (actor.taken < self.limit and actor.member not in self.stopped)
                    )
                    policy = self.policies[actor.member]
                if self.closed:
                    return
                self.waiting.put(actor.step(policy))
                if isinstance(actor.error, Diverged):
                    self.diverged[actor.member] = actor.error.what
                    return
                if actor.error is not None:
                    raise actor.error
        except Exception as error:
            self.waiting.put(error)

    def poll(self) -> Collected:
        if self.error is not None:
            raise self.error
        found: dict[int, list[Rollout]] = {}
        try:
            item = self.waiting.get(timeout=0.1)
            while not isinstance(item, Exception):
                found.setdefault(item.member, []).append(item)
                item = self.waiting.get_nowait()
            self.error = item
        except queue.Empty:
            pass
        if self.error is not None and not found:
            raise self.error
        return Collected([self._joined(blocks) for blocks in found.values()], [], self._living_diverged())

    def _living_diverged(self) -> list[tuple[int, str]]:
        return [pair for pair in self.diverged.items() if pair[0] not in self.stopped]

    def _joined(self, blocks: list[Rollout]) -> Rollout:
        first = blocks[0]
        self.taken[first.member] += sum(len(one.rows) for one in blocks)
        return first._replace(
            rows=np.concatenate([one.rows for one in blocks]),
            origins=np.concatenate([one.origins for one in blocks]),
            episodes=[episode for one in blocks for episode in one.episodes],
            faults=[fault for one in blocks for fault in one.faults],
        )

    def use(self, cfg: Config) -> None:
        for actor in self.actors:
            actor.use(cfg)

    def stop(self, member: int) -> None:
        with self.changed:
            self.stopped.add(member)

    def rest(self, members: Collection[int]) -> None:
        raise NotImplementedError  # only rules that hear episodes let members rest

    def supervise(self) -> None:
        pass

    def totals(self) -> None:
        return None

    def state(self) -> State:
        """Like actor processes: how far each member has come; episodes in progress are abandoned."""
        pairs = zip(self.actors, self.taken, strict=True)
        return {
            f"seed-{actor.seed}": {"taken": taken, "episodes": [runner.episode for runner in actor.runners]}
            for actor, taken in pairs
        }

    def restore(self, state: State, stop: threading.Event) -> list[str]:
        for member, actor in enumerate(self.actors):
            saved = state[f"seed-{actor.seed}"]
            self.taken[member] = actor.taken = saved["taken"]
            for runner, episode in zip(actor.runners, saved["episodes"], strict=True):
                runner.begin(episode + 1, actor.taken)
        return []

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify_all()
        for thread in self.threads:
            thread.join()
        for actor in self.actors:
            actor.env_batch.close()
