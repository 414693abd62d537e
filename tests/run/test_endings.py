"""Whatever ends a run saves it: a failing environment, a bad value, sys.exit, an error of our own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import helpers
import t3d
from run_folders import assert_equal, events_of
from t3d.algo.learner import Learner
from t3d.app.cli import main
from t3d.errors import EnvironmentFailed
from t3d.events import End, EpisodeEnd, Eval, Resumed
from t3d.seeds import derive
from t3d.store.checkpoint import newest
from t3d.world.guard import BadValue
from worlds import Failing, callers, failing, small


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
    told = [event.episode for event in events_of(run) if isinstance(event, EpisodeEnd)]
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

        def _fail(self) -> Any:  # the doctor's, two of the fingerprint, three of training: the second of these fails
            if len(made) > 4 and self is made[4] and (self.episode, self.t) == at:
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
            if self.episode == 4 and "evaluate.py" in callers():  # the second of the second evaluation
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
    update = Learner.run

    def broken(self: Learner, *arguments: Any) -> Any:
        if self.updates == 61:
            raise MemoryError("no room")
        return update(self, *arguments)

    cfg = small(tmp_path, "run", checkpoint={"every_steps": 150})
    with monkeypatch.context() as patched:
        helpers.replace_updates(patched, broken)
        with pytest.raises(MemoryError) as caught:
            list(t3d.train(cfg, make_env=Failing))
    assert "last good checkpoint is of step 150" in caught.value.__notes__[0]
    list(t3d.train(small(tmp_path, "straight", checkpoint={"every_steps": 150}), make_env=Failing))
    list(t3d.resume(tmp_path / "run", make_env=Failing))
    assert_equal(tmp_path / "straight", tmp_path / "run")


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
    assert main(["train", f"{tmp_path / 'dead_world.py'}:World", *flags, "--random-steps", "2000"]) == 1
    said = capsys.readouterr().err
    assert words in said and f"t3d resume {tmp_path / 'run'}" in said
    assert "dead_world.py" in said and "loop.py" not in said, "the environment's own traceback, and not ours"
    assert newest(tmp_path / "run" / "checkpoints")[0] is not None


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
