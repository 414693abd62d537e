"""R1: a kill at any moment of a save."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

import faults
import t3d
from faults import Kept, assert_in_order, both
from t3d.events import End
from t3d.store.checkpoint import newest

pytestmark = pytest.mark.usefixtures("shared_segments")


@both(8, 200)
@pytest.mark.timeout(900)
def test_a_kill_at_any_moment_of_a_save_loses_one_interval_at_most(
    saver: faults.Served, tmp_path: Path, trials: int
) -> None:
    chance, torn = random.Random(1), 0
    for trial in range(trials):
        root = tmp_path / str(trial)
        root.mkdir()
        said, interval = killed_while_saving(saver, root, chance)
        checkpoint, notes = newest(root)
        assert checkpoint is not None and notes == [], (trial, notes)
        assert faults.saved_number(checkpoint) in (said, said + 1), (trial, said)
        torn += any(root.glob("*.tmp"))
        shutil.rmtree(root)
    assert torn >= trials // 8, f"only {torn} of {trials} kills came inside a save (an interval took {interval:.3f} s)"


def killed_while_saving(saver: faults.Served, root: Path, chance: random.Random) -> tuple[int, float]:
    """The last checkpoint that was reported complete, and how long one took."""
    saver.ask(str(root))
    child = int(saver.answer().removeprefix("pid "))
    wanted, begun = chance.randint(2, 6), time.monotonic()
    while int(saver.answer()) < wanted:
        pass
    interval = (time.monotonic() - begun) / wanted
    time.sleep(chance.uniform(0, interval))
    os.kill(child, signal.SIGKILL)
    said = wanted
    while not (line := saver.answer()).startswith("gone"):
        said = int(line)
    assert line == "gone -9"
    return said, interval


def test_a_save_after_a_kill_clears_what_the_kill_left(kept: Kept) -> None:
    torn = kept.root / "000005-step-300.tmp"
    torn.mkdir()
    (torn / "state.json").write_bytes(b"{")
    (kept.root / "replay" / "000005-seed-0-240-290.safetensors").write_bytes(b"half")
    assert newest(kept.root)[1] == []
    events = list(t3d.resume(kept.run))
    assert isinstance(events[-1], End) and events[-1].reason == "finished"
    assert_in_order(kept.run)
