"""R9: faults of actors are seen in time, and do not end a run."""

from __future__ import annotations

from pathlib import Path

import pytest

import actor_worlds
from actor_helpers import actor_config, check_rows, collector_of, of_kind, until
from run_folders import events_of
from t3d.actors import supervisor as workers
from t3d.config import merge
from t3d.data.memory import Memory
from t3d.errors import NobodyLeft, UserError
from t3d.events import ActingEvent, ActorEvent, BadValueFound, End, Event, Resumed
from t3d.run.live import resume, train

pytestmark = pytest.mark.system

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
    cfg = actor_config(tmp_path, "Faulty", env={"hang_seconds": hang}, total_steps=600, updates_per_step=0.1)
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
    cfg = actor_config(tmp_path, "Lonely", total_steps=400, updates_per_step=0.1, eval={"every_steps": 10**9})
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
        events = events_of(tmp_path / "a")
    met = of_kind(events, BadValueFound)[0]
    assert (met.member, met.env, met.episode, met.episode_step, met.field) == (0, 0, 4, 2, "reward")
    assert not of_kind(events, ActorEvent)


def test_what_a_dead_actor_had_sent_is_kept() -> None:
    collector = collector_of("Told", total_steps=10_000, random_steps=200)
    try:
        until(collector, lambda one: one._waiting() == 296)  # as far as it may go: 200 random steps and max_ahead
        slot = collector.slots[0]
        assert slot.worker is not None
        collector.shared_state.taken[0, 0] -= 3  # as if it had died before it could count its last rows
        slot.worker.process.kill()
        until(collector, lambda one: bool(one.inbox.news))
        assert slot.worker is None and collector.shared_state.taken[0, 0] == 296
        assert sum(len(rollout.r) for rollout in collector.poll().rollouts) == 296
        until(collector, lambda one: one.slots[0].worker is not None)
        collector.publish(collector.shared_state.policies.get(1), 0)
        assert sum(len(rollout.r) for rollout in collector.poll().rollouts) == 0, (
            "the limit counts what the dead one took"
        )
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
