"""Actors on a Ray cluster: the same transitions as elsewhere, none lost, torn or counted twice, whoever dies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import helpers
from actor_helpers import actor_config, check_rows, merge_dicts, of_kind
from ray_helpers import cluster, needs_ray
from t3d.config import merge
from t3d.data.memory import Memory
from t3d.events import ActingEvent, End, EpisodeEnd, Eval, Event
from t3d.run.loop import train

pytestmark = needs_ray
TESTS = str(Path(__file__).parents[1])


@pytest.fixture(autouse=True)
def _on_the_cluster_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("t3d.actors.ray_cluster.connect", lambda cfg, output=None: cluster(cfg))


def ray_config(root: Path, world: str = "Told", **changes: Any) -> Any:
    """A run of tests/actor_worlds.py, by its path: the cluster's workers do not know this folder."""
    base = {"actors": "ray:2", "ray_cpus": 0.5, "env": {"id": f"{TESTS}/actor_worlds.py:{world}"}}
    return actor_config(root, **merge_dicts(base, changes))


def test_actors_that_take_turns_with_the_learner_are_one_process_to_the_last_bit(
    tmp_path: Path, memories: list[Memory]
) -> None:
    cfg = helpers.small_config(
        seeds=[0, 5],
        env={"id": "Pendulum-v1"},
        eval={"max_steps": 100, "every_steps": 200},
        run={"root": str(tmp_path)},
    )
    inline = list(train(cfg))
    apart = list(train(merge(cfg, {"actors": "ray:2", "ray_cpus": 0.5, "max_ahead": 1})))
    assert of_kind(apart, End)[0].updates == 200
    assert np.array_equal(memories[0].replay.rows, memories[1].replay.rows), "every transition of both members"
    last = [[(e.seed, e.returns, e.updates) for e in of_kind(events, Eval)][-2:] for events in (inline, apart)]
    assert last[0] == last[1] and len(last[0]) == 2, "the same policies, evaluated the same way on the cluster"
    episodes = [
        {(e.seed, e.episode, e.total_reward) for e in of_kind(events, EpisodeEnd)} for events in (inline, apart)
    ]
    assert episodes[0] == episodes[1]


def collect_told(tmp_path: Path, memories: list[Memory], rows: int, world: str) -> list[Event]:
    steps = {"total_steps": rows // 2, "random_steps": rows // 4, "updates_per_step": 0.01}
    changes: dict[str, Any] = {"actors": "ray:3", "env": {"num_envs": 3}, **steps}
    cfg = ray_config(tmp_path, world, **changes, eval={"every_steps": 10**9}, checkpoint={"every_steps": 10**9})
    events = list(train(cfg))
    check_rows(memories[-1], cfg)
    told = {(e.seed, e.env, e.episode) for e in of_kind(events, EpisodeEnd)}
    assert len(told) == len(of_kind(events, EpisodeEnd)) > rows / 200
    return events


def test_every_transition_of_actors_is_true(tmp_path: Path, memories: list[Memory]) -> None:
    """R19 over Ray; a million rows in test-all."""
    events = collect_told(tmp_path, memories, 8000, "Told")
    last = of_kind(events, ActingEvent)[-1]
    assert (last.actors, last.restarts, last.ring_fill) == (3, 0, None)
    assert last.bytes_per_step == 4 * (3 + 1 + 1 + 1 + 3) + 16, "a row, and where it comes from"
    assert last.bytes_per_version == 2 * 4 * (3 * 16 + 16 + 16 * 1 + 1), "the parameters of both members"
