"""Environments whose step takes a known time without using the CPU, for cluster_bench.py."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

EPISODE = 100  # steps
OBSERVATION, ACTION = 17, 6  # HalfCheetah's


class Sleeping(gym.Env[NDArray[np.float32], NDArray[np.float32]]):
    """Sleeps for the duration of a step and returns noise."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (OBSERVATION,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (ACTION,), np.float32)

    def __init__(self, seconds: float) -> None:
        self.seconds, self.steps = seconds, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._observation(), {}

    def step(self, action: NDArray[np.float32]) -> Any:
        if self.seconds:
            time.sleep(self.seconds)
        self.steps += 1
        return self._observation(), float(self.np_random.normal()), False, self.steps == EPISODE, {}

    def _observation(self) -> NDArray[np.float32]:
        return self.np_random.standard_normal(OBSERVATION, np.float32)


ms0, ms1, ms10, ms100 = (partial(Sleeping, seconds) for seconds in (0.0, 0.001, 0.01, 0.1))
