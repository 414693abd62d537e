"""A small world of a user's own, with arguments and with variants that differ from it in one thing each."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorWrapper


class Drone(gym.Env[Any, Any]):
    """A point with a velocity that wind carries away from a goal."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012
    mass, pay, spread, units, reach, colour = 1.0, 1.0, 1.0, 1.0, 1.0, 100

    def __init__(self, wind: float = 0.0, gains: Any = (), goal: str = "door", render_mode: str | None = None) -> None:
        self.wind, self.gains, self.goal, self.render_mode = wind, gains, goal, render_mode
        self.observation_space: gym.Space[Any] = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = gym.spaces.Box(-self.reach, self.reach, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.x, self.v, self.t = self.spread * self.np_random.uniform(-1, 1), 0.0, 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.v += 0.1 * (float(action[0]) + self.wind) / self.mass
        self.x += 0.1 * self.v
        self.t += 1
        goal = 0.0 if self.goal == "door" else 1.0
        return self.observe(), -self.pay * abs(self.x - goal), False, self.t == 20, {}

    def observe(self) -> Any:
        return self.units * np.array([self.x, self.v], np.float32)

    def render(self) -> Any:
        picture = np.full((40, 40, 3), self.colour, np.uint8)
        picture[:, int(20 + 10 * np.clip(self.x, -1, 1))] = 0
        return picture


class Heavy(Drone):
    mass = 1.5


class Underpaid(Drone):
    pay = 0.5


class Wide(Drone):
    spread = 2.0


class InCentimetres(Drone):
    units = 100.0


class Dark(Drone):
    colour = 60


class Strong(Drone):
    reach = 2.0


class Gusty(Drone):
    def __init__(self, wind: float = 0.5, **keywords: Any) -> None:
        super().__init__(wind, **keywords)


class Swapped(Drone):
    def observe(self) -> Any:
        return super().observe()[::-1]


class Short(Drone):
    """Observes only the place."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def observe(self) -> Any:
        return super().observe()[:1]


class Renamed(Drone):
    """The same task."""


class Random(Drone):
    """A seed does not decide what it observes, and no two are alike."""

    def observe(self) -> Any:
        return super().observe() + np.random.default_rng().uniform(-1, 1, 2).astype(np.float32)


def make_drone(wind: float = 0.0) -> Drone:
    return Drone(wind)


def pass_on(**keywords: Any) -> Drone:
    return Drone(**keywords)


class Windy(Drone):
    def __init__(self) -> None:
        super().__init__(wind=2)


class Telling(Drone):
    """Says in `info` under which conditions it flies, and where it was made."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        *result, _ = super().step(action)
        observation, reward, terminated, truncated = result
        return observation, reward, terminated, truncated, {"wind": self.wind, "to_window": self.goal == "window"}


class Directed(Telling):
    """Its reset takes wind and goal, too."""

    metadata: dict[str, Any] = {**Drone.metadata, "reset_options": ["wind", "goal"]}  # noqa: RUF012
    made = 0

    def __init__(self, wind: float = 0.0, goal: str = "door", **keywords: Any) -> None:
        super().__init__(wind, goal=goal, **keywords)
        Directed.made += 1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.wind, self.goal = (options or {}).get("wind", self.wind), (options or {}).get("goal", self.goal)
        return super().reset(seed=seed)


class Vague(Drone):
    metadata: dict[str, Any] = {"reset_options": "wind"}  # noqa: RUF012


class Deaf(Drone):
    metadata: dict[str, Any] = {"reset_options": ["wind"]}  # noqa: RUF012

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:  # type: ignore[override]
        return super().reset(seed=seed)


class Growing(Drone):
    """Observes more in a strong wind."""

    def __init__(self, wind: float = 0.0) -> None:
        super().__init__(wind)
        self.extra = int(wind > 1)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2 + self.extra,), np.float32)

    def observe(self) -> Any:
        return np.concatenate([super().observe(), np.zeros(self.extra, np.float32)])


def side_by_side(wind: float = 0.0) -> Any:
    return SyncVectorEnv([partial(Drone, wind)] * 2, autoreset_mode=AutoresetMode.DISABLED)


class Halved(gym.RewardWrapper[Any, Any]):
    """Pays half."""

    def reward(self, reward: Any) -> float:
        return float(reward) / 2


class Less(gym.RewardWrapper[Any, Any]):
    """Pays one less."""

    def reward(self, reward: Any) -> float:
        return float(reward) - 1


class Sized(gym.Wrapper[Any, Any, Any, Any]):
    def __init__(self, env: Any, size: int) -> None:
        super().__init__(env)


class OfVectors(VectorWrapper):
    pass


def no_wrapper(env: Any) -> None:
    pass


gym.register("TestedDrone-v0", entry_point=Drone)  # type: ignore[arg-type]
