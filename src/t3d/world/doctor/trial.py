"""The doctor's trial of an environment: a few episodes of random actions, and what was observed in them."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from t3d.errors import EnvironmentFailed, UserError
from t3d.policy.actions import random_action
from t3d.policy.observations import newest, split
from t3d.policy.spec import Floats
from t3d.world.guard import EnvGuard, GymEnv, Result

MOST_STEPS, MOST_SECONDS, EPISODES = 2000, 1.0, 3  # chosen: training should start without a noticeable delay


class Ending(NamedTuple):
    """How an episode of the trial ended."""

    length: int
    terminated: bool
    truncated: bool


class Trial:
    """What the doctor observed; keeps only statistics and the newest observations, because these may be large."""

    def __init__(self, env: GymEnv, guard: EnvGuard) -> None:
        self.env, self.guard = env, guard
        self.steps, self.bad_values = 0, 0
        self.outside = ""  # how an observation violated its space
        self.newest: list[Any] = []  # the last two observations, as returned
        self.odd_flags: list[Any] = []
        self.observed = 0  # valid observations
        self.least = self.most = np.zeros(guard.spec.observation_size, np.float32)  # of each value, over all of them
        self.changed = dict.fromkeys(guard.spec.images, False)
        self._first_frame = np.zeros(0, np.uint8)
        self.largest_reward = 0.0
        self.endings: list[Ending] = []
        self.seconds: list[float] = []

    def see(self, raw: Any, flat: NDArray[Any]) -> None:
        """Takes an observation, as returned and as checked; one that the guard refused or fixed is only counted."""
        if len(self.guard.faults) > self.bad_values:
            self.bad_values = len(self.guard.faults)
            return
        self.newest = [*self.newest[-1:], raw]
        vector = self._without_images(flat)
        self.least = np.minimum(self.least, vector) if self.observed else vector
        self.most = np.maximum(self.most, vector) if self.observed else vector
        self.observed += 1
        if not self.outside and not self.env.observation_space.contains(raw):
            self.outside = _how_outside(raw, self.env.observation_space)

    def _without_images(self, flat: NDArray[Any]) -> Floats:
        """Returns the vector of an observation, and notes which of its images have changed."""
        spec = self.guard.spec
        if not spec.images:
            return flat
        vector, frame = split(newest(flat, spec), spec)
        first = self._first_frame = self._first_frame if self.observed else frame
        for image in spec.images:
            mine = slice(image.start, image.stop)
            self.changed[image] = self.changed[image] or not np.array_equal(first[mine], frame[mine])
        return vector

    def step(self, rng: np.random.Generator) -> Result:
        """Takes one random action."""
        action = self.guard.action(random_action(rng, self.guard.spec))
        before = time.perf_counter()
        answer = self.guard.call(self.env.step, action)
        self.seconds.append(time.perf_counter() - before)
        result = self.guard.result(answer)
        self.steps += 1
        self.see(answer[0], result.observation)
        self.largest_reward = max(self.largest_reward, abs(result.reward))
        self.odd_flags += [flag for flag in answer[2:4] if not isinstance(flag, bool | np.bool_)][:1]
        if result.terminated or result.truncated:
            self.endings.append(Ending(self.guard.step, result.terminated, result.truncated))
        return result


def play(env: GymEnv, guard: EnvGuard, episodes: int = EPISODES) -> Trial:
    """Plays some episodes of random actions; every value passes the guard, which refuses bad ones."""
    rng, trial = np.random.default_rng(0), Trial(env, guard)
    trial.see(*reset(env, guard, seed=0))
    started = time.monotonic()
    while trial.steps < MOST_STEPS and len(trial.endings) < episodes and time.monotonic() - started < MOST_SECONDS:
        result = trial.step(rng)
        if result.terminated or result.truncated:
            trial.see(*reset(env, guard, seed=len(trial.endings)))
    return trial


def reset(env: GymEnv, guard: EnvGuard, seed: int) -> tuple[Any, NDArray[Any]]:
    """Starts an episode; returns its first observation, as returned by the environment and as checked."""
    raw: list[Any] = []

    def call(seed: int | None) -> Any:
        answer = env.reset(seed=seed)
        raw[:] = [answer[0] if isinstance(answer, tuple) and answer else None]
        return answer

    try:
        flat = guard.begin(seed, seed, call)
    except EnvironmentFailed as error:
        if not (isinstance(error.__cause__, TypeError) and "seed" in str(error.__cause__)):
            raise
        raise UserError(
            f"{guard.where} cannot be seeded ({error.__cause__}); write def reset(self, *, seed=None, options=None)"
        ) from None
    return raw[0], flat


def _how_outside(raw: Any, space: gym.Space[Any]) -> str:
    dtype = getattr(raw, "dtype", space.dtype)
    if dtype != space.dtype:
        return f"its type is {dtype}, not {space.dtype}"
    return "a value is out of bounds, or of another type" if space.shape is None else "a value is out of bounds"
