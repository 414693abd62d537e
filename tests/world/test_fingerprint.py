"""The fingerprint of an environment: the same for the same environment, another for another, and nothing disturbed."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import helpers
from drones import Dark, Drone, Heavy, InCentimetres, Random, Renamed, Swapped, Underpaid, Wide
from t3d.config import EnvConfig
from t3d.world.factory import checked_factory
from t3d.world.fingerprint import STEPS, differences, fingerprint
from t3d.world.make import env_factory
from worlds import broken

IDS = ["Pendulum-v1", "HalfCheetah-v5", "LunarLanderContinuous-v3", "HalfCheetahBulletEnv-v0", "dm:cartpole-swingup"]


def of(make: Callable[..., Any], **settings: Any) -> dict[str, Any]:
    return fingerprint(checked_factory(make), EnvConfig(**settings))


@pytest.mark.parametrize("env_id", IDS)
def test_an_environment_has_the_same_fingerprint_everywhere(env_id: str) -> None:
    pytest.importorskip({"dm": "dm_control", "Ha": "mujoco"}.get(env_id[:2], "gymnasium"))
    here = fingerprint(env_factory(EnvConfig(env_id)), EnvConfig(env_id))
    assert len(here["episode"]["observations"]) == STEPS + 1 and len(here["episode"]["rewards"]) == STEPS
    code = "import json, sys; from t3d.config import EnvConfig; from t3d.world.make import env_factory\n"
    code += "from t3d.world.fingerprint import fingerprint\ncfg = EnvConfig(sys.argv[1])\n"
    code += "env = env_factory(cfg)(); [env.reset() for _ in range(3)]\n"  # another life before it
    code += "print(json.dumps(fingerprint(env_factory(cfg), cfg)))"
    said = subprocess.run([sys.executable, "-c", code, env_id], capture_output=True, text=True, check=True).stdout
    there = json.loads(said.splitlines()[-1])
    assert differences(here, there) == differences(there, here) == []
    assert there["episode"] == here["episode"], "to all its digits"


@pytest.mark.parametrize(
    "make", [Random, partial(Random, 1.0), helpers.CountingEnv, broken(reset=lambda *_, **__: 1 / 0)]
)
def test_what_a_seed_does_not_decide_is_left_out(make: Any) -> None:
    assert of(make)["episode"] == {}
    assert differences(of(make), of(make)) == []


def test_environments_that_differ_from_object_to_object_are_left_out() -> None:
    made = iter(range(100))
    assert of(lambda: Drone(wind=float(next(made))))["episode"] == {}


CHANGED: dict[str, tuple[Any, str]] = {
    "dynamics": (Heavy, "observations of a seeded episode differ from step 1 by up to 0.0"),
    "rewards": (Underpaid, "rewards of a seeded episode differ from step 1 by up to 0."),
    "starts": (Wide, "observations of a seeded episode differ from step 0 by up to 0."),
    "units": (InCentimetres, "observations of a seeded episode differ from step 0"),
    "order": (Swapped, "observations of a seeded episode differ from step 0"),
    "goal": (partial(Drone, goal="window"), "rewards of a seeded episode differ from step 1 by up to 0.5"),
    "argument": (partial(Drone, wind=0.01), "observations of a seeded episode differ from step 1"),
}


@pytest.mark.parametrize("what", CHANGED)
def test_what_has_changed_is_named(what: str) -> None:
    make, words = CHANGED[what]
    texts = differences(of(Drone), of(make))
    assert any(text.startswith(words) for text in texts), texts
    assert json.loads(json.dumps(of(make))) == of(make), "plain values"


def test_arguments_are_named_even_if_nothing_else_shows() -> None:
    calm, windy = ({**of(Drone), "args": args} for args in ({"wind": 0.0, "goal": "door"}, {"wind": 1.5}))
    assert differences(calm, windy) == ["argument wind 0.0 -> 1.5", "argument goal door -> nothing"]


def test_another_name_is_no_other_task() -> None:
    assert differences(of(Drone), of(Renamed)) == []
    assert differences(of(Random), of(Drone)) == ["class drones:Random -> drones:Drone"], "nothing else is known"


def test_images_are_compared_with_a_tolerance() -> None:
    cfg: dict[str, Any] = {"pixels": 32, "frame_stack": 2}
    seen = of(Drone, **cfg)
    assert len(seen["episode"]["images"]) == STEPS + 1 and all(len(one) == 32 for one in seen["episode"]["images"])
    (text,) = [text for text in differences(seen, of(Dark, **cfg)) if "images" in text]
    assert text.startswith("images of a seeded episode differ from step 0 by up to ")
    rendered_elsewhere = type("Elsewhere", (Drone,), {"colour": 101})
    assert differences(seen, of(rendered_elsewhere, **cfg)) == []


def test_a_long_observation_is_kept_short() -> None:
    class Long(Drone):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = gym.spaces.Box(-np.inf, np.inf, (5000,), np.float32)

        def observe(self) -> Any:
            return np.repeat(super().observe(), 2500)

    assert len(json.dumps(of(Long))) < 4000
    assert differences(of(Long), of(type("Other", (Long,), {"mass": 2.0})))


def test_a_vector_env_has_one_too() -> None:
    def vector(kind: Any) -> Any:
        return SyncVectorEnv([kind] * 3, autoreset_mode=AutoresetMode.DISABLED)

    one, other = (of(partial(vector, kind), num_envs=3) for kind in (Drone, Heavy))
    assert one["class"] == "drones:Drone" and one["episode"] == of(Drone)["episode"]
    assert differences(one, other)


def test_nothing_of_the_process_is_disturbed() -> None:
    made: list[Any] = []

    class Meddling(Drone):
        closed, calls = False, 0

        def __init__(self) -> None:
            super().__init__()
            made.append(self)

        def reset(self, **keywords: Any) -> Any:
            random.seed(1)
            np.random.seed(1)  # noqa: NPY002
            torch.manual_seed(1)
            self.calls += 1
            return super().reset(**keywords)

        def step(self, action: Any) -> Any:
            self.calls += 1
            return super().step(action)

        def close(self) -> None:
            self.closed = True

    random.seed(7)
    np.random.seed(7)  # noqa: NPY002
    torch.manual_seed(7)
    drawn = (random.random(), np.random.random(), float(torch.rand(1)))  # noqa: NPY002
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002
    torch.manual_seed(7)
    assert of(Meddling)["episode"]
    assert drawn == (random.random(), np.random.random(), float(torch.rand(1)))  # noqa: NPY002
    assert [one.closed for one in made] == [True, True] and max(one.calls for one in made) <= STEPS + 2


def test_a_slow_environment_is_made_once_and_hardly_stepped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("t3d.world.fingerprint.MOST_SECONDS", 0.0)
    made: list[Any] = []

    def make() -> Any:
        made.append(Drone())
        return made[-1]

    found = of(make)
    assert len(made) == 1 and made[0].t == 0
    assert len(found["episode"]["observations"]) == 1
    monkeypatch.undo()
    assert differences(found, of(Drone)) == [], "what is known of both is compared"
    assert differences(found, of(Wide))


@pytest.mark.parametrize(
    "then",
    [
        None, 3, [], {}, {"args": 3}, {"args": {}, "episode": 3}, {"args": {}, "episode": {"observations": "no"}},
        {"args": {}, "episode": {"observations": [[1], [1, 2]], "rewards": {"a": 1}, "images": None}},
        {"args": {}, "episode": {"observations": [[[1.0]]], "rewards": [[1.0]]}},
        {"args": {}, "episode": {"observations": [[None, None]], "rewards": [None]}},
    ],
)  # fmt: skip
def test_a_file_may_say_anything(then: Any) -> None:
    assert not any("episode" in text for text in differences(then, of(Drone)))


def test_a_run_is_the_same_with_and_without_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of an environment that draws from the streams of the process."""

    class Draws(Drone):
        def observe(self) -> Any:
            return super().observe() + np.random.random() + random.random() + float(torch.rand(1))  # noqa: NPY002

    def trained() -> Any:
        random.seed(3)
        np.random.seed(3)  # noqa: NPY002
        torch.manual_seed(3)
        from run_folders import run, weights  # noqa: PLC0415

        cfg = helpers.small_config(env={"id": ""}, threads=1)
        return weights(run(cfg, tmp_path, make_env=Draws))

    with_one = trained()
    monkeypatch.setattr("t3d.run.build.fingerprints", lambda *_: {"class": "Draws", "args": {}, "episode": {}})
    assert np.array_equal(trained(), with_one)
