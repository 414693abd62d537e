"""R6: a run that was killed and resumed equals one that was not, to the last bit."""

from __future__ import annotations

import csv
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import helpers
import t3d
from t3d.config import Config, merge
from t3d.events import Resumed
from t3d.run.checkpoint import newest, split
from t3d.types import Rollout
from t3d.world.collect import InlineCollector

CHANGING = {"time", "seconds", "steps_per_second", "folder", "pid"}  # time, speed, and where it happened


def small(root: Path, name: str, **changes: Any) -> Config:
    """On Pendulum, whose episodes have 200 steps: 100 random steps, then updates, a checkpoint every 60 steps."""
    cfg = helpers.small_config(checkpoint={"every_steps": 60}, run={"root": str(root), "name": name})
    return merge(cfg, changes)


def broken_off(monkeypatch: pytest.MonkeyPatch, cfg: Config, step: int, *, kill: bool, **keywords: Any) -> Path:
    """The folder that a run leaves which is killed, or asked to stop, as soon as it has taken so many steps."""
    stop, poll = threading.Event(), InlineCollector.poll
    path = Path(cfg.run.root) / cfg.run.name

    def poll_and_end(self: InlineCollector) -> list[Rollout]:
        rollouts = poll(self)
        if self.teams[0].taken >= step and not stop.is_set():
            stop.set()
            if kill:
                shutil.copytree(path, path.with_name("killed"))  # what is on the disk in the middle of the run
        return rollouts

    with monkeypatch.context() as patched:
        patched.setattr(InlineCollector, "poll", poll_and_end)
        list(t3d.train(cfg, stop=stop, **keywords))
    return path.with_name("killed") if kill else path


def everything(folder: Path) -> dict[str, Any]:
    """All that a finished run has come to: every array, every plain value, every row of the replay, the logs."""
    checkpoint, notes = newest(folder / "checkpoints")
    assert checkpoint is not None and not notes
    state = checkpoint.state()
    rows = {}
    for seed in state["seeds"]:
        for segment in checkpoint.segments:
            rows[f"rows of {seed} from {segment.first}"] = checkpoint.read_rows(segment)
    del state["logs"], state["progress"]["seconds"], state["config"]["run"]
    plain, arrays = split(state)
    return {"plain": plain, **arrays, **rows, "events": told(folder), "metrics": tabled(folder)}


def told(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    for line in lines:
        line.get("config", {}).pop("run", None)
    return [{key: value for key, value in line.items() if key not in CHANGING} for line in lines]


def tabled(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [{key: value for key, value in row.items() if key not in CHANGING} for row in rows]


def assert_equal(straight: Path, resumed: Path) -> None:
    first, second = everything(straight), everything(resumed)
    assert first.keys() == second.keys()
    assert len(first) >= 18 and first["events"][-1]["reason"] == "finished", "there was something to compare"
    for name, value in first.items():
        if isinstance(value, np.ndarray):
            assert value.tobytes() == second[name].tobytes(), name
        else:
            assert value == second[name], name


SPLITS = {
    "in the warm-up": (70, {}),
    "before the first checkpoint": (40, {}),
    "inside the first episode": (130, {}),
    "inside the second episode": (250, {}),
    "between delayed updates": (123, {"checkpoint": {"every_steps": 121}}),
    "between reports": (155, {"log": {"every_steps": 20}, "checkpoint": {"every_steps": 153}}),
    "two members": (200, {"seeds": [3, 0]}),
    "three environments": (150, {"env": {"num_envs": 3}}),
    "several members and environments, normalised": (
        160,
        {"seeds": [1, 2], "env": {"num_envs": 2}, "td3": {"normalise_observations": True, "updates_per_step": 0.3}},
    ),
    "ring wrapped": (250, {"replay": {"capacity": 90}}),
    "pink noise": (190, {"noise": {"kind": "pink"}}),
    "drifting noise": (190, {"noise": {"kind": "ou"}}),
    "many updates a step, late policy": (140, {"td3": {"updates_per_step": 2.5, "policy_delay": 3}}),
}


@pytest.mark.parametrize("split_at", SPLITS)
@pytest.mark.parametrize("kill", [True, False], ids=["killed", "stopped"])
def test_a_resumed_run_equals_a_straight_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split_at: str, kill: bool
) -> None:
    step, changes = SPLITS[split_at]
    list(t3d.train(small(tmp_path, "straight", **changes)))
    broken = broken_off(monkeypatch, small(tmp_path, "broken", **changes), step, kill=kill)
    events = list(t3d.resume(broken))
    assert_equal(tmp_path / "straight", broken)
    resumed = next(event for event in events if isinstance(event, Resumed))
    if kill and step < 60:
        assert (resumed.step, resumed.checkpoint) == (0, "") and "begins again" in resumed.notes[-1]
    elif kill:
        assert step - 62 <= resumed.step <= step and [note for note in resumed.notes if "lock" not in note] == []
    else:
        assert step <= resumed.step < step + 3 and not resumed.notes


@pytest.mark.parametrize("env_id", ["HalfCheetah-v5", "HalfCheetahBulletEnv-v0"])
@pytest.mark.parametrize(
    ("step", "changes"),
    [(130, {}), (1130, {"total_steps": 1300, "checkpoint": {"every_steps": 1100}, "seeds": [0, 1]})],
    ids=["inside the first episode", "inside the second episode of two members"],
)
def test_simulators_go_on_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env_id: str, step: int, changes: dict[str, Any]
) -> None:
    pytest.importorskip("pybullet_envs_gymnasium" if "Bullet" in env_id else "mujoco")
    changes = {"env": {"id": env_id}, "eval": {"episodes": 1, "max_steps": 50}, **changes}
    list(t3d.train(small(tmp_path, "straight", **changes)))
    broken = broken_off(monkeypatch, small(tmp_path, "broken", **changes), step, kill=True)
    resumed = next(event for event in t3d.resume(broken) if isinstance(event, Resumed))
    assert resumed.step > 0 and [note for note in resumed.notes if "lock" not in note] == []
    list(t3d.resume(broken))
    assert_equal(tmp_path / "straight", broken)


def test_a_vector_environment_goes_on_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> Any:
        limits = [9, 14, 23]  # so that episodes are of different lengths when the run is killed
        makers = [lambda limit=limit: gym.make("Pendulum-v1", max_episode_steps=limit) for limit in limits]
        return SyncVectorEnv(makers, autoreset_mode=AutoresetMode.DISABLED)

    changes: dict[str, Any] = {"env": {"id": "", "num_envs": 3}}
    list(t3d.train(small(tmp_path, "straight", **changes), make_env=make))
    broken = broken_off(monkeypatch, small(tmp_path, "broken", **changes), 200, kill=True, make_env=make)
    events = list(t3d.resume(broken, make_env=make))
    assert isinstance(events[0], Resumed) and events[0].step == 180
    assert [note for note in events[0].notes if "lock" not in note] == []
    assert_equal(tmp_path / "straight", broken)
