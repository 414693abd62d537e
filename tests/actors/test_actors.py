"""Actor processes: the same transitions as in one process, none torn or lost."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import helpers
from actor_helpers import actor_config, check_rows, collector_of, of_kind, until
from t3d.config import merge
from t3d.data.memory import Memory
from t3d.events import ActingEvent, End, EpisodeEnd, Eval
from t3d.run.live import train


@pytest.mark.parametrize(
    ("env_id", "actors", "limit"),
    [("Pendulum-v1", 1, 0), ("HalfCheetah-v5", 2, 0.1), pytest.param("HalfCheetah-v5", 2, 0, marks=pytest.mark.slow)],
)
def test_actors_that_take_turns_with_the_learner_are_one_process_to_the_last_bit(
    tmp_path: Path, memories: list[Memory], env_id: str, actors: int, limit: float
) -> None:
    """Warm-up, noise, seeds, policies, order and evaluation are those of inline collecting."""
    cfg = helpers.small_config(
        seeds=[0, 5],
        env={"id": env_id, "max_action_change": limit},
        eval={"max_steps": 100, "every_steps": 200},
        run={"root": str(tmp_path)},
    )
    inline = list(train(cfg))
    apart = list(train(merge(cfg, {"actors": f"local:{actors}", "max_ahead": 1})))
    assert of_kind(apart, End)[0].updates == 200
    assert np.array_equal(memories[0].replay.rows, memories[1].replay.rows), "every transition of both members"
    last = [[(e.seed, e.returns, e.updates) for e in of_kind(events, Eval)][-2:] for events in (inline, apart)]
    assert last[0] == last[1] and len(last[0]) == 2, "the same policies, evaluated the same way in other processes"
    episodes = [
        {(e.seed, e.episode, e.total_reward) for e in of_kind(events, EpisodeEnd)} for events in (inline, apart)
    ]
    assert episodes[0] == episodes[1]


def collect_told(tmp_path: Path, memories: list[Memory], rows: int, world: str) -> None:
    steps = {"total_steps": rows // 2, "random_steps": rows // 4, "updates_per_step": 0.01}
    changes: dict[str, Any] = {"actors": "local:3", "env": {"num_envs": 3}, **steps}
    cfg = actor_config(tmp_path, world, **changes, eval={"every_steps": 10**9}, checkpoint={"every_steps": 10**9})
    events = list(train(cfg))
    check_rows(memories[-1], cfg)
    told = {(e.seed, e.env, e.episode) for e in of_kind(events, EpisodeEnd)}
    assert len(told) == len(of_kind(events, EpisodeEnd)) > rows / 200


def test_every_transition_of_actors_is_true(tmp_path: Path, memories: list[Memory]) -> None:
    """R19 over local actors; a million rows in test-all."""
    collect_told(tmp_path, memories, 8000, "Told")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_transition_of_actors_is_true_a_million_times(tmp_path: Path, memories: list[Memory]) -> None:
    collect_told(tmp_path, memories, 1_000_000, "Lengthy")


def test_a_worker_has_one_thread_and_no_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEEN_FILE", str(tmp_path / "seen"))
    list(train(actor_config(tmp_path, "Watched")))
    assert (tmp_path / "seen").read_text() == "1 False"


def test_a_full_ring_holds_an_actor_back() -> None:
    """The warm-up is longer than the ring, and the learner takes nothing."""
    steps = 5000
    collector = collector_of("Told", total_steps=2 * steps, random_steps=steps)
    try:
        ring = collector.slots[0].transitions
        assert ring is not None and ring.capacity < steps
        until(collector, lambda one: one._waiting() == ring.capacity)
        time.sleep(0.3)
        collector.supervise()
        assert ring.waiting == ring.capacity
        before = collector.totals()
        rows = [np.column_stack([rollout.s, rollout.s2]) for rollout in collector.poll().rollouts]
        assert collector.totals().since(before)["ring_fill"] == 1.0, "that it was full is told"
        while sum(map(len, rows)) < steps:
            rows += [np.column_stack([rollout.s, rollout.s2]) for rollout in collector.poll().rollouts]
        told = np.concatenate(rows)
        goes_on = (told[1:, :3] == told[:-1, 3:]).all(axis=1)
        begins = told[1:, 2] == 0
        assert (goes_on | begins).all() and not collector.poll().news
    finally:
        collector.close()


def test_a_vector_environment_is_stepped_by_one_actor(tmp_path: Path, memories: list[Memory]) -> None:
    events = list(train(actor_config(tmp_path, "make_vector", env={"num_envs": 3}, eval={"every_steps": 300})))
    assert of_kind(events, End)[0].reason == "finished" and of_kind(events, ActingEvent)[-1].actors == 2
    for member in (0, 1):
        s, s2 = np.split(memories[-1].replay.contents(member, 0, 300)["rows"][:, [0, 1, 2, -3, -2, -1]], 2, axis=1)
        assert np.array_equal(s2[:, 2], s[:, 2] + 1) and np.array_equal(s2[:, :2], s[:, :2])
        assert len({(high, low) for high, low in s[:3, :2]}) == 3, "three environments, each with a seed of its own"
