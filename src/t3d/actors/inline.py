"""Acting for one member, and a collector and an evaluator in the learner's own process: deterministic."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np

from t3d.actors.protocols import ActingTotals, Collected, Evaluated
from t3d.config import Config
from t3d.errors import Diverged
from t3d.files import to_count
from t3d.policy.acting import MemberPolicy, PolicySnapshot
from t3d.policy.spec import Floats, rounded
from t3d.types import Evaluation, Fault, Requests, Rollout, State, row_sizes, rows_of
from t3d.world.batch import open_batch
from t3d.world.episode import EpisodeCounters, EpisodeRunner, SavedEpisode, replay_episodes
from t3d.world.evaluate import MemberEvaluator, Stopped
from t3d.world.guard import BadValue, EnvFactory
from t3d.world.noise import scale_at


class MemberActor:
    """Environments of one member and the episodes that run in them."""

    def __init__(
        self,
        cfg: Config,
        member: int,
        make_env: EnvFactory,
        indices: Sequence[int],
        counters: EpisodeCounters,
        beat: Callable[[], object] = int,
    ) -> None:
        """Opens the environments with these indices, whose episodes continue after those in the counters."""
        self.cfg, self.member, who = cfg, member, cfg.members[member]
        self.seed, self.name, self.title = who.seed, who.name, who.title
        self.taken = 0  # the member's transitions so far
        self.error: Exception | None = None  # why an environment failed; there is no further step
        self.env_batch = open_batch(make_env, cfg.env, self.title, indices, beat)
        self.runners = [
            EpisodeRunner(cfg, who, index, self.env_batch, position, counters) for position, index in enumerate(indices)
        ]

    def begin(self) -> None:
        try:
            for runner in self.runners:
                runner.begin(int(runner.counters.episodes[runner.index]) + 1)
        except BadValue as error:
            error.member = self.member
            raise

    def step(self, policy: MemberPolicy) -> Rollout:
        """Steps every environment once; none goes beyond total_steps.

        If an environment fails, the transitions of the others are returned, and `error` says why.
        """
        runners = self.runners[: self.cfg.total_steps - self.taken]
        s = np.array([runner.observation for runner in runners])
        a = self._actions(policy, runners, s)
        if not np.isfinite(a).all():
            return self._diverged(runners, a)
        results = self.env_batch.step(a)
        positions = [(runner.index, runner.episode, runner.length) for runner in runners]
        endings = [result.ending for result in results]
        origins = np.column_stack([positions, endings]).astype(np.int32)  # (T, 4)
        episodes = [runner.advance(*answer) for runner, *answer in zip(runners, a, results, strict=True)]
        self.error = next((runner.error for runner in runners if runner.error is not None), None)
        if isinstance(self.error, BadValue):
            self.error.member = self.member
        valid = [position for position, result in enumerate(results) if result.valid]
        if len(valid) < len(results):
            s, a, origins, results = s[valid], a[valid], origins[valid], [results[position] for position in valid]
        self.taken += len(valid)
        r_and_terminated = np.array([(result.reward, result.terminated) for result in results], np.float32)
        spec = self.env_batch.spec
        s2 = np.array([result.observation for result in results], spec.observation_dtype).reshape(s.shape)
        rows = rows_of(spec, s, a, r_and_terminated.reshape(-1, 2), s2)
        ended = [episode for episode in episodes if episode is not None]
        return Rollout(self.member, rows, origins, row_sizes(spec)[0], ended, self._faults())

    def _diverged(self, runners: list[EpisodeRunner], a: Floats) -> Rollout:
        """Acts no further: an environment that gets NaN returns NaN, and would be blamed for it."""
        runner, action = next(pair for pair in zip(runners, a, strict=True) if not np.isfinite(pair[1]).all())
        self.error = Diverged(f"the action for environment {runner.index} of {self.title} is {action}")
        spec = self.env_batch.spec
        sizes = row_sizes(spec)
        empty = np.empty((0, sum(sizes)), spec.observation_dtype), np.empty((0, 4), np.int32)
        return Rollout(self.member, *empty, sizes[0], [], [])

    def state(self) -> State:
        return {"taken": self.taken, **{f"env-{runner.index}": runner.state() for runner in self.runners}}

    def restore(self, state: State, stop: threading.Event) -> list[str]:
        """Replays every episode in progress; says which came out different, and starts the next one there."""
        self.taken = to_count(state["taken"])
        saved_episodes = [SavedEpisode.of(state[f"env-{runner.index}"]) for runner in self.runners]
        replay_episodes(self.runners, saved_episodes, self.env_batch, stop)
        if any(saved_episode.episode or saved_episode.length for saved_episode in saved_episodes):
            self.env_batch.take_faults()  # reported before
        notes = []
        for runner, saved_episode in zip(self.runners, saved_episodes, strict=True):
            saved = state[f"env-{runner.index}"]
            runner.restore(saved)
            if saved_episode.trace is None:
                notes.append(f"episode {saved_episode.episode - 1} was lost ({saved['failed']}); the next one starts")
            elif (runner.episode, runner.length, runner.trace) != (
                saved_episode.episode,
                saved_episode.length,
                saved_episode.trace,
            ):
                known = saved_episode.length == len(saved_episode.actions)
                why = "did not repeat" if known else f"has lost the first of {saved_episode.length:,} steps of"
                notes.append(
                    f"environment {runner.index} of {self.title} {why} its episode {saved_episode.episode}: "
                    "the next one starts, and the run continues, but not bit for bit"
                )
                runner.begin(saved_episode.episode + 1)
        return notes

    def _actions(self, policy: MemberPolicy, runners: list[EpisodeRunner], s: Floats) -> Floats:
        """Chooses random actions for the first random_steps steps of a member, then those of the policy with noise.

        Exact where one process acts; actors read each other's counts, each of which may be a step old.
        """
        still_random = max(0, self.cfg.random_steps - self.taken)
        actions = [runner.random_action() for runner in runners[:still_random]]
        acting = runners[still_random:]
        if acting:
            scale = scale_at(self.taken, self.cfg.noise)
            chosen = policy(s[still_random:])
            actions += [runner.noisy(action, scale) for runner, action in zip(acting, chosen, strict=True)]
        return rounded(np.array(actions), self.env_batch.spec)

    def _faults(self) -> list[Fault]:
        """Returns the bad values to report: each environment's first ten, then its 100th, 1,000th and so on."""
        reported, runners = [], {runner.index: runner for runner in self.runners}
        for fault in self.env_batch.take_faults():
            runner = runners[fault.env]
            runner.counters.bad_values[runner.index] += 1
            count = int(runner.counters.bad_values[runner.index])
            if count <= 10 or str(count).strip("0") == "1":
                reported.append(fault._replace(count=count))
        return reported


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
        self.policies = [MemberPolicy(snapshot, member) for member in range(len(self.member_actors))]

    def poll(self) -> Collected:
        """Returns the next transitions, one block for each member that has not reached total_steps.

        A failed environment raises on the next call, after everything before it has been returned.
        """
        acting = [actor for actor in self.member_actors if actor.member not in self._stopped]
        for actor in acting:
            if actor.error is not None and not isinstance(actor.error, Diverged):
                raise actor.error
        able = [actor for actor in acting if actor.error is None and actor.taken < self.cfg.total_steps]
        rollouts = [actor.step(self.policies[actor.member]) for actor in able]
        diverged = [(actor.member, actor.error.what) for actor in acting if isinstance(actor.error, Diverged)]
        return Collected(rollouts, [], diverged)

    def stop(self, member: int) -> None:
        self._stopped.add(member)

    def supervise(self) -> None:
        """Does nothing: there are no processes to supervise."""

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
            for member, member_evaluator in living:
                try:
                    ready.append(member_evaluator.evaluate(snapshot, step, self._check_requests))
                except Diverged as error:
                    self._diverged[member] = error.what
        except Stopped:
            return False
        self._ready += ready
        return True

    def stop(self, member: int) -> None:
        self._stopped.add(member)
        self._ready = [evaluation for evaluation in self._ready if evaluation.member != member]

    def _check_requests(self) -> None:
        if self.requests.stop.is_set() or self.requests.save.is_set():
            raise Stopped

    def poll(self, *, wait: bool = False) -> Evaluated:
        ready, self._ready = self._ready, []
        return Evaluated(ready, [], [pair for pair in self._diverged.items() if pair[0] not in self._stopped])

    def state(self) -> State:
        return {}

    def has_room(self) -> bool:
        return True

    def restore(self, state: State) -> list[int]:
        """Checks that no evaluation was in progress."""
        if state:
            raise ValueError("evaluations are under way, which a run in one process never has")
        return []

    def close(self) -> None:
        for member_evaluator in self.member_evaluators:
            member_evaluator.env_batch.close()
