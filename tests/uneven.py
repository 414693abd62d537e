"""A small world whose episodes are of different lengths, drawn when each begins."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class Uneven(gym.Env[Any, Any]):
    observation_space = gym.spaces.Box(-10, 10, (3,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(5, 40))
        self.s = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        return self.s, {}

    def step(self, action: Any) -> Any:
        self.left -= 1
        self.s = np.clip(0.9 * self.s + 0.1 * np.resize(action, 3), -10, 10).astype(np.float32)
        return self.s, float(1 - np.square(self.s).sum()), self.left == 0 and bool(self.s[0] > 0), self.left == 0, {}
