"""A collector and two evaluators in the learner's own process: deterministic."""

from __future__ import annotations

import threading
from collections.abc import Collection

import numpy as np

from t3d.actors.protocols import ActingTotals, Collected, Evaluated
from t3d.config import Config
from t3d.errors import Diverged
from t3d.policy.acting import MemberPolicy, PolicySnapshot
from t3d.policy.architectures import Architecture
from t3d.policy.spec import Floats
from t3d.types import Evaluation, Requests, State
from t3d.world.episode import EpisodeCounters, MemberActor
from t3d.world.evaluate import MemberEvaluator, Stopped
from t3d.world.guard import EnvFactory


class InlineCollector:
    """Collects in this process, one step of every environment at a time: deterministic."""

    keeps_episodes = takes_turns = True

    def __init__(self, cfg: Config, make_env: EnvFactory) -> None:
        self.cfg = cfg
        envs = cfg.num_envs
        all_counters = [EpisodeCounters(np.full(envs, -1), np.zeros(envs, np.int64)) for _ in cfg.members]
        self.member_actors = [
            MemberActor(cfg, member, make_env, range(envs), counters) for member, counters in enumerate(all_counters)
        ]
        for member_actor in self.member_actors:
            member_actor.begin()
        self.spec = self.member_actors[0].env_batch.spec
        self.policies: list[MemberPolicy] = []
        self._flat: Floats | None = None  # the actors' parameters
        self._stopped: set[int] = set()
        self._resting: Collection[int] = ()

    def publish(self, snapshot: PolicySnapshot, updates: int = 0) -> None:
        if snapshot.flat is not self._flat:
            self.policies = [MemberPolicy(snapshot, member) for member in range(len(self.member_actors))]
            self._flat = snapshot.flat
        for member, policy in enumerate(self.policies):  # the same memory holds other numbers now
            policy.scale_as(snapshot, member)

    def poll(self) -> Collected:
        acting = [actor for actor in self.member_actors if actor.member not in self._stopped]
        for actor in acting:
            if actor.error is not None and not isinstance(actor.error, Diverged):
                raise actor.error
        able = [actor for actor in acting if actor.error is None and actor.taken < self.cfg.total_steps]
        if self._resting:
            able = [actor for actor in able if actor.member not in self._resting]
        rollouts = [actor.step(self.policies[actor.member]) for actor in able]
        diverged = [(actor.member, actor.error.what) for actor in acting if isinstance(actor.error, Diverged)]
        return Collected(rollouts, [], diverged)

    def use(self, cfg: Config) -> None:
        for member_actor in self.member_actors:
            member_actor.use(cfg)

    def stop(self, member: int) -> None:
        self._stopped.add(member)

    def rest(self, members: Collection[int]) -> None:
        self._resting = members

    def supervise(self) -> None:
        pass

    def totals(self) -> ActingTotals | None:
        return None

    def state(self) -> State:
        return {member_actor.name: member_actor.state() for member_actor in self.member_actors}

    def restore(self, state: State, stop: threading.Event) -> list[str]:
        return [
            note for member_actor in self.member_actors for note in member_actor.restore(state[member_actor.name], stop)
        ]

    def close(self) -> None:
        for member_actor in self.member_actors:
            member_actor.env_batch.close()


class NoEvaluator:
    """Evaluates nothing, for a run whose caller does that; without a last evaluation it never finishes by itself."""

    def __init__(self) -> None:
        self.ready: list[Evaluation] = []  # what the caller adds to it, the run reports

    def has_room(self) -> bool:
        return True

    def submit(self, snapshot: PolicySnapshot, step: int) -> bool:
        return True

    def stop(self, member: int) -> None: ...

    def poll(self, *, wait: bool = False) -> Evaluated:
        ready, self.ready = self.ready, []
        return Evaluated(ready, [], [])

    def state(self) -> State:
        return {}

    def restore(self, state: State, architecture: Architecture) -> list[int]:
        return []

    def close(self) -> None: ...


class InlineEvaluator(NoEvaluator):
    """Evaluates in this process while training waits."""

    def __init__(self, cfg: Config, make_env: EnvFactory, requests: Requests) -> None:
        super().__init__()
        self.requests = requests
        self.member_evaluators = [MemberEvaluator(cfg, member, make_env) for member in range(len(cfg.members))]
        self._stopped: set[int] = set()
        self._diverged: dict[int, str] = {}  # members, and which action was not finite

    def submit(self, snapshot: PolicySnapshot, step: int) -> bool:
        """Evaluates every living member of the snapshot; drops it all if a stop or save is requested meanwhile."""
        ready: list[Evaluation] = []
        for member, member_evaluator in enumerate(self.member_evaluators):
            try:
                if member not in self._stopped:
                    ready += member_evaluator.evaluate(snapshot, step, self._check_requests)
            except Diverged as error:
                self._diverged[member] = error.what
            except Stopped:
                return False
        self.ready += ready
        return True

    def stop(self, member: int) -> None:
        self._stopped.add(member)
        self.ready = [evaluation for evaluation in self.ready if evaluation.member != member]

    def _check_requests(self) -> None:
        if self.requests.stop.is_set() or self.requests.save.is_set():
            raise Stopped

    def poll(self, *, wait: bool = False) -> Evaluated:
        diverged = [pair for pair in self._diverged.items() if pair[0] not in self._stopped]
        return super().poll()._replace(diverged=diverged)

    def restore(self, state: State, architecture: Architecture) -> list[int]:
        if state:
            raise ValueError("evaluations are under way, which a run in one process never has")
        return []

    def close(self) -> None:
        for member_evaluator in self.member_evaluators:
            member_evaluator.close()
