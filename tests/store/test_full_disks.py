"""The half of R5 that is about writing: full, read-only and failing disks end no training."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import faults
import t3d
from faults import assert_in_order, both, in_a_mount
from t3d.events import End, Event, Saved, SaveFailed
from t3d.run import saver as saving
from t3d.store.checkpoint import newest, open_checkpoint, save
from t3d.store.folder import Log

pytestmark = pytest.mark.usefixtures("shared_segments")

PLACES = ["first file", "state.json", "state.safetensors", "manifest.json", "segments", "temporary", "root", "rename"]
ERRORS = {"disk full": errno.ENOSPC, "I/O error": errno.EIO, "read-only folder": errno.EROFS}


def faulty(patched: pytest.MonkeyPatch, place: str, number: int, bad: set[int]) -> list[int]:
    """Saves of these numbers fail at a place; the list fills with the failures made."""
    saves, failed, fsync, rename = [0], list[int](), os.fsync, Path.rename

    def counting_save(*arguments: Any) -> Any:
        saves[0] += 1
        return save(*arguments)

    def fail_at(here: str, path: Path) -> None:
        in_a_save = saves[0] in bad and saves[0] not in failed and "checkpoints" in path.parts
        if in_a_save and here in (place, "anything"):
            failed.append(saves[0])
            raise OSError(number, os.strerror(number))

    def failing_fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        folders = {"checkpoints": "root", "replay": "segments"}
        if path.is_dir():
            fail_at("temporary" if path.suffix == ".tmp" else folders.get(path.name, ""), path)
        else:
            fail_at(place if place == "first file" else path.name, path)
        fsync(descriptor)

    def failing_rename(self: Path, target: Path) -> Path:
        if self.suffix == ".tmp":
            fail_at("rename", self)
        return rename(self, target)

    patched.setattr(saving, "save", counting_save)
    patched.setattr(os, "fsync", failing_fsync)
    patched.setattr(Path, "rename", failing_rename)
    return failed


def assert_goes_on_without(events: Iterator[Event], run: Path, bad: set[int]) -> list[Event]:
    """While saves fail, those from before stay whole; afterwards saving works, and the failures were counted."""
    seen, saved, tried = list[Event](), 0, 0
    for event in events:
        if isinstance(event, Saved | SaveFailed):
            tried += 1
            assert isinstance(event, SaveFailed) == (tried in bad), (tried, event)
        if isinstance(event, Saved):
            saved = event.step
        checkpoint, notes = newest(run / "checkpoints") if tried else (None, [])
        assert notes == [] and (checkpoint.step if checkpoint else 0) == saved, (event, notes)
        seen.append(event)
    failures = [event.failures for event in seen if isinstance(event, SaveFailed)]
    assert failures == list(range(1, len(bad) + 1)), "counted"
    assert isinstance(seen[-1], End) and (seen[-1].reason, seen[-1].step) == ("finished", 300)
    assert_in_order(run)
    return seen


IN_TURN = [(place, list(ERRORS)[number % 3]) for number, place in enumerate(PLACES)]
OTHERS = [(place, kind) for place in PLACES for kind in ERRORS if (place, kind) not in IN_TURN]


@pytest.mark.parametrize(
    ("place", "kind"), [*IN_TURN, *(pytest.param(*pair, marks=pytest.mark.slow) for pair in OTHERS)]
)
def test_a_save_that_fails_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, place: str) -> None:
    bad = {2, 3}  # of five: at the steps 120 and 180
    failed = faulty(monkeypatch, place, ERRORS[kind], bad)
    events = assert_goes_on_without(t3d.train(faults.small(tmp_path, "run")), tmp_path / "run", bad)
    assert failed == [2, 3]
    texts = [event.text for event in events if isinstance(event, SaveFailed)]
    assert all(os.strerror(ERRORS[kind]) in text for text in texts)


@both(1, 40)
@pytest.mark.timeout(600)
def test_saves_that_fail_at_random(tmp_path: Path, trials: int) -> None:
    chance = random.Random(55)
    for trial in range(trials):
        with pytest.MonkeyPatch.context() as patched:
            bad = set(chance.sample([1, 2, 3, 4], chance.randint(1, 4)))
            failed = faulty(patched, chance.choice(PLACES), chance.choice(list(ERRORS.values())), bad)
            run = tmp_path / str(trial)
            assert_goes_on_without(t3d.train(faults.small(tmp_path, run.name)), run, bad)
            assert set(failed) == bad


def test_what_three_failed_saves_leave_does_not_push_out_the_good_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A save that fails at its very end must not leave a folder that counts as one of the kept three."""
    faulty(monkeypatch, "root", errno.EIO, {2, 3, 4})
    for event in t3d.train(faults.small(tmp_path, "run")):
        if event.step >= 240 and isinstance(event, SaveFailed):
            break
    assert [open_checkpoint(path).problems() for path in (tmp_path / "run" / "checkpoints").glob("0*-step-*")] == (
        [{}] * len(list((tmp_path / "run" / "checkpoints").glob("0*-step-*")))
    )


class FailingFile:
    """An open log on a disk that has failed: neither writing nor cutting back works."""

    def __init__(self, file: Any, broken: threading.Event) -> None:
        self.file, self.broken = file, broken

    def __getattr__(self, name: str) -> Any:
        if name in ("write", "truncate") and self.broken.is_set():
            return self._fail
        return getattr(self.file, name)

    def _fail(self, *_: Any) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_logs_on_a_failing_disk_end_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, begin = threading.Event(), Log.__init__

    def begin_failing(self: Log, *arguments: Any, **keywords: Any) -> None:
        begin(self, *arguments, **keywords)
        self._file = FailingFile(self._file, broken)  # type: ignore[assignment]

    monkeypatch.setattr(Log, "__init__", begin_failing)
    seen = []
    for event in t3d.train(faults.small(tmp_path, "run")):
        seen.append(event)
        if isinstance(event, Saved):
            broken.set() if event.step == 60 else broken.clear()
    lost = [event.text for event in seen if isinstance(event, SaveFailed) and "lines of" in event.text]
    assert lost and isinstance(seen[-1], End) and seen[-1].reason == "finished"
    lines = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    assert all(json.loads(line)["event"] for line in lines), "every line is whole"


# The same on a real file system of its own


ON_A_SMALL_DISK = """
import contextlib, json, os, subprocess, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import torch
torch.set_num_threads(1)
import faults, t3d
from t3d.run import saver
from t3d.store import checkpoint as checkpoints
from t3d.store import contents
disk = Path({disk!r})
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "none", str(disk)], check=True)
contents.SEGMENT_ROWS = faults.SEGMENT_ROWS
def fill():
    with contextlib.suppress(OSError), (disk / "ballast").open("wb", buffering=0) as file:
        while file.write(bytes(4096)) == 4096: pass
def empty():
    (disk / "ballast").unlink()
def told(event):
    checkpoint, notes = checkpoints.newest(disk / "run" / "checkpoints")
    row = {{"event": event.event, "step": event.step, "newest": checkpoint.step if checkpoint else 0, "notes": notes}}
    print(json.dumps(row | {{name: getattr(event, name, None) for name in ("text", "failures", "reason")}}), flush=True)
"""

FULL = """
if {really}:
    saver.SPARE_BYTES = -2**40  # no looking ahead: the kernel itself says no, in the middle of a file
for event in t3d.train(faults.small(disk, "run")):
    if event.event in ("saved", "save-failed", "end"): told(event)
    if event.event == "saved" and event.step == 60: fill()
    if event.event == "save-failed" and event.step == 180 and "checkpoint" in event.text: empty()
faults_left = [str(path) for path in (disk / "run" / "checkpoints").rglob("*.tmp")]
lines = (disk / "run" / "events.jsonl").read_text().splitlines()
print(json.dumps({{"event": "left", "left": faults_left, "whole": all(json.loads(line) for line in lines)}}))
"""

READ_ONLY = """
folder = str(disk / "run" / "checkpoints")
def remount(how):
    subprocess.run(["mount", "-o", f"remount,bind,{{how}}", folder], check=True)
for event in t3d.train(faults.small(disk, "run")):
    if event.event in ("saved", "save-failed", "end"): told(event)
    if event.event == "saved" and event.step == 60:
        subprocess.run(["mount", "--bind", folder, folder], check=True)
        remount("ro")
    if event.event == "save-failed" and event.step == 180: remount("rw")
print(json.dumps({{"event": "left", "left": [str(path) for path in Path(folder).rglob("*.tmp")], "whole": True}}))
"""


def in_its_own_mount(script: str, disk: Path, **values: Any) -> list[dict[str, Any]]:
    disk.mkdir()
    text = (ON_A_SMALL_DISK + script).format(tests=str(Path(faults.__file__).parent), disk=str(disk), **values)
    command = ["unshare", "-rm", sys.executable, "-c", text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def in_system(kind: str) -> Any:
    return pytest.param(kind, marks=pytest.mark.system)


@in_a_mount
@pytest.mark.parametrize("kind", [in_system("full"), "really full", in_system("read-only")])
def test_a_disk_that_is_full_or_read_only_for_a_while(tmp_path: Path, kind: str) -> None:
    script = READ_ONLY if kind == "read-only" else FULL
    *told, left = in_its_own_mount(script, tmp_path / "disk", really=kind == "really full")
    words = "Read-only file system" if kind == "read-only" else r"No space left on device|must stay free"
    failed = [row for row in told if row["event"] == "save-failed" and "the checkpoint could not" in row["text"]]
    assert [row["step"] for row in failed] == [120, 180] and all(re.search(words, row["text"]) for row in failed)
    assert all(row["newest"] == 60 for row in failed), "the one from before stays whole"
    counted = [row["failures"] for row in told if row["event"] == "save-failed"]
    assert counted == list(range(1, len(counted) + 1))
    assert [row["step"] for row in told if row["event"] == "saved"] == [60, 240, 300]
    assert all(row["notes"] == [] for row in told), "no checkpoint is damaged at any time"
    assert (told[-1]["reason"], told[-1]["newest"]) == ("finished", 300)
    assert left["whole"] and left["left"] == []


RESUME_THERE = """
import shutil
from t3d.app.cli import main
shutil.copytree({run!r}, disk / "run")
{harm}
code = main(["resume", str(disk / "run"), "--no-video"])
print(json.dumps({{"event": "exit", "code": code}}))
"""

HARMS = {
    "full": "fill()",
    "read-only": 'subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)',
}


@in_a_mount
@pytest.mark.parametrize("kind", ["full", in_system("read-only")])
def test_resuming_on_a_disk_that_takes_nothing_is_a_sentence_or_works(stopped: Path, tmp_path: Path, kind: str) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    text = (ON_A_SMALL_DISK + RESUME_THERE).format(
        tests=str(Path(faults.__file__).parent), disk=str(disk), run=str(stopped), harm=HARMS[kind]
    )
    command = ["unshare", "-rm", sys.executable, "-c", text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in done.stderr, done.stderr[-1500:]
    code = json.loads(done.stdout.splitlines()[-1])["code"]
    assert code in (0, 2) and (code == 0 or done.stderr.startswith("error: "))
