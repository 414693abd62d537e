"""A run in a user's own program: left, continued, taken over; what of the process it changes while it works."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import helpers
import t3d
from run_folders import assert_equal, events_of
from t3d.algo.learner import Learner
from t3d.algo.rules import TD3
from t3d.config import Config, merge
from t3d.errors import UserError
from t3d.events import End, Resumed
from t3d.run import live, placement
from t3d.run.placement import resolve, set_threads
from t3d.run.surroundings import TorchSettings
from worlds import Failing, small

ON_CPU = merge(Config(), {"device": "cpu"})


def train_until(run: Any, step: int) -> None:
    for event in run:
        if event.step >= step:
            break


def test_leaving_the_loop_saves_and_unlocks_a_run_that_still_has_a_name(tmp_path: Path) -> None:
    run = t3d.train(small(tmp_path, "run"), make_env=Failing)
    train_until(run, 90)
    end = events_of(tmp_path / "run")[-1]
    assert isinstance(end, End) and (end.reason, end.saved) == ("stopped", True)
    list(t3d.resume(tmp_path / "run", make_env=Failing))
    list(t3d.train(small(tmp_path, "straight"), make_env=Failing))
    assert_equal(tmp_path / "straight", tmp_path / "run")
    assert run.path == tmp_path / "run"


def test_another_loop_over_a_run_that_was_left_continues_it_to_the_last_bit(tmp_path: Path) -> None:
    run = t3d.train(small(tmp_path, "run"), make_env=Failing)
    train_until(run, 90)
    train_until(run, 140)
    events = list(run)
    assert isinstance(events[0], Resumed) and isinstance(events[-1], End) and events[-1].reason == "finished"
    assert not list(run), "it has finished"
    list(t3d.train(small(tmp_path, "straight"), make_env=Failing))
    assert_equal(tmp_path / "straight", tmp_path / "run")


def test_a_process_takes_over_its_own_run_and_says_so_of_one_that_works(tmp_path: Path) -> None:
    run = t3d.train(small(tmp_path, "run"), make_env=Failing)
    while next(run).step < 90:
        pass
    other = t3d.resume(tmp_path / "run", make_env=Failing)
    assert next(other).step >= 90
    (tmp_path / "link").symlink_to(tmp_path / "run")
    third = live.resume(tmp_path / "link", make_env=Failing)
    assert next(third).step >= 90
    third._turn.acquire()  # as if it worked in another thread
    with pytest.raises(UserError, match="is in use by this program"):
        next(t3d.resume(tmp_path / "run", make_env=Failing))
    with pytest.raises(UserError, match="works in another thread"):
        next(third)
    third.close()
    third._turn.release()
    assert third._requests.stop.is_set(), "it ends where it works"
    third.close()


def test_a_with_block_ends_the_run(tmp_path: Path) -> None:
    with t3d.train(small(tmp_path, "run"), make_env=Failing) as run:
        while next(run).step < 90:
            pass
    assert isinstance(events_of(tmp_path / "run")[-1], End)
    assert next(run, None) is None


def test_ctrl_c_after_a_run_that_ended_in_another_thread_is_pythons_own(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run = t3d.train(small(tmp_path, "run"), make_env=Failing)
        next(run)  # on this thread, which may listen for Ctrl-C
        thread = threading.Thread(target=lambda: list(run))
        thread.start()
        thread.join()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_torch_has_the_callers_settings_between_events_and_after_the_run(tmp_path: Path) -> None:
    """And the run its own: a caller without gradients, or with other floats, changes nothing that is learned."""
    list(t3d.train(small(tmp_path, "straight", threads=1), make_env=Failing))
    before = TorchSettings.current()
    callers = TorchSettings(3, (True, False), grad_mode=False, dtype=torch.float64)
    try:
        callers.apply()
        for _ in t3d.train(small(tmp_path, "run", threads=1), make_env=Failing):
            assert TorchSettings.current() == callers
        assert TorchSettings.current() == callers
    finally:
        before.apply()
    assert_equal(tmp_path / "straight", tmp_path / "run")


def test_two_runs_in_turns_keep_their_own_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[int, set[int]] = {1: set(), 2: set()}
    update = Learner.run

    def watched(self: Learner, *arguments: Any) -> Any:
        seen[self.cfg.batch_size].add(torch.get_num_threads())
        return update(self, *arguments)

    cfgs = [small(tmp_path, str(n), threads=n, engine="eager", td3={"batch_size": n}) for n in (1, 2)]
    runs = [t3d.train(cfg, make_env=Failing) for cfg in cfgs]
    helpers.replace_updates(monkeypatch, watched)
    for _ in zip(*runs, strict=False):
        pass
    assert seen == {1: {1}, 2: {2}}


def of_another_process(script: str, **environment: str) -> str:
    inherited = {key: value for key, value in os.environ.items() if key != t3d.SPINS}
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, env={**inherited, **environment}, capture_output=True, text=True, check=True)
    return ended.stdout.strip()


def test_import_t3d_shortens_the_spins_of_idle_threads_before_torch_is_loaded() -> None:
    spins = "print(os.environ.get('GOMP_SPINCOUNT'))"
    assert of_another_process(f"import os, t3d, torch; {spins}") == "2000"
    assert of_another_process(f"import os, t3d, torch; {spins}", GOMP_SPINCOUNT="7") == "7"
    assert of_another_process(f"import os, torch, t3d; {spins}") == "None"
    assert of_another_process("import torch, t3d; print(t3d.WAITS_SHORTLY)") == "False"
    assert of_another_process("import torch, t3d; print(t3d.WAITS_SHORTLY)", GOMP_SPINCOUNT="7") == "True"


def test_where_torch_came_first_one_thread_is_used_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "faster_threads", lambda *arguments: 2)
    monkeypatch.setattr(placement, "_faster", {})
    monkeypatch.setattr(t3d, "WAITS_SHORTLY", False)
    threads, notes = set_threads(resolve(ON_CPU), helpers.make_spec(), TD3, "fused")
    assert threads == 1 and "import t3d first" in notes[0]
    monkeypatch.setattr(t3d, "WAITS_SHORTLY", True)
    before = torch.get_num_threads()
    try:
        assert set_threads(resolve(ON_CPU), helpers.make_spec(), TD3, "fused") == (2, [])
    finally:
        torch.set_num_threads(before)


def test_a_process_measures_threads_once_for_the_same_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = list[Any]()

    def measure(*arguments: Any) -> int:
        measured.append(arguments)
        return 1

    monkeypatch.setattr(placement, "faster_threads", measure)
    monkeypatch.setattr(placement, "_faster", {})
    for _ in range(2):
        set_threads(resolve(ON_CPU), helpers.make_spec(), TD3, "fused")
    assert len(measured) == 1
    set_threads(resolve(merge(ON_CPU, {"td3": {"batch_size": 7}})), helpers.make_spec(), TD3, "fused")
    assert len(measured) == 2


def test_a_run_that_was_closed_before_its_loop_begins_in_it(tmp_path: Path) -> None:
    run = t3d.train(small(tmp_path, "run"), make_env=Failing)
    run.close()
    assert "has not begun" in repr(run)
    *_, end = run
    assert isinstance(end, End) and end.reason == "finished" and run.step == 200
    assert f"{tmp_path / 'run'}, finished at step 200" in repr(run)


def test_another_loop_over_a_run_that_was_stopped_continues_it(tmp_path: Path) -> None:
    stop = threading.Event()
    run = t3d.train(small(tmp_path, "run"), make_env=Failing, stop=stop)
    for event in run:
        if event.step >= 90:
            stop.set()
    assert isinstance(event, End) and event.reason == "stopped"
    stop.clear()
    *_, end = run
    assert isinstance(end, End) and end.reason == "finished"


def test_a_forked_child_leaves_the_run_to_its_parent(tmp_path: Path) -> None:
    run = t3d.train(small(tmp_path, "run"), make_env=Failing)
    next(run)
    child = os.fork()
    if not child:
        run.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert not any(isinstance(event, End) for event in events_of(tmp_path / "run"))
    run.close()
