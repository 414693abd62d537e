"""A run whose folder is moved or removed while it trains; an end says "saved" only if its last step is."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import t3d
from run_folders import events_of
from t3d.errors import UserError
from t3d.events import End
from t3d.run import live
from t3d.store.checkpoint import newest
from worlds import Failing, failing, small


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
    monkeypatch.setattr("t3d.run.saver.CHECK_SECONDS", 0.0)
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
    monkeypatch.setattr("t3d.run.saver.CHECK_SECONDS", 0.0)
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
    run.close()
    checkpoint, _ = newest(tmp_path / "run" / "checkpoints")
    end = events_of(tmp_path / "run")[-1]
    assert checkpoint is not None and isinstance(end, End) and (end.saved, end.step) == (True, checkpoint.step)


def test_a_lock_file_that_is_removed_lets_nobody_in(tmp_path: Path) -> None:
    run = live.train(small(tmp_path, "run"), make_env=Failing)
    next(run)
    (tmp_path / "run" / "lock").unlink()
    run._turn.acquire()  # as in another thread: one that waits would be taken over
    with pytest.raises(UserError, match="is in use by another process"):
        next(t3d.resume(tmp_path / "run", make_env=Failing))
    run._turn.release()
    run.close()
