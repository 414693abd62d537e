"""A stopped run with checkpoints that share segments, and the processes that meet damage to it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import faults
from faults import Kept, Prober
from hostile import Hostile
from t3d.store import contents


@pytest.fixture
def shared_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "SEGMENT_ROWS", faults.SEGMENT_ROWS)


@pytest.fixture(scope="session")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(contents, "SEGMENT_ROWS", faults.SEGMENT_ROWS)
        return faults.stopped_run(tmp_path_factory.mktemp("runs"), "stopped")


@pytest.fixture
def kept(shared_segments: None, stopped: Path, tmp_path: Path) -> Kept:
    return Kept(shutil.copytree(stopped, tmp_path / "run"))


@pytest.fixture(scope="module")
def saver() -> Iterator[faults.Served]:
    served = faults.Served("saver")
    assert served.answer(120) == "ready"
    yield served
    served.close()


@pytest.fixture(scope="module")
def prober() -> Iterator[Prober]:
    prober = Prober()
    yield prober
    prober.close()


@pytest.fixture
def hostile(shared_segments: None, stopped: Path, tmp_path: Path, prober: Prober) -> Hostile:
    return Hostile(shutil.copytree(stopped, tmp_path / "run"), prober)
