"""Links in a run folder are not followed: what a run, a picture or a video writes stays in its folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import t3d
from helpers import make_spec, small_config
from t3d.app.cli import main
from t3d.events import SaveFailed
from t3d.files import Refused
from t3d.snapshots import PolicySnapshot, parameter_count
from t3d.world.policy import save_policy

PRECIOUS = b"precious"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cfg = small_config(total_steps=150, run={"root": str(tmp_path_factory.mktemp("runs")), "name": "trained"})
    list(t3d.train(cfg))
    return Path(cfg.run.root) / "trained"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / "run")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "file").write_bytes(PRECIOUS)
    return folder


def plot(run: Path, *flags: str) -> int:
    return main(["plot", str(run), *flags])


def record(run: Path, *flags: str) -> int:
    return main(["record", str(run), "--steps", "3", *flags])


@pytest.mark.parametrize(
    ("command", "link", "made"),
    [
        (plot, "curve.png", "curve.png"),
        (plot, "curve.png.tmp", "curve.png"),
        (record, "video.mp4", "video.mp4"),
        (record, ".unfinished-video.mp4", "video.mp4"),
    ],
)
@pytest.mark.parametrize("target", ["file", "missing", "."])
def test_pictures_and_videos_are_not_written_through_links(
    run: Path, outside: Path, command: Callable[[Path], int], link: str, made: str, target: str
) -> None:
    (run / link).symlink_to(outside / target)
    assert command(run) == 0
    assert {path.name: path.read_bytes() for path in outside.iterdir()} == {"file": PRECIOUS}
    assert (run / made).stat().st_size > 1000 and not (run / made).is_symlink()
    assert not [path.name for path in run.iterdir() if "unfinished" in path.name or path.suffix == ".tmp"]


def test_what_a_killed_recording_left_is_cleared(run: Path) -> None:
    (run / ".unfinished-video.mp4").mkdir()
    (run / ".unfinished-video.mp4" / "video.mp4").write_bytes(b"half")
    assert record(run) == 0
    assert not (run / ".unfinished-video.mp4").exists()


@pytest.mark.parametrize(("command", "name"), [(plot, "picture.png"), (record, "video.mp4")])
def test_a_link_that_the_user_names_is_followed(
    run: Path, outside: Path, tmp_path: Path, command: Callable[..., int], name: str
) -> None:
    named = tmp_path / name
    named.symlink_to(outside / name)
    assert command(run, "--out", str(named)) == 0
    assert named.is_symlink() and (outside / name).stat().st_size > 1000


def test_a_folder_of_policies_that_is_a_link_is_refused(tmp_path: Path, outside: Path) -> None:
    (tmp_path / "best").symlink_to(outside)
    sizes = (3, 4, 1)
    snapshot = PolicySnapshot(0, sizes, np.zeros((1, parameter_count(sizes)), np.float32))
    with pytest.raises(Refused, match="best is a link"):
        save_policy(tmp_path / "best" / "seed-0", snapshot, 0, make_spec(3, 1), {"step": 0})
    assert [path.name for path in outside.iterdir()] == ["file"]


@pytest.mark.parametrize("kind", ["best", "last"])
def test_a_run_says_that_it_does_not_write_policies_through_a_link(tmp_path: Path, outside: Path, kind: str) -> None:
    events = t3d.train(small_config(total_steps=150, run={"root": str(tmp_path), "name": "linked"}))
    next(events)
    (tmp_path / "linked" / kind).symlink_to(outside)
    told = [event.text for event in events if isinstance(event, SaveFailed)]
    assert any(f"the {kind} policy of seed 0 could not be written" in text and "is a link" in text for text in told)
    assert [path.name for path in outside.iterdir()] == ["file"]
