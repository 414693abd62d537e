"""The episode in progress in one environment: played, recorded, and replayed when a run is resumed."""

from __future__ import annotations

import struct
import threading
import zlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from t3d.config import Config, Member
from t3d.errors import StoppedEarly
from t3d.files import to_count
from t3d.policy.spec import Floats, random_action
from t3d.seeds import derive, stream
from t3d.types import EpisodeResult, Fault, State
from t3d.world.batch import EnvBatch
from t3d.world.guard import ENVIRONMENT_ERRORS, BadValue, Result
from t3d.world.noise import NOISES, Noise, scale_factor

RECORDED_STEPS = 100_000  # of an episode in progress; a longer one restarts when the run is resumed; chosen
MOST_FAILURES = 10  # episodes in a row that fail to start after a resume; chosen
MOST_FRUITLESS = 100  # episodes in a row that `skip` ends before their first transition; chosen


class EpisodeCounters(NamedTuple):
    """Counters of a member's environments that must survive a crash; updated immediately, before the next reset."""

    episodes: NDArray[np.int64]  # (num_envs,): the index of each environment's newest episode, -1 before the first
    bad_values: NDArray[np.int64]  # (num_envs,): bad values that each has returned


class EpisodeRunner:
    """The episode in progress in one environment of one member; its index determines every random stream in it."""

    noise: Noise
    warm_up: np.random.Generator
    observation: NDArray[Any]

    def __init__(
        self, cfg: Config, member: Member, index: int, env_batch: EnvBatch, position: int, counters: EpisodeCounters
    ) -> None:
        self.cfg, self.seed, self.title, self.index = cfg, member.seed, member.title, index
        self.env_batch, self.position, self.counters = env_batch, position, counters
        self.scale = scale_factor(index, cfg.num_envs) if cfg.noise.per_env else 1.0
        self.fruitless = 0
        self.error: Exception | None = None  # why the episode in progress cannot continue

    def begin(self, episode: int) -> None:
        """Resets the environment, the noise and the episode's totals."""
        self.episode = self.counters.episodes[self.index] = episode
        self.total_reward, self.length = 0.0, 0
        self.actions: list[Floats] = []  # enough to replay the episode
        indices = (self.index, self.episode)
        self.noise = NOISES[self.cfg.noise.kind](
            self.env_batch.spec.action_size, stream(self.seed, "exploration", *indices)
        )
        self.warm_up = stream(self.seed, "warm-up", *indices)
        self.observation = self.env_batch.reset(self.position, derive(self.seed, "environment", *indices), self.episode)
        self.trace = zlib.crc32(self.observation.tobytes())  # of everything the environment returned in this episode

    def begin_after_failure(self, episode: int) -> None:
        """Starts this episode or, if that fails too, one of the next few."""
        for further in range(MOST_FAILURES):
            try:
                return self.begin(episode + further)
            except ENVIRONMENT_ERRORS as error:
                failure = error
        raise failure

    def random_action(self) -> Floats:
        return random_action(self.warm_up, self.env_batch.spec)

    def noisy(self, action: Floats, scale: float) -> Floats:
        """Adds exploration noise to the policy's action and clips it to [-1, 1]."""
        noisy: Floats = (action + np.float32(scale * self.scale) * self.noise()).clip(-1, 1)
        return noisy

    def advance(self, action: Floats, result: Result) -> EpisodeResult | None:
        """Records the result of a step; returns the episode if it ended.

        If the environment fails, now or when its next episode starts, `error` holds the exception.
        """
        self.error = result.error
        if result.valid:
            self.record(action, result)
        if self.error is not None or not (result.terminated or result.truncated):
            return None
        ended = EpisodeResult(self.index, self.episode, self.total_reward, self.length, result.terminated)
        try:
            self._refuse_endless_skipping()
            self.begin(self.episode + 1)
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
        return {
            "episode": self.episode,
            "length": self.length,
            "trace": self.trace,
            "bad_values": int(self.counters.bad_values[self.index]),
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

    def _refuse_endless_skipping(self) -> None:
        self.fruitless = 0 if self.length else self.fruitless + 1
        if self.fruitless == MOST_FRUITLESS:
            text = f"{MOST_FRUITLESS} episodes in a row had a bad value in their first step, so none can be used"
            fault = Fault(self.index, self.episode, 1, "every episode", text)
            raise BadValue(f"environment {self.index} of {self.title}", fault)


class SavedEpisode(NamedTuple):
    """An episode in progress, as stored in a checkpoint."""

    episode: int
    length: int
    trace: int | None  # None: what the environment will return is unknown
    actions: Floats

    @classmethod
    def of(cls, state: State) -> SavedEpisode:
        """Reads the saved episode; after a failure the next one, because the same actions would fail again."""
        if state.get("failed"):
            return cls(to_count(state["episode"]) + 1, 0, None, state["actions"][:0])
        return cls(to_count(state["episode"]), to_count(state["length"]), to_count(state["trace"]), state["actions"])


def replay_episodes(
    runners: list[EpisodeRunner], saved: list[SavedEpisode], env_batch: EnvBatch, stop: threading.Event
) -> None:
    """Brings new environments back to where they were.

    All are stepped together, as a VectorEnv must be, so shorter episodes start later; until then their environments
    idle. If an episode is not the first, its environment has been reset before, as it was in the run: some
    simulators (PyBullet) differ on the first reset only.
    """
    played = [state.actions if len(state.actions) == state.length else state.actions[:0] for state in saved]
    longest = max(map(len, played))
    starts = [longest - len(actions) for actions in played]
    idle = np.zeros(env_batch.spec.action_size, np.float32)
    for t in range(longest + 1):
        for runner, state, start in zip(runners, saved, starts, strict=True):
            if t == start and state.trace is None:
                runner.begin_after_failure(state.episode)
            elif t == start and not (t == 0 and runner.episode == state.episode):
                runner.begin(state.episode)
        if t == longest:
            break
        if stop.is_set():
            raise StoppedEarly("stopped while unfinished episodes were replayed; the run is unchanged")
        running = [t >= start for start in starts]
        a = [actions[t - start] if t >= start else idle for actions, start in zip(played, starts, strict=True)]
        for runner, action, result, runs in zip(runners, a, env_batch.step(np.stack(a)), running, strict=True):
            if runs and result.error is not None:
                raise result.error
            if runs and result.valid:
                runner.record(action, result)
            ended = result.terminated or result.truncated
            if result.error is None and ended:  # it was idle, or is not reproducible
                runner.begin(runner.episode)
