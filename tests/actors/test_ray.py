"""Actors on a Ray cluster: the same transitions as elsewhere, none lost, torn or counted twice, whoever dies."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("ray", reason="Ray is not installed (t3d[ray])")

import ray

import helpers
from actor_helpers import actor_config, check_order, check_rows, merge_dicts, of_kind, stopped_at
from ray_helpers import HEAD_CPUS, LOOPBACK, STORE_BYTES, cluster, nodes
from t3d.actors import ray_collector, supervisor
from t3d.actors.checkup import Checkup
from t3d.actors.ray_actor import (
    Actor,
    Order,
    Started,
    installed_versions,
    order_seconds,
    packed_policy,
    unpacked_policy,
)
from t3d.actors.ray_collector import RayCollector, RayEvaluator
from t3d.actors.ray_orders import IN_FLIGHT, Claims, Window, answer_timeout
from t3d.actors.supervisor import WorkerLog
from t3d.app.train import parse
from t3d.config import Config, merge, to_dict
from t3d.config.networks import architecture
from t3d.data.memory import Memory
from t3d.errors import NobodyLeft
from t3d.events import ActingEvent, ActorEvent, End, EpisodeEnd, Eval, Event
from t3d.policy.acting import PolicySnapshot
from t3d.run.live import resume, train
from t3d.run.placement import resolve
from t3d.types import GOES_ON, Rollout
from t3d.world.make import env_factory

pytestmark = pytest.mark.system

TESTS = str(Path(__file__).parents[1])


@pytest.fixture(autouse=True)
def _on_the_cluster_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("t3d.actors.ray_cluster.connect", lambda *_: cluster())
    monkeypatch.setattr(ray_collector, "JOIN_SECONDS", 1e9)  # however slowly actors start beside other tests


def ray_config(root: Path, world: str = "Told", **changes: Any) -> Config:
    """A run of tests/actor_worlds.py, by its path: the cluster's workers do not know this folder."""
    base = {"actors": "ray:2", "ray_cpus": 0.5, "env": {"id": f"{TESTS}/actor_worlds.py:{world}"}}
    return actor_config(root, **merge_dicts(base, changes))


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"env": {"id": "Pendulum-v1"}}, marks=pytest.mark.slow),
        pytest.param({"env": {"id": "Pendulum-v1", "max_action_change": 0.1}}, marks=pytest.mark.slow),
        {"env": {"id": f"{TESTS}/actor_worlds.py:make_vector", "num_envs": 3}},
        {"env": {"id": f"{TESTS}/image_worlds.py:Dot", "frame_stack": 2}, "td3": {"encoder_channels": 4}},
    ],
    ids=["numbers", "smooth actions", "VectorEnv", "images"],
)
def test_actors_that_take_turns_with_the_learner_are_one_process_to_the_last_bit(
    tmp_path: Path, memories: list[Memory], changes: dict[str, Any]
) -> None:
    cfg = helpers.small_config(
        seeds=[0, 5], eval={"max_steps": 100, "every_steps": 200}, run={"root": str(tmp_path)}, **changes
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
    changes["env"]["hang_seconds"] = 60.0  # beside other tests
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
    assert last.bytes_per_version == 2 * 4 * helpers.mlp(3, 16, 16, 1).size, "the parameters of both members"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_transition_of_actors_is_true_a_million_times(tmp_path: Path, memories: list[Memory]) -> None:
    collect_told(tmp_path, memories, 1_000_000, "Lengthy")


@given(
    st.integers(1, 30_000),
    st.integers(1, 140),
    st.lists(st.tuples(st.integers(-200, 1000), st.integers(0, 600)), max_size=60),
)
def test_orders_never_go_beyond_the_limit_and_never_dry_up(
    max_ahead: int, places: int, happened: list[tuple[int, int]]
) -> None:
    """Whatever the learner allows, be it less than before, and whatever comes back: all that was ordered, or less."""
    claims = Claims(Config(max_ahead=max_ahead, total_steps=10**9, random_steps=10), helpers.make_spec(3, 1))
    orders = list[Order]()
    for allowed, delivered in happened:
        claims.limit += max(allowed, claims.granted(0) - claims.limit)  # what is ordered is not taken back
        while len(orders) < places and (rows := claims.next(0, places)):
            orders.append(Order([], {}, {0: (claims.granted(0), rows)}, 0))
            claims.add(orders[-1])
        assert claims.granted(0) <= claims.limit
        assert claims.granted(0) <= 10 or claims.arrived[0] >= 10, "nothing before the random steps are done"
        assert orders or claims.limit == claims.arrived[0], "something is on its way, or nothing is allowed"
        if orders:
            answered = orders.pop(0)
            claims.settle(answered)
            claims.arrived[0] += min(delivered, answered.claims[0][1])


@pytest.mark.parametrize(("total", "size"), [(10**6, 200), (10**5, 62), (5000, 3)])
def test_an_order_holds_two_hundred_transitions_unless_the_run_is_short(total: int, size: int) -> None:
    cfg = merge(Config(), {"actors": "ray:16", "env": {"num_envs": 16}, "total_steps": total, "random_steps": 0})
    claims, places = Claims(cfg, helpers.make_spec(3, 1)), IN_FLIGHT * 16
    claims.limit = cfg.most_ahead
    assert [claims.next(0, places), Window(cfg).least // IN_FLIGHT] == [size, size]


def test_actors_are_no_further_ahead_than_the_learner_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("t3d.actors.ray_orders.time", SimpleNamespace(monotonic=lambda: now))
    window = Window(merge(Config(), {"actors": "ray:5", "env": {"num_envs": 5}}))
    seen = [window.ahead]
    for seconds, waited in [(0.1, True), (0.4, True), (59, False), (1, False), *[(0.5, True)] * 4, *[(60, False)] * 4]:
        now += seconds
        window.adapt(waited=waited)
        seen.append(window.ahead)
    assert seen == [400, 400, 800, 800, 400, 800, 1600, 2000, 2000, 1000, 500, 400, 400]


def test_a_learner_that_waits_for_transitions_orders_more_of_them_at_once(tmp_path: Path) -> None:
    cfg = ray_config(tmp_path, "Slow", seeds=[0], env={"num_envs": 2}, total_steps=10**5, random_steps=10)
    with closing(collector_for(cfg)) as collector:
        window, policy = collector.window, collector._policy
        assert policy is not None and (window.ahead, window.most) == (400, 800)
        poll_until(collector, lambda: collector.inbox.taken[0] >= 10)
        assert window.ahead == 400 and collector.claims.limit == 10 + 400, "nobody learns from the random steps"
        collector.publish(policy._replace(updates=5), 5)
        poll_until(collector, lambda: window.ahead == 800)
        assert collector.claims.limit == 10 + 5 + 800
        collector.publish(policy._replace(updates=25), 25)
        collector._receive(60.0, at_least=1)
        collector.publish(policy._replace(updates=1005), 1005)
        collector.poll()
        totals, window.ahead, window._changed_at = collector.totals(), 400, 0.0
        collector._checked_at = time.monotonic() + 60  # otherwise supervise() might receive it
        open_questions = [ref for slot in collector.slots for ref, _ in slot.open_questions]
        ray.wait(open_questions, num_returns=len(open_questions), timeout=60)
        collector.poll()
        assert window.ahead == 400, "a learner that finds transitions ready has not waited"
    assert totals.ages[980:].any(), "as old as they are when poll returns them, not when they arrived"


def collector_for(cfg: Config) -> RayCollector:
    """A collector of which the spec is known, with its first policy."""
    found = Checkup([], helpers.make_spec(3, 1), False, {})
    collector = RayCollector(cfg, env_factory(cfg.env), found, cluster())
    network = helpers.mlp(3, 4, 1)
    collector.publish(PolicySnapshot(0, network, np.zeros((len(cfg.seeds), network.size), np.float32)), 0)
    return collector


def test_answers_are_taken_in_the_order_of_asking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = ray_config(tmp_path, actors="ray:1", seeds=[0], total_steps=5000, updates_per_step=0.0)
    wait, found = ray.wait, list[Rollout]()

    def overtaking(refs: list[Any], num_returns: int, timeout: float) -> Any:
        """The newest first."""
        ready, waiting = wait(refs, num_returns=num_returns, timeout=timeout)
        return [*reversed(ready)], waiting

    monkeypatch.setattr(ray, "wait", overtaking)
    with closing(collector_for(cfg)) as collector:
        poll_until(collector, lambda: collector.inbox.taken[0] == 5000, found)
        assert collector.claims.claimed == [0]
    own = np.concatenate([one.origins for one in found])
    assert check_order(np.column_stack([own[:, 1:3], np.where(own[:, 3] != GOES_ON, own[:, 2] + 1, 10)])) == 0


def test_what_a_lost_actor_sends_after_all_is_ignored(tmp_path: Path) -> None:
    cfg = ray_config(tmp_path, actors="ray:1", seeds=[0], total_steps=10_000)
    with closing(collector_for(cfg)) as collector:
        slot = collector.slots[0]
        poll_until(collector, lambda: bool(slot.orders))
        before = collector.episodes.copy()
        collector._lose(slot, "so it seemed")
        assert not slot.open_questions and collector.claims.claimed == [0]
        assert (collector.episodes == before + 1).all(), "an episode that ends actors is not begun again"


def test_environments_of_an_actor_that_is_given_up_move_once_another_runs(tmp_path: Path) -> None:
    with closing(collector_for(ray_config(tmp_path))) as collector:
        first, second = collector.slots
        poll_until(collector, lambda: first.runs and second.runs)
        collector._lose(second, "a fault")
        first.faults_in_a_row, first.delivered = 100, 0
        collector._lose(first, "the last of many")
        assert first.given_up and len(first.units) > 0, "nobody could take them"
        poll_until(collector, lambda: second.runs)
        poll_until(collector, lambda: not first.units)
        assert len(second.units) == 2


def test_a_network_of_ones_own_is_found_on_the_other_machine(tmp_path: Path) -> None:
    here, there = tmp_path / "here" / "own_here.py", tmp_path / "there" / "own_there.py"
    for path in (here, there):
        path.parent.mkdir()
        path.write_text(f"from t3d.policy.architectures import KINDS\nNETWORK = KINDS['mlp']  # {path}\n")
    sent = helpers.snapshot_for(helpers.make_spec(3, 1), 1)
    named = sent._replace(architecture=architecture(f"{here}:NETWORK", sent.architecture.sizes, "relu"))
    assert unpacked_policy(packed_policy(named, f"{there}:NETWORK")).architecture.name == f"{there}:NETWORK"


def test_how_long_an_answer_may_take() -> None:
    """An actor that hangs is noticed within ten seconds; the environments of a VectorEnv are reset one by one."""
    cfg = Config()
    assert cfg.env.hang_seconds < answer_timeout(cfg, 1) < 9 and answer_timeout(cfg, 4) > 4 * cfg.env.hang_seconds


def test_orders_of_many_actors_last_longer_so_that_the_learner_gets_no_more_of_them() -> None:
    seconds = [order_seconds(merge(Config(), {"actors": f"ray:{actors}"})) for actors in (1, 16, 64, 1000)]
    assert seconds == [0.5, 0.5, 0.64, 10.0]


def test_environments_that_come_back_to_an_actor_start_their_next_episode(tmp_path: Path) -> None:
    """Another actor has played episodes meanwhile, and theirs here is long over."""
    cfg = resolve(ray_config(tmp_path, actors="ray:1", seeds=[0], random_steps=100))
    actor, unit = Actor(to_dict(cfg)), ((0, 0),)
    policy = packed_policy(helpers.snapshot_for(helpers.make_spec(3, 1), 1), "mlp")
    first = actor.act(([unit], {unit: [(-1, 0)]}, {0: (0, 2)}, 1), policy)
    back = actor.act(([unit], {unit: [(7, 3)]}, {0: (50, 2)}, 1), policy)
    gone = actor.act(([], {}, {}, 1), policy)
    assert first["blocks"][0]["origins"][:, :3].tolist() == [[0, 0, 0], [0, 0, 1]]
    assert back["blocks"][0]["origins"][:, :3].tolist() == [[0, 8, 0], [0, 8, 1]]
    assert back["counters"] == {unit: [(8, 3)]} and gone["counters"] == {} == actor.units


def poll_until(collector: RayCollector, true: Callable[[], bool], found: list[Rollout] | None = None) -> None:
    until = time.monotonic() + 60
    while not true():
        assert time.monotonic() < until, "it never happened"
        rollouts = collector.poll().rollouts
        if found is not None:
            found += rollouts


def when_at(step: int, act: Callable[[RayCollector], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Does something to a run as soon as its first member has so many transitions."""
    poll, done = RayCollector.poll, list[RayCollector]()

    def watched(self: RayCollector) -> Any:
        if self.inbox.taken[0] >= step and not done:
            done.append(self)
            act(self)
        return poll(self)

    monkeypatch.setattr(RayCollector, "poll", watched)


def slow_run(root: Path, **changes: Any) -> Config:
    """A run that is long enough for something to happen to it."""
    steps: dict[str, Any] = {"total_steps": 900, "random_steps": 700, "updates_per_step": 0.1, "max_ahead": 32}
    return ray_config(root, **merge_dicts({**steps, "eval": {"every_steps": 10**9}}, changes))


@pytest.mark.parametrize(
    ("kind", "words"),
    [(signal.SIGKILL, "died"), pytest.param(signal.SIGSTOP, "no sign of life for", marks=pytest.mark.slow)],
)
def test_an_actor_that_dies_or_hangs_is_replaced(
    kind: signal.Signals, words: str, tmp_path: Path, memories: list[Memory], monkeypatch: pytest.MonkeyPatch
) -> None:
    when_at(100, lambda collector: os.kill(collector.slots[0].pid, kind), monkeypatch)
    cfg = slow_run(tmp_path, world="Slow", env={"hang_seconds": 1.5, "num_envs": 2})
    events = list(train(cfg))
    assert of_kind(events, End)[0].reason == "finished"
    news = of_kind(events, ActorEvent)
    assert [(event.what, event.actor) for event in news] == [("lost", 0), ("back", 0)]
    assert words in news[0].text
    check_rows(memories[-1], cfg, crashes=8)  # two environments lost, and some moved twice
    assert of_kind(events, ActingEvent)[-1].restarts == 1


def test_an_environment_that_keeps_failing_ends_the_run_with_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "FIRST_BACK_OFF", 0.01)
    monkeypatch.setattr(supervisor, "MAX_FAULTS", 1)
    seen: list[Event] = []
    with pytest.raises(NobodyLeft, match=r"no actor is left to collect; the last one: .*RuntimeError: old age"):
        for event in train(ray_config(tmp_path, "Mortal", seeds=[0], actors="ray:1", total_steps=1000)):
            seen.append(event)
    assert seen[-1].step == 60, "two lives of thirty steps, of which not one is lost"
    assert [event.what for event in of_kind(seen, ActorEvent)] == ["lost", "back", "lost", "given-up"]


def test_a_node_that_joins_later_with_another_version_is_named_once(tmp_path: Path) -> None:
    with closing(collector_for(ray_config(tmp_path))) as collector:
        poll_until(collector, lambda: all(slot.runs for slot in collector.slots))
        collector.inbox.take()
        other = Started("elsewhere", 1, "a new node", installed_versions().replace("T3D", "T3D 0.0.1, not"))
        for slot in collector.slots:
            collector._on_started(slot, other)
        (news,) = collector.inbox.take().news
        assert news.what == "warning" and "node elsewhere runs" in news.text and "T3D 0.0.1" in news.text


@pytest.mark.usefixtures("second_node")
def test_actors_are_spread_over_nodes_that_have_room_for_all(tmp_path: Path) -> None:
    with closing(collector_for(ray_config(tmp_path, ray_cpus=0.1))) as collector:
        poll_until(collector, lambda: all(slot.runs for slot in collector.slots))
        assert len({slot.node for slot in collector.slots}) == 2


@pytest.fixture
def second_node() -> Iterator[Any]:
    """A node with as many CPUs as the first; it may be killed."""
    node = add_node()
    yield node
    if node in nodes().worker_nodes:
        nodes().remove_node(node)


def add_node() -> Any:
    return nodes().add_node(num_cpus=HEAD_CPUS, object_store_memory=STORE_BYTES, node_ip_address=LOOPBACK)


@pytest.mark.slow
def test_a_run_survives_the_death_of_a_node(
    second_node: Any, tmp_path: Path, memories: list[Memory], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each node has room for one actor; the one that is left acts for both."""
    when_at(100, lambda _: nodes().remove_node(second_node, allow_graceful=False), monkeypatch)
    cfg = slow_run(tmp_path, world="Slow", ray_cpus=HEAD_CPUS - 0.5, env={"num_envs": 2})
    events = list(train(cfg))
    assert of_kind(events, End)[0].reason == "finished" and of_kind(events, ActingEvent)[-1].actors == 1
    what = {event.what for event in of_kind(events, ActorEvent)}
    assert what == {"lost"}, "perhaps more than once: Ray may start the new actor on the node before it notices"
    check_rows(memories[-1], cfg, crashes=2)


def test_a_node_that_joins_gets_actors_that_wait_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then the one actor that there is room for acts for all; then half of the environments move."""
    monkeypatch.setattr(ray_collector, "JOIN_SECONDS", 0.5)
    nodes()
    cfg = ray_config(tmp_path, ray_cpus=HEAD_CPUS - 0.5, updates_per_step=0.0, total_steps=10**6, env={"num_envs": 2})
    found: list[Rollout] = []
    with closing(collector_for(cfg)) as collector:
        first, second = collector.slots
        poll_until(collector, lambda: {len(first.units), len(second.units)} == {0, 4}, found)
        running = first if first.runs else second
        poll_until(collector, lambda: running.delivered > 100, found)
        node = add_node()
        poll_until(collector, lambda: first.delivered > 100 and second.delivered > 100, found)
        assert [len(first.units), len(second.units)] == [2, 2]
        assert not collector.inbox.news, "joining late is no fault"
    nodes().remove_node(node)
    for member, env in product(range(2), range(2)):
        origins = np.concatenate([one.origins for one in found if one.member == member])
        own = origins[origins[:, 0] == env]
        over = own[:, 3] != GOES_ON
        assert check_order(np.column_stack([own[:, 1:3], np.where(over, own[:, 2] + 1, 10)])) <= 2, (
            "moved twice at most"
        )


def test_a_lost_evaluator_is_replaced_and_its_episodes_are_played_again(tmp_path: Path) -> None:
    cfg = ray_config(tmp_path, "Slow", seeds=[0], eval={"episodes": 8})
    with closing(WorkerLog()) as log:
        evaluator = RayEvaluator(
            cfg, Checkup([], helpers.make_spec(3, 1), False, {}), env_factory(cfg.env), cluster(), log
        )
        with closing(evaluator):
            evaluator.submit(helpers.snapshot_for(helpers.make_spec(3, 1), 1), 100)
            found, notes, until = list[Any](), list[str](), time.monotonic() + 60
            while not found:
                assert time.monotonic() < until
                polled = evaluator.poll(wait=True)
                found, notes = polled.evaluations, notes + polled.notes
                if evaluator.pending and evaluator.pending[0].played[0] and evaluator.slots[0].starts == 1:
                    with suppress(ProcessLookupError):  # it is dead already
                        os.kill(evaluator.slots[0].pid, signal.SIGKILL)
                time.sleep(0.01)
    assert len(found) == 1 and len(found[0].returns) == 8
    assert "an evaluator process was lost: " in notes[0] and "its evaluation is repeated" in notes[0]


def test_a_cluster_of_our_own_gets_an_evaluator_for_each_core_and_another_for_each_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 7.0})
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2})
    cfg = ray_config(tmp_path, seeds=list(range(9)))
    found, make_env = Checkup([], helpers.make_spec(3, 1), False, {}), env_factory(cfg.env)
    with closing(WorkerLog()) as log:
        for address, evaluators in (("", 3), ("10.0.0.1:6379", 7)):
            one = RayEvaluator(merge(cfg, {"ray_address": address}), found, make_env, cluster(), log)
            assert len(one.slots) == evaluators
            one.close()


def test_a_run_moves_from_processes_to_a_cluster_and_back(tmp_path: Path, memories: list[Memory]) -> None:
    cfg = ray_config(tmp_path, total_steps=1500, updates_per_step=0.1, actors="local:2", log={"every_steps": 20})
    stopped_at(cfg, 300)
    stopped_at(merge(cfg, {"actors": "ray:2"}), 800)
    events = list(resume(tmp_path / "a", actors="local:1"))
    assert of_kind(events, End)[0].reason == "finished" and of_kind(events, ActingEvent)[-1].actors == 1
    check_rows(memories[-1], cfg, crashes=8)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_learning_through_crashes(tmp_path: Path) -> None:
    """R10 over Ray, three seeds: two of three actors crash now and then; the return is as without."""
    plain, fragile = "Pendulum-v1", f"{TESTS}/actor_worlds.py:FragilePendulum"
    last: dict[str, list[float]] = {plain: [], fragile: []}
    crashes = 0
    for seed, world in product(range(3), last):
        changes: dict[str, Any] = {"env": {"id": world, "num_envs": 3}, "seeds": [seed], "actors": "ray:3"}
        cfg = merge(parse(["--preset", "quick"]).cfg, {**changes, "ray_cpus": 0.5, "run": {"root": str(tmp_path)}})
        events = list(train(cfg))
        last[world].append(max(event.mean_return for event in of_kind(events, Eval)[-3:]))
        crashes += sum(event.what == "lost" for event in of_kind(events, ActorEvent))
    assert crashes >= 2, "ten are to be expected"
    assert min(last[plain] + last[fragile]) > -250, "all have learned to swing up"
    assert abs(np.mean(last[fragile]) - np.mean(last[plain])) < 100, "and equally well"
