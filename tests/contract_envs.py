"""Environments for the contract of collectors, in a file that actor processes can import without torch."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

FAILS_AT = 23  # the step, counted over all episodes, whose reward is not a number


class Counting(gym.Env[Any, Any]):
    """Observations say (a number of the episode, nothing, t); episodes end after 3 to 7 steps, in either way."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
        self.episode, self.steps = -1, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        self.name = self.np_random.random()
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t, self.steps = self.t + 1, self.steps + 1
        over, even = self.t == 3 + self.episode % 5, self.episode % 2 == 0
        return self._observe(), self.reward(), over and even, over and not even, {}

    def reward(self) -> float:
        return 1.0

    def _observe(self) -> Any:
        return np.array([self.name, 0, self.t], np.float32)


class Failing(Counting):
    def reward(self) -> float:
        return float("nan") if self.steps == FAILS_AT else 1.0
