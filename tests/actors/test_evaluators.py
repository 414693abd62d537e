"""Evaluation in processes: beside training, through crashes, and from a checkpoint."""

from __future__ import annotations

import os
import re
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import helpers
from actor_helpers import LOG, actor_config, of_kind
from helpers import snapshot_for
from t3d.actors import evaluators
from t3d.actors import supervisor as workers
from t3d.actors.evaluators import ProcessEvaluator
from t3d.actors.inline import InlineEvaluator
from t3d.config import EnvConfig, merge
from t3d.errors import NobodyLeft
from t3d.events import End, Eval, Note
from t3d.process import lower_priority
from t3d.run.live import train
from t3d.run.parts import Counters, restore_evaluations
from t3d.store.checkpoint import newest
from t3d.types import Evaluation, Requests, State
from t3d.world.make import env_factory

SPEC, NETWORK = helpers.make_spec(3, 1), helpers.mlp(3, 16, 16, 1)  # of 353 parameters


def evaluator_of(world: str, **changes: Any) -> ProcessEvaluator:
    base: dict[str, Any] = {"env": {"id": f"actor_worlds:{world}"}, "actors": "local:1"}
    cfg = merge(helpers.small_config(**base), changes)
    return ProcessEvaluator(cfg, env_factory(cfg.env), LOG)


def everything(evaluator: ProcessEvaluator, count: int, seconds: float = 60) -> list[Evaluation]:
    ready: list[Evaluation] = []
    deadline = time.monotonic() + seconds
    while len(ready) < count and time.monotonic() < deadline:
        ready += evaluator.poll().evaluations
        time.sleep(0.01)
    return ready


def test_the_members_of_a_hopeless_evaluator_are_played_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are asked for its members only, not for their own a second time."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    evaluator = evaluator_of("Slow", seeds=[0, 1, 2, 3], eval={"episodes": 3})
    heard: list[tuple[int, int]] = []
    store = evaluator._store

    def heard_and_stored(slot: Any, question: Any, results: list[Any]) -> None:
        heard.append((question[1], len(results)))
        store(slot, question, results)

    monkeypatch.setattr(evaluator, "_store", heard_and_stored)
    try:
        evaluator.submit(snapshot_for(SPEC, 4), 100)
        given_up, successor = evaluator.slots
        assert (given_up.members, successor.members) == ([0, 2], [1, 3])
        evaluator.poll()
        given_up.faults_in_a_row = workers.MAX_FAULTS
        assert given_up.worker is not None
        given_up.worker.process.kill()
        results = everything(evaluator, 4)
        assert evaluator.slots == [successor] and successor.members == [1, 3, 0, 2]
        assert [one.member for one in results] == [0, 1, 2, 3]
        for member in range(4):
            assert sum(count for who, count in heard if who == member) == 3, "each episode once"
    finally:
        evaluator.close()


def test_a_program_that_reads_its_stdin_does_not_take_requests() -> None:
    evaluator = evaluator_of("ReadsStdin", seeds=[0])
    try:
        evaluator.submit(snapshot_for(SPEC, 1), 100)
        assert len(everything(evaluator, 1)) == 1
        evaluator.submit(snapshot_for(SPEC, 1), 200)
        time.sleep(0.02)
        evaluator.submit(snapshot_for(SPEC, 1), 300)  # lies there while the one before is played
        assert [one.step for one in everything(evaluator, 2, seconds=15)] == [200, 300]
    finally:
        evaluator.close()


def test_asking_for_very_many_episodes_does_not_hold_training_up() -> None:
    evaluator = evaluator_of("Slow", seeds=[0, 1, 2, 3], eval={"episodes": 100_000})
    try:
        evaluator.submit(snapshot_for(SPEC, 4), 100)
        evaluator.poll()
        begun = time.monotonic()
        evaluator.submit(snapshot_for(SPEC, 4), 200)
        assert time.monotonic() - begun < 20, "though nobody reads: they play"
    finally:
        evaluator.close()


def test_stepping_back_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux lets one session at a time change its weight, unless one is root."""
    answers: list[OSError | None] = [BlockingIOError(), BlockingIOError(), None]

    def write_text(*_: Any, **__: Any) -> None:
        answer = answers.pop(0)
        if answer is not None:
            raise answer

    monkeypatch.setattr(os, "nice", lambda _: 0)
    monkeypatch.setattr(Path, "write_text", write_text)
    lower_priority(5)
    assert answers == []
    answers += [PermissionError(), None]
    lower_priority(5)
    assert answers == [None], "where it is not allowed, that is that"


def test_evaluation_in_processes_is_evaluation_inline() -> None:
    cfg = helpers.small_config(seeds=[0, 4, 7], eval={"episodes": 3}, actors="local:1")
    make_env = env_factory(EnvConfig("Pendulum-v1"))
    inline = InlineEvaluator(cfg, make_env, Requests(threading.Event(), threading.Event()))
    spec = inline.member_evaluators[0].env_batches[0].spec
    apart = ProcessEvaluator(cfg, make_env, LOG)
    try:
        one, other = snapshot_for(spec, 3), snapshot_for(spec, 3)._replace(updates=5)
        other.flat[:] *= -1
        for evaluator in (inline, apart):
            assert evaluator.submit(one, 100) and evaluator.submit(other, 200)
        assert inline.has_room() and not apart.has_room(), "two are under way: a third has to wait"
        results, until = list[Any](), time.monotonic() + 60
        while len(results) < 6 and time.monotonic() < until:
            results += apart.poll().evaluations
            time.sleep(0.01)
        for ours, theirs in zip(results, inline.poll().evaluations, strict=True):
            assert (ours.step, ours.member, ours.snapshot.updates) == (
                theirs.step,
                theirs.member,
                theirs.snapshot.updates,
            )
            assert ours.episodes == theirs.episodes
    finally:
        inline.close()
        apart.close()


@pytest.mark.parametrize(("cores", "processes"), [(1, 1), (2, 2), (16, 3)])
def test_as_many_evaluators_as_seeds_and_cores(monkeypatch: pytest.MonkeyPatch, cores: int, processes: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    evaluator = ProcessEvaluator(helpers.small_config(seeds=[0, 1, 2]), env_factory(EnvConfig("Pendulum-v1")), LOG)
    evaluator.close()
    assert len(evaluator.slots) == processes


def test_evaluation_steps_back_behind_training() -> None:
    """Also where Linux weighs sessions: there a process's niceness alone changes nothing."""
    cfg, make_env = helpers.small_config(seeds=[0], actors="local:1"), env_factory(EnvConfig("Pendulum-v1"))
    evaluator = ProcessEvaluator(cfg, make_env, LOG)
    try:
        evaluator.submit(snapshot_for(SPEC, 1), 0)
        while not evaluator.poll().evaluations:
            time.sleep(0.01)
        worker = evaluator.slots[0].worker
        assert worker is not None and psutil.Process(worker.process.pid).nice() == min(19, os.nice(0) + 5)
        of_session = Path(f"/proc/{worker.process.pid}/autogroup")
        assert not of_session.exists() or of_session.read_text().endswith("nice 5\n")
    finally:
        evaluator.close()


def test_training_that_waits_for_evaluations_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(evaluators, "REPORTED_WAIT", 0.5)
    cfg = actor_config(tmp_path, "Slow", seeds=[0], total_steps=200, eval={"every_steps": 40, "episodes": 10})
    notes = [event.text for event in of_kind(list(train(cfg)), Note)]
    assert len([text for text in notes if "training has waited" in text]) == 1, notes


def test_no_evaluation_is_left_out_while_actors_warm_up(tmp_path: Path) -> None:
    """Acting at random is much faster than evaluating: it has to wait, too."""
    changes: dict[str, Any] = {"random_steps": 6000, "eval": {"every_steps": 2000, "episodes": 8}}
    events = list(train(actor_config(tmp_path, "SlowExam", seeds=[0], total_steps=6500, **changes)))
    assert [event.step // 2000 for event in of_kind(events, Eval)] == [0, 1, 2, 3, 3]


def test_training_goes_on_while_a_policy_is_evaluated(tmp_path: Path) -> None:
    """Evaluations that take a second each, every 100 steps; each event carries the step of its snapshot."""
    cfg = actor_config(tmp_path, "Slow", seeds=[0], total_steps=200, eval={"every_steps": 100, "episodes": 15})
    events = list(train(cfg))
    evals = of_kind(events, Eval)
    assert [event.step // 100 for event in evals] == [0, 1, 2], "none is left out"
    assert all(event.updates == max(0, event.step - 100) for event in evals), "the policy of its step"
    place = {event.step: events.index(event) for event in evals}
    later = [event.step for event in events[: place[evals[1].step]]]
    assert max(later) > evals[1].step, "more had happened by then"


def test_an_evaluation_is_made_again_after_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT", "once")
    monkeypatch.setenv("FAULT_FILE", str(tmp_path / "fault"))
    events = list(train(actor_config(tmp_path, "Examined", eval={"every_steps": 150})))
    assert (tmp_path / "fault").exists() and len(of_kind(events, Eval)) == 6
    assert "examination nerves" in of_kind(events, Note)[-1].text


def test_an_evaluation_that_always_fails_saves_and_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULT", "always")
    monkeypatch.setattr(workers, "FIRST_BACK_OFF", 0.01)
    with pytest.raises(NobodyLeft, match=r"evaluation keeps failing: .*RuntimeError: examination nerves"):
        cfg = actor_config(tmp_path, "Examined", seeds=[0], actors="local:1", total_steps=100_000, random_steps=50_000)
        list(train(cfg))
    assert newest(tmp_path / "a" / "checkpoints")[0] is not None


def test_an_evaluation_that_crashes_now_and_then_is_finished_bit_by_bit(tmp_path: Path) -> None:
    cfg = actor_config(tmp_path, "Fragile", seeds=[0], eval={"every_steps": 300, "episodes": 12})
    events = list(train(cfg))
    assert of_kind(events, End)[0].reason == "finished"
    assert [(event.step, len(event.returns)) for event in of_kind(events, Eval)] == [(0, 12), (300, 12)]
    assert len([event for event in of_kind(events, Note) if "SIGSEGV" in event.text]) >= 4
    inline = list(train(merge(cfg, {"actors": "inline", "run": {"name": "inline"}})))
    assert of_kind(events, Eval)[0].returns == of_kind(inline, Eval)[0].returns, "each episode once, in its place"


# From a checkpoint


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ({"flat": np.zeros((1, 1), np.float32)}, "flat of a policy is not float32 (1, 353)"),
        ({"flat": np.zeros(337, np.float32)}, "flat of a policy is not float32 (1, 353)"),
        ({"flat": np.zeros((1, 353), np.int8)}, "flat of a policy is not float32 (1, 353)"),
        ({"flat": np.full((1, 353), np.nan, np.float32)}, "not finite"),
        ({"step": 10**15}, "contradict each other"),
        ({"step": -1}, "is not a count"),
        ({"step": 100}, "contradict each other"),
        (
            {"mean": np.zeros((2, 3), np.float32), "std": np.zeros((2, 3), np.float32)},
            "mean of a policy is not float32 (1, 3)",
        ),
    ],
)
def test_evaluations_of_a_hostile_checkpoint_are_refused(tmp_path: Path, broken: State, words: str) -> None:
    cfg = actor_config(tmp_path, seeds=[0])
    evaluator = ProcessEvaluator(cfg, env_factory(cfg.env), LOG)
    try:
        counters = Counters(step=250, evaluated=0, submitted=200)
        sound = {"step": 200, "updates": 100, "flat": np.zeros((1, 353), np.float32)}
        with pytest.raises(ValueError, match=re.escape(words)):
            restore_evaluations(counters, evaluator, {"0": {**sound, **broken}}, NETWORK)
        with pytest.raises(ValueError, match="3 evaluations are under way"):
            evaluator.restore({str(number): sound for number in range(3)}, NETWORK)
    finally:
        evaluator.close()


@pytest.mark.parametrize(("evaluated", "submitted"), [(0, 200), (0, 10**12), (300, 300)])
def test_evaluations_that_nobody_would_make_are_refused(evaluated: int, submitted: int) -> None:
    """Else the run would wait for them for ever."""
    counters = Counters(step=250, evaluated=evaluated, submitted=submitted)
    inline = InlineEvaluator(
        helpers.small_config(), env_factory(EnvConfig("Pendulum-v1")), Requests(threading.Event(), threading.Event())
    )
    with pytest.raises(ValueError, match="contradict each other"):
        restore_evaluations(counters, inline, {}, NETWORK)
    with pytest.raises(ValueError, match="which a run in one process never has"):
        inline.restore({"0": {}}, NETWORK)
