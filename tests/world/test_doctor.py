"""R16: whatever is wrong with an environment is named before training starts."""

from __future__ import annotations

import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import helpers
import t3d
from t3d.app.cli import main
from t3d.config import EnvConfig
from t3d.errors import UserError
from t3d.events import Note
from t3d.world.doctor import examine
from t3d.world.doctor.checks import images
from t3d.world.make import env_factory
from t3d.world.spec import spec_of
from worlds import Sound, broken


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


def shared(self: Any) -> Any:
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
    "no actions": (with_spaces(action_space=Box(-1, 1, (0,))), "empty actions or observations"),
    "no observations": (with_spaces(observation_space=gym.spaces.Dict()), "empty actions or observations"),
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
    "observation outside its space": (broken(observe=lambda self: self.place + 20), "out of bounds"),
    "observation of another dtype": (broken(observe=lambda self: self.place.astype(np.float64)), "its type is float64"),
    "reused buffer": (broken(observe=shared), "share one buffer"),
    "no time limit": (broken(over=lambda self: (False, False)), "gymnasium.wrappers.TimeLimit"),
    "time limit as termination": (broken(over=lambda self: (self.t >= 50, False)), "exactly 50 steps"),
    "terminated and truncated at once": (broken(over=lambda self: (self.t >= self.limit,) * 2), "at once"),
    "flags that are numbers": (broken(over=lambda self: (0, int(self.t >= self.limit))), "must be True or False"),
    "unseeded reset": (broken(reset=unseeded_reset), "does not fix the first observation"),
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
        "out of bounds",
    ),
    "reused buffer in a dict": (
        type(
            "Nested",
            (with_spaces(observation_space=gym.spaces.Dict(a=Box(-10, 10, (2,)))),),
            {"observe": lambda self: {"a": shared(self)}},
        ),
        "share one buffer",
    ),
    "a number that never changes": (
        type(
            "Stuck",
            (with_spaces(observation_space=Box(-10, 10, (3,))),),
            {"observe": lambda self: np.append(self.place, np.float32(4))},
        ),
        "observation value 2 never changed; leave it out",
    ),
    "many numbers that never change": (
        type(
            "VeryStuck",
            (with_spaces(observation_space=Box(-10, 10, (12,))),),
            {"observe": lambda self: np.append(np.zeros(10, np.float32), self.place)},
        ),
        "observation value 0, 1, 2, 3 and 6 more never changed",
    ),
    "an image": (
        type(
            "Camera",
            (
                with_spaces(
                    observation_space=gym.spaces.Dict(eye=Box(0, 255, (84, 84, 3), np.uint8), place=Box(-9, 9, (2,)))
                ),
            ),
            {"observe": lambda self: {"eye": np.full((84, 84, 3), self.t, np.uint8), "place": self.place.copy()}},
        ),
        "observation['eye'] 84 x 84 x 3 is encoded as an image; the vector of 2 values beside it as it is; one frame "
        "cannot show motion: if that matters, use --env.frame-stack 3",
    ),
    "tiny rewards": (broken(reward=lambda self: 1e-7), "scale them up"),
    "no rewards": (broken(reward=lambda self: 0.0), "were zero"),
    "large rewards": (broken(reward=lambda self: 5000.0), "rewards reach 5e+03 in magnitude"),
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
    def slow_step(self: Sound, action: Any) -> Any:
        time.sleep(0.3)
        return Sound.step(self, action)

    begun = time.monotonic()
    examine(broken(step=slow_step))
    assert time.monotonic() - begun < 20


def test_warnings_become_notes_of_the_run(tmp_path: Path) -> None:
    cfg = helpers.small_config(run={"root": str(tmp_path)}, eval={"max_steps": 20}, env={"id": ""})
    events = list(t3d.train(cfg, make_env=NOTED["no time limit"][0]))
    notes = [event.text for event in events if isinstance(event, Note)]
    assert len(notes) == 1 and "TimeLimit" in notes[0] and events[1].event == "note"


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "HalfCheetah-v5", "LunarLanderContinuous-v3", "dm:cartpole-swingup"])
def test_well_known_environments_are_healthy(env_id: str) -> None:
    assert examine(env_factory(EnvConfig(env_id))) == []


def goal_of_the_episode(self: Sound) -> Any:
    return np.append(self.place, np.float32(self.limit))


def test_what_only_differs_between_episodes_is_fine() -> None:
    space = Box(-100, 100, (3,), np.float32)
    assert examine(type("Goal", (with_spaces(observation_space=space),), {"observe": goal_of_the_episode})) == []
    endless = type(
        "Endless",
        (with_spaces(observation_space=space),),
        {"observe": goal_of_the_episode, "over": lambda self: (False, False)},
    )
    assert examine(lambda: gym.wrappers.TimeLimit(endless(), 10**6)) == []


@pytest.mark.parametrize(
    ("space", "is_image"),
    [
        (Box(0, 255, (84, 84, 3), np.uint8), True),
        (Box(0, 255, (4, 84, 84), np.uint8), True),
        (Box(0, 255, (40, 40, 1), np.uint8), True),
        (Box(0, 255, (32, 64), np.uint8), True),
        (Box(0, 255, (31, 64), np.uint8), False),
        (Box(0, 1, (84, 84, 3), np.float32), True),
        (Box(-1, 1, (84, 84), np.float32), False),
        (Box(-1, 1, (31, 31, 3), np.float32), False),
        (Box(0, 255, (31, 31, 3), np.int16), False),
        (Box(0, 255, (20, 20, 7), np.uint8), False),
        (Box(0, 255, (64,), np.uint8), False),
    ],
)
def test_what_is_taken_for_an_image(space: Any, is_image: bool) -> None:
    camera = with_spaces(observation_space=space)
    assert any("is encoded as an image" in text for text in images(spec_of(camera()))) is is_image
    vector = gym.vector.SyncVectorEnv([camera], autoreset_mode=gym.vector.AutoresetMode.DISABLED)
    assert any("is encoded as an image" in text for text in examine(lambda: vector)) is is_image


def test_choices_that_were_not_met_are_not_numbers_that_never_change() -> None:
    gears = gym.spaces.MultiDiscrete([9, 4])
    space = gym.spaces.Dict(mode=gym.spaces.Discrete(50), gears=gears, place=Box(-10, 10, (2,), np.float32))
    modes = type(
        "Modes",
        (with_spaces(observation_space=space),),
        {"observe": lambda self: {"mode": self.t % 2, "gears": [self.t % 9, self.t % 2], "place": self.place.copy()}},
    )
    assert examine(modes) == []
    modes.observe = lambda self: {"mode": self.t % 2, "gears": [self.t % 2, 3], "place": self.place.copy()}  # type: ignore[attr-defined]
    assert [text.partition(" never")[0] for text in examine(modes)] == ["Modes: observation value 59, 60, 61, 62"]


def test_the_command_speaks_of_environments_and_of_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "Pendulum-v1"]) == 0
    assert "Pendulum-v1: no problems found in a short trial" in capsys.readouterr().out
    assert main(["doctor", "CartPole-v1"]) == 2
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    for words in (t3d.__version__, "torch", "memory", "threads", "MuJoCo graphics"):
        assert words in out
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    listed = {line.split()[2] for line in out.splitlines() if " extra " in line}
    assert listed == project["optional-dependencies"].keys() - {"dev", "bench", "all"}


def test_the_command_tries_what_is_observed_as_in_training(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "Pendulum-v1", "--env.pixels", "64", "--env.frame-stack=3"]) == 0
    out = capsys.readouterr().out
    assert "observation 64 x 64 x 3 is encoded as an image, 3 frames stacked" in out
    assert "\nobservation image 64 x 64 x 3; action size 1" in out
    for words, error in {
        "Pendulum-v1 --env.pixels 64 --env.camera side": "Pendulum-v1 has no cameras to choose from",
        "Pendulum-v1 --env.frame-stack 3": "env.frame_stack=3 stacks images, and Pendulum-v1 observes none",
        "Pendulum-v1 --env.pixels 8": "env.pixels=8 is too small",
        "Pendulum-v1 --env.pixel 64": "unknown flag --env.pixel, did you mean --env.pixels?",
        "Pendulum-v1 --env.id Ant-v5": "the environment is the argument",
        "Pendulum-v1 --env.num-envs 4": "unknown flag --env.num-envs",
        "--env.pixels 64": "are about an environment: t3d doctor ENV",
    }.items():
        assert main(["doctor", *words.split()]) == 2
        assert error in capsys.readouterr().err


RENDERED = {
    "def render(self):\n        return None": "; videos can be recorded",
    "pass": "cannot be recorded: it has no render()",
}


@pytest.mark.parametrize("body", RENDERED)
def test_the_command_prints_names_as_they_are_and_knows_what_can_be_recorded(
    body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What looks like rich's markup in an id or in a warning is text."""
    source = f"""
from worlds import Sound

class Robot(Sound):
    def __init__(self, render_mode=None):
        super().__init__()
        self.render_mode = render_mode

    def reward(self):
        return 1e-7

    {body}

Robot.__name__ = "Robot[/red]"
"""
    (tmp_path / "x[bold].py").write_text(source)
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.delitem(sys.modules, "x[bold]", raising=False)
    assert main(["doctor", f"{tmp_path}/x[bold].py:Robot"]) == 0
    out = capsys.readouterr().out
    assert f"{tmp_path}/x[bold].py:Robot: no errors found" in out and "warning: Robot[/red]: no reward is larger" in out
    assert RENDERED[body] in out


def test_the_command_sees_one_object_for_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "one_for_all.py").write_text("import worlds\nenv = worlds.Sound()\nmake_env = lambda: env\n")
    assert main(["doctor", f"{tmp_path}/one_for_all.py"]) == 2
    said = capsys.readouterr()
    assert "returned the same Sound object twice" in said.err and "healthy" not in said.out
