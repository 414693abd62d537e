"""Environments in this process whose answers, faults and ends a test can choose."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

import helpers
from t3d.config import Config, merge
from t3d.seeds import derive

Answer = tuple[Any, Any, bool, bool, dict[str, Any]]


class Toy(gym.Env[Any, Any]):
    """An environment whose answers can be replaced one by one."""

    def __init__(self, low: Any = -1.0, high: Any = 1.0, action_shape: tuple[int, ...] = (1,)) -> None:
        self.observation_space = gym.spaces.Box(-10, 10, (3,), np.float32)
        low, high = (np.broadcast_to(np.asarray(x, np.float32), action_shape) for x in (low, high))
        self.action_space = gym.spaces.Box(low, high, dtype=np.float32)
        self.observation: Any = np.zeros(3, np.float32)
        self.reward: Any = 1.0
        self.actions: list[Any] = []
        self.t = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.actions.append(action)
        self.t += 1
        return self.observation, self.reward, False, self.t >= 5, {}


def poison(field: str, value: Any) -> Callable[[Toy], None]:
    def apply(toy: Toy) -> None:
        setattr(toy, field, value)

    return apply


def one_bad(value: float) -> Any:
    return np.array([0.0, value, 0.0])


BAD = {
    "observation NaN": poison("observation", one_bad(np.nan)),
    "observation Inf": poison("observation", one_bad(np.inf)),
    "observation 1e30": poison("observation", one_bad(1e30)),
    "observation None": poison("observation", None),
    "observation of the wrong shape": poison("observation", np.zeros(4)),
    "observation of the wrong dtype": poison("observation", np.array(["1", "2", "3"])),
    "reward NaN": poison("reward", float("nan")),
    "reward Inf": poison("reward", -np.inf),
    "reward 1e30": poison("reward", 1e30),
    "reward None": poison("reward", None),
    "reward of the wrong shape": poison("reward", np.array([1.0, 2.0])),
    "reward of the wrong dtype": poison("reward", "1.0"),
}


class Sound(gym.Env[Any, Any]):
    """An environment with nothing wrong: a point that drifts, cut after 40 to 60 steps."""

    def __init__(self) -> None:
        self.observation_space: gym.Space[Any] = gym.spaces.Box(-10, 10, (2,), np.float32)
        self.action_space: gym.Space[Any] = gym.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        self.t, self.limit = 0, int(self.np_random.integers(40, 60))
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        self.place = np.clip(self.place + 0.1 * action, -9, 9).astype(np.float32)
        return self.observe(), self.reward(), *self.over(), {}

    def observe(self) -> Any:
        return self.place.copy()

    def reward(self) -> Any:
        return -float(np.abs(self.place).sum())

    def over(self) -> tuple[Any, Any]:
        return False, self.t >= self.limit


def broken(**parts: Any) -> type[Sound]:
    """Sound but for the methods or attributes given."""
    return type("Broken", (Sound,), parts)


class Failing(gym.Env[Any, Any]):
    """Fails in one step of one episode of training, which it knows by its seed."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    fail: Callable[[], object] = staticmethod(int)
    at = (0, 0)  # the episode and the step in it; step 0 is the reset

    def __init__(self) -> None:
        self.episode, self.t = -1, 0  # episodes of this object

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.seed, self.episode, self.t = seed, self.episode + 1, 0
        self._fail()
        return self._observe(), {}

    def step(self, action: Any) -> Answer:
        self.t += 1
        answer = self._fail()
        return self._observe(), 1.0 if answer is None else answer, False, self.t == 20, {}

    def _fail(self) -> Any:
        episode, step = self.at
        return self.fail() if self.t == step and self.seed == derive(0, "environment", 0, episode) else None

    def _observe(self) -> Any:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)


def failing(at: tuple[int, int], fail: Callable[[], Any]) -> type[Failing]:
    return type("FailingEnv", (Failing,), {"at": at, "fail": staticmethod(fail)})


def small(root: Path, name: str, **changes: Any) -> Config:
    base: dict[str, Any] = {
        "env": {"id": "", "name": "world"},
        "total_steps": 200,
        "run": {"root": str(root), "name": name},
    }
    return merge(merge(helpers.small_config(), base), changes)


def callers() -> set[str]:
    frame, found = sys._getframe(), set()
    while frame.f_back is not None:
        frame = frame.f_back
        found.add(Path(frame.f_code.co_filename).name)
    return found
