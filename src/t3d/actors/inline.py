"""Acting and evaluating in the learner's own process: deterministic."""

from __future__ import annotations

import threading

import numpy as np

from t3d.actors.member import MemberActor
from t3d.config import Config
from t3d.snapshots import PolicySnapshot
from t3d.types import Acting, ActorNews, Evaluation, Requests, Rollout, State
from t3d.world.episode import EpisodeCounters
from t3d.world.evaluate import MemberEvaluator, Stopped
from t3d.world.guard import EnvFactory
from t3d.world.policy import MemberPolicy


class InlineCollector:
    """Collects in this process, one step of every environment at a time: deterministic."""

    def __init__(self, cfg: Config, make_env: EnvFactory) -> None:
        self.cfg = cfg
        envs = cfg.env.num_envs
        all_counters = [EpisodeCounters(np.full(envs, -1), np.zeros(envs, np.int64)) for _ in cfg.seeds]
        self.member_actors = [
            MemberActor(cfg, member, make_env, range(envs), counters) for member, counters in enumerate(all_counters)
        ]
        for member_actor in self.member_actors:
            member_actor.begin()
        self.spec = self.member_actors[0].env_batch.spec
        self.policies: list[MemberPolicy] = []

    @property
    def taken(self) -> list[int]:
        """Transitions of each member so far."""
        return [member_actor.taken for member_actor in self.member_actors]

    def publish(self, snapshot: PolicySnapshot, made: int = 0) -> None:
        """From now on act with this policy, which is the newest: how many updates were made is not asked."""
        self.policies = [MemberPolicy(snapshot, member) for member in range(len(self.member_actors))]

    def poll(self) -> list[Rollout]:
        """The next transitions, one block for each member that has not reached total_steps.

        An environment that has failed is told by the next call, when everything before it has been handed out.
        """
        for member_actor in self.member_actors:
            if member_actor.error is not None:
                raise member_actor.error
        pairs = zip(self.member_actors, self.policies, strict=True)
        return [
            member_actor.step(policy) for member_actor, policy in pairs if member_actor.taken < self.cfg.total_steps
        ]

    def supervise(self) -> None:
        """There is nobody to look after."""

    def news(self) -> list[ActorNews]:
        """Nothing: there are no actors but this process."""
        return []

    def figures(self, *, whole_run: bool = False) -> Acting | None:
        """Nothing: acting and learning take turns."""
        return None

    def state(self) -> State:
        """Every member's count and episodes in flight, by seed."""
        return {f"seed-{member_actor.seed}": member_actor.state() for member_actor in self.member_actors}

    def restore(self, state: State, stop: threading.Event) -> list[str]:
        """Goes on where a collector was; says what could not be brought back."""
        return [
            note
            for member_actor in self.member_actors
            for note in member_actor.restore(state[f"seed-{member_actor.seed}"], stop)
        ]

    def close(self) -> None:
        """Closes the environments."""
        for member_actor in self.member_actors:
            member_actor.env_batch.close()


class InlineEvaluator:
    """Evaluates in this process while training waits."""

    def __init__(self, cfg: Config, make_env: EnvFactory, requests: Requests) -> None:
        self.requests = requests
        self.member_evaluators = [MemberEvaluator(cfg, member, make_env) for member in range(len(cfg.seeds))]
        self._ready: list[Evaluation] = []

    def submit(self, snapshot: PolicySnapshot, step: int) -> bool:
        """Evaluates every member of the snapshot; dropped as a whole if the run is asked to stop or save meanwhile."""
        try:
            self._ready += [one.evaluate(snapshot, step, self._heed_requests) for one in self.member_evaluators]
        except Stopped:
            return False
        return True

    def _heed_requests(self) -> None:
        if self.requests.stop.is_set() or self.requests.save.is_set():
            raise Stopped

    def poll(self) -> list[Evaluation]:
        """The evaluations that are ready; each is handed out once."""
        ready, self._ready = self._ready, []
        return ready

    def news(self) -> list[str]:
        """Nothing: there are no processes but this one."""
        return []

    def state(self) -> State:
        """Nothing: no evaluation is under way when a run is saved."""
        return {}

    def has_room(self) -> bool:
        """Always: an evaluation is over when submit returns."""
        return True

    def restore(self, state: State) -> list[int]:
        """Nothing was under way."""
        if state:
            raise ValueError("evaluations are under way, which one process does not have")
        return []

    def close(self) -> None:
        """Closes the environments."""
        for one in self.member_evaluators:
            one.env_batch.close()
