"""R16: whatever is wrong with an environment is named before training starts."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import helpers
import t3d
from t3d.app.cli import main
from t3d.errors import UserError
from t3d.events import Note
from t3d.world.doctor import examine
from t3d.world.find import env_factory


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


def with_spaces(**spaces: gym.Space[Any]) -> type[Sound]:
    def init(self: Sound) -> None:
        Sound.__init__(self)
        for name, space in spaces.items():
            setattr(self, name, space)

    return broken(__init__=init)


def without(*names: str) -> type[Sound]:
    def init(self: Sound) -> None:
        Sound.__init__(self)
        for name in names:
            delattr(self, name)

    return broken(__init__=init)


def bad_value(value: Any) -> Callable[[Sound], Any]:
    return lambda self: value if self.t == 7 else self.place.copy()


def bad_reward(value: Any) -> Callable[[Sound], Any]:
    return lambda self: value if self.t == 7 else 0.5


def shared(self: Sound) -> Any:
    self.buffer = getattr(self, "buffer", np.zeros(2, np.float32))
    self.buffer[:] = self.place
    return self.buffer


def unseeded_reset(self: Sound, *, seed: int | None = None, options: Any = None) -> Any:
    observation, info = Sound.reset(self, seed=None)
    return observation, info


def reset_without_seed(self: Sound) -> Any:
    return Sound.reset(self)


def noisy_step(self: Sound, action: Any) -> Any:
    observation, *rest = Sound.step(self, action)
    return observation + np.random.default_rng().normal(size=2).astype(np.float32) * 0.01, *rest


def sleepy_step(self: Sound, action: Any) -> Any:
    time.sleep(0.01)
    return Sound.step(self, action)


Box = gym.spaces.Box
FATAL: dict[str, tuple[Callable[[], Any], str]] = {
    "discrete actions": (with_spaces(action_space=gym.spaces.Discrete(3)), "continuous"),
    "multi-discrete actions": (with_spaces(action_space=gym.spaces.MultiDiscrete([2, 2])), "continuous"),
    "dict actions": (with_spaces(action_space=gym.spaces.Dict(a=Box(-1, 1, (1,)))), "continuous"),
    "unbounded actions": (with_spaces(action_space=Box(-np.inf, np.inf, (1,))), "finite bounds"),
    "half-bounded actions": (with_spaces(action_space=Box(0, np.inf, (1,))), "finite bounds"),
    "actions as wide as floats": (with_spaces(action_space=Box(-3e38, 3e38, (1,))), "finite bounds"),
    "no actions": (with_spaces(action_space=Box(-1, 1, (0,))), "no numbers"),
    "no observations": (with_spaces(observation_space=gym.spaces.Dict()), "no numbers"),
    "a flag that is an array": (broken(over=lambda self: (np.zeros(2, bool), False)), "must be True or False"),
    "a vector that resets itself": (lambda: gym.vector.SyncVectorEnv([Sound] * 2), "resets by itself"),
    "empty action range": (with_spaces(action_space=Box(1, 1, (1,))), "finite bounds"),
    "text observations": (with_spaces(observation_space=gym.spaces.Text(5)), "cannot flatten"),
    "no action space": (without("action_space"), "not complete"),
    "no observation space": (without("observation_space"), "not complete"),
    "not an environment": (lambda: 3, "returned int"),
    "reset without seed": (broken(reset=reset_without_seed), "cannot be seeded"),
    "reset without info": (broken(reset=lambda self, **_: Sound.reset(self)[0]), "must return"),
    "step of the old kind": (broken(step=lambda self, action: Sound.step(self, action)[:4]), "must return"),
    "observation NaN": (broken(observe=bad_value(np.array([np.nan, 0]))), "step 7: observation[0] is nan"),
    "observation Inf": (broken(observe=bad_value(np.array([0, np.inf]))), "observation[1] is inf"),
    "observation absurd": (broken(observe=bad_value(np.array([0, 1e30]))), "observation[1] is 1e+30"),
    "observation None": (broken(observe=bad_value(None)), "observation is NoneType"),
    "observation of another shape": (broken(observe=bad_value(np.zeros(3))), "shape (3,) instead of (2,)"),
    "observation as text": (broken(observe=bad_value(["a", "b"])), "not numbers"),
    "reward NaN": (broken(reward=bad_reward(np.nan)), "step 7: reward is nan"),
    "reward None": (broken(reward=bad_reward(None)), "reward is NoneType"),
    "reward an array": (broken(reward=bad_reward(np.zeros(1))), "reward has shape (1,)"),
    "reward a text": (broken(reward=bad_reward("1")), "reward is str"),
}
NOTED: dict[str, tuple[Callable[[], Any], str]] = {
    "observation outside its space": (broken(observe=lambda self: self.place + 20), "beyond its bounds"),
    "observation of another dtype": (broken(observe=lambda self: self.place.astype(np.float64)), "its type is float64"),
    "reused buffer": (broken(observe=shared), "share one buffer"),
    "no time limit": (broken(over=lambda self: (False, False)), "gymnasium.wrappers.TimeLimit"),
    "time limit as termination": (broken(over=lambda self: (self.t >= 50, False)), "exactly 50 steps"),
    "terminated and truncated at once": (broken(over=lambda self: (self.t >= self.limit,) * 2), "at once"),
    "flags that are numbers": (broken(over=lambda self: (0, int(self.t >= self.limit))), "must be True or False"),
    "unseeded reset": (broken(reset=unseeded_reset), "does not decide the first observation"),
    "unseeded step": (broken(step=noisy_step), "same seed and actions"),
    "slow step": (broken(step=sleepy_step), "ms: a million steps take"),
    "large observations": (
        type(
            "Large", (with_spaces(observation_space=Box(-1e6, 1e6, (2,))),), {"observe": lambda self: self.place * 1000}
        ),
        "reaches",
    ),
    "tiny observations": (broken(observe=lambda self: self.place * np.float32(1e-6)), "no observation is larger"),
    "first observation outside its space": (
        broken(observe=lambda self: self.place if self.t else self.place + 50),
        "beyond its bounds",
    ),
    "reused buffer in a dict": (
        type(
            "Nested",
            (with_spaces(observation_space=gym.spaces.Dict(a=Box(-10, 10, (2,)))),),
            {"observe": lambda self: {"a": shared(self)}},
        ),
        "share one buffer",
    ),
    "tiny rewards": (broken(reward=lambda self: 1e-7), "scale them up"),
    "no rewards": (broken(reward=lambda self: 0.0), "were zero"),
    "large rewards": (broken(reward=lambda self: 5000.0), "rewards reach 5e+03"),
}


def test_a_sound_environment_is_healthy() -> None:
    assert examine(Sound) == []


@pytest.mark.parametrize("name", FATAL)
def test_what_training_cannot_work_with_is_refused(name: str, tmp_path: Path) -> None:
    make, words = FATAL[name]
    with pytest.raises(UserError) as caught:
        list(t3d.train(helpers.small_config(run={"root": str(tmp_path)}), make_env=make))
    assert words in str(caught.value)
    assert list(tmp_path.iterdir()) == [], "before the run begins"


@pytest.mark.parametrize("name", NOTED)
def test_what_training_can_work_with_is_noted(name: str) -> None:
    make, words = NOTED[name]
    warnings = examine(make)
    assert any(words in text for text in warnings), warnings
    assert len(warnings) == 1, "and nothing else"


@pytest.mark.parametrize("limit", [3000, 20_000])
def test_a_time_limit_that_is_there_is_seen(limit: int) -> None:
    endless = NOTED["no time limit"][0]
    assert examine(lambda: gym.wrappers.TimeLimit(endless(), limit)) == []


def test_the_doctor_takes_no_longer_than_a_moment() -> None:
    begun = time.monotonic()
    examine(broken(step=lambda self, action: (time.sleep(0.3), Sound.step(self, action))[1]))
    assert time.monotonic() - begun < 6


def test_there_are_at_least_thirty_kinds() -> None:
    assert len(FATAL) + len(NOTED) >= 30


def test_warnings_become_notes_of_the_run(tmp_path: Path) -> None:
    cfg = helpers.small_config(run={"root": str(tmp_path)}, eval={"max_steps": 20})
    events = list(t3d.train(cfg, make_env=NOTED["no time limit"][0]))
    notes = [event.text for event in events if isinstance(event, Note)]
    assert len(notes) == 1 and "TimeLimit" in notes[0] and events[1].event == "note"


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "HalfCheetah-v5", "LunarLanderContinuous-v3", "dm:cartpole-swingup"])
def test_well_known_environments_are_healthy(env_id: str) -> None:
    assert examine(env_factory(env_id)) == []


def test_the_command_speaks_of_environments_and_of_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "Pendulum-v1"]) == 0
    assert "Pendulum-v1 is healthy" in capsys.readouterr().out
    assert main(["doctor", "CartPole-v1"]) == 2
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    for words in ("torch", "memory", "threads", "MuJoCo graphics", "extra box2d"):
        assert words in out
