"""Worker processes and what their parents know of them: the corners that whole runs rarely come to."""

from __future__ import annotations

import os
import platform
import re
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import helpers
from actor_helpers import actor_config, collector_of, of_kind, publish_zeros, unstarted, until
from run_folders import events_of
from t3d.actors import supervisor as workers
from t3d.actors.protocols import ActingTotals
from t3d.errors import UserError
from t3d.events import ActingEvent, BadValueFound, from_line
from t3d.run.live import train
from t3d.run.placement import resolve
from t3d.types import EpisodeResult

# Actors


def test_an_actor_is_heard_while_training_waits_for_something_else() -> None:
    """Or its start would never be over, and its messages could fill the pipe and stop it. Its transitions can wait."""
    collector = collector_of("Told")
    try:
        until(collector, lambda one: one.slots[0].worker is not None and one.slots[0].worker.ready)
        until(collector, lambda one: bool(one.inbox._reports[0][0]))
        assert not collector.inbox.has_rows
    finally:
        collector.close()


@pytest.mark.parametrize("world", ["Endless", "ReadsStdin"])
def test_an_actor_hears_soon_of_environments_that_it_takes_over(world: str) -> None:
    """Also in the middle of a long warm-up, in which it never waits, and where a program reads all of its stdin."""
    changes: dict[str, Any] = {"seeds": [0, 1], "actors": "local:2", "random_steps": 5000}
    collector = collector_of(world, total_steps=10_000, **changes)
    try:
        until(collector, lambda one: bool(one.poll().rollouts) and min(one._received.sum(axis=1)) > 0)
        hopeless = collector.slots[0]
        hopeless.faults_in_a_row, hopeless.delivered = workers.MAX_FAULTS, 0
        assert hopeless.worker is not None
        hopeless.worker.process.kill()
        until(collector, lambda one: hopeless.given_up)
        begun = time.monotonic()
        until(collector, lambda one: bool(one.poll().rollouts) and one._received[0, 1] > 0)
        assert time.monotonic() - begun < 20
    finally:
        collector.close()


def test_what_environments_start_gets_no_descriptor_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = tmp_path / "seen"
    monkeypatch.setenv("SEEN_FILE", str(seen))
    collector = collector_of("ListsDescriptors")
    try:
        until(collector, lambda one: seen.exists() and bool(seen.read_text()))
        assert seen.read_text().split() == ["0", "1", "2", "3"], "the last is that of the folder it lists"
    finally:
        collector.close()


def test_what_an_environment_has_started_ends_with_a_worker_that_nobody_looks_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after the learner was killed; the worker has no time to do anything either."""
    (tmp_path / "fault").touch()  # it does not hang
    monkeypatch.setenv("FAULT_FILE", str(tmp_path / "fault"))
    monkeypatch.setenv("SLEEP", helpers.SLEEP)
    collector = collector_of("Family")
    try:
        until(collector, lambda one: one._waiting() > 0 and len(helpers.simulators()) > 0)
        worker = collector.slots[0].worker
        assert worker is not None
        worker.process.kill()
        deadline = time.monotonic() + 60
        while helpers.simulators():
            assert time.monotonic() < deadline, "the simulator is still there"
            time.sleep(0.01)
    finally:
        collector.close()


def test_all_that_came_before_an_error_is_handed_out() -> None:
    collector = collector_of("Told")
    try:
        until(collector, lambda one: one._waiting() > 0)
        collector._receive_all()
        collector.inbox.error = UserError("enough")
        collector.inbox.add_reports(0, [EpisodeResult(0, 0, 1.0, 3, True)], [])
        (rollout,) = collector.poll().rollouts
        assert len(rollout.r) > 0 and len(rollout.episodes) > 0
        with pytest.raises(UserError, match="enough"):
            collector.poll()
    finally:
        collector.close()


def test_a_bad_first_observation_says_whose_it_was(tmp_path: Path) -> None:
    cfg = actor_config(tmp_path, "BadBeginning", seeds=[5], actors="local:1", eval={"every_steps": 10**9})
    with pytest.raises(UserError, match=r"environment 0 of seed 5, episode 0, step 0: observation\[2\] is nan"):
        list(train(cfg))
    assert [event.seed for event in of_kind(events_of(tmp_path / "a"), BadValueFound)] == [5]


# What is said


def test_an_older_version_s_events_are_read() -> None:
    figures = '"age_median": 1, "age_p99": 2, "ring_fill": 0, "actors_waited": 0, "learner_waited": 0, "restarts": 0'
    event = from_line(f'{{"event": "acting", "step": 5, "time": 1, "since": 0, "ratio": 1, "actors": 2, {figures}}}')
    assert isinstance(event, ActingEvent) and not event.summary


def test_waiting_is_measured_against_the_time_that_actors_lived() -> None:
    """Two actors waited half of ten seconds each, then one was lost: that is still one half."""
    before = ActingTotals(actors_waited=100.0, actors_lived=300.0, actors=2)
    after = replace(before, actors_waited=110.0, actors_lived=320.0, actors=1)
    assert after.since(before)["actors_waited"] == 0.5 and before.since(before)["actors_waited"] == 0.0


def test_what_a_lost_actor_waited_is_measured_against_its_own_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "FIRST_BACK_OFF", 60.0)
    collector = collector_of("Told")
    try:
        lost = collector.slots[0].worker
        assert lost is not None
        until(collector, lambda one: lost.heartbeat.waited > 0.3)  # it has gone as far as it may
        lost.process.kill()
        until(collector, lambda one: one.slots[0].worker is None)
        share = lost.heartbeat.waited / (time.monotonic() - lost.started)
        acting = collector.totals().since(ActingTotals())
        assert acting["actors"] == 0 and abs(acting["actors_waited"] - share) < 0.05
        assert share < 0.9, "its start was no waiting"
    finally:
        collector.close()


@pytest.mark.parametrize(("code", "words"), [(0, "exit code 0"), (-9, "SIGKILL"), (-40, "by signal 40")])
def test_how_a_worker_ended_in_words(code: int, words: str) -> None:
    assert words in workers._in_words(code)


@pytest.mark.parametrize("made_before", range(5))
def test_a_system_that_has_no_more_files_is_told(monkeypatch: pytest.MonkeyPatch, made_before: int) -> None:
    """Whichever of ring, pulse, bell, channel and pipe is the first that cannot be made."""
    cfg = helpers.small_config(env={"id": "actor_worlds:Told"}, actors="local:1")
    collector, left = unstarted(cfg), [made_before]

    def limited(make: Any) -> Any:
        def made(*arguments: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise OSError(24, "Too many open files")
            return make(*arguments)

        return made

    for module, name in ((os, "memfd_create"), (os, "eventfd"), (os, "pipe"), (socket, "socketpair")):
        monkeypatch.setattr(module, name, limited(getattr(module, name)))
    try:
        with pytest.raises(UserError, match=re.escape("Too many open files); use fewer actors")):
            publish_zeros(collector)
    finally:
        collector.close()


@pytest.mark.parametrize(("system", "machine"), [("Darwin", "arm64"), ("Linux", "aarch64"), ("Windows", "AMD64")])
def test_where_actors_do_not_work(monkeypatch: pytest.MonkeyPatch, system: str, machine: str) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    with pytest.raises(UserError, match="actors=local:2 needs Linux on x86-64; here only actors=inline works"):
        resolve(helpers.small_config(actors="local:2"))
