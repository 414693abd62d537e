"""Acting and evaluating in the learner's own process: deterministic."""

from __future__ import annotations

import threading

import numpy as np

from t3d.actors.member_actor import MemberActor
from t3d.actors.protocols import Collected, Evaluated
from t3d.actors.statistics import ActingTotals
from t3d.config import Config
from t3d.errors import Diverged
from t3d.policy.snapshots import MemberPolicy, PolicySnapshot
from t3d.types import Evaluation, Requests, State
from t3d.world.episode import EpisodeCounters
from t3d.world.evaluate import MemberEvaluator, Stopped
from t3d.world.guard import EnvFactory


class InlineCollector:
    """Collects in this process, one step of every environment at a time: deterministic."""

    keeps_episodes = True

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
        self._stopped: set[int] = set()

    def publish(self, snapshot: PolicySnapshot, updates: int = 0) -> None:
        """Acts with this policy from now on; the number of updates is not needed here."""
        self.policies = [MemberPolicy(snapshot, member) for member in range(len(self.member_actors))]

    def poll(self) -> Collected:
        """Returns the next transitions, one block for each member that has not reached total_steps.

        A failed environment raises on the next call, after everything before it has been returned.
        """
        acting = [one for one in self.member_actors if one.member not in self._stopped]
        for one in acting:
            if one.error is not None and not isinstance(one.error, Diverged):
                raise one.error
        steps = [one for one in acting if one.error is None and one.taken < self.cfg.total_steps]
        rollouts = [one.step(self.policies[one.member]) for one in steps]
        diverged = [(one.member, one.error.what) for one in acting if isinstance(one.error, Diverged)]
        return Collected(rollouts, [], diverged)

    def stop(self, member: int) -> None:
        """Acts for this member no more."""
        self._stopped.add(member)

    def supervise(self) -> None:
        """Does nothing: there are no processes to supervise."""

    def totals(self) -> ActingTotals | None:
        """Returns nothing: acting and learning take turns."""
        return None

    def state(self) -> State:
        """Returns every member's count and episodes in progress, by name."""
        return {member_actor.name: member_actor.state() for member_actor in self.member_actors}

    def restore(self, state: State, stop: threading.Event) -> list[str]:
        """Restores what state() returned; says what could not be restored."""
        return [
            note for member_actor in self.member_actors for note in member_actor.restore(state[member_actor.name], stop)
        ]

    def close(self) -> None:
        """Closes the environments."""
        for member_actor in self.member_actors:
            member_actor.env_batch.close()


class InlineEvaluator:
    """Evaluates in this process while training waits."""

    def __init__(self, cfg: Config, make_env: EnvFactory, requests: Requests) -> None:
        self.requests = requests
        self.member_evaluators = [MemberEvaluator(cfg, member, make_env) for member in range(len(cfg.members))]
        self._ready: list[Evaluation] = []
        self._stopped: set[int] = set()
        self._diverged: dict[int, str] = {}  # members, and which action was not finite

    def submit(self, snapshot: PolicySnapshot, step: int) -> bool:
        """Evaluates every living member of the snapshot; drops it all if a stop or save is requested meanwhile."""
        ready: list[Evaluation] = []
        try:
            living = [pair for pair in enumerate(self.member_evaluators) if pair[0] not in self._stopped]
            for member, one in living:
                try:
                    ready.append(one.evaluate(snapshot, step, self._check_requests))
                except Diverged as error:
                    self._diverged[member] = error.what
        except Stopped:
            return False
        self._ready += ready
        return True

    def stop(self, member: int) -> None:
        """Evaluates this member no more."""
        self._stopped.add(member)
        self._ready = [one for one in self._ready if one.member != member]

    def _check_requests(self) -> None:
        if self.requests.stop.is_set() or self.requests.save.is_set():
            raise Stopped

    def poll(self, *, wait: bool = False) -> Evaluated:
        """Returns the evaluations that are ready, each once; there is nothing to wait for."""
        ready, self._ready = self._ready, []
        return Evaluated(ready, [], [pair for pair in self._diverged.items() if pair[0] not in self._stopped])

    def state(self) -> State:
        """Returns nothing: no evaluation is in progress when a run is saved."""
        return {}

    def has_room(self) -> bool:
        """Always true: an evaluation is complete when submit returns."""
        return True

    def restore(self, state: State) -> list[int]:
        """Checks that no evaluation was in progress."""
        if state:
            raise ValueError("evaluations are under way, which a run in one process never has")
        return []

    def close(self) -> None:
        """Closes the environments."""
        for one in self.member_evaluators:
            one.env_batch.close()
