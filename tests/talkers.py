"""An environment that says in `info` how its episodes went, and variants that say it badly."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

STEPS = 10  # of an episode


class Talker(gym.Env[Any, Any]):
    """A point that actions push; its episodes are told apart by where they start."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.x, self.t = self.np_random.uniform(-1, 1), 0
        return self.observe(), {"energy": 1e9}  # what a reset says does not count

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        self.x += 0.1 * float(action[0])
        return self.observe(), -abs(self.x), False, self.t == STEPS, self.info(float(action[0]))

    def observe(self) -> Any:
        return np.array([self.x, self.t / STEPS], np.float32)

    def info(self, action: float) -> dict[str, Any]:
        ended = {"is_success": np.bool_(abs(self.x) < 0.5)} if self.t == STEPS else {}
        return {"energy": abs(action), "step": self.t, "place": self.x, **ended}


class Saint(Talker):
    """Succeeds whatever happens, and its return is the same as that of others."""

    def info(self, action: float) -> dict[str, Any]:
        return {"success": 1}


class Garbled(Talker):
    def info(self, action: float) -> dict[str, Any]:
        return {"nan": np.nan, "array": np.zeros(3), "text": "far", "none": None, "once": 2.0} | (
            {"half": 1.0} if self.t > STEPS // 2 else {}
        )


def three() -> SyncVectorEnv:
    return SyncVectorEnv([Talker] * 3, autoreset_mode=AutoresetMode.DISABLED)
