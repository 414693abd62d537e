"""The episode in flight in one environment: played, remembered, and played again when a run is resumed."""

from __future__ import annotations

import struct
import threading
import zlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from t3d.config import Config
from t3d.errors import StoppedEarly
from t3d.files import whole
from t3d.seeds import derive, stream
from t3d.types import Episode, Fault, Floats, State
from t3d.world.batch import EnvBatch
from t3d.world.guard import ENVIRONMENT_ERRORS, BadValue, Result
from t3d.world.noise import NOISES, Noise, rung
from t3d.world.numbers import random_action

REMEMBERED_STEPS = 100_000  # of an episode in flight; a longer one restarts when the run is resumed; chosen
MOST_FAILURES = 10  # episodes in a row that cannot begin after a resume; chosen
MOST_FRUITLESS = 100  # episodes in a row that `skip` ends before their first transition; chosen


class EpisodeCounters(NamedTuple):
    """What must be known of a member's environments after a crash; written as it happens, before the next reset."""

    episodes: NDArray[np.int64]  # (num_envs,): the number of each one's newest episode, -1 before the first
    bad_values: NDArray[np.int64]  # (num_envs,): how many each has returned


class EpisodeRunner:
    """The episode in flight in one environment of one member; its number decides every random stream in it."""

    noise: Noise
    warm_up: np.random.Generator
    observation: Floats

    def __init__(
        self, cfg: Config, seed: int, index: int, env_batch: EnvBatch, position: int, counters: EpisodeCounters
    ) -> None:
        self.cfg, self.seed, self.index = cfg, seed, index
        self.env_batch, self.position, self.counters = env_batch, position, counters
        self.scale = rung(index, cfg.env.num_envs) if cfg.noise.per_env else 1.0
        self.fruitless = 0
        self.error: Exception | None = None  # why the episode in flight cannot go on

    def begin(self, episode: int) -> None:
        """Resets the environment, the noise and the sums."""
        self.episode = self.counters.episodes[self.index] = episode
        self.total_reward, self.length = 0.0, 0
        self.actions: list[Floats] = []  # enough to play the episode again
        place = (self.index, self.episode)
        self.noise = NOISES[self.cfg.noise.kind](
            self.env_batch.spec.action_size, stream(self.seed, "exploration", *place)
        )
        self.warm_up = stream(self.seed, "warm-up", *place)
        self.observation = self.env_batch.reset(self.position, derive(self.seed, "environment", *place), self.episode)
        self.trace = zlib.crc32(self.observation.tobytes())  # of all that the environment has said in this episode

    def begin_after_failure(self, episode: int) -> None:
        """Begins this episode or, where it fails too, one soon after it."""
        for further in range(MOST_FAILURES):
            try:
                return self.begin(episode + further)
            except ENVIRONMENT_ERRORS as error:
                failure = error
        raise failure

    def random_action(self) -> Floats:
        """Uniform over the action space."""
        return random_action(self.warm_up, self.env_batch.spec)

    def noisy(self, action: Floats, scale: float) -> Floats:
        """The policy's action with exploration noise, still a legal one."""
        noisy: Floats = (action + np.float32(scale * self.scale) * self.noise()).clip(-1, 1)
        return noisy

    def took(self, action: Floats, result: Result) -> Episode | None:
        """Takes in what the environment answered; the episode, if that ended it.

        If the environment fails, now or when its next episode begins, that is kept in `error`.
        """
        self.error = result.error
        if result.sound:
            self.follow(action, result)
        if self.error is not None or not (result.terminated or result.truncated):
            return None
        ended = Episode(self.index, self.episode, self.total_reward, self.length, result.terminated)
        try:
            self._refuse_endless_skipping()
            self.begin(self.episode + 1)
        except ENVIRONMENT_ERRORS as error:
            self.error = error
        return ended if ended.length else None

    def follow(self, action: Floats, result: Result) -> None:
        """One sound step further in the episode."""
        self.observation = result.observation
        self.total_reward += result.reward
        self.length += 1
        if self.length <= REMEMBERED_STEPS:
            self.actions.append(action)
        self.trace = zlib.crc32(struct.pack("d", result.reward), zlib.crc32(result.observation.tobytes(), self.trace))

    def state(self) -> State:
        """All that decides how this episode goes on; the environment itself is brought back by playing it again."""
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
        """Sets what playing the episode again does not bring back."""
        self.counters.bad_values[self.index], self.fruitless = whole(state["bad_values"]), whole(state["fruitless"])
        if state.get("failed"):  # another episode has begun, with streams of its own
            return
        self.noise.state = dict(state["noise"])
        self.noise.rng.bit_generator.state = state["noise_stream"]
        self.warm_up.bit_generator.state = state["warm_up_stream"]

    def _refuse_endless_skipping(self) -> None:
        self.fruitless = 0 if self.length else self.fruitless + 1
        if self.fruitless == MOST_FRUITLESS:
            text = (
                f"{MOST_FRUITLESS} episodes in a row had a bad value in their first step; there is nothing to skip to"
            )
            fault = Fault(self.index, self.episode, 1, "every episode", text)
            raise BadValue(f"environment {self.index} of seed {self.seed}", fault)


class Flight(NamedTuple):
    """An episode in flight, as a checkpoint holds it."""

    episode: int
    length: int
    trace: int | None  # None: what the environment will say is not known
    actions: Floats

    @classmethod
    def of(cls, state: State) -> Flight:
        """As it was; after a failure the next one, because the same actions would end in the same failure."""
        if state.get("failed"):
            return cls(whole(state["episode"]) + 1, 0, None, state["actions"][:0])
        return cls(whole(state["episode"]), whole(state["length"]), whole(state["trace"]), state["actions"])


def play_again(runners: list[EpisodeRunner], flights: list[Flight], env_batch: EnvBatch, stop: threading.Event) -> None:
    """Brings freshly begun environments to where they were.

    All are stepped together, as a VectorEnv must be, so shorter episodes begin later; until then their environments
    idle. Where an episode is not the first, the environment has been reset before, as it was in the run: some
    simulators (PyBullet) differ on the first reset only.
    """
    played = [flight.actions if len(flight.actions) == flight.length else flight.actions[:0] for flight in flights]
    longest = max(map(len, played))
    begins = [longest - len(actions) for actions in played]
    idle = np.zeros(env_batch.spec.action_size, np.float32)
    for t in range(longest + 1):
        for runner, flight, begin in zip(runners, flights, begins, strict=True):
            if t == begin and flight.trace is None:
                runner.begin_after_failure(flight.episode)
            elif t == begin and not (t == 0 and runner.episode == flight.episode):
                runner.begin(flight.episode)
        if t == longest:
            break
        if stop.is_set():
            raise StoppedEarly("stopped while the episodes in flight were played again; the run is as it was")
        flying = [t >= begin for begin in begins]
        a = [actions[t - begin] if t >= begin else idle for actions, begin in zip(played, begins, strict=True)]
        for runner, action, result, flies in zip(runners, a, env_batch.step(np.stack(a)), flying, strict=True):
            if flies and result.error is not None:
                raise result.error
            if flies and result.sound:
                runner.follow(action, result)
            if result.error is None and (
                result.terminated or result.truncated
            ):  # an idle one, or one that does not repeat
                runner.begin(runner.episode)
