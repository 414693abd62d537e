"""Acting for one member: its environments and the episodes in them, played, recorded, and replayed on a resume."""

from __future__ import annotations

import json
import struct
import threading
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from t3d.config import Config, EnvConfig, Member
from t3d.errors import Diverged, StoppedEarly
from t3d.files import fields_in, to_count
from t3d.policy.acting import MemberPolicy
from t3d.policy.spec import Floats, random_action, rounded
from t3d.seeds import derive, stream
from t3d.types import EpisodeResult, Fault, Rollout, State, rows_of
from t3d.world.batch import EnvBatch, open_batch
from t3d.world.guard import ENVIRONMENT_ERRORS, BadValue, EnvFactory, Result
from t3d.world.make import factory_for
from t3d.world.noise import NOISES, Noise, scale_at, scale_factor
from t3d.world.schedules import episode_args

RECORDED_STEPS = 100_000  # of an episode in progress; a longer one restarts when the run is resumed; chosen
MOST_FAILURES = 10  # episodes in a row that fail to start after a resume; chosen
MOST_FRUITLESS = 100  # episodes in a row that `skip` ends before their first transition; chosen


class EpisodeCounters(NamedTuple):
    """Counters of a member's environments that must survive a crash; updated immediately, before the next reset."""

    episodes: NDArray[np.int64]  # (num_envs,): the index of each environment's newest episode, -1 before the first
    bad_values: NDArray[np.int64]  # (num_envs,): bad values that each has returned


class EpisodeRunner:
    """The episode in progress in one environment of one member; its index determines every random stream in it."""

    cfg: Config  # this and the next as MemberActor.use sets them
    env: EnvConfig
    noise: Noise
    warm_up: np.random.Generator
    observation: NDArray[Any]

    def __init__(
        self, cfg: Config, member: Member, index: int, env_batch: EnvBatch, position: int, counters: EpisodeCounters
    ) -> None:
        self.seed, self.title, self.index = member.seed, member.title, index
        self.env_batch, self.position, self.counters = env_batch, position, counters
        self.scale = scale_factor(index, cfg.num_envs) if cfg.noise.per_env else 1.0
        self.fruitless = 0
        self.error: Exception | None = None  # why the episode in progress cannot continue

    def begin(self, episode: int, taken: int, args: dict[str, Any] | None = None) -> None:
        """Starts an episode after so many transitions of its member; one that is replayed, with the same arguments."""
        self.episode = self.counters.episodes[self.index] = episode
        self.total_reward, self.length = 0.0, 0
        self.actions: list[Floats] = []  # enough to replay the episode
        indices = (self.index, self.episode)
        noise, size = NOISES[self.cfg.noise.kind], self.env_batch.spec.action_size
        self.noise = noise(size, stream(self.seed, "exploration", *indices))
        self.warm_up = stream(self.seed, "warm-up", *indices)
        self.args = episode_args(self.env, self.seed, *indices, taken) if args is None else {**self.env.args, **args}
        seed = derive(self.seed, "environment", *indices)
        self.observation = self.env_batch.reset(self.position, seed, self.episode, self.args)
        self.trace = zlib.crc32(self.observation.tobytes())  # of everything the environment returned in this episode

    def begin_after_failure(self, episode: int, taken: int) -> None:
        for further in range(MOST_FAILURES):
            try:
                return self.begin(episode + further, taken)
            except ENVIRONMENT_ERRORS as error:
                failure = error
        raise failure

    def advance(self, taken: int, action: Floats, result: Result) -> EpisodeResult | None:
        """Records the result of a step, with which its member has taken so many; returns the episode if it ended.

        If the environment fails, now or when its next episode starts, `error` holds the exception.
        """
        self.error = result.error
        if result.valid:
            self.record(action, result)
        if self.error is not None or not (result.terminated or result.truncated):
            return None
        metrics = self.env_batch.guards[self.position].metrics.of_episode(result.info)
        so_far = self.total_reward, self.length, result.terminated, int(not result.valid)
        drawn = {name: self.args[name] for name in sorted(self.env.schedule)}
        ended = EpisodeResult(self.index, self.episode, *so_far, *metrics, drawn)
        self.fruitless = 0 if self.length else self.fruitless + 1
        try:
            if self.fruitless == MOST_FRUITLESS:
                text = f"{MOST_FRUITLESS} episodes in a row had a bad value in their first step, so none can be used"
                fault = Fault(self.index, self.episode, 1, "every episode", text)
                raise BadValue(f"environment {self.index} of {self.title}", fault)
            self.begin(self.episode + 1, taken)
        except ENVIRONMENT_ERRORS as error:
            self.error = error
        return ended if ended.length else None

    def record(self, action: Floats, result: Result) -> None:
        self.observation = result.observation
        self.total_reward += result.reward
        self.length += 1
        if self.length <= RECORDED_STEPS:
            self.actions.append(action)
        self.trace = zlib.crc32(struct.pack("d", result.reward), zlib.crc32(result.observation.tobytes(), self.trace))

    def state(self) -> State:
        """Everything that determines how this episode continues; replaying it restores the environment itself."""
        given, drawn = self.env.args, self.env.schedule
        own = {name: value for name, value in self.args.items() if name in drawn or given.get(name) != value}
        return {
            "episode": self.episode,
            "length": self.length,
            "trace": self.trace,
            "bad_values": int(self.counters.bad_values[self.index]),
            "args": json.dumps(own, sort_keys=True),  # a text, because an argument may have any name and be of any kind
            "fruitless": self.fruitless,
            "failed": "" if self.error is None else str(self.error),
            "actions": np.array(self.actions, np.float32).reshape(-1, self.env_batch.spec.action_size),
            "noise": dict(self.noise.state),
            "noise_stream": self.noise.rng.bit_generator.state,
            "warm_up_stream": self.warm_up.bit_generator.state,
        }

    def restore(self, state: State) -> None:
        """Restores what replaying the episode does not."""
        self.counters.bad_values[self.index] = to_count(state["bad_values"])
        self.fruitless = to_count(state["fruitless"])
        if state.get("failed"):  # another episode has started, with its own streams
            return
        self.noise.state = dict(state["noise"])
        self.noise.rng.bit_generator.state = state["noise_stream"]
        self.warm_up.bit_generator.state = state["warm_up_stream"]


class SavedEpisode(NamedTuple):
    """An episode in progress, as stored in a checkpoint."""

    episode: int
    length: int
    trace: int | None  # None: what the environment will return is unknown
    actions: Floats
    args: dict[str, Any] | None = None  # besides env.args; None: unknown, as in checkpoints from before schedules

    @classmethod
    def of(cls, state: State) -> SavedEpisode:
        """Reads the saved episode; after a failure the next one, because the same actions would fail again."""
        if state.get("failed"):
            return cls(to_count(state["episode"]) + 1, 0, None, state["actions"][:0])
        episode, length, trace = (to_count(state[name]) for name in ("episode", "length", "trace"))
        return cls(episode, length, trace, state["actions"], fields_in(state["args"]) if "args" in state else None)


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
        self.member, who = member, cfg.members[member]
        self.seed, self.name, self.title = who.seed, who.name, who.title
        self.taken = 0  # the member's transitions so far
        self.error: Exception | None = None  # why an environment failed; there is no further step
        env = cfg.env_of(who)
        self.env_batch = open_batch(factory_for(make_env, env), env, self.title, indices, beat)
        self.runners = [
            EpisodeRunner(cfg, who, index, self.env_batch, position, counters) for position, index in enumerate(indices)
        ]
        self.use(cfg)

    def use(self, cfg: Config) -> None:
        """Acts by these settings from now on: noise at once, arguments of environments from their next episodes on."""
        self.cfg, who = cfg, cfg.members[self.member]
        self.noise, env = cfg.noise_of(who), cfg.env_of(who)
        for runner in self.runners:
            runner.cfg, runner.env = cfg, env

    @property
    def counts(self) -> list[tuple[int, int]]:
        return [tuple(int(counter[runner.index]) for counter in runner.counters) for runner in self.runners]  # type: ignore[misc]

    def begin(self) -> None:
        try:
            for runner in self.runners:
                runner.begin(int(runner.counters.episodes[runner.index]) + 1, self.taken)
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
        if not np.vdot(a, a) < np.inf:  # an environment that gets NaN returns NaN, and would be blamed for it
            runner, action = next(pair for pair in zip(runners, a, strict=True) if not np.isfinite(pair[1]).all())
            self.error = Diverged(f"the action for environment {runner.index} of {self.title} is {action}")
            runners, s, a = [], s[:0], a[:0]
        results = self.env_batch.step(a) if runners else []
        pairs = zip(runners, results, strict=True)
        steps = [(runner.index, runner.episode, runner.length, result.ending) for runner, result in pairs]
        origins = np.array(steps, np.int32)
        valid = [position for position, result in enumerate(results) if result.valid]
        self.taken += len(valid)
        episodes = [runner.advance(self.taken, *answer) for runner, *answer in zip(runners, a, results, strict=True)]
        self.error = next((runner.error for runner in runners if runner.error is not None), self.error)
        if isinstance(self.error, BadValue):
            self.error.member = self.member
        if len(valid) < len(results):
            s, a, origins, results = s[valid], a[valid], origins[valid], [results[position] for position in valid]
        r_and_terminated = np.array([(result.reward, result.terminated) for result in results], np.float32)
        spec = self.env_batch.spec
        s2 = np.array([result.observation for result in results], spec.observation_dtype).reshape(s.shape)
        rows = rows_of(spec, s, a, r_and_terminated.reshape(-1, 2), s2)
        ended = [episode for episode in episodes if episode is not None]
        return Rollout(self.member, rows, origins.reshape(-1, 4), spec.newest_width, ended, self._faults())

    def _actions(self, policy: MemberPolicy, runners: list[EpisodeRunner], s: Floats) -> Floats:
        """Chooses random actions for the first random_steps steps of a member, then those of the policy with noise.

        Exact where one process acts; actors read each other's counts, each of which may be a step old.
        """
        still_random, spec = max(0, self.cfg.random_actions - self.taken), self.env_batch.spec
        drawn = [random_action(runner.warm_up, spec) for runner in runners[:still_random]]
        if drawn and len(drawn) == len(runners):
            return rounded(np.array(drawn), spec)
        actions, scale = policy(s[still_random:]), scale_at(self.taken, self.noise)
        for number, runner in enumerate(runners[still_random:]):
            actions[number] += np.float32(scale * runner.scale) * runner.noise()
        np.minimum(np.maximum(actions, -1, out=actions), 1, out=actions)
        return rounded(np.concatenate([drawn, actions]) if drawn else actions, spec)

    def _faults(self) -> list[Fault]:
        """Returns the bad values to report: each environment's first ten, then its 100th, 1,000th and so on."""
        if not (faults := self.env_batch.take_faults()):
            return []
        reported, runners = [], {runner.index: runner for runner in self.runners}
        for fault in faults:
            bad_values = runners[fault.env].counters.bad_values
            bad_values[fault.env] += 1
            number = int(bad_values[fault.env])
            if number <= 10 or str(number).strip("0") == "1":
                reported.append(fault._replace(number=number))
        return reported

    def state(self) -> State:
        return {"taken": self.taken, **{f"env-{runner.index}": runner.state() for runner in self.runners}}

    def restore(self, state: State, stop: threading.Event) -> list[str]:
        """Replays every episode in progress; says which came out different, and starts the next one there."""
        self.taken = to_count(state["taken"])
        states = [state[f"env-{runner.index}"] for runner in self.runners]
        episodes = [SavedEpisode.of(saved) for saved in states]
        self._replay(episodes, stop)
        if any(saved.episode or saved.length for saved in episodes):
            self.env_batch.take_faults()  # reported before
        notes = []
        for runner, fields, saved in zip(self.runners, states, episodes, strict=True):
            runner.restore(fields)
            if saved.trace is None:
                notes.append(f"episode {saved.episode - 1} was lost ({fields['failed']}); the next one starts")
            elif (runner.episode, runner.length, runner.trace) != saved[:3]:
                known = saved.length == len(saved.actions)
                why = "did not repeat" if known else f"has lost the first of {saved.length:,} steps of"
                notes.append(
                    f"environment {runner.index} of {self.title} {why} its episode {saved.episode}: "
                    "the next one starts, and the run continues, but not bit for bit"
                )
                runner.begin(saved.episode + 1, self.taken)
        return notes

    def _replay(self, saved: list[SavedEpisode], stop: threading.Event) -> None:
        """Brings new environments back to where they were.

        All are stepped together, as a VectorEnv must be, so shorter episodes start later; until then their environments
        idle. If an episode is not the first, its environment has been reset before, as it was in the run: some
        simulators (PyBullet) differ on the first reset only.
        """
        played = [state.actions if len(state.actions) == state.length else state.actions[:0] for state in saved]
        longest = max(map(len, played))
        starts = [longest - len(actions) for actions in played]
        idle = np.zeros(self.env_batch.spec.action_size, np.float32)
        for t in range(longest + 1):
            for runner, state, start in zip(self.runners, saved, starts, strict=True):
                if t == start and state.trace is None:
                    runner.begin_after_failure(state.episode, self.taken)
                elif t == start:
                    args = {**runner.args, **(state.args or {})}
                    if t > 0 or (runner.episode, runner.args) != (state.episode, args):
                        runner.begin(state.episode, self.taken, state.args)
            if t == longest:
                break
            if stop.is_set():
                raise StoppedEarly("stopped while unfinished episodes were replayed; the run is unchanged")
            a = [actions[t - start] if t >= start else idle for actions, start in zip(played, starts, strict=True)]
            results = self.env_batch.step(np.stack(a))
            for runner, start, action, result in zip(self.runners, starts, a, results, strict=True):
                if t >= start and result.error is not None:
                    raise result.error
                if t >= start and result.valid:
                    runner.record(action, result)
                if result.error is None and (result.terminated or result.truncated):  # idle, or not reproducible
                    runner.begin(runner.episode, self.taken, runner.args)
