"""Runs and collectors with actor processes in actor_worlds, and the truth of every transition they store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import actor_worlds
import helpers
from t3d.actors.checkup import Checkup
from t3d.actors.local import LocalCollector
from t3d.actors.supervisor import WorkerLog
from t3d.config import Config, merge
from t3d.data.memory import Memory
from t3d.data.replay import NONE
from t3d.events import Event
from t3d.policy.acting import PolicySnapshot
from t3d.run.live import resume, train
from t3d.seeds import derive
from t3d.types import GOES_ON, TERMINATED, TRUNCATED
from t3d.world.make import env_factory

LOG = WorkerLog()  # for workers outside of a run: they print to our stderr


def actor_config(root: Path, world: str = "Told", **changes: Any) -> Config:
    base = {"env": {"id": f"actor_worlds:{world}"}, "actors": "local:2", "seeds": [0, 1], "eval": {"every_steps": 1000}}
    return merge(helpers.small_config(run={"root": str(root), "name": "a"}), merge_dicts(base, changes))


def merge_dicts(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        merged[key] = {**merged.get(key, {}), **value} if isinstance(value, dict) else value
    return merged


def of_kind(events: list[Event], kind: Any) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def seeds_of(cfg: Config, episodes: int) -> dict[int, tuple[int, int, int]]:
    """Which member, environment and episode a seed stands for."""
    places: dict[int, tuple[int, int, int]] = {}
    for member, seed in enumerate(cfg.seeds):
        for env in range(cfg.num_envs):
            for episode in range(episodes):
                places[derive(seed, "environment", env, episode)] = (member, env, episode)
    assert len(places) == len(cfg.seeds) * cfg.num_envs * episodes, "each stands for one"
    return places


def check_rows(memory: Memory, cfg: Config, *, crashes: int = 0) -> None:
    """Every stored transition is one that happened, once, in order; episodes are cut short only by crashes."""
    assert memory.added == [cfg.total_steps] * len(cfg.seeds)
    spread, cut = getattr(actor_worlds, cfg.env.id.rpartition(":")[2]).spread, 0
    places = seeds_of(cfg, int(1.1 * cfg.total_steps / (2 + spread / 2)) + 50)  # if one took nearly all the steps
    for member in range(len(cfg.seeds)):
        rows = memory.replay.contents(member, 0, cfg.total_steps)["rows"]
        s, a, r, terminated, s2 = np.split(rows, np.cumsum(memory.replay.columns)[:-1], axis=1)
        seeds = s[:, 0].astype(np.int64) * 2**16 + s[:, 1].astype(np.int64)
        t, length = s[:, 2], 3 + seeds % spread
        assert np.array_equal(s2, np.stack([s[:, 0], s[:, 1], t + 1], 1)), "the true next state, also at the end"
        assert np.array_equal(terminated[:, 0], (t + 1 == length) & (seeds % 2 == 0)), "truncation is not it"
        assert np.array_equal(r[:, 0], (seeds % 1000 + t + 1).astype(np.float32))
        assert np.abs(a).max() <= 1
        where = np.array([places[seed] for seed in seeds.tolist()])  # (rows, 3): member, environment, episode
        assert (where[:, 0] == member).all(), "each to its own member"
        ending = np.where(t + 1 < length, GOES_ON, np.where(seeds % 2 == 0, TERMINATED, TRUNCATED))
        origins = np.column_stack([where[:, 1:], t, ending])
        assert np.array_equal(memory.replay.origins(member, 0, cfg.total_steps), origins), "where each comes from"
        check_neighbours(memory, member, origins)
        for env in range(cfg.num_envs):
            cut += check_order(np.column_stack([where[:, 2], t, length])[where[:, 1] == env])
    assert cut <= crashes, "nothing is lost but what was in flight in a crash"


def check_neighbours(memory: Memory, member: int, origins: NDArray[Any]) -> None:
    """Every row of a member leads to the next and the previous one of its episode, if they were stored."""
    at = {tuple(origin[:3]): row for row, origin in enumerate(origins.astype(int).tolist())}
    nexts, before = (one[member].tolist() for one in (memory.replay.links.next, memory.replay.links.previous))
    for row, (env, episode, t, _) in enumerate(origins.astype(int).tolist()):
        following, previous = at.get((env, episode, t + 1)), at.get((env, episode, t - 1))
        assert nexts[row] < 0 if following is None else nexts[row] == following
        assert before[row] == (NONE if previous is None else previous)


def check_order(own: NDArray[Any]) -> int:
    """One environment's (episode, t, length), in the order stored; how many episodes were cut short."""
    cut = 0
    for (episode, t, length), (next_episode, next_t, _) in pairwise(own):
        goes_on = (next_episode, next_t) == (episode, t + 1)
        begins = next_episode > episode and next_t == 0
        assert goes_on or begins, "in the order it happened, nothing twice, nothing left out"
        cut += begins and not (t + 1 == length and next_episode == episode + 1)
    return cut


def collector_of(world: str, **changes: Any) -> LocalCollector:
    base: dict[str, Any] = {"env": {"id": f"actor_worlds:{world}"}, "actors": "local:1", "seeds": [0]}
    collector = unstarted(helpers.small_config(**merge_dicts(base, changes)))
    publish_zeros(collector)
    return collector


def unstarted(cfg: Config) -> LocalCollector:
    """A collector for one of these worlds, of whom the spec is known."""
    found = Checkup([], helpers.make_spec(3, 1), False, {})
    return LocalCollector(cfg, env_factory(cfg.env), found, LOG)


def publish_zeros(collector: LocalCollector) -> None:
    """The first policy starts the actors."""
    network, members = helpers.mlp(3, 4, 1), len(collector.cfg.seeds)
    collector.publish(PolicySnapshot(0, network, np.zeros((members, network.size), np.float32)), 0)


def until(collector: LocalCollector, true: Callable[[LocalCollector], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true(collector):
        assert time.monotonic() < deadline, "it never happened"
        collector.supervise()
        time.sleep(0.005)


def stopped_at(cfg: Config, step: int) -> list[Event]:
    """Begins the run, or goes on with it, up to some step."""
    stop, events, folder = threading.Event(), [], Path(cfg.run.root, cfg.run.name)
    for event in resume(folder, cfg=cfg, stop=stop) if folder.exists() else train(cfg, stop=stop):
        events.append(event)
        if event.step >= step:
            stop.set()
    return events
