"""The drone of the guide: a sound example, which learns, and whose guide shows it as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import helpers
import t3d
from t3d.config import EnvConfig
from t3d.world.doctor import examine
from t3d.world.make import env_factory

ROOT = Path(__file__).parents[2]
DRONE = f"{ROOT / 'examples' / 'drone.py'}:Drone"


def drone(**args: Any) -> Any:
    return env_factory(EnvConfig(DRONE, args))()


def flown(env: Any, action: Any, seed: int = 0) -> list[dict[str, Any]]:
    """What an episode says of each step if every action is the same."""
    env.reset(seed=seed)
    infos, over = [], False
    while not over:
        _, reward, terminated, truncated, info = env.step(np.array(action, np.float32))
        assert reward == pytest.approx(info["reward_near"] + info["reward_saving"]), "its parts are all of it"
        infos.append({**info, "crashed": terminated})
        over = terminated or truncated
    return infos


def test_the_guide_shows_the_example() -> None:
    guide = (ROOT / "docs" / "own-environment.md").read_text(encoding="utf-8")
    example = (ROOT / "examples" / "drone.py").read_text(encoding="utf-8")
    assert f"```python\n# drone.py\n{example}```\n" in guide and len(example.splitlines()) < 120


def test_the_doctor_finds_nothing() -> None:
    assert examine(env_factory(EnvConfig(DRONE, {"wind": 3.0}))) == []


def test_it_hovers_in_calm_air_drifts_in_wind_and_falls_without_thrust() -> None:
    still = flown(drone(), [9.81, 0])
    assert len(still) == 100 and not still[-1]["crashed"]
    assert still[-1]["distance"] == pytest.approx(still[0]["distance"], abs=1e-3)
    assert sum(info["energy"] for info in still) == pytest.approx(5.0, abs=1e-3), "a second of hovering is 1"
    assert abs(flown(drone(wind=3.0), [9.81, 0])[-1]["distance"] - still[-1]["distance"]) > 0.1
    fallen = flown(drone(), [0, 0])
    assert len(fallen) < 100 and fallen[-1]["crashed"] and not fallen[-1]["is_success"]
    assert flown(drone(tolerance=9.0), [9.81, 0])[-1]["is_success"]


def test_it_is_trained_and_drawn(tmp_path: Path) -> None:
    cfg = helpers.small_config(env={"id": DRONE, "args": {"wind": 1.0}}, run={"root": str(tmp_path), "name": "drone"})
    list(t3d.train(cfg))
    policy = t3d.load_policy(tmp_path / "drone")
    env = drone()
    assert env.action_space.contains(policy(env.reset(seed=1)[0]))
    blue = (env.render() == (40, 90, 200)).all(axis=2)
    rows, columns = (axis.mean() for axis in np.nonzero(blue))
    inner = env.unwrapped
    assert (columns, rows) == pytest.approx((150 + 50 * inner.x, 150 - 50 * inner.y), abs=1)
