"""Orders to many slow actors, with a clock and a Ray of our own: the collector and the actors are the real ones."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("ray", reason="Ray is not installed (t3d[ray])")

import helpers
from t3d.actors import ray_actor, ray_collector, ray_orders, ray_slots, supervisor
from t3d.actors.checkup_worker import Checkup
from t3d.actors.ray_actor import Actor, order_seconds
from t3d.actors.ray_collector import RayCollector
from t3d.config import Config, merge
from t3d.run.loop import UPDATES_AT_ONCE
from t3d.run.placement import resolve
from t3d.snapshots import PolicySnapshot
from t3d.world.make import env_factory

UPDATE_SECONDS = 0.002


class Clock:
    """The time of the learner, or of the actor that acts: it has its own."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


CLOCK = Clock()


class Sleeping(gym.Env[Any, Any]):
    """A step takes a while, sometimes longer than on average."""

    seconds, rng = 0.0, np.random.default_rng(0)
    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        CLOCK.sleep(self.seconds * self.rng.exponential())
        return np.zeros(3, np.float32), 0.0, False, False, {}


class Handle:
    """An actor. It does at once what it is asked, one after the other; answers arrive when its clock says so."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.actor, self.free_at = Actor(config), 0.0

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *arguments: self._do(getattr(self.actor, name), *arguments))

    def _do(self, method: Callable[..., Any], *arguments: Any) -> Any:
        learner, CLOCK.now = CLOCK.now, max(CLOCK.now, self.free_at)
        result = method(*arguments)
        self.free_at, CLOCK.now = CLOCK.now, learner
        return Answer(result, self.free_at)


class Answer:
    """An answer, and when it arrives."""

    def __init__(self, result: Any, at: float) -> None:
        self.result, self.at = result, at


def wait(answers: list[Answer], num_returns: int, timeout: float) -> tuple[list[Answer], list[Answer]]:
    enough = sorted(answer.at for answer in answers)[num_returns - 1]
    CLOCK.now = max(CLOCK.now, min(enough, CLOCK.now + timeout))
    return [one for one in answers if one.at <= CLOCK.now], [one for one in answers if one.at > CLOCK.now]


@pytest.fixture(autouse=True)
def _without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(
        remote=lambda _: SimpleNamespace(options=lambda **_: SimpleNamespace(remote=Handle)),
        wait=wait,
        get=lambda answer: answer.result,
        put=lambda value: value,
    )
    monkeypatch.setattr(CLOCK, "now", 0.0)
    monkeypatch.setattr(Sleeping, "rng", np.random.default_rng(0))
    clock = SimpleNamespace(monotonic=lambda: CLOCK.now, sleep=CLOCK.sleep)
    for module in (ray_actor, ray_collector, ray_orders, ray_slots, supervisor):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(ray_collector, "ray", fake)


def is_random(cfg: Config, wanted: int) -> Any:
    """Trains until there are so many transitions, and returns of each in turn whether its action was random."""
    collector = RayCollector(
        cfg,
        env_factory(cfg.env.id),
        Checkup([], helpers.make_spec(3, 1), False),
        SimpleNamespace(for_actors=lambda cfg: cfg, lost=str),
    )
    network = helpers.mlp(3, 4, 1)
    policy = PolicySnapshot(0, network, np.zeros((1, network.size), np.float32))  # its actions are 0
    collector.publish(policy, 0)
    actions, taken, updates = list[Any](), 0, 0
    while taken < wanted:
        for rollout in collector.poll().rollouts:
            actions.append(rollout.rows[:, 3])
            taken += len(rollout.rows)
        while due := min(collector.governor.due([taken], updates), UPDATES_AT_ONCE["cpu"]):
            CLOCK.sleep(due * UPDATE_SECONDS)
            updates += due
            collector.publish(policy._replace(updates=updates), updates)
    return np.concatenate(actions) != 0


@pytest.mark.parametrize(
    ("actors", "milliseconds", "random_steps"),
    [(16, 10, 5000), (64, 10, 10_000), (16, 100, 2000), (16, 1, 5000), (16, 10, 1000)],
)
def test_many_slow_actors_take_as_many_random_steps_as_one_process(
    actors: int, milliseconds: int, random_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They act at the same time, and deliver less than was ordered: up to a part of an order of each may be off."""
    monkeypatch.setattr(Sleeping, "seconds", milliseconds / 1000)
    changes = {"env": {"id": f"{__name__}:Sleeping", "num_envs": actors}, "noise": {"exploration_noise": 0.0}}
    cfg = resolve(merge(Config(), {"actors": f"ray:{actors}", "random_steps": random_steps, **changes}))
    one_order_each = actors * min(200, order_seconds(cfg) / Sleeping.seconds)
    found = is_random(cfg, random_steps + 2 * actors * 200)
    assert abs(found.sum() - random_steps) <= one_order_each / 8
    assert found[:random_steps].sum() >= random_steps - one_order_each / 4, "nearly all before the others"
