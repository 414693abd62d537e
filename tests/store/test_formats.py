"""R23: what earlier versions wrote can still be read; tests/fixtures holds one run folder per checkpoint format."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import t3d
from t3d.events import End, EpisodeEnd, Resumed
from t3d.store.checkpoint import newest, open_checkpoint
from t3d.store.manifest import FORMAT

FIXTURES = Path(__file__).parents[1] / "fixtures"


def test_there_is_a_fixture_of_every_format() -> None:
    assert [path.name for path in sorted(FIXTURES.iterdir())] == [f"checkpoint-format-{n + 1}" for n in range(FORMAT)]


@pytest.mark.parametrize("fixture", sorted(path.name for path in FIXTURES.iterdir()))
def test_a_checkpoint_of_any_format_is_read_and_goes_on(tmp_path: Path, fixture: str) -> None:
    folder = tmp_path / fixture
    shutil.copytree(FIXTURES / fixture, folder)
    checkpoint, notes = newest(folder / "checkpoints")
    assert checkpoint is not None and notes == [] and checkpoint.step == 40
    state = checkpoint.state()
    assert state["seeds"] == [3, 1] and state["learner"]["updates"] == 20
    assert state["learner"]["actor"].shape == (2, 21) and np.isfinite(state["learner"]["actor"]).all()
    events = list(t3d.resume(folder))
    resumed, end = events[0], events[-1]
    assert isinstance(resumed, Resumed) and resumed.step == 40
    assert all("bit for bit" in note for note in resumed.notes), (
        "another machine, or random streams of an older version"
    )
    assert isinstance(end, End) and (end.reason, end.step, end.updates) == ("finished", 60, 40)
    assert not any(isinstance(event, EpisodeEnd) for event in events), "episodes have 200 steps and went on"
    assert open_checkpoint(newest(folder / "checkpoints")[0].path).step == 60  # type: ignore[union-attr]


@pytest.mark.parametrize("fixture", sorted(path.name for path in FIXTURES.iterdir()))
def test_a_policy_of_any_format_is_read(fixture: str) -> None:
    policy = t3d.load_policy(FIXTURES / fixture / "best" / "seed-3")
    assert policy.about["env"] == "Pendulum-v1" and -2 <= policy([1, 0, 0])[0] <= 2
