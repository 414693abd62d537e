"""Every collector and every evaluator keeps the same promises: t3d/actors/protocols.py says which."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import contract_envs
import drones
import helpers
import t3d
from ray_helpers import cluster, needs_ray
from t3d.actors.checkup import check
from t3d.actors.evaluators import ProcessEvaluator
from t3d.actors.inline import InlineCollector, InlineEvaluator
from t3d.actors.local import LocalCollector
from t3d.actors.protocols import Collector, Evaluator
from t3d.actors.supervisor import WorkerLog
from t3d.config import Config
from t3d.data.replay import Links
from t3d.events import End
from t3d.policy.acting import PolicySnapshot
from t3d.run import build
from t3d.run.placement import resolve
from t3d.types import GOES_ON, Requests
from t3d.world.make import env_factory
from thread_collector import ThreadCollector

COUNTING, FAILING = (f"{contract_envs.__file__}:{name}" for name in ("Counting", "Failing"))
TELLING = f"{drones.__file__}:Telling"
SECONDS = 60  # that a test waits for what should come at once


@contextmanager
def inline(cfg: Config) -> Iterator[Collector]:
    with closing(InlineCollector(cfg, env_factory(cfg.env))) as collector:
        yield collector


@contextmanager
def local(cfg: Config) -> Iterator[Collector]:
    make_env = env_factory(cfg.env)
    with closing(WorkerLog()) as log:
        checkup = check(cfg, make_env, log, threading.Event(), play=False)
        with closing(LocalCollector(cfg, make_env, checkup, log)) as collector:
            yield collector


@contextmanager
def threads(cfg: Config) -> Iterator[Collector]:
    with closing(ThreadCollector(cfg, env_factory(cfg.env))) as collector:
        yield collector


@contextmanager
def on_ray(cfg: Config) -> Iterator[Collector]:
    from t3d.actors.ray_collector import RayCollector  # noqa: PLC0415

    make_env = env_factory(cfg.env)
    with closing(WorkerLog()) as log:
        checkup = check(cfg, make_env, log, threading.Event(), play=False)
    with closing(RayCollector(cfg, make_env, checkup, cluster())) as collector:
        yield collector


COLLECTORS: dict[str, Callable[[Config], Any]] = {"inline": inline, "local": local, "threads": threads, "ray": on_ray}
KINDS = [pytest.param(kind, marks=[needs_ray, pytest.mark.system]) if kind == "ray" else kind for kind in COLLECTORS]
ACTORS = {"local": "local:1", "ray": "ray:1"}


def small(kind: str, **changes: Any) -> Config:
    base: dict[str, Any] = {"seeds": [3, 4], "total_steps": 300, "random_steps": 50, "td3": {"actor_hidden": [4]}}
    base |= {"env": {"id": COUNTING, "num_envs": 2}, "actors": ACTORS.get(kind, "inline")}
    return resolve(helpers.small_config(**{**base, **changes}))


def policy(collector: Collector, members: int, updates: int = 0) -> PolicySnapshot:
    network = helpers.mlp(collector.spec.observation_size, 4, collector.spec.action_size)
    return PolicySnapshot(updates, network, np.zeros((members, network.size), np.float32))


def collected(collector: Collector, wanted: int, members: int = 2) -> list[Any]:
    """Polls until every member has so many transitions, publishing as the learner would."""
    taken, found, until = [0] * members, [], time.monotonic() + SECONDS
    while min(taken) < wanted:
        assert time.monotonic() < until, taken
        collector.publish(policy(collector, members, 10**6), 10**6)
        for rollout in collector.poll().rollouts:
            taken[rollout.member] += len(rollout.rows)
            found.append(rollout)
    return found


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_each_member_gets_total_steps_and_not_one_more(kind: str) -> None:
    cfg = small(kind)
    with COLLECTORS[kind](cfg) as collector:
        rollouts = collected(collector, 300)
        counts = [sum(len(one.rows) for one in rollouts if one.member == member) for member in range(2)]
        assert counts == [300, 300]
        for _ in range(3):
            assert sum(len(one.rows) for one in collector.poll().rollouts) == 0
        assert [collector.state()[f"seed-{seed}"]["taken"] for seed in (3, 4)] == [300, 300]


def test_rows_are_whole_in_order_and_say_where_they_come_from(kind: str) -> None:
    cfg = small(kind)
    with COLLECTORS[kind](cfg) as collector:
        rollouts = collected(collector, 300)
    for member in range(2):
        mine = [one for one in rollouts if one.member == member]
        rows, origins = np.concatenate([one.rows for one in mine]), np.concatenate([one.origins for one in mine])
        links = Links(1, 300, "cpu")
        links.add((0, origins, 300))
        follow = links.next[0].numpy()
        assert set(origins[:, 0]) == {0, 1} and (follow >= 0).sum() > 150
        assert np.array_equal(rows[follow >= 0][:, -3:], rows[follow[follow >= 0]][:, :3]), "s2 is the next s"
        assert np.array_equal(origins[:, 2], rows[:, 2]), "the step, as the environment counts it"
        unfinished = (follow < 0) & (origins[:, 3] == GOES_ON)
        assert unfinished.sum() <= 2, "one episode in progress for each environment"
        ended = [(episode.env, episode.episode, episode.length) for one in mine for episode in one.episodes]
        last = [(origin[0], origin[1], origin[2] + 1) for origin in origins[origins[:, 3] != GOES_ON]]
        assert sorted(ended) == sorted(last), "each episode that ended was told once"


def test_only_poll_waits_and_reading_resets_nothing(kind: str) -> None:
    cfg = small(kind, max_ahead=1)
    with COLLECTORS[kind](cfg) as collector:
        collected(collector, 300)
        started = time.monotonic()
        for _ in range(20):
            collector.supervise()
            collector.state()
            collector.publish(policy(collector, 2), 10**6)
            first, second = collector.totals(), collector.totals()
            if first is not None and second is not None:
                assert np.array_equal(first.ages, second.ages) and first.looks == second.looks
        assert time.monotonic() - started < 20


def test_a_restored_collector_goes_on_counting(kind: str) -> None:
    cfg = small(kind)
    with COLLECTORS[kind](cfg) as collector:
        first = collected(collector, 100)
        state = collector.state()
    taken = [state[f"seed-{seed}"]["taken"] for seed in (3, 4)]
    for member in range(2):
        assert taken[member] == sum(len(one.rows) for one in first if one.member == member)
    with COLLECTORS[kind](cfg) as collector:
        assert collector.restore(state, threading.Event()) == []
        rest: list[Any] = []
        until = time.monotonic() + SECONDS
        while min(taken) < 300:
            assert time.monotonic() < until
            collector.publish(policy(collector, 2, 10**6), 10**6)
            for rollout in collector.poll().rollouts:
                taken[rollout.member] += len(rollout.rows)
                rest.append(rollout)
        assert taken == [300, 300]
    for member in range(2):
        numbers = [
            {tuple(origin) for one in blocks if one.member == member for origin in one.origins.tolist()}
            for blocks in (first, rest)
        ]
        assert not numbers[0] & numbers[1], "no transition comes twice"


def test_an_error_comes_after_everything_before_it(kind: str) -> None:
    cfg = small(kind, env={"id": FAILING, "num_envs": 1, "bad_values": "raise"}, seeds=[3])
    with COLLECTORS[kind](cfg) as collector:
        taken, until = 0, time.monotonic() + SECONDS
        with pytest.raises(t3d.UserError, match="reward"):
            while time.monotonic() < until:
                collector.publish(policy(collector, 1, 10**6), 10**6)
                taken += sum(len(one.rows) for one in collector.poll().rollouts)
    assert taken == contract_envs.FAILS_AT - 1


def test_a_member_that_stops_acts_no_more_and_the_others_go_on(kind: str) -> None:
    cfg = small(kind, total_steps=5000)
    with COLLECTORS[kind](cfg) as collector:
        collected(collector, 60)
        collector.stop(0)
        drain(collector, member=0)
        taken, until = [0, 0], time.monotonic() + SECONDS
        while collector.state()["seed-4"]["taken"] < 5000:
            assert time.monotonic() < until
            collector.publish(policy(collector, 2, 10**6), 10**6)
            for rollout in collector.poll().rollouts:
                taken[rollout.member] += len(rollout.rows)
        assert taken[0] == 0 and collector.state()["seed-3"]["taken"] < 5000


def drain(collector: Collector, member: int) -> None:
    """Takes what was on its way of a member that has stopped: all that was ordered, or what comes in a while."""
    claims, until = getattr(collector, "claims", None), time.monotonic() + SECONDS
    quiet_since = time.monotonic()
    while claims.claimed[member] if claims else time.monotonic() - quiet_since < 0.3:
        assert time.monotonic() < until
        if any(len(rollout.rows) for rollout in collector.poll().rollouts if rollout.member == member):
            quiet_since = time.monotonic()


def test_an_action_that_is_not_finite_is_reported_for_its_member_until_it_is_stopped(kind: str) -> None:
    cfg = small(kind, random_steps=0)
    with COLLECTORS[kind](cfg) as collector:
        broken = policy(collector, 2, 10**6)
        broken.flat[1] = np.nan
        found, taken, until = list[Any](), 0, time.monotonic() + SECONDS
        while not found or taken < 100:
            assert time.monotonic() < until
            collector.publish(broken, 10**6)
            polled = collector.poll()
            found = polled.diverged
            taken += sum(len(one.rows) for one in polled.rollouts if one.member == 0)
            assert not any(len(one.rows) for one in polled.rollouts if one.member == 1)
            if found:
                assert [member for member, _ in found] == [1] and "seed 4 is [nan]" in found[0][1]
                if taken >= 100:
                    collector.stop(1)
        assert collector.poll().diverged == []


@contextmanager
def inline_evaluator(cfg: Config) -> Iterator[Evaluator]:
    requests = Requests(threading.Event(), threading.Event())
    with closing(InlineEvaluator(cfg, env_factory(cfg.env), requests)) as evaluator:
        yield evaluator


@contextmanager
def process_evaluator(cfg: Config) -> Iterator[Evaluator]:
    make_env = env_factory(cfg.env)
    with closing(WorkerLog()) as log, closing(ProcessEvaluator(cfg, make_env, log)) as evaluator:
        yield evaluator


@contextmanager
def ray_evaluator(cfg: Config) -> Iterator[Evaluator]:
    from t3d.actors.ray_collector import RayEvaluator  # noqa: PLC0415

    make_env = env_factory(cfg.env)
    with closing(WorkerLog()) as log:
        checkup = check(cfg, make_env, log, threading.Event(), play=False)
        with closing(RayEvaluator(cfg, checkup, make_env, cluster(), log)) as evaluator:
            yield evaluator


EVALUATORS: dict[str, Callable[[Config], Any]] = {
    "inline": inline_evaluator,
    "processes": process_evaluator,
    "ray": ray_evaluator,
}
EVALUATOR_KINDS = [
    pytest.param(kind, marks=[needs_ray, pytest.mark.system]) if kind == "ray" else kind for kind in EVALUATORS
]


@pytest.mark.parametrize("name", EVALUATOR_KINDS)
def test_evaluations_come_once_and_in_order(name: str) -> None:
    cfg = small("inline", eval={"episodes": 3})
    network = helpers.mlp(3, 4, 1)
    snapshot = PolicySnapshot(7, network, np.zeros((2, network.size), np.float32))
    with EVALUATORS[name](cfg) as evaluator:
        found, submitted, until = list[Any](), 0, time.monotonic() + SECONDS
        while len(found) < 6:
            assert time.monotonic() < until
            if submitted < 3 and evaluator.has_room():
                assert evaluator.submit(snapshot, 10 * submitted)
                submitted += 1
            started = time.monotonic()
            found += evaluator.poll().evaluations
            assert time.monotonic() - started < 5, "without wait, poll only looks"
            found += evaluator.poll(wait=True).evaluations
        assert [(one.step, one.member) for one in found] == [
            (step, member) for step in (0, 10, 20) for member in (0, 1)
        ]
        assert all(len(one.returns) == 3 and one.snapshot.updates == 7 for one in found)
        assert evaluator.poll().evaluations == [] and evaluator.state() == {}


@pytest.mark.parametrize("name", EVALUATOR_KINDS)
def test_an_evaluator_reports_who_diverged_and_leaves_out_who_stopped(name: str) -> None:
    cfg = small("inline", eval={"episodes": 2})
    network = helpers.mlp(3, 4, 1)
    flat = np.zeros((2, network.size), np.float32)
    flat[0] = np.nan
    with EVALUATORS[name](cfg) as evaluator:
        assert evaluator.submit(PolicySnapshot(7, network, flat), 10)
        found, diverged, until = list[Any](), list[Any](), time.monotonic() + SECONDS
        while not found:
            assert time.monotonic() < until
            polled = evaluator.poll(wait=True)
            found += polled.evaluations
            for member, why in polled.diverged:
                diverged.append(member)
                assert "is [nan]" in why
                evaluator.stop(member)
        assert diverged == [0] and [(one.step, one.member) for one in found] == [(10, 1)]
        evaluator.submit(PolicySnapshot(8, network, flat), 20)
        assert all(np.isfinite(saved["flat"]).all() for saved in evaluator.state().values())
        while len(found) < 2:
            assert time.monotonic() < until
            found += evaluator.poll(wait=True).evaluations
        assert (found[1].step, found[1].member) == (20, 1) and evaluator.poll().diverged == []


def test_a_run_with_the_third_collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop does not know what collects."""
    monkeypatch.setattr(build, "InlineCollector", ThreadCollector)
    cfg = helpers.small_config(seeds=[0, 1], run={"root": str(tmp_path), "name": "threads"})
    events = list(t3d.train(cfg))
    assert isinstance(events[-1], End) and (events[-1].reason, events[-1].updates) == ("finished", 200)


def test_it_acts_by_other_settings_from_the_next_episodes_on(kind: str) -> None:
    cfg = small(kind, total_steps=5000, random_steps=0, env={"id": TELLING, "metrics": ["wind:last"]}, seeds=[3])
    other = replace(cfg, noise=replace(cfg.noise, exploration_noise=0.0), env=replace(cfg.env, args={"wind": 2.0}))
    with COLLECTORS[kind](cfg) as collector:
        before = collected(collector, 100, members=1)
        assert {episode.metrics["wind"] for rollout in before for episode in rollout.episodes} == {0.0}
        assert all(np.abs(rollout.a).max() > 0 for rollout in before if len(rollout.rows))
        collector.use(other)
        after = collected(collector, 4000, members=1)
    winds = [episode.metrics["wind"] for rollout in after for episode in rollout.episodes]
    assert winds == sorted(winds) and winds[-1] == 2.0, "once changed, they stay"
    last = np.concatenate([rollout.a for rollout in after])[-1000:]
    assert np.abs(last).max() == 0, "a policy of zeros without noise"


def test_a_restored_collector_goes_on_in_the_schedules_of_arguments(kind: str) -> None:
    cfg = small(kind, random_steps=0, env={"id": TELLING, "schedule": {"wind": "0..1@300"}}, seeds=[3])
    with COLLECTORS[kind](cfg) as collector:
        collected(collector, 150, members=1)
        state = collector.state()
    taken = state["seed-3"]["taken"]
    with COLLECTORS[kind](cfg) as collector:
        assert collector.restore(state, threading.Event()) == []
        rest = collected(collector, 300 - taken, members=1)
    winds = [episode.args["wind"] for rollout in rest for episode in rollout.episodes]
    assert len(winds) > 1 and winds == sorted(winds)
    assert winds[0] >= (taken - 20) / 300 - 1e-9, "an episode has 20 steps"
