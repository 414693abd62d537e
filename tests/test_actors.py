"""Actor processes: the same transitions as in one process, none torn or lost, and faults that do not end a run."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import actor_worlds
import helpers
from t3d.actors import supervisor as workers
from t3d.actors.checkup_worker import Checkup
from t3d.actors.governor import Governor
from t3d.actors.local import LocalCollector
from t3d.actors.shared_memory import Channel, Policies, Ring, SharedState, Torn
from t3d.actors.worker_log import WorkerLog
from t3d.config import Config, merge
from t3d.data.memory import Memory
from t3d.errors import NobodyLeft, UserError
from t3d.events import ActingEvent, ActorEvent, BadValueMet, End, EpisodeEnd, Eval, Event, Resumed, from_line
from t3d.run.loop import resume, train
from t3d.seeds import derive
from t3d.snapshots import PolicySnapshot, Scaling, parameter_count
from t3d.types import Rollout
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


@pytest.fixture
def memories(monkeypatch: pytest.MonkeyPatch) -> list[Memory]:
    """Fills with the memories that runs make."""
    return helpers.caught(monkeypatch, Memory)


def of_kind(events: list[Event], kind: Any) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


# Equal to one process


@pytest.mark.parametrize(("env_id", "actors"), [("Pendulum-v1", 1), ("HalfCheetah-v5", 2)])
def test_actors_that_take_turns_with_the_learner_are_one_process_to_the_last_bit(
    tmp_path: Path, memories: list[Memory], env_id: str, actors: int
) -> None:
    """Warm-up, noise, seeds, policies, order and evaluation are those of inline collecting."""
    cfg = helpers.small_config(
        seeds=[0, 5], env={"id": env_id}, eval={"max_steps": 100, "every_steps": 200}, run={"root": str(tmp_path)}
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


# Rings and boards


@given(st.lists(st.integers(0, 5), max_size=60), st.integers(5, 12))
@settings(max_examples=200, deadline=None)
def test_a_ring_is_a_queue(sizes: list[int], capacity: int) -> None:
    ring, sent, received = Ring(2, capacity), [], []
    for number, size in enumerate(sizes):
        if ring.room < size or number % 3 == 2:
            rows, about = ring.receive()
            received += [(*row, *tag.item()[1:]) for row, tag in zip(rows.tolist(), about, strict=True)]
        if ring.room >= size:
            block = [(float(number), float(row)) for row in range(size)]
            ring.send(np.array(block, np.float32).reshape(-1, 2), member=number % 4, updates=number)
            sent += [(*row, number, number % 4) for row in block]
        assert ring.room + ring.waiting == capacity
    rows, about = ring.receive()
    received += [(*row, *tag.item()[1:]) for row, tag in zip(rows.tolist(), about, strict=True)]
    assert received == sent
    ring.close()


def test_a_row_that_does_not_belong_is_seen() -> None:
    ring = Ring(2, 8)
    ring.send(np.zeros((3, 2), np.float32), 0, 0)
    ring.arrays["about"]["sequence"][1] = 77
    with pytest.raises(Torn, match="rows 0 to 2"):
        ring.receive()
    ring.close()


READER = """
import sys, numpy as np
from t3d.actors.shared_memory import Policies, SharedState
state_fd, policies_fd = map(int, sys.argv[1:])
state = SharedState(Policies(3, (4, 300, 2), 2, policies_fd), 3, 1, 1, state_fd)
seen = set()
while (limit := state.limit) < 10**9:
    one = state.newest(1)
    values = {value for part in (one.flat, *one.scaling) for value in np.unique(part).tolist()}
    assert values == {float(one.updates)}, f"torn: {values} in policy {one.updates}"
    assert one.updates >= limit, f"policy {one.updates} is older than the limit {limit} that goes with it"
    seen.add(one.updates)
print(len(seen))
"""


def test_a_policy_is_never_read_half_written() -> None:
    """The learner publishes as fast as it can, another process reads as fast as it can."""
    sizes = (4, 300, 2)
    policies = Policies(3, sizes, 2)
    shared_state = SharedState(policies, 3, 1, 1)

    def snapshot(number: int) -> PolicySnapshot:
        scaling = np.full((3, 4), number, np.float32)
        return PolicySnapshot(
            number, sizes, np.full((3, parameter_count(sizes)), number, np.float32), Scaling(scaling, scaling)
        )

    shared_state.publish(snapshot(1), 1)
    command = [sys.executable, "-c", READER, str(shared_state.fd), str(policies.fd)]
    with subprocess.Popen(
        command, pass_fds=[shared_state.fd, policies.fd], stdout=subprocess.PIPE, text=True
    ) as reader:
        number, until = 1, time.monotonic() + 2
        while time.monotonic() < until:
            number += 1
            shared_state.publish(snapshot(number), number)
        shared_state.publish(snapshot(number + 1), 10**9)
        out, _ = reader.communicate(timeout=20)
    assert reader.returncode == 0 and int(out) > 100, "so many policies were read, each whole"


def test_messages_come_whole_and_in_order() -> None:
    ours, theirs = socket.socketpair()
    channel, other = Channel(ours), Channel(theirs)
    assert channel.receive() == []
    for number in range(100):
        other.send(number=number, text="x" * 300)
    assert [message["number"] for message in channel.receive()] == list(range(100))
    theirs.sendall(b'{"half": ')
    assert channel.receive() == []
    theirs.sendall(b"1}\n")
    assert channel.receive() == [{"half": 1}]
    other.send(last="words")
    channel.send(never="read")
    other.close()
    assert channel.receive() == [{"last": "words"}], "all that was said before the end, and no error"
    channel.close()


# The governor


@given(st.sampled_from([0.01, 0.1, 0.29, 0.5, 1.0, 2.0, 7.5]), st.integers(1, 500), st.integers(0, 300))
@settings(max_examples=300)
def test_neither_side_waits_for_ever_and_neither_runs_away(ratio: float, max_ahead: int, updates: int) -> None:
    total = 10**9
    td3 = {"random_steps": 100, "updates_per_step": ratio}
    governor = Governor(merge(Config(), {"total_steps": total, "max_ahead": max_ahead, "td3": td3}))
    limit = governor.limit(updates)
    assert governor.due([limit], updates) > 0, "actors at their limit leave the learner something to do"
    assert governor.due([limit - max_ahead], updates) == 0, "and are no more than max_ahead beyond what it needs"
    assert governor.limit(updates + 1) >= limit


def test_without_updates_actors_may_go_to_the_end() -> None:
    cfg = merge(Config(), {"td3": {"updates_per_step": 0.0}})
    assert Governor(cfg).limit(0) == cfg.total_steps


@pytest.mark.parametrize("max_ahead", [1, 20])
def test_actors_stay_within_max_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_ahead: int) -> None:
    """However slow the learner is; one step of each of a member's environments may come on top."""
    ahead, poll = [], LocalCollector.poll

    def slow_poll(self: LocalCollector) -> list[Rollout]:
        time.sleep(0.01)
        rollouts = poll(self)
        ahead.append(max(self.taken) - self.governor.limit(self.updates))
        return rollouts

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
    assert len(acting) >= 3 and acting[-1].learner_waited > 0.5 > acting[-1].actors_waited
    assert all(0 <= event.ring_fill <= 1 and event.age_median <= event.age_p99 for event in acting)
    assert all(event.actors == 2 and event.restarts == 0 for event in acting)


# Every transition


def seeds_of(cfg: Config, episodes: int) -> dict[int, tuple[int, int, int]]:
    """Which member, environment and episode a seed stands for."""
    places: dict[int, tuple[int, int, int]] = {}
    for member, seed in enumerate(cfg.seeds):
        for env in range(cfg.env.num_envs):
            for episode in range(episodes):
                places[derive(seed, "environment", env, episode)] = (member, env, episode)
    assert len(places) == len(cfg.seeds) * cfg.env.num_envs * episodes, "each stands for one"
    return places


def check_rows(memory: Memory, cfg: Config, *, crashes: int = 0) -> None:
    """Every stored transition is one that happened, once, in order; episodes are cut short only by crashes."""
    assert memory.added == [cfg.total_steps] * len(cfg.seeds)
    spread, cut = getattr(actor_worlds, cfg.env.id.partition(":")[2]).spread, 0
    places = seeds_of(cfg, int(1.1 * cfg.total_steps / (2 + spread / 2)) + 50)  # if one took nearly all the steps
    for member in range(len(cfg.seeds)):
        rows = memory.replay.read(member, 0, cfg.total_steps)
        s, a, r, terminated, s2 = np.split(rows, np.cumsum(memory.replay.columns)[:-1], axis=1)
        seeds = s[:, 0].astype(np.int64) * 2**16 + s[:, 1].astype(np.int64)
        t, length = s[:, 2], 3 + seeds % spread
        assert np.array_equal(s2, np.stack([s[:, 0], s[:, 1], t + 1], 1)), "the true next state, also at the end"
        assert np.array_equal(terminated[:, 0], (t + 1 == length) & (seeds % 2 == 0)), "truncation is not it"
        assert np.array_equal(r[:, 0], (seeds % 1000 + t + 1).astype(np.float32))
        assert np.abs(a).max() <= 1
        where = np.array([places[seed] for seed in seeds.tolist()])  # (rows, 3): member, environment, episode
        assert (where[:, 0] == member).all(), "each to its own member"
        for env in range(cfg.env.num_envs):
            cut += check_order(np.column_stack([where[:, 2], t, length])[where[:, 1] == env])
    assert cut <= crashes, "nothing is lost but what was in flight in a crash"


def check_order(own: NDArray[Any]) -> int:
    """One environment's (episode, t, length), in the order stored; how many episodes were cut short."""
    cut = 0
    for (episode, t, length), (next_episode, next_t, _) in pairwise(own):
        goes_on = (next_episode, next_t) == (episode, t + 1)
        begins = next_episode > episode and next_t == 0
        assert goes_on or begins, "in the order it happened, nothing twice, nothing left out"
        cut += begins and not (t + 1 == length and next_episode == episode + 1)
    return cut


def collect_told(tmp_path: Path, memories: list[Memory], rows: int, world: str) -> None:
    td3 = {"updates_per_step": 0.01, "random_steps": rows // 4}
    changes: dict[str, Any] = {"actors": "local:3", "env": {"num_envs": 3}, "td3": td3, "total_steps": rows // 2}
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


# Faults

DEATHS = ["step exception", "reset exception", "make exception", "SIGKILL", "exit", "hard exit", "segfault"]
HANGS = ["SIGSTOP", "step sleep", "reset sleep"]


def goes_through(
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    memories: list[Memory],
    hang: float,
    dead: float,
) -> None:
    """R9: the fault is seen in time, the actor is restarted, and every transition is true."""
    monkeypatch.setenv("FAULT", kind)
    monkeypatch.setenv("FAULT_FILE", str(tmp_path / "fault"))
    cfg = actor_config(tmp_path, "Faulty", env={"hang_seconds": hang}, total_steps=600, td3={"updates_per_step": 0.1})
    events = list(train(cfg))
    assert of_kind(events, End)[0].reason == "finished"
    check_rows(memories[-1], cfg, crashes=1)
    if kind == "slow start":
        assert not of_kind(events, ActorEvent), "a slow start is no fault"
        return
    lost, back = of_kind(events, ActorEvent)
    assert (lost.what, back.what, lost.actor) == ("lost", "back", back.actor)
    seen_after = lost.time - (tmp_path / "fault").stat().st_mtime
    assert seen_after < (hang + 2 if kind in HANGS else dead)
    expected = {
        "exception": "lost its mind",
        "SIGKILL": "SIGKILL",
        "hard exit": "exit code 3",
        "exit": "called sys.exit(0)",
        "segfault": "SIGSEGV",
    }
    words = next((words for end, words in expected.items() if kind.endswith(end)), "no sign of life")
    assert words in lost.text
    assert of_kind(events, ActingEvent)[-1].restarts == 1


@pytest.mark.parametrize("kind", ["step exception", "SIGKILL", "SIGSTOP"])
def test_a_fault_is_seen_and_the_actor_begun_anew(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memories: list[Memory]
) -> None:
    goes_through(kind, tmp_path, monkeypatch, memories, hang=1.5, dead=3.0)  # beside other tests


@pytest.mark.slow
@pytest.mark.parametrize("trial", range(5))
@pytest.mark.parametrize("kind", [*DEATHS, *HANGS, "slow start"])
def test_every_fault_is_seen_in_time(
    kind: str, trial: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memories: list[Memory]
) -> None:
    """R9 in full: eleven kinds, five times each, with the default patience for hangs: eight seconds of ten."""
    goes_through(kind, tmp_path, monkeypatch, memories, hang=8.0, dead=1.0)


def test_environments_of_a_hopeless_actor_move_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memories: list[Memory]
) -> None:
    monkeypatch.setattr(workers, "FIRST_BACK_OFF", 0.01)
    cfg = actor_config(tmp_path, "Lonely", total_steps=400, td3={"updates_per_step": 0.1}, eval={"every_steps": 10**9})
    events = list(train(cfg))
    assert of_kind(events, End)[0].reason == "finished"
    news = of_kind(events, ActorEvent)
    assert [event.what for event in news] == ["lost", "back"] * 5 + ["lost", "given-up"]
    assert {event.actor for event in news} == {0}
    check_rows(memories[-1], cfg, crashes=6)  # of both members, though one actor has never taken a step
    assert of_kind(events, ActingEvent)[-1].actors == 1


def test_when_no_actor_is_left_the_run_saves_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "FIRST_BACK_OFF", 0.01)
    cfg = actor_config(tmp_path, "Mortal", seeds=[0], actors="local:1", total_steps=1000)
    seen: list[Event] = []
    with pytest.raises(NobodyLeft, match=r"no actor is left to collect; the last one: .*RuntimeError: old age"):
        for event in train(cfg):
            seen.append(event)
    assert seen[-1].step >= 150, "six lives of thirty steps"
    assert [event.what for event in of_kind(seen, ActorEvent)] == ["lost", "back"] * 5 + ["lost", "given-up"]
    again = list(resume(tmp_path / "a", make_env=actor_worlds.Told))
    assert of_kind(again, Resumed)[0].step >= 180 and of_kind(again, End)[0].reason == "finished"


@pytest.mark.parametrize("handling", ["raise", "skip"])
def test_a_bad_value_is_no_fault_of_the_actor(tmp_path: Path, handling: str) -> None:
    cfg = actor_config(tmp_path, "Bad", seeds=[3], actors="local:1", env={"bad_values": handling}, eval={"episodes": 1})
    events: list[Event] = []
    if handling == "skip":
        events = list(train(cfg))
        assert of_kind(events, End)[0].reason == "finished"
    else:
        with pytest.raises(UserError, match="environment 0 of seed 3, episode 4, step 2: reward is nan"):
            events.extend(train(cfg))
        events = [from_line(line) for line in (tmp_path / "a" / "events.jsonl").read_text().splitlines()]
    met = of_kind(events, BadValueMet)[0]
    assert (met.member, met.env, met.episode, met.episode_step, met.field) == (0, 0, 4, 2, "reward")
    assert not of_kind(events, ActorEvent)


# One collector, held in the hand


def collector_of(world: str, **changes: Any) -> LocalCollector:
    base: dict[str, Any] = {"env": {"id": f"actor_worlds:{world}"}, "actors": "local:1", "seeds": [0]}
    collector = unstarted(helpers.small_config(**merge_dicts(base, changes)))
    publish_zeros(collector)
    return collector


def unstarted(cfg: Config) -> LocalCollector:
    """A collector for one of these worlds, of whom the spec is known."""
    found = Checkup([], helpers.make_spec(3, 1), vector=False)
    return LocalCollector(cfg, env_factory(cfg.env.id), found, LOG)


def publish_zeros(collector: LocalCollector) -> None:
    """The first policy starts the actors."""
    sizes, members = collector.policies.sizes, len(collector.cfg.seeds)
    collector.publish(PolicySnapshot(0, sizes, np.zeros((members, parameter_count(sizes)), np.float32)), 0)


def until(collector: LocalCollector, true: Callable[[LocalCollector], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true(collector):
        assert time.monotonic() < deadline, "it never happened"
        collector.supervise()
        time.sleep(0.005)


def test_what_a_dead_actor_had_sent_is_kept() -> None:
    collector = collector_of("Told", total_steps=10_000, td3={"random_steps": 200})
    try:
        until(collector, lambda one: one._waiting() == 296)  # as far as it may go: 200 random steps and max_ahead
        slot = collector.slots[0]
        assert slot.worker is not None
        collector.shared_state.taken[0, 0] -= 3  # as if it had died before it could count its last rows
        slot.worker.process.kill()
        until(collector, lambda one: bool(one._news))
        assert slot.worker is None and collector.shared_state.taken[0, 0] == 296
        assert sum(len(rollout.r) for rollout in collector.poll()) == 296
        until(collector, lambda one: one.slots[0].worker is not None)
        collector.publish(collector.policies.get(1), 0)
        assert sum(len(rollout.r) for rollout in collector.poll()) == 0, "the limit counts what the dead one took"
    finally:
        collector.close()


def test_a_full_ring_holds_an_actor_back() -> None:
    """The warm-up is longer than the ring, and the learner takes nothing."""
    steps = 5000
    collector = collector_of("Told", total_steps=2 * steps, td3={"random_steps": steps})
    try:
        ring = collector.slots[0].transitions
        assert ring is not None and ring.capacity < steps
        until(collector, lambda one: one._waiting() == ring.capacity)
        time.sleep(0.3)
        collector.supervise()
        assert ring.waiting == ring.capacity
        rows = [np.column_stack([rollout.s, rollout.s2]) for rollout in collector.poll()]
        assert collector.figures().ring_fill == 1.0, "that it was full is told"
        while sum(map(len, rows)) < steps:
            rows += [np.column_stack([rollout.s, rollout.s2]) for rollout in collector.poll()]
        told = np.concatenate(rows)
        goes_on = (told[1:, :3] == told[:-1, 3:]).all(axis=1)
        begins = told[1:, 2] == 0
        assert (goes_on | begins).all() and not collector.news()
    finally:
        collector.close()


def test_slow_resets_one_after_the_other_are_no_hang(tmp_path: Path) -> None:
    """Five resets of 0.4 s in one process: each is far from a second, all together are not."""
    cfg = actor_config(tmp_path, "SlowReset", seeds=[0], actors="local:1", env={"num_envs": 5, "hang_seconds": 1.0})
    events = list(train(merge(cfg, {"total_steps": 150, "eval": {"every_steps": 10**9}})))
    assert of_kind(events, End)[0].reason == "finished" and not of_kind(events, ActorEvent)


def test_a_bad_value_ends_a_run_that_has_much_to_learn(tmp_path: Path) -> None:
    """The actor stops there, and so does the run, though there are always transitions to take."""
    cfg = actor_config(tmp_path, "LateBad", actors="local:2", total_steps=100_000, eval={"every_steps": 10**9})
    seen: list[Event] = []
    with pytest.raises(UserError, match=r"environment 0 of seed \d, episode \d+, step \d+: reward is nan"):
        for event in train(cfg):
            seen.append(event)
    assert max(event.step for event in seen) < 1500, "300 steps of each environment were sound"
    assert not of_kind(seen, ActorEvent)


def test_a_vector_environment_is_stepped_by_one_actor(tmp_path: Path, memories: list[Memory]) -> None:
    events = list(train(actor_config(tmp_path, "make_vector", env={"num_envs": 3}, eval={"every_steps": 300})))
    assert of_kind(events, End)[0].reason == "finished" and of_kind(events, ActingEvent)[-1].actors == 2
    for member in (0, 1):
        s, s2 = np.split(memories[-1].replay.read(member, 0, 300)[:, [0, 1, 2, -3, -2, -1]], 2, axis=1)
        assert np.array_equal(s2[:, 2], s[:, 2] + 1) and np.array_equal(s2[:, :2], s[:, :2])
        assert len({(high, low) for high, low in s[:3, :2]}) == 3, "three environments, each with a seed of its own"
