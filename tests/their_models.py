"""Small models of t3d.sb3 and of Stable-Baselines3."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import stable_baselines3
from gymnasium import spaces
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv

from t3d.sb3 import TD3

SMALL: dict[str, Any] = {"learning_starts": 40, "batch_size": 16, "buffer_size": 500, "seed": 0, "device": "cpu"}
NETWORKS = {"net_arch": [16, 12]}


def small(env: Any = "Pendulum-v1", policy: Any = "MlpPolicy", kind: Any = TD3, **kwargs: Any) -> Any:
    """A model that learns after 40 steps."""
    noise = NormalActionNoise(np.zeros(1), 0.1 * np.ones(1))
    return kind(policy, env, **{**SMALL, "policy_kwargs": dict(NETWORKS), "action_noise": noise, **kwargs})


def theirs(env: Any = "Pendulum-v1", policy: Any = "MlpPolicy", **kwargs: Any) -> Any:
    return small(env, policy, stable_baselines3.TD3, **kwargs)


class Numbered(gym.Env[Any, Any]):
    """Observations count its steps, in the space it is given; an episode has seven."""

    def __init__(self, space: Any = None, terminates: bool = True) -> None:
        self.observation_space = space or spaces.Box(-100, 100, (2,))
        self.action_space = spaces.Box(-2, 2, (1,))
        self.terminates, self.steps = terminates, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(0)
        self.steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        over = self.steps == 7
        info = {"is_success": True} if over else {}
        return self._observe(), float(self.steps), over and self.terminates, over and not self.terminates, info

    def _observe(self) -> Any:
        if isinstance(self.observation_space, spaces.Box) and self.observation_space.shape == (2,):
            return np.array([self.steps, -self.steps], np.float32)
        return self.observation_space.sample()


def numbered(count: int = 1, **kwargs: Any) -> DummyVecEnv:
    return DummyVecEnv([lambda: Numbered(**kwargs)] * count)
