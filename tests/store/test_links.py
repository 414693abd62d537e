"""Links in a run folder are not followed: what a run, a picture or a video reads and writes stays in its folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import helpers
import t3d
from helpers import make_spec, small_config
from hostile import EVERY_NAME, Hostile, readers
from t3d.app.cli import main
from t3d.events import SaveFailed
from t3d.files import Refused
from t3d.policy.acting import PolicySnapshot
from t3d.policy.files import save_policy
from t3d.store.checkpoint import newest

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
    pytest.importorskip("matplotlib")
    return main(["plot", str(run), *flags])


def record(run: Path, *flags: str) -> int:
    pytest.importorskip("imageio_ffmpeg")
    return main(["record", str(run), "--steps", "3", *flags])


@pytest.mark.parametrize(
    ("command", "link", "made"),
    [
        (plot, "curve.png", "curve.png"),
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
    network = helpers.mlp(3, 4, 1)
    snapshot = PolicySnapshot(0, network, np.zeros((1, network.size), np.float32))
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


CHECKPOINT_FILES = EVERY_NAME[:4]


@pytest.mark.parametrize("name", CHECKPOINT_FILES)
def test_a_link_in_place_of_a_checkpoints_file_is_not_followed(hostile: Hostile, name: str) -> None:
    shutil.move(hostile.run / name, hostile.outside / "taken")  # right in size and hash
    (hostile.run / name).symlink_to(hostile.outside / "taken")
    checkpoint, notes = newest(hostile.newest.parent)
    assert checkpoint is not None and checkpoint.step == 180 and Path(name).name in notes[0]
    (answer,) = hostile.meet("resume")
    assert answer["outcome"] == "done"


def test_a_checkpoint_that_is_a_link_is_not_followed(hostile: Hostile) -> None:
    shutil.move(hostile.newest, hostile.outside / "taken")
    hostile.newest.symlink_to(hostile.outside / "taken", target_is_directory=True)
    checkpoint, notes = newest(hostile.newest.parent)
    assert checkpoint is not None and checkpoint.step == 180
    assert any("000004-step-240" in note for note in notes), "and the user is told"
    (answer,) = hostile.meet("resume")
    assert answer["outcome"] == "done"


def test_a_replay_folder_that_is_a_link_is_neither_read_nor_emptied(hostile: Hostile) -> None:
    replay = hostile.newest.parent / "replay"
    shutil.copytree(replay, hostile.outside, dirs_exist_ok=True)
    shutil.rmtree(replay)
    replay.symlink_to(hostile.outside, target_is_directory=True)
    hostile.meet("resume")


@pytest.mark.parametrize("name", ["lock", "events.jsonl", "metrics.csv", "journal.jsonl", "config.toml"])
def test_a_link_under_a_name_that_is_written_is_not_followed(hostile: Hostile, name: str) -> None:
    (hostile.run / name).unlink(missing_ok=True)
    (hostile.run / name).symlink_to(hostile.outside / "precious")
    hostile.meet("resume")


@pytest.mark.parametrize("name", ["best/seed-0.json", "best/seed-0.safetensors", "best", "checkpoints", "config.toml"])
def test_links_that_lead_in_a_circle_are_refused(hostile: Hostile, name: str) -> None:
    path = hostile.run / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    path.symlink_to(path)
    hostile.meet(*readers(name))
