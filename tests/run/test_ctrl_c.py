"""Ctrl-C in a user's own program saves the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import helpers
import t3d
from run_folders import assert_equal, events_of
from t3d.algo.learner import Learner
from t3d.events import End, Resumed
from t3d.store import checkpoint as checkpoints
from t3d.store.checkpoint import newest
from t3d.store.contents import write_segments
from worlds import Failing, callers, failing, small


@pytest.fixture
def python_listens() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "the run has given Ctrl-C back"
    signal.signal(signal.SIGINT, before)


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.usefixtures("python_listens")
@pytest.mark.parametrize("where", ["environment", "update", "evaluation"])
def test_ctrl_c_while_the_run_works_is_saved_to_the_last_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    world, update = Failing, Learner.run
    if where == "environment":
        world = failing((5, 3), press_ctrl_c)
    if where == "evaluation":

        class PressedInEvaluation(Failing):
            def _fail(self) -> Any:
                if self.episode == 5 and self.t == 3 and "evaluate.py" in callers():
                    press_ctrl_c()

        world = PressedInEvaluation

    def pressed(self: Learner, *arguments: Any) -> Any:
        if where == "update" and self.updates == 31:
            press_ctrl_c()
        return update(self, *arguments)

    with monkeypatch.context() as patched:
        helpers.replace_updates(patched, pressed)
        with pytest.raises(KeyboardInterrupt) as caught:
            list(t3d.train(small(tmp_path, "run"), make_env=world))
    run = tmp_path / "run"  # another program can make only what it can import
    assert (f"t3d resume {run}" if world is Failing else f"t3d.resume('{run}', make_env=") in caught.value.__notes__[0]
    end = events_of(tmp_path / "run")[-1]
    assert isinstance(end, End) and (end.reason, end.saved) == ("stopped", True)
    list(t3d.train(small(tmp_path, "straight"), make_env=Failing))
    list(t3d.resume(tmp_path / "run", make_env=Failing))
    assert_equal(tmp_path / "straight", tmp_path / "run")


@pytest.mark.usefixtures("python_listens")
def test_ctrl_c_in_the_callers_code_saves_a_run_that_something_keeps_alive(tmp_path: Path) -> None:
    """As in a notebook, where the traceback keeps the variables of a function alive."""
    run = t3d.train(small(tmp_path, "run"), make_env=Failing)
    with pytest.raises(KeyboardInterrupt):
        for event in run:
            if event.step >= 90:
                press_ctrl_c()
    assert isinstance(events_of(tmp_path / "run")[-1], End) and next(run, None) is None
    events = list(t3d.resume(tmp_path / "run", make_env=Failing))  # its lock is free
    assert next(event for event in events if isinstance(event, Resumed)).step >= 90


@pytest.mark.usefixtures("python_listens")
def test_a_second_ctrl_c_does_not_wait_for_the_environment(tmp_path: Path) -> None:
    def twice() -> None:
        press_ctrl_c()
        press_ctrl_c()
        pytest.fail("it went on")

    with pytest.raises(KeyboardInterrupt, match=r"t3d.resume"):
        list(t3d.train(small(tmp_path, "run"), make_env=failing((3, 7), twice)))
    assert newest(tmp_path / "run" / "checkpoints")[0] is not None


@pytest.mark.usefixtures("python_listens")
@pytest.mark.parametrize("first", ["break", "Ctrl-C"])
def test_ctrl_c_while_the_run_saves_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str) -> None:
    """After a break it waits for the save; as the second one it waits for nothing, and the end is told all the same."""
    pressed = list[bool]()

    def press(*arguments: Any) -> Any:
        if not pressed:
            pressed.append(True)
            press_ctrl_c()
        return write_segments(*arguments)

    run = t3d.train(small(tmp_path, "run"), make_env=Failing)
    while next(run).step < 90:
        pass
    monkeypatch.setattr(checkpoints, "write_segments", press)
    if first == "break":
        run.close()
        assert newest(tmp_path / "run" / "checkpoints")[0] is not None
    else:
        with pytest.raises(KeyboardInterrupt):
            press_ctrl_c()
        assert isinstance(events_of(tmp_path / "run")[-1], End)
    assert pressed


@pytest.mark.usefixtures("python_listens")
def test_ctrl_c_with_two_runs_in_one_program_saves_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    update = Learner.run

    def pressed(self: Learner, *arguments: Any) -> Any:
        if self.updates == 31:
            press_ctrl_c()
        return update(self, *arguments)

    with pytest.raises(KeyboardInterrupt):
        for event in t3d.train(small(tmp_path, "outer"), make_env=Failing):
            if event.step >= 40:
                helpers.replace_updates(monkeypatch, pressed)
                list(t3d.train(small(tmp_path, "inner"), make_env=Failing))
    for name in ("outer", "inner"):
        end = events_of(tmp_path / name)[-1]
        assert isinstance(end, End) and end.saved, name


def test_a_run_that_a_variable_holds_when_the_program_ends_is_saved(tmp_path: Path) -> None:
    script = """
import t3d
run = {"root": "runs", "name": "held"}
cfg = t3d.merge(t3d.preset("quick"), {"env": {"id": "Pendulum-v1"}, "run": run, "td3": {"actor_hidden": [8]}})
events = t3d.train(cfg)
for event in events:
    if event.step > 1100:
        break
"""
    ended = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert newest(tmp_path / "runs" / "held" / "checkpoints")[0] is not None


def test_ctrl_c_does_not_promise_what_was_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("t3d.run.saver.save", full)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt) as caught:
            list(t3d.train(small(tmp_path, "run"), make_env=failing((3, 7), press_ctrl_c)))
    finally:
        signal.signal(signal.SIGINT, before)
    assert "could not be saved (the checkpoint could not be written: No space left" in caught.value.__notes__[0]
    assert "resume" not in caught.value.__notes__[0]


def test_a_listener_of_the_users_own_is_left_alone(tmp_path: Path) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        events = list(t3d.train(small(tmp_path, "run"), make_env=failing((3, 7), press_ctrl_c)))
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT] and isinstance(events[-1], End) and events[-1].reason == "finished"
