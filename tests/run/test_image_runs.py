"""Whole runs on images: they resume to the last bit, act in processes, and are evaluated, saved and recorded."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_resume import broken_off

import helpers
import t3d
from image_worlds import Dot
from run_folders import assert_equal
from t3d.algo.rules import PIXELS
from t3d.config import Config, EnvConfig
from t3d.events import End, Eval, Resumed, Start
from t3d.run import build
from t3d.world.make import env_factory
from t3d.world.pixels import open_env

SMALL: dict[str, Any] = {
    "total_steps": 260,
    "env": {"id": "image_worlds:Dot", "frame_stack": 3},
    "td3": {"batch_size": 8, "actor_hidden": [8], "critic_hidden": [8], "encoder_channels": 4, "encoder_features": 6},
    "eval": {"every_steps": 130, "episodes": 2},
    "checkpoint": {"every_steps": 60},
    "threads": 1,
}


def config(tmp_path: Path, name: str, **changes: Any) -> Config:
    cfg = helpers.small_config(**SMALL, run={"root": str(tmp_path), "name": name})
    return t3d.merge(cfg, changes)


SPLITS: dict[str, dict[str, Any]] = {
    "one seed": {},
    "two seeds and environments, n-step, a wrapped ring": {
        **{"seeds": [0, 1], "env": {"num_envs": 2}, "replay": {"capacity": 90, "n_step": 3}},
    },
    "priorities, scaled rewards, a vector and two cameras": {
        **{"env": {"id": "image_worlds:TwoCameras"}, "replay": {"sampling": "proportional"}, "scale_rewards": True},
    },
}


@pytest.mark.parametrize("split", SPLITS)
def test_a_resumed_run_equals_a_straight_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: str) -> None:
    changes = SPLITS[split]
    list(t3d.train(config(tmp_path, "straight", **changes)))
    killed = broken_off(monkeypatch, config(tmp_path, "stopped", **changes), 190, kill=True)
    for broken in (killed, tmp_path / "stopped"):
        list(t3d.resume(broken))
        assert_equal(tmp_path / "straight", broken)


def test_a_stopped_run_goes_on_with_its_images_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    list(t3d.train(config(tmp_path, "straight")))
    broken_off(monkeypatch, config(tmp_path, "stopped"), 190, kill=False)
    written = tmp_path / "stopped" / "config.toml"
    text = written.read_text()
    assert text.count("frames_on_disk = false") == 1
    written.write_text(text.replace("frames_on_disk = false", "frames_on_disk = true"))
    resumed, *_, end = t3d.resume(tmp_path / "stopped")
    assert isinstance(resumed, Resumed) and isinstance(end, End)
    assert resumed.notes == ["config.toml says replay.frames_on_disk=True, it was False"]
    assert learned_by(tmp_path / "straight") == learned_by(tmp_path / "stopped")


def learned_by(folder: Path) -> bytes:
    return (folder / "last" / "seed-0.safetensors").read_bytes()


@pytest.mark.parametrize(
    "replay",
    [{}, {"capacity": 250}, {"capacity": 130}, {"sampling": "proportional", "capacity": 250}],
    ids=["never full", "full later", "full by then", "priorities"],
)
def test_a_longer_run_is_as_if_it_had_been_longer_from_the_beginning(tmp_path: Path, replay: dict[str, Any]) -> None:
    """With episodes so short that a transition takes one and a half frames."""
    changes = {
        "env": {"id": "image_worlds:Brief"},
        "eval": {"every_steps": 100},
        "replay": replay,
        "updates_per_step": 0.3,
    }
    list(t3d.train(config(tmp_path, "long", **changes, total_steps=300)))
    list(t3d.train(config(tmp_path, "short", **changes, total_steps=200)))
    list(t3d.resume(tmp_path / "short", total_steps=300))
    assert_equal(tmp_path / "long", tmp_path / "short", but=("config", "replay_bytes"))


def test_actor_processes_send_images_and_the_policy_file_acts_on_them(tmp_path: Path) -> None:
    events = list(
        t3d.train(
            config(tmp_path, "run", actors="local:2", seeds=[0, 1], td3={"encoder_channels": 32, "actor_hidden": [32]})
        )
    )
    assert isinstance(events[-1], End) and events[-1].reason == "finished"
    start = next(event for event in events if isinstance(event, Start))
    assert start.config["engine"] == "eager" and "images" in start.engine_reason
    assert len([event for event in events if isinstance(event, Eval)]) == 6
    policy = t3d.load_policy(tmp_path / "run" / "last" / "seed-1")
    env = Dot()
    seen, _ = env.reset(seed=0)
    policy.reset()
    first = policy(seen)
    assert first.shape == (1,) and np.array_equal(policy(seen), first), "the same picture three times, as at the start"
    for _ in range(3):
        moved = policy(env.step(np.ones(1))[0])
    policy.reset()
    assert not np.array_equal(moved, first) and np.array_equal(policy(seen), first)


def test_the_file_of_a_policy_says_how_its_images_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("pygame", reason="Pendulum is drawn with pygame")
    env = {"id": "Pendulum-v1", "pixels": 32, "action_repeat": 2}
    list(t3d.train(config(tmp_path, "run", env=env, total_steps=40, random_steps=30)))
    policy = t3d.load_policy(tmp_path / "run" / "last" / "seed-0")
    about = {name: policy.about[name] for name in ("env", "pixels", "camera", "action_repeat")}
    assert about == {"env": "Pendulum-v1", "pixels": 32, "camera": "", "action_repeat": 2}
    drawn = open_env(env_factory(EnvConfig(about["env"])), EnvConfig(pixels=about["pixels"], camera=about["camera"]))
    assert policy(drawn.reset(seed=0)[0]).shape == (1,)
    with pytest.raises(t3d.UserError, match=r"has shape \(3,\) instead of \(32, 32, 3\)"):
        policy(np.zeros(3, np.float32))
    list(t3d.train(config(tmp_path, "dot", total_steps=40, random_steps=30)))
    assert "pixels" not in t3d.load_policy(tmp_path / "dot" / "last" / "seed-0").about


def test_an_actor_process_that_takes_turns_is_one_process_to_the_last_bit(tmp_path: Path) -> None:
    list(t3d.train(config(tmp_path, "inline")))
    list(t3d.train(config(tmp_path, "local", actors="local:1", max_ahead=1)))
    ours, theirs = (t3d.load_policy(tmp_path / name / "last" / "seed-0").sha256 for name in ("inline", "local"))
    assert ours == theirs


def frozen_update(agent: Any, *arguments: Any) -> Any:
    """PIXELS' update, without what it does to the encoder."""
    before = agent.policy.encoder.flat.clone()
    trace = PIXELS.update(agent, *arguments)
    agent.policy.encoder.flat.copy_(before)
    return trace


@pytest.mark.slow
def test_the_dot_is_moved_to_the_middle_by_what_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The optimum is about -1.5, standing still -11; a random encoder that stays as it is serves for comparison."""
    last = {}
    for name, rule in (("trained", PIXELS), ("frozen", PIXELS._replace(update=frozen_update))):
        monkeypatch.setattr(build, "rule_of", lambda *_, rule=rule: rule)
        changes = {
            "env": {"id": "image_worlds:Dot"},
            "total_steps": 1500,
            "random_steps": 500,
            "td3": {"batch_size": 64},
        }
        cfg = t3d.merge(t3d.preset("quick"), {**changes, "run": {"root": str(tmp_path), "name": name}})
        started = time.monotonic()
        returns = [event.mean_return for event in t3d.train(cfg) if isinstance(event, Eval)]
        last[name], seconds = returns[-1], time.monotonic() - started
        print(f"{name}: {returns[0]:.1f} before, {last[name]:.1f} after training, {seconds:.0f} s")
        assert seconds < 180
    assert last["trained"] > -4 and last["trained"] > last["frozen"] + 5, last
