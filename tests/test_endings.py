"""Whatever ends a run saves it: a failing environment, a bad value, sys.exit, Ctrl-C, a folder that is removed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import helpers
import t3d
from t3d.algo.learner import Learner
from t3d.app.cli import main
from t3d.config import Config, merge
from t3d.errors import EnvironmentFailed, UserError
from t3d.events import End, Eval, Event, Resumed, from_line
from t3d.seeds import derive
from t3d.store import checkpoint as checkpoints
from t3d.store.checkpoint import newest
from t3d.world.guard import BadValue
from test_resume import assert_equal

Answer = tuple[Any, Any, bool, bool, dict[str, Any]]


class Failing(gym.Env[Any, Any]):
    """Fails in one step of one episode of training, which it knows by its seed."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    fail: Callable[[], object] = staticmethod(int)
    at = (0, 0)  # the episode and the step in it; step 0 is the reset

    def __init__(self) -> None:
        self.episode, self.t = -1, 0  # episodes of this object

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.seed, self.episode, self.t = seed, self.episode + 1, 0
        self._fail()
        return self._observe(), {}

    def step(self, action: Any) -> Answer:
        self.t += 1
        answer = self._fail()
        return self._observe(), 1.0 if answer is None else answer, False, self.t == 20, {}

    def _fail(self) -> Any:
        episode, step = self.at
        return self.fail() if self.t == step and self.seed == derive(0, "environment", 0, episode) else None

    def _observe(self) -> Any:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)


def _callers() -> set[str]:
    frame, found = sys._getframe(), set()
    while frame.f_back is not None:
        frame = frame.f_back
        found.add(Path(frame.f_code.co_filename).name)
    return found


def failing(at: tuple[int, int], fail: Callable[[], Any]) -> type[Failing]:
    return type("FailingEnv", (Failing,), {"at": at, "fail": staticmethod(fail)})


def small(root: Path, name: str, **changes: Any) -> Config:
    base: dict[str, Any] = {
        "env": {"id": "", "name": "world"},
        "total_steps": 200,
        "run": {"root": str(root), "name": name},
    }
    return merge(merge(helpers.small_config(), base), changes)


def raise_error() -> None:
    raise RuntimeError("the wheel fell off")


class Odd(BaseException):
    pass


def raise_odd() -> None:
    raise Odd("never seen")


def raise_interrupt() -> None:
    raise KeyboardInterrupt  # as code does whose window was closed


def raise_broken_pipe() -> None:
    raise BrokenPipeError(32, "the simulator hung up")


def events_of(folder: Path) -> list[Event]:
    return [from_line(line) for line in (folder / "events.jsonl").read_text().splitlines()]


ENDINGS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "exception": (raise_error, EnvironmentFailed, "episode 3, step 7: the environment raised RuntimeError: the wheel"),
    "broken pipe": (raise_broken_pipe, EnvironmentFailed, "the environment raised BrokenPipeError"),
    "sys.exit(0)": (lambda: sys.exit(0), EnvironmentFailed, r"the environment called sys.exit\(0\)"),
    "BaseException": (raise_odd, EnvironmentFailed, "the environment raised Odd: never seen"),
    "KeyboardInterrupt": (raise_interrupt, EnvironmentFailed, "the environment raised KeyboardInterrupt"),
    "sys.exit()": (sys.exit, EnvironmentFailed, r"the environment called sys.exit\(\)"),
    "NaN": (lambda: float("nan"), BadValue, "reward is nan"),
    "nothing": (lambda: "no number", BadValue, "reward is str"),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_failing_environment_ends_the_run_saved_and_a_resume_begins_its_next_episode(
    tmp_path: Path, ending: str
) -> None:
    fail, kind, words = ENDINGS[ending]
    with pytest.raises(kind, match=words) as caught:
        list(t3d.train(small(tmp_path, "run"), make_env=failing((3, 7), fail)))
    run = tmp_path / "run"
    assert any(f"t3d.resume('{run}', make_env=...)" in note for note in caught.value.__notes__)
    end = events_of(run)[-1]
    assert isinstance(end, End) and (end.reason, end.step, end.saved) == ("failed", 66, True)  # three episodes and six
    events = list(t3d.resume(run, make_env=failing((3, 7), fail)))
    resumed = next(event for event in events if isinstance(event, Resumed))
    assert resumed.step == 66 and any("episode 3 was lost" in note for note in resumed.notes), resumed.notes
    assert isinstance(events[-1], End) and (events[-1].reason, events[-1].step) == ("finished", 200)
    told = [event.episode for event in events_of(run) if event.event == "episode"]
    assert told == [0, 1, 2, *range(4, 10)], "the episode that failed is left out, the others are told once"


@pytest.mark.parametrize("changes", [{"env": {"num_envs": 3}}, {"seeds": [0, 1, 2]}], ids=["environments", "seeds"])
@pytest.mark.parametrize("at", [(2, 5), (2, 0)], ids=["step", "reset"])
def test_what_the_other_environments_answered_in_that_step_is_kept(
    tmp_path: Path, changes: dict[str, Any], at: tuple[int, int]
) -> None:
    made: list[Failing] = []

    class OneOfThree(Failing):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

        def _fail(self) -> Any:  # the first of the doctor's, three of training: the second of these fails
            if len(made) > 2 and self is made[2] and (self.episode, self.t) == at:
                raise RuntimeError("just me")

    with pytest.raises(EnvironmentFailed, match="just me"):
        list(t3d.train(small(tmp_path, "run", **changes), make_env=OneOfThree))
    checkpoint, _ = newest(tmp_path / "run" / "checkpoints")
    assert checkpoint is not None
    added = checkpoint.state()["memory"]["added"]
    steps = 40 + at[1]  # of an environment when the fault is met; in a reset the step before it is whole
    lost = 1 if at[1] else 0
    assert added == ([3 * steps - lost] if "env" in changes else [steps, steps - lost, steps])
    made.clear()
    events = list(t3d.resume(tmp_path / "run", make_env=Failing))
    assert events[-1].event == "end" and events[-1].step == 200


class FailsByItself(Failing):
    """Every episode of some seeds fails at its fifth step, whoever plays it and with which actions."""

    def _fail(self) -> Any:
        if self.t == 5 and self.seed in {derive(0, "environment", 1, episode) for episode in (0, 1)}:
            raise RuntimeError("unstable")


def test_a_resume_gets_past_an_environment_that_fails_beside_others(tmp_path: Path) -> None:
    """The others' episodes are played again meanwhile, and what it does by then does not matter."""
    path = tmp_path / "run"
    with pytest.raises(EnvironmentFailed):
        list(t3d.train(small(tmp_path, "run", env={"num_envs": 2}), make_env=FailsByItself))
    with pytest.raises(EnvironmentFailed, match="episode 1, step 5"):
        list(t3d.resume(path, make_env=FailsByItself))
    assert list(t3d.resume(path, make_env=FailsByItself))[-1].step == 200


def test_a_resume_gets_past_episodes_that_cannot_begin(tmp_path: Path) -> None:
    class NoStart(Failing):
        def _fail(self) -> Any:
            if self.seed in {derive(0, "environment", 0, episode) for episode in (3, 4, 5)}:
                raise RuntimeError("no valid start")

    with pytest.raises(EnvironmentFailed, match="episode 3, step 0"):
        list(t3d.train(small(tmp_path, "run"), make_env=NoStart))
    assert list(t3d.resume(tmp_path / "run", make_env=NoStart))[-1].step == 200


def test_a_process_that_the_environment_forks_ends_where_it_leaves_it(tmp_path: Path) -> None:
    forked: list[int] = []

    def fork() -> None:
        forked.append(os.fork())
        if forked[-1] == 0:
            raise RuntimeError("in the child")

    events = list(t3d.train(small(tmp_path, "run"), make_env=failing((3, 7), fork)))
    assert os.waitstatus_to_exitcode(os.waitpid(forked[-1], 0)[1]) == 1
    assert isinstance(events[-1], End) and [event.event for event in events_of(tmp_path / "run")].count("end") == 1


def test_an_environment_that_fails_in_its_first_step_leaves_a_run_that_goes_on(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailed):
        list(t3d.train(small(tmp_path, "run"), make_env=failing((0, 2), raise_error)))
    events = list(t3d.resume(tmp_path / "run", make_env=Failing))
    assert next(event for event in events if isinstance(event, Resumed)).step == 1 and events[-1].step == 200


def test_a_bad_value_can_be_skipped_from_then_on(tmp_path: Path) -> None:
    world = failing((3, 7), lambda: float("inf"))
    with pytest.raises(BadValue):
        list(t3d.train(small(tmp_path, "run"), make_env=world))
    events = list(t3d.resume(tmp_path / "run", bad_values="skip", make_env=world))
    assert isinstance(events[-1], End) and events[-1].reason == "finished"


def test_an_evaluation_that_fails_ends_the_run_saved(tmp_path: Path) -> None:
    class FailsWhenEvaluated(Failing):
        def _fail(self) -> Any:
            if self.episode == 4 and "evaluate.py" in _callers():  # the second of the second evaluation
                raise RuntimeError("examined")

    with pytest.raises(EnvironmentFailed, match="the evaluation of seed 0, episode 1, "):
        list(t3d.train(small(tmp_path, "run"), make_env=FailsWhenEvaluated))
    events = list(t3d.resume(tmp_path / "run", make_env=Failing))
    evaluated = [event.step for event in events_of(tmp_path / "run") if isinstance(event, Eval)]
    assert events[-1].step == 200 and evaluated == [0, 150, 200]


def test_an_error_of_our_own_in_the_middle_of_an_update_keeps_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is half changed must not be saved."""
    update = Learner.update

    def broken(self: Learner, *arguments: Any) -> Any:
        if self.updates == 61:
            raise MemoryError("no room")
        return update(self, *arguments)

    cfg = small(tmp_path, "run", checkpoint={"every_steps": 150})
    with monkeypatch.context() as patched:
        patched.setattr(Learner, "update", broken)
        with pytest.raises(MemoryError) as caught:
            list(t3d.train(cfg, make_env=Failing))
    assert "last good checkpoint is of step 150" in caught.value.__notes__[0]
    list(t3d.train(small(tmp_path, "straight", checkpoint={"every_steps": 150}), make_env=Failing))
    list(t3d.resume(tmp_path / "run", make_env=Failing))
    assert_equal(tmp_path / "straight", tmp_path / "run")


# Ctrl-C in a program of the user's own


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
    world, update = Failing, Learner.update
    if where == "environment":
        world = failing((5, 3), press_ctrl_c)
    if where == "evaluation":

        class PressedInEvaluation(Failing):
            def _fail(self) -> Any:
                if self.episode == 5 and self.t == 3 and "evaluate.py" in _callers():
                    press_ctrl_c()

        world = PressedInEvaluation

    def pressed(self: Learner, *arguments: Any) -> Any:
        if where == "update" and self.updates == 31:
            press_ctrl_c()
        return update(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(Learner, "update", pressed)
        with pytest.raises(KeyboardInterrupt) as caught:
            list(t3d.train(small(tmp_path, "run"), make_env=world))
    assert f"t3d.resume('{tmp_path / 'run'}'" in caught.value.__notes__[0]
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
    from_disk, pressed = checkpoints.write_segments, []

    def press(*arguments: Any) -> Any:
        if not pressed:
            pressed.append(True)
            press_ctrl_c()
        return from_disk(*arguments)

    run = t3d.train(small(tmp_path, "run"), make_env=Failing)
    for event in run:
        if event.step >= 90:
            break
    monkeypatch.setattr(checkpoints, "write_segments", press)
    if first == "break":
        run.close()  # type: ignore[attr-defined]
        assert newest(tmp_path / "run" / "checkpoints")[0] is not None
    else:
        with pytest.raises(KeyboardInterrupt):
            press_ctrl_c()
        assert isinstance(events_of(tmp_path / "run")[-1], End)
    assert pressed


@pytest.mark.usefixtures("python_listens")
def test_ctrl_c_with_two_runs_in_one_program_saves_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    update = Learner.update

    def pressed(self: Learner, *arguments: Any) -> Any:
        if self.updates == 31:
            press_ctrl_c()
        return update(self, *arguments)

    with pytest.raises(KeyboardInterrupt):
        for event in t3d.train(small(tmp_path, "outer"), make_env=Failing):
            if event.step >= 40:
                monkeypatch.setattr(Learner, "update", pressed)
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


# On the command line

WORLD = """
import sys
import gymnasium as gym, numpy as np

class World(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        World.steps += 1
        if World.steps == 4500: FAULT
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), 1.0, False, World.steps % 20 == 0, {}
"""


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("sys.exit(0)", "called sys.exit(0)"),
        (
            "raise RuntimeError('the [bold]wheel[/bold] fell off')",
            "raised RuntimeError: the [bold]wheel[/bold] fell off",
        ),
    ],
)
def test_a_dead_environment_is_no_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str, words: str
) -> None:
    """--preset quick has no checkpoint before its end."""
    sys.modules.pop("dead_world", None)
    (tmp_path / "dead_world.py").write_text(WORLD.replace("FAULT", fault))
    flags = ["--preset", "quick", "--run.root", str(tmp_path), "--run.name", "run", "--eval.episodes", "1"]
    assert main(["train", f"{tmp_path / 'dead_world.py'}:World", *flags, "--td3.random-steps", "2000"]) == 1
    said = capsys.readouterr().err
    assert words in said and f"t3d resume {tmp_path / 'run'}" in said
    assert "dead_world.py" in said and "loop.py" not in said, "the environment's own traceback, and not ours"
    assert newest(tmp_path / "run" / "checkpoints")[0] is not None


# The run's folder


def test_a_working_directory_that_changes_does_not_move_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    class Moves(Failing):
        def __init__(self) -> None:
            super().__init__()
            os.chdir(tmp_path / "there")

    list(t3d.train(small(Path("runs"), "run", checkpoint={"every_steps": 50}), make_env=Moves))
    assert list((tmp_path / "there").iterdir()) == []
    checkpoint, notes = newest(tmp_path / "here" / "runs" / "run" / "checkpoints")
    assert checkpoint is not None and checkpoint.step == 200 and not notes


def test_a_folder_that_is_removed_while_training_is_said_and_the_run_saved_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("t3d.store.folder.LOOK_SECONDS", 0.0)
    world = failing((5, 3), lambda: shutil.rmtree(tmp_path / "run"))
    with pytest.raises(UserError, match="was removed or moved away") as caught:
        list(t3d.train(small(tmp_path, "run"), make_env=world))
    assert str(tmp_path / "run-rescued") in caught.value.__notes__[0]
    list(t3d.resume(tmp_path / "run-rescued", make_env=Failing))
    list(t3d.train(small(tmp_path, "straight"), make_env=Failing))
    one, other = (newest(tmp_path / name / "checkpoints")[0] for name in ("run-rescued", "straight"))
    assert one is not None and other is not None
    assert np.array_equal(one.state()["learner"]["critic"], other.state()["learner"]["critic"])
    assert (tmp_path / "run-rescued" / "best" / "seed-0.safetensors").exists()


def test_every_removed_folder_is_saved_beside_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("t3d.store.folder.LOOK_SECONDS", 0.0)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def remove_and_go() -> None:
        shutil.rmtree(tmp_path / "here" / "runs" / "run")
        os.chdir(tmp_path)

    for name in ("run-rescued", "run-rescued-2"):
        monkeypatch.chdir(tmp_path / "here")
        with pytest.raises(UserError, match="was removed") as caught:
            list(t3d.train(small(Path("runs"), "run"), make_env=failing((5, 3), remove_and_go)))
        assert str(tmp_path / "here" / "runs" / name) in caught.value.__notes__[0]
        assert newest(tmp_path / "here" / "runs" / name / "checkpoints")[0] is not None


def test_a_folder_that_is_removed_just_before_the_end_is_no_success(tmp_path: Path) -> None:
    world = failing((9, 20), lambda: shutil.rmtree(tmp_path / "run"))
    with pytest.raises(UserError, match="was removed") as caught:
        list(t3d.train(small(tmp_path, "run"), make_env=world))
    assert "run-rescued" in caught.value.__notes__[0] and not (tmp_path / "run").exists()


def test_an_end_is_saved_only_if_its_last_step_is(tmp_path: Path) -> None:
    """A run that is left right after a step that no checkpoint holds yet."""
    run = t3d.train(small(tmp_path, "run", checkpoint={"every_steps": 1}, eval={"every_steps": 1000}), make_env=Failing)
    for event in run:
        if event.event == "episode":
            break
    run.close()  # type: ignore[attr-defined]
    checkpoint, _ = newest(tmp_path / "run" / "checkpoints")
    end = events_of(tmp_path / "run")[-1]
    assert checkpoint is not None and isinstance(end, End) and (end.saved, end.step) == (True, checkpoint.step)


def test_a_lock_file_that_is_removed_lets_nobody_in(tmp_path: Path) -> None:
    run = t3d.train(small(tmp_path, "run"), make_env=Failing)
    next(run)
    (tmp_path / "run" / "lock").unlink()
    with pytest.raises(UserError, match="is in use by another process"):
        next(t3d.resume(tmp_path / "run", make_env=Failing))
    run.close()  # type: ignore[attr-defined]


def test_close_that_raises_does_not_spoil_a_finished_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Sulking(Failing):
        def close(self) -> None:
            raise RuntimeError("I will not")

    events = list(t3d.train(small(tmp_path, "run"), make_env=Sulking))
    assert isinstance(events[-1], End) and events[-1].reason == "finished"
    assert "I will not" in caplog.text and "environment 0 of seed 0" in caplog.text


def test_an_environment_that_sets_torchs_default_type_changes_nothing(tmp_path: Path) -> None:
    def meddle() -> None:
        torch.set_default_dtype(torch.float64)

    class Meddling(Failing):
        def __init__(self) -> None:
            super().__init__()
            meddle()

    try:
        list(t3d.train(small(tmp_path, "meddling"), make_env=Meddling))
    finally:
        torch.set_default_dtype(torch.float32)
    list(t3d.train(small(tmp_path, "straight"), make_env=Failing))
    assert_equal(tmp_path / "straight", tmp_path / "meddling")
