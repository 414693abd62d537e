"""Orders to slow, deadly or missing actors, with a clock and a Ray of our own; the rest is the real thing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("ray", reason="Ray is not installed (t3d[ray])")

from ray.exceptions import RayError

import helpers
from t3d.actors import ray_actor, ray_collector, ray_orders, supervisor
from t3d.actors.checkup import Checkup
from t3d.actors.ray_actor import Actor, Started
from t3d.actors.ray_collector import RayCollector, RayEvaluator
from t3d.actors.supervisor import WorkerLog
from t3d.config import Config, merge
from t3d.errors import NobodyLeft
from t3d.policy.acting import PolicySnapshot
from t3d.run.loop import UPDATES_AT_ONCE
from t3d.run.placement import resolve
from t3d.seeds import derive
from t3d.world.make import env_factory

pytestmark = pytest.mark.system

UPDATE_SECONDS = 0.002


class Clock:
    """The time of the learner, or of the actor that acts: it has its own."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


CLOCK = Clock()
CONNECTION: Any = SimpleNamespace(for_actors=lambda cfg: cfg, network_there=str, lost=str, warning=lambda _: "")


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


class Deadly(Sleeping):
    """The first environment of seed 0 ends its process in episode 15, each time; episodes have five steps."""

    has_killed = False  # Handle sees it

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.steps, self.kills = 0, seed == derive(0, "environment", 0, 15)
        return super().reset(seed=seed)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        Deadly.has_killed |= self.kills
        self.steps += 1
        return *super().step(action)[:3], self.steps == 5, {}


def make_four() -> gym.vector.VectorEnv[Any, Any, Any]:
    return gym.vector.SyncVectorEnv([Sleeping] * 4, autoreset_mode=gym.vector.AutoresetMode.DISABLED)


class Handle:
    """An actor. It does at once what it is asked, one after the other; answers arrive when its clock says so."""

    can_be_created = True

    def __init__(self, config: dict[str, Any]) -> None:
        self.actor, self.free_at = Actor(config), 0.0
        self.lost = None if self.can_be_created else RayError("an error in its creation task:\nNo module named 't3d'")

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *arguments: self._do(getattr(self.actor, name), *arguments))

    def _do(self, method: Callable[..., Any], *arguments: Any) -> Any:
        learner, CLOCK.now = CLOCK.now, max(CLOCK.now, self.free_at)
        Deadly.has_killed = False
        result = self.lost or method(*arguments)
        if Deadly.has_killed:
            result = self.lost = RayError("it died because of a signal")
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


def get(answer: Answer) -> Any:
    if isinstance(answer.result, RayError):
        raise answer.result
    return answer.result


@pytest.fixture(autouse=True)
def _without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(
        remote=lambda _: SimpleNamespace(options=lambda **_: SimpleNamespace(remote=Handle)),
        wait=wait,
        get=get,
        put=lambda value: value,
        kill=lambda handle: None,
    )
    monkeypatch.setattr(CLOCK, "now", 0.0)
    monkeypatch.setattr(Sleeping, "rng", np.random.default_rng(0))
    clock = SimpleNamespace(monotonic=lambda: CLOCK.now, sleep=CLOCK.sleep)
    for module in (ray_actor, ray_collector, ray_orders, supervisor):
        monkeypatch.setattr(module, "time", clock)
    for module in (ray_collector, ray_orders):
        monkeypatch.setattr(module, "ray", fake)
    monkeypatch.setattr(ray_actor, "started_here", lambda: Started("here", 1, "a node", "all that is needed"))


def collector_for(cfg: Config, *, vector: bool = False) -> RayCollector:
    """A collector with its first policy, whose actions are 0."""
    checkup = Checkup([], helpers.make_spec(3, 1), vector, {})
    collector = RayCollector(cfg, env_factory(cfg.env), checkup, CONNECTION)
    network = helpers.mlp(3, 4, 1)
    collector.publish(PolicySnapshot(0, network, np.zeros((1, network.size), np.float32)), 0)
    return collector


def config(env: str, actors: int, **changes: Any) -> Config:
    base = {"env": {"id": f"{__name__}:{env}", "num_envs": actors}, "noise": {"exploration_noise": 0.0}}
    return resolve(merge(Config(), {"actors": f"ray:{actors}", **base, **changes}))


def is_random(cfg: Config, wanted: int) -> Any:
    """Trains until there are so many transitions, and returns of each in turn whether its action was random."""
    collector, actions, taken, updates = collector_for(cfg), list[Any](), 0, 0
    while taken < wanted:
        for rollout in collector.poll().rollouts:
            actions.append(rollout.rows[:, 3])
            taken += len(rollout.rows)
        while due := min(collector.governor.due([taken], updates), UPDATES_AT_ONCE["cpu"]):
            CLOCK.sleep(due * UPDATE_SECONDS)
            updates += due
            assert collector._policy is not None
            collector.publish(collector._policy._replace(updates=updates), updates)
    return np.concatenate(actions) != 0


@pytest.mark.parametrize(
    ("actors", "milliseconds", "random_steps"),
    [(16, 10, 5000), (64, 10, 10_000), (16, 100, 2000), (16, 1, 5000), (16, 10, 1000)],
)
def test_many_slow_actors_take_as_many_random_steps_as_one_process(
    actors: int, milliseconds: int, random_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They act at the same time, and deliver less than was ordered; nobody acts otherwise before the last of them."""
    monkeypatch.setattr(Sleeping, "seconds", milliseconds / 1000)
    cfg = config("Sleeping", actors, random_steps=random_steps)
    found = is_random(cfg, random_steps + 2 * actors * 200)
    assert found[:random_steps].all() and not found[random_steps:].any()


def test_an_episode_that_kills_its_actor_is_left_out_wherever_in_an_order_it_is() -> None:
    """Nobody knows which of the many episodes of an order it was; without other actors, six faults end a run."""
    collector, origins = collector_for(config("Deadly", 1, updates_per_step=0.0)), list[Any]()
    while sum(map(len, origins)) < 1000:
        origins += [rollout.origins for rollout in collector.poll().rollouts]
    assert collector.slots[0].starts == 4, "a single episode more each time would not have been enough"
    assert np.concatenate(origins)[:, 1].min() > 15


def test_actors_that_cannot_be_created_end_the_run_only_if_there_are_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node without T3D may join, and be repaired later."""
    monkeypatch.setattr(Sleeping, "seconds", 0.01)
    collector, news = collector_for(config("Sleeping", 2, updates_per_step=0.0)), list[Any]()
    first, second = collector.slots
    while not (first.runs and second.runs):
        collector.poll()
    monkeypatch.setattr(Handle, "can_be_created", False)
    collector._lose(second, "its node has died")
    while second.failed_starts < 10:
        news += collector.poll().news
    assert [(one.actor, one.what) for one in news] == [(1, "lost"), (1, "lost")], "its node, and once that it cannot"
    assert first.runs and not second.given_up
    monkeypatch.setattr(Handle, "can_be_created", True)
    while not second.runs:
        collector.poll()
    monkeypatch.setattr(Handle, "can_be_created", False)
    for slot in (first, second):
        collector._lose(slot, "its node has died")
    with pytest.raises(NobodyLeft, match=r"no actor is left to collect; .*could not be started: No module named 't3d'"):
        while True:
            collector.poll()


def test_the_run_ends_if_no_actor_can_ever_be_created(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Handle, "can_be_created", False)
    collector = collector_for(config("Sleeping", 2))
    with pytest.raises(NobodyLeft, match="no actor is left to collect"):
        while True:
            collector.poll()
    assert CLOCK.now < 60


def test_evaluators_that_cannot_be_created_are_tried_again_and_end_the_run_if_there_are_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Handle, "can_be_created", False)
    cfg, notes = config("Sleeping", 1), list[str]()
    with closing(WorkerLog()) as log:
        checkup = Checkup([], helpers.make_spec(3, 1), False, {})
        evaluator = RayEvaluator(cfg, checkup, env_factory(cfg.env), CONNECTION, log)
        evaluator.submit(helpers.snapshot_for(checkup.spec, 1), 100)
        (slot,) = evaluator.slots

        def look() -> None:
            CLOCK.sleep(0.1)
            notes.extend(evaluator.poll().notes)

        while slot.failed_starts < 4:
            look()
        assert len(notes) == 1 and "could not be started" in notes[0], "once is enough"
        with pytest.raises(NobodyLeft, match="no evaluator is left: it could not be started"):
            while True:
                look()
        assert slot.failed_starts == 6 and not slot.given_up, "which may yet start one"


def test_a_vector_env_takes_its_last_step_with_only_some_of_its_environments() -> None:
    cfg = config("make_four", 4, total_steps=310, random_steps=100, updates_per_step=0.0)
    collector, rows, news = collector_for(merge(cfg, {"actors": "ray:1"}), vector=True), 0, list[Any]()
    while rows < 310:
        collected = collector.poll()
        rows += sum(len(rollout.rows) for rollout in collected.rollouts)
        news += collected.news
    assert rows == 310 and [event.text for event in news if event.what == "lost"] == []
