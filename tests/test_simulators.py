"""Every kind of environment that people bring, trained for real: short here, 20,000 steps each in `make test-all`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import imageio_ffmpeg
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import helpers
import t3d
from t3d.actors.inline import InlineCollector
from t3d.algo.learner import Learner
from t3d.config import Config, EnvConfig, merge
from t3d.errors import UserError
from t3d.events import End, Start
from t3d.insight.video import record
from t3d.policy.files import read_policy
from t3d.types import Rollout
from t3d.world.guard import BadValue, Environment
from t3d.world.make import env_factory
from t3d.world.spec import spec_of
from worlds import Sound

pytestmark = pytest.mark.system


class Asymmetric(Sound):
    """Actions in [-3, 1] x [0, 10]; an action outside them is an error."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = gym.spaces.Box(np.array([-3.0, 0.0]), np.array([1.0, 10.0]), dtype=np.float64)

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        return super().step(np.float32(action / 10))


IDS = [
    "Ant-v5",
    "Hopper-v5",
    "Humanoid-v5",
    "HalfCheetahBulletEnv-v0",
    "BipedalWalker-v3",
    "LunarLanderContinuous-v3",
    "MountainCarContinuous-v0",
    "Pusher-v5",
    "dm:cartpole-swingup",
    "test_simulators:Asymmetric",
]


def train(cfg: Config, root: Path) -> tuple[Path, End]:
    events = list(t3d.train(merge(cfg, {"run": {"root": str(root)}})))
    start, end = events[0], events[-1]
    assert isinstance(start, Start) and isinstance(end, End)
    return Path(start.folder), end


@pytest.mark.parametrize("env_id", IDS)
def test_it_trains(env_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learners = helpers.caught(monkeypatch, Learner)
    cfg = helpers.small_config(env={"id": env_id}, eval={"episodes": 1, "max_steps": 50})
    folder, end = train(cfg, tmp_path)
    assert (end.reason, end.updates) == ("finished", 200)
    assert helpers.all_finite(learners[0]) and learners[0].updates == 200
    policy, env = t3d.load_policy(folder / "last" / "seed-0"), env_factory(EnvConfig(env_id))()
    observation, _ = env.reset(seed=0)
    assert env.action_space.contains(policy(observation)), "the saved policy takes the environment's own observations"


@pytest.mark.parametrize(
    "env_id",
    [
        "Hopper-v5",
        *(
            pytest.param(env_id, marks=pytest.mark.slow)
            for env_id in ("HalfCheetahBulletEnv-v0", "LunarLanderContinuous-v3", "dm:cartpole-swingup")
        ),
    ],
)
def test_it_can_be_filmed(env_id: str, tmp_path: Path) -> None:
    folder, _ = train(helpers.small_config(env={"id": env_id}, eval={"episodes": 1, "max_steps": 5}), tmp_path)
    command = [sys.executable, "-m", "t3d", "record", str(folder), "--steps", "4"]
    filmed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert filmed.returncode == 0, filmed.stderr
    frames = list(imageio_ffmpeg.read_frames(str(folder / "video.mp4")))[1:]
    assert len(frames) == 5
    assert np.frombuffer(frames[-1], np.uint8).std() > 10, "there is something in the picture"


def test_mujoco_leaves_no_log_in_peoples_folders(tmp_path: Path) -> None:
    code = """
import gymnasium, logging, sys
from t3d.config import EnvConfig
from t3d.world.make import env_factory
def own(): return gymnasium.make("Hopper-v5")
sys.modules["own"] = sys.modules["__main__"]
for name in sys.argv[1:]:
    env = env_factory(EnvConfig(name))()
    env.reset(seed=0)
    env.unwrapped.data.qvel[:] = 1e12
    env.step(env.action_space.sample())
"""
    command = [sys.executable, "-c", code, "Hopper-v5", "own:own"]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert finished.returncode == 0 and "MuJoCo: Nan, Inf or huge value" in finished.stderr, finished.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_environment_may_change_the_action_it_is_given() -> None:
    played: list[float] = []

    class Halves(Sound):
        def step(self, action: Any) -> Any:
            played.append(float(action[0]))
            action *= 0.5
            return super().step(action)

    env = Environment(Halves(), "halves", EnvConfig(action_repeat=3))
    env.reset(0, 0)
    env.step(np.ones(1, np.float32))
    assert played == [1, 1, 1]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("env_id", IDS)
def test_it_trains_for_twenty_thousand_steps(env_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learners = helpers.caught(monkeypatch, Learner)
    small = {"total_steps": 20_000, "random_steps": 1_000, "eval": {"every_steps": 10_000, "episodes": 2}}
    _, end = train(merge(Config(), {"env": {"id": env_id}, **small}), tmp_path)
    assert (end.reason, end.step, end.updates) == ("finished", 20_000, 19_000)
    assert helpers.all_finite(learners[0]) and learners[0].updates == 19_000


class Nested(Sound):
    """Observations as a Dict with a Tuple, a Discrete, a MultiDiscrete and a picture-like array inside."""

    def __init__(self) -> None:
        super().__init__()
        box = gym.spaces.Box
        self.observation_space = gym.spaces.Dict(
            mode=gym.spaces.Discrete(3, start=5),
            arm=gym.spaces.Tuple([box(-10, 10, (2,), np.float32), gym.spaces.MultiBinary(2)]),
            grid=box(0, 255, (2, 3), np.uint8),
            gears=gym.spaces.MultiDiscrete([2, 3], start=[0, 5]),
        )

    def observe(self) -> Any:
        grid = np.arange(6, dtype=np.uint8).reshape(2, 3)
        return {
            "mode": np.int64(6),
            "arm": (self.place.copy(), np.array([1, 0], np.int8)),
            "grid": grid,
            "gears": np.array([0, 7]),
        }


def test_dict_and_tuple_observations_are_flattened_with_a_known_layout(tmp_path: Path) -> None:
    env = Environment(Nested(), "nested")
    flat = env.reset(0, 0)
    layout = {part.name: (part.start, part.stop) for part in env.guard.spec.observation}
    assert sorted(layout.values())[0][0] == 0 and flat.shape == (3 + 2 + 2 + 6 + 5,)
    start, stop = layout["observation['mode']"]
    assert flat[start:stop].tolist() == [0, 1, 0], "6 is the second of 5, 6, 7"
    start, stop = layout["observation['arm'][1]"]
    assert flat[start:stop].tolist() == [1, 0]
    start, stop = layout["observation['grid']"]
    assert flat[start:stop].tolist() == [0, 1, 2, 3, 4, 5]
    start, stop = layout["observation['gears']"]
    assert flat[start:stop].tolist() == [1, 0, 0, 0, 1], "the first of two, and 7 is the last of 5, 6, 7"
    folder, end = train(helpers.small_config(env={"id": "test_simulators:Nested"}), tmp_path)
    assert end.updates == 200
    policy = t3d.load_policy(folder / "best" / "seed-0")
    assert policy.spec.observation == env.guard.spec.observation, "the layout is saved with the policy"
    observation, _ = Nested().reset(seed=1)
    assert env.gym.action_space.contains(policy(observation))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"mode": 9}, r"observation\['mode'\] is outside its 3 choices"),
        ({"gears": np.array([1, 4])}, r"observation\['gears'\]\[1\] is outside its 3 choices"),
        ({"gears": np.array([0.5, 5])}, r"observation\['gears'\]\[0\] is outside its 2 choices"),
        ({"gears": 1}, r"observation\['gears'\] has shape \(\)"),
        ({"arm": (np.array([np.nan, 0]), np.zeros(2))}, r"observation\['arm'\]\[0\]\[0\] is nan"),
        ({"arm": (np.zeros(2),)}, r"observation\['arm'\]\[1\] is missing"),
        ({"grid": np.zeros((3, 2))}, r"observation\['grid'\] has shape \(3, 2\)"),
    ],
)
def test_a_bad_part_of_an_observation_is_named(fault: dict[str, Any], words: str) -> None:
    env = Environment(Nested(), "nested")
    env.reset(0, 0)
    sound = env.gym.observe  # type: ignore[attr-defined]
    env.gym.observe = lambda: {**sound(), **fault}  # type: ignore[attr-defined]
    with pytest.raises(BadValue, match=words):
        env.step(np.zeros(1, np.float32))


def test_integer_actions_reach_every_choice() -> None:
    seen: set[int] = set()

    class UpdateTrace(Sound):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = gym.spaces.Box(-2, 2, (1,), np.int64)

        def step(self, action: Any) -> Any:
            assert self.action_space.contains(action)
            seen.add(int(action[0]))
            return super().step(np.float32(action))

    env = Environment(UpdateTrace(), "steps")
    env.reset(0, 0)
    for action in np.linspace(-1, 1, 41, dtype=np.float32):
        env.step(np.array([action]))
    assert seen == {-2, -1, 0, 1, 2}


def test_action_repeat_adds_rewards_and_ends_with_the_episode() -> None:
    plain, repeated = Environment(Sound(), "plain"), Environment(Sound(), "repeated", EnvConfig(action_repeat=4))
    plain.reset(3, 0)
    repeated.reset(3, 0)
    action = np.array([0.3], np.float32)
    while True:
        singles = []
        for _ in range(4):
            singles.append(plain.step(action))
            if singles[-1].truncated:
                break
        together = repeated.step(action)
        assert together.reward == pytest.approx(sum(one.reward for one in singles))
        assert np.array_equal(together.observation, singles[-1].observation)
        assert together.truncated == singles[-1].truncated
        if together.truncated:
            break


def vector(count: int = 3, mode: AutoresetMode = AutoresetMode.DISABLED, make: Any = Sound) -> SyncVectorEnv:
    return SyncVectorEnv([make] * count, autoreset_mode=mode)


def collected(make_env: Any, steps: int = 400) -> list[Rollout]:
    cfg = helpers.small_config(env={"num_envs": 3}, total_steps=steps, seeds=[0, 5], random_steps=steps // 2)
    collector = InlineCollector(cfg, make_env)
    collector.publish(Learner(collector.spec, cfg.td3, cfg.seeds).snapshot())
    blocks: list[Rollout] = []
    while True:
        polled = collector.poll().rollouts
        if not polled:
            return blocks
        blocks += polled


@pytest.mark.parametrize("make", [Sound, Nested])
def test_a_vector_env_collects_exactly_what_single_environments_do(make: Any) -> None:
    for one, other in zip(collected(lambda: vector(make=make)), collected(make), strict=True):
        assert np.array_equal(one.rows, other.rows) and one.episodes == other.episodes


def test_a_vector_env_trains_and_evaluates_as_single_environments_do(tmp_path: Path) -> None:
    cfg = helpers.small_config(env={"num_envs": 3}, eval={"episodes": 4}, run={"root": str(tmp_path)})
    vectors = [event for event in t3d.train(cfg, make_env=vector) if event.event == "eval"]
    singles = [event for event in t3d.train(cfg, make_env=Sound) if event.event == "eval"]
    assert [event.step for event in vectors] == [event.step for event in singles] == [0, 150, 300]
    for one, other in zip(vectors, singles, strict=True):
        assert one.lengths == other.lengths  # type: ignore[attr-defined]
        assert one.returns == pytest.approx(other.returns, rel=1e-4)  # type: ignore[attr-defined]


def test_a_film_repeats_actions_as_training_did(tmp_path: Path) -> None:
    cfg = helpers.small_config(env={"action_repeat": 4}, run={"root": str(tmp_path), "name": "repeats"})
    list(t3d.train(cfg))
    policy, out = read_policy(tmp_path / "repeats" / "last" / "seed-0"), tmp_path / "film.mp4"
    record(policy, cfg.env, out, seed=0, episodes=1, steps=1000)
    frames, seconds = imageio_ffmpeg.count_frames_and_secs(str(out))
    assert frames == 51 and seconds == pytest.approx(200 / 30, rel=0.15), "Pendulum's 200 steps, four at a time"


def test_vector_envs_that_cannot_be_used() -> None:
    for mode in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP):
        with pytest.raises(UserError, match="resets by itself"):
            collected(lambda mode=mode: vector(mode=mode))
    with pytest.raises(UserError, match=r"set --env\.num-envs 2"):
        collected(lambda: vector(count=2))
    cfg = helpers.small_config(env={"num_envs": 3, "action_repeat": 2})
    with pytest.raises(UserError, match="action_repeat"):
        InlineCollector(cfg, vector)


def test_spaces_that_cannot_be_flattened() -> None:
    env = Sound()
    env.observation_space = gym.spaces.Dict(a=gym.spaces.Sequence(gym.spaces.Discrete(2)))
    with pytest.raises(UserError, match="cannot flatten"):
        spec_of(env)
