"""The governor: updates due, and how far actors may go ahead of them."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actor_helpers import actor_config, of_kind
from t3d.actors.governor import Governor, passed
from t3d.actors.local import LocalCollector
from t3d.actors.protocols import Collected
from t3d.config import Config, merge
from t3d.events import (
    ActingEvent,
    End,
)
from t3d.run.live import train


def test_the_governor_counts_the_slowest_member_exactly() -> None:
    governor = Governor(Config(random_steps=100, updates_per_step=0.29))
    assert governor.due([200, 500], updates=0) == 29
    assert governor.due([200, 500], updates=29) == 0
    assert governor.due([50, 500], updates=0) == 0
    made = 0
    for step in range(1101):
        made += governor.due([step], made)
    assert made == 290


@pytest.mark.parametrize(
    ("ratio", "updates", "steps"),
    [(1 / 3, 1, 3), (2 / 7, 2, 7), (0.1, 1, 10), (0.29, 29, 100), (20.0, 20, 1), (0.12345678, 6172839, 50_000_000)],
)
def test_a_ratio_is_the_fraction_that_it_was_written_as(ratio: float, updates: int, steps: int) -> None:
    governor = Governor(Config(total_steps=10**12, random_steps=0, updates_per_step=ratio))
    for periods in (1, 7, 1000):
        assert governor.due([periods * steps], 0) == periods * updates
        assert governor.due([periods * steps - 1], 0) < periods * updates, "and none is early"
        assert governor.limit(periods * updates - 1, ahead=1) == periods * steps


def test_a_schedule_fires_once_for_each_multiple() -> None:
    steps = list(range(0, 50, 3))
    assert [after for before, after in pairwise(steps) if passed(10, before, after)] == [12, 21, 30, 42]


@given(st.sampled_from([0.01, 0.1, 0.29, 0.5, 1.0, 2.0, 7.5]), st.integers(1, 500), st.integers(0, 300))
def test_neither_side_waits_for_ever_and_neither_runs_away(ratio: float, max_ahead: int, updates: int) -> None:
    total = 10**9
    governor = Governor(Config(total_steps=total, random_steps=100, updates_per_step=ratio, max_ahead=max_ahead))
    limit = governor.limit(updates)
    assert governor.due([limit], updates) > 0, "actors at their limit leave the learner something to do"
    assert governor.due([limit - max_ahead], updates) == 0, "and are no more than max_ahead beyond what it needs"
    assert governor.limit(updates + 1) >= limit


def test_without_updates_actors_may_go_to_the_end() -> None:
    cfg = merge(Config(), {"updates_per_step": 0.0})
    assert Governor(cfg).limit(0) == cfg.total_steps


@pytest.mark.parametrize(
    ("actors", "envs", "max_ahead", "total", "most"),
    [
        ("local:16", 16, 0, 10**6, 96),
        ("ray:2", 2, 0, 10**6, 800),
        ("ray:16", 16, 0, 10**6, 6400),
        ("ray:16", 1, 0, 10**6, 400),
        ("ray:16", 16, 10, 10**6, 10),
        ("ray:16", 16, 0, 10**5, 2000),
        ("ray:16", 16, 0, 1000, 96),
    ],
)
def test_ray_actors_may_be_further_ahead_unless_the_run_is_short(
    actors: str, envs: int, max_ahead: int, total: int, most: int
) -> None:
    """Otherwise each of them would be sent many tiny orders."""
    steps = {"max_ahead": max_ahead, "random_steps": 100, "total_steps": total}
    cfg = merge(Config(), {"actors": actors, "env": {"num_envs": envs}, **steps})
    assert cfg.most_ahead == most
    assert Governor(cfg).limit(0) == 100 + most and Governor(cfg).limit(0, 7) == 107


@pytest.mark.parametrize("max_ahead", [1, 20])
def test_actors_stay_within_max_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_ahead: int) -> None:
    """However slow the learner is; one step of each of a member's environments may come on top."""
    ahead, poll = [], LocalCollector.poll

    def slow_poll(self: LocalCollector) -> Collected:
        time.sleep(0.01)
        collected = poll(self)
        ahead.append(max(self.inbox.taken) - self.governor.limit(self.updates))
        return collected

    monkeypatch.setattr(LocalCollector, "poll", slow_poll)
    events = list(train(actor_config(tmp_path, actors="local:3", max_ahead=max_ahead, env={"num_envs": 3})))
    assert max(ahead) <= 2, "three environments, of which one was allowed"
    end, acting = of_kind(events, End)[0], of_kind(events, ActingEvent)
    assert (end.reason, end.step, end.updates) == ("finished", 300, 200)
    assert acting[-1].since == 0 and acting[-1].ratio == 1.0 and acting[-1].actors_waited > 0.1
    assert [event.summary for event in acting] == [False] * (len(acting) - 1) + [True]
    assert acting[-1].age_p99 <= max_ahead + 8 + 3


def test_the_log_says_who_waits(tmp_path: Path) -> None:
    cfg = actor_config(tmp_path, "Slow", seeds=[0], total_steps=160, log={"every_steps": 20})
    acting = of_kind(list(train(cfg)), ActingEvent)
    assert len(acting) >= 3 and acting[-1].learner_waited > max(0.2, acting[-1].actors_waited)
    assert all(0 <= event.ring_fill <= 1 and event.age_median <= event.age_p99 for event in acting)
    assert all(event.actors == 2 and event.restarts == 0 for event in acting)
