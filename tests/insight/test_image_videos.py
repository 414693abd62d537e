"""Videos of policies that see images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import pytest
from numpy.typing import NDArray

from image_worlds import Brightening, TwoCameras
from t3d.config import EnvConfig
from t3d.insight.video import record
from t3d.policy.spec import Spec
from t3d.world.make import env_factory
from t3d.world.pixels import open_env
from t3d.world.spec import spec_of


class Steady:
    """Stands for a saved policy of images."""

    def __init__(self, spec: Spec) -> None:
        self.spec, self.seen = spec, list[NDArray[np.uint8]]()

    def actor(self, observations: NDArray[np.uint8]) -> NDArray[np.float32]:
        self.seen.append(observations[0])
        return np.ones((1, 1), np.float32)


def test_videos_show_what_the_policy_sees_beside_what_people_see(tmp_path: Path) -> None:
    cfg = EnvConfig(id="image_worlds:TwoCameras", frame_stack=2)
    policy: Any = Steady(spec_of(TwoCameras(), EnvConfig(frame_stack=2)))
    record(policy, cfg, tmp_path / "a.mp4", seed=0, episodes=1, steps=3)
    assert len(policy.seen) == 3 and all(one.shape == (policy.spec.observation_width,) for one in policy.seen)
    about, *frames = imageio_ffmpeg.read_frames(str(tmp_path / "a.mp4"))
    people, colour, brightness = 5 * 32, 5 * 32, 4 * 33
    assert about["size"] == (people + colour + brightness, 160) and len(frames) == 4
    last = np.frombuffer(frames[-1], np.uint8).reshape(160, -1, 3).astype(int)
    both = last[:, :people], last[:, people : people + colour]
    assert np.abs(both[0] - both[1]).mean() < 4, "the same scene, enlarged five times, but for the coding"
    grey = last[:, people + colour :]
    assert np.abs(grey - grey.mean(2, keepdims=True)).mean() < 4 and grey.max() > 150


def test_videos_show_the_newest_frame(tmp_path: Path) -> None:
    policy: Any = Steady(spec_of(Brightening(), EnvConfig(frame_stack=3)))
    record(
        policy, EnvConfig(id="image_worlds:Brightening", frame_stack=3), tmp_path / "a.mp4", seed=0, episodes=1, steps=3
    )
    _, *frames = imageio_ffmpeg.read_frames(str(tmp_path / "a.mp4"))
    for step, frame in enumerate(frames):
        people, policys = np.split(np.frombuffer(frame, np.uint8).reshape(160, 320, 3), 2, axis=1)
        assert abs(people.mean() - policys.mean()) < 5 and abs(policys.mean() - 10 - 60 * step) < 10


@pytest.mark.parametrize(("env_id", "size"), [("Pendulum-v1", 500), ("HalfCheetah-v5", 480)])
def test_videos_of_rendered_images(env_id: str, size: int, tmp_path: Path) -> None:
    cfg = EnvConfig(id=env_id, pixels=40)
    env = open_env(env_factory(EnvConfig(env_id)), cfg)
    policy: Any = Steady(spec_of(env))
    policy.actor = lambda observations: np.ones((1, policy.spec.action_size), np.float32)
    record(policy, cfg, tmp_path / "a.mp4", seed=0, episodes=1, steps=2)
    about, *frames = imageio_ffmpeg.read_frames(str(tmp_path / "a.mp4"))
    assert about["size"] == (size + size // 40 * 40, size) and len(frames) == 3
    last = np.frombuffer(frames[-1], np.uint8).reshape(size, -1, 3)
    assert last[:, :size].std() > 10 and last[:, size:].std() > 10
