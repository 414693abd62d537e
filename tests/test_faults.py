"""R1, R3, R4, R5, R12: kills while saving, damaged files, failing disks, hostile files; one writer for one folder."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import faults
import t3d
from faults import Kept, Prober, reseal, tensors_file
from t3d.errors import UserError
from t3d.events import End, Event, Resumed, Saved, SaveFailed
from t3d.run import saver as saving
from t3d.store import segments
from t3d.store.checkpoint import newest, open_checkpoint
from t3d.store.folder import Log
from t3d.store.states import split

KINDS = ["manifest.json", "state.json", "state.safetensors", "replay"]
SOURCE = Path(t3d.__file__).parent


def both(quick: int, full: int) -> pytest.MarkDecorator:
    """The same trials in their short form and, marked slow, in their full number."""
    return pytest.mark.parametrize("trials", [quick, pytest.param(full, marks=pytest.mark.slow)])


@pytest.fixture(autouse=True)
def _shared_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEGMENT_ROWS", faults.SEGMENT_ROWS)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(segments, "SEGMENT_ROWS", faults.SEGMENT_ROWS)
        return faults.stopped_run(tmp_path_factory.mktemp("runs"), "stopped")


@pytest.fixture
def kept(stopped: Path, tmp_path: Path) -> Kept:
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


def test_the_run_that_is_damaged_has_what_there_is_to_damage(kept: Kept) -> None:
    assert list(kept.needs) == ["000004-step-240", "000003-step-180", "000002-step-120"]
    shared = set.intersection(*kept.needs.values())
    assert {file.partition("-")[2] for file in shared} == {"seed-0-0-50.safetensors", "seed-0-50-100.safetensors"}
    assert len(kept.files) == 16 and all(kept.of_kind(kind) for kind in KINDS)
    checkpoint, notes = newest(kept.root)
    assert checkpoint is not None and (checkpoint.step, notes, checkpoint.problems()) == (240, [], {})


# R1


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


def assert_in_order(run: Path) -> None:
    """A finished run's checkpoints are whole, and nothing else lies beside them."""
    sound = Kept(run)
    checkpoint, notes = newest(sound.root)
    assert checkpoint is not None and (checkpoint.step, notes) == (300, [])
    assert all(open_checkpoint(sound.root / name).problems() == {} for name in sound.needs)
    assert {file for file in sound.root.rglob("*") if file.is_file()} == set(sound.files)


# R3, R4 and the half of R5 that is about reading


def flip(file: Path, chance: random.Random) -> None:
    content = bytearray(file.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    file.write_bytes(content)


def truncate(file: Path, chance: random.Random) -> None:
    os.truncate(file, chance.randrange(file.stat().st_size))


def assert_survived(kept: Kept, damaged: list[Path]) -> None:
    """The damage is seen, the files are named, and the newest checkpoint that does without them is given."""
    expected, lacking = kept.without(damaged)
    for file in damaged:
        kept.assert_noticed(file)
    checkpoint, notes = newest(kept.root)
    assert checkpoint is not None and (checkpoint.name, checkpoint.damaged) == (expected, lacking)
    newer = [name for name in kept.needs if name > expected or lacking]
    for name in newer:
        lost = [file.name for file in damaged if str(file.relative_to(kept.root)) in kept.needs[name]]
        told = [note for note in notes if f"checkpoint {name} is damaged: " in note]
        assert told and (all(any(f" {file}: " in note for note in told) for file in lost)), (name, lost, notes)
    assert bool(notes) == bool(newer), notes
    assert not lacking or "not bit for bit" in notes[-1]


def assert_resumes(kept: Kept, damaged: list[Path]) -> None:
    expected, _ = kept.without(damaged)
    notes = newest(kept.root)[1]
    events = list(t3d.resume(kept.run))
    assert isinstance(events[0], Resumed) and events[0].checkpoint == expected
    assert set(notes) <= set(events[0].notes), "the user is told"
    assert isinstance(events[-1], End) and (events[-1].reason, events[-1].step) == ("finished", 300)
    checkpoint, after = newest(kept.root)
    assert checkpoint is not None and (checkpoint.step, after) == (300, [])
    rows = np.concatenate([checkpoint.read_rows(segment) for segment in checkpoint.segments])
    assert rows.shape == (300, 9) and np.isfinite(rows).all() and (np.abs(rows[:, :2]) <= 1).all()


def damage_trials(
    stopped: Path, where: Path, trials: int, resumed: int, harm: Callable[[Path, random.Random], None], seed: int
) -> None:
    chance, hit = random.Random(seed), Counter[str]()
    for trial in range(trials):
        kept = Kept(shutil.copytree(stopped, where / str(trial)))
        kind = KINDS[trial % len(KINDS)]
        shared = [one for one in kept.of_kind("replay") if kept.without([one])[1]]
        file = chance.choice(kept.of_kind(kind))
        if chance.random() < 0.5:
            file = chance.choice([one for one in kept.of_kind(kind) if kept.without([one])[0] != "000004-step-240"])
        if trial % (4 * len(KINDS)) == len(KINDS) - 1:
            file = chance.choice(shared)
        before = file.read_bytes()
        harm(file, chance)
        assert file.read_bytes() != before
        assert_survived(kept, [file])
        if trial % (trials // resumed) == 0:
            assert_resumes(kept, [file])
        hit[kind] += 1
        hit["all share it"] += bool(kept.without([file])[1])
        hit["newest needs it"] += kept.without([file])[0] != "000004-step-240"
        shutil.rmtree(kept.run)
    assert all(hit[kind] >= trials // len(KINDS) for kind in KINDS)
    assert hit["all share it"] and hit["newest needs it"] >= trials // 5, hit


@pytest.mark.parametrize(("trials", "resumed"), [(28, 5), pytest.param(500, 20, marks=pytest.mark.slow)])
def test_one_flipped_bit_is_seen_named_and_survived(stopped: Path, tmp_path: Path, trials: int, resumed: int) -> None:
    damage_trials(stopped, tmp_path, trials, resumed, flip, seed=3)


@pytest.mark.parametrize(("trials", "resumed"), [(16, 2), pytest.param(200, 20, marks=pytest.mark.slow)])
def test_a_file_cut_short_is_seen_named_and_survived(stopped: Path, tmp_path: Path, trials: int, resumed: int) -> None:
    damage_trials(stopped, tmp_path, trials, resumed, truncate, seed=4)


@both(1, 5)
@pytest.mark.parametrize("kind", ["missing", "empty", "swapped"])
def test_files_that_are_missing_empty_or_swapped(stopped: Path, tmp_path: Path, kind: str, trials: int) -> None:
    chance = random.Random(5)
    for trial in range(trials):
        kept = Kept(shutil.copytree(stopped, tmp_path / str(trial)))
        newest_own = [kept.root / file for file in kept.needs["000004-step-240"]]
        damaged = [chance.choice(sorted(newest_own))]
        if kind == "missing":
            damaged[0].unlink()
        elif kind == "empty":
            damaged[0].write_bytes(b"")
        else:
            others = [file for file in kept.files if file.name != damaged[0].name and file.name != "manifest.json"]
            damaged += [chance.choice(others)]
            first, second = (file.read_bytes() for file in damaged)
            damaged[0].write_bytes(second)
            damaged[1].write_bytes(first)
        assert_survived(kept, damaged)
        assert_resumes(kept, damaged)


def test_the_manifest_of_another_checkpoint_is_no_use(kept: Kept) -> None:
    first, second = (kept.root / name / "manifest.json" for name in ("000004-step-240", "000003-step-180"))
    contents = first.read_bytes(), second.read_bytes()
    second.write_bytes(contents[0])
    first.write_bytes(contents[1])
    checkpoint, notes = newest(kept.root)
    assert checkpoint is not None and checkpoint.name == "000002-step-120"
    assert all(f"checkpoint {folder} is damaged" in "; ".join(notes) for folder in list(kept.needs)[:2])


@pytest.mark.parametrize(
    "extra",
    [
        "000004-step-240/notes.txt",
        "000004-step-240/folder/deep.bin",
        "replay/unknown.safetensors",
        "replay/folder/deep.bin",
        "999999-step-9",
        "999999999999-step-9/nothing",
        "000009-step-540/nothing",
        "something.tmp",
        "else",
    ],
)
def test_files_that_are_too_many_do_no_harm(kept: Kept, extra: str) -> None:
    path = kept.root / extra
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"not T3D's")
    checkpoint, notes = newest(kept.root)
    assert checkpoint is not None and (checkpoint.step, checkpoint.damaged) == (240, frozenset())
    if extra.startswith("000004"):
        assert any(Path(extra).parts[1] in note and "not read" in note for note in notes)
    events = list(t3d.resume(kept.run))
    assert [event.text for event in events if isinstance(event, SaveFailed)] == []
    assert isinstance(events[-1], End) and events[-1].reason == "finished"
    checkpoint, _ = newest(kept.root)
    assert checkpoint is not None and checkpoint.step == 300


@pytest.mark.parametrize("newer", [2, 7, 10**9, 1.5])
def test_a_newer_format_is_refused_in_a_sentence(kept: Kept, newer: Any) -> None:
    before = contents_of(kept.run)
    reseal(kept.root / "000004-step-240", {}, format=newer)
    manifest = (kept.root / "000004-step-240" / "manifest.json").read_bytes()
    for read in (lambda: newest(kept.root), lambda: list(t3d.resume(kept.run))):
        with pytest.raises(UserError, match=r"has checkpoint format .*update T3D$") as refused:
            read()
        assert "\n" not in str(refused.value) and len(str(refused.value)) < 400
    before["checkpoints/000004-step-240/manifest.json"] = manifest
    assert contents_of(kept.run) == before, "a T3D that is too old changes nothing"


def contents_of(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


# The half of R5 that is about writing

PLACES = ["first file", "state.json", "state.safetensors", "manifest.json", "segments", "temporary", "root", "rename"]
ERRORS = {"disk full": errno.ENOSPC, "I/O error": errno.EIO, "read-only folder": errno.EROFS}


def faulty(patched: pytest.MonkeyPatch, place: str, number: int, bad: set[int]) -> list[int]:
    """Saves of these numbers fail at a place; the list fills with the failures made."""
    saves, failed, save, fsync, rename = [0], list[int](), saving.save, os.fsync, Path.rename

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
        self._file = FailingFile(self._file, broken)

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

CAN_MOUNT = (
    subprocess.run(
        ["unshare", "-rm", "sh", "-c", "mount -t tmpfs -o size=1m none /mnt"], capture_output=True, check=False
    ).returncode
    == 0
    if shutil.which("unshare")
    else False
)
in_a_mount = pytest.mark.skipif(not CAN_MOUNT, reason="unshare -rm with a mount is not permitted here")

ON_A_SMALL_DISK = """
import contextlib, json, os, subprocess, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import torch
torch.set_num_threads(1)
import faults, t3d
from t3d.store import checkpoint as checkpoints
from t3d.store import manifest as manifests
from t3d.store import segments
disk = Path({disk!r})
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "none", str(disk)], check=True)
segments.SEGMENT_ROWS = faults.SEGMENT_ROWS
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
    checkpoints.SPARE_BYTES = -2**40  # no looking ahead: the kernel itself says no, in the middle of a file
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
    text = (ON_A_SMALL_DISK + script).format(tests=str(Path(__file__).parent), disk=str(disk), **values)
    command = ["unshare", "-rm", sys.executable, "-c", text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@in_a_mount
@pytest.mark.parametrize("kind", ["full", "really full", "read-only"])
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
@pytest.mark.parametrize("kind", HARMS)
def test_resuming_on_a_disk_that_takes_nothing_is_a_sentence_or_works(stopped: Path, tmp_path: Path, kind: str) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    text = (ON_A_SMALL_DISK + RESUME_THERE).format(
        tests=str(Path(__file__).parent), disk=str(disk), run=str(stopped), harm=HARMS[kind]
    )
    command = ["unshare", "-rm", sys.executable, "-c", text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in done.stderr, done.stderr[-1500:]
    code = json.loads(done.stdout.splitlines()[-1])["code"]
    assert code in (0, 2) and (code == 0 or done.stderr.startswith("error: "))


# R12

EVERY_NAME = [
    "checkpoints/000004-step-240/manifest.json",
    "checkpoints/000004-step-240/state.json",
    "checkpoints/000004-step-240/state.safetensors",
    "checkpoints/replay/000004-seed-0-200-240.safetensors",
    "best/seed-0.json",
    "best/seed-0.safetensors",
    "config.toml",
    "events.jsonl",
    "journal.jsonl",
    "metrics.csv",
    "lock",
]
READERS = ["policy", "show", "list", "eval", "plot", "resume"]  # resume last: it writes
WHO_READS = {
    "checkpoints": ["show", "resume"],
    "best": ["policy", "show"],
    "lock": ["resume"],
    "metrics.csv": ["resume"],
}
WHO_READS |= {"journal.jsonl": ["show", "resume"], "config.toml": ["eval", "resume"]}
TEXTS = [name for name in EVERY_NAME if "safetensors" not in name]


def readers(name: str) -> list[str]:
    return WHO_READS.get(name.partition("/")[0], READERS)


class Hostile:
    """A run folder to put hostile files into, and a place outside that nobody may touch."""

    def __init__(self, run: Path, prober: Prober) -> None:
        self.run, self.prober = run, prober
        self.newest = run / "checkpoints" / "000004-step-240"
        self.segment = "000004-seed-0-200-240.safetensors"
        self.marker = run.parent / "executed"
        self.outside = run.parent / "outside"
        self.outside.mkdir()
        (self.outside / "precious").write_bytes(b"precious")

    def meet(self, *actions: str) -> list[dict[str, Any]]:
        """Lets each command meet the folder: nothing executed, nothing outside touched, a sentence or a fallback."""
        before, answers = contents_of(self.outside), []
        for action in actions or READERS:
            target = self.run / "best" / "seed-0" if action == "policy" else self.run
            answer = self.prober(action, target, self.outside)
            assert answer["outcome"] in ("done", "UserError"), (action, answer)
            assert answer["opened"] == [], (action, answer)
            refused = answer["outcome"] == "UserError" or answer["text"] == "2"
            assert answer["seconds"] < (1 if refused else 5), (action, answer)
            assert not self.marker.exists(), action
            assert contents_of(self.outside) == before, f"{action} wrote outside"
            answers.append(answer)
        return answers

    def refuse(self, *actions: str) -> None:
        for answer in self.meet(*actions):
            assert answer["outcome"] == "UserError" or answer["text"] == "2", answer


@pytest.fixture
def hostile(stopped: Path, tmp_path: Path, prober: Prober) -> Hostile:
    return Hostile(shutil.copytree(stopped, tmp_path / "run"), prober)


def test_the_prober_sees_what_it_must_see(hostile: Hostile) -> None:
    """A sound run is met by every command without a complaint, and reading outside is noticed."""
    assert [answer["outcome"] for answer in hostile.meet()] == ["done"] * len(READERS)
    shutil.copytree(hostile.run / "best", hostile.outside / "best")
    answer = hostile.prober("policy", hostile.outside / "best" / "seed-0", hostile.outside)
    assert sorted(Path(name).name for name in answer["opened"]) == ["seed-0.json", "seed-0.safetensors"]


@pytest.mark.parametrize("name", EVERY_NAME)
def test_a_pickle_under_an_accepted_name_is_not_executed(hostile: Hostile, name: str) -> None:
    (hostile.run / name).write_bytes(faults.pickled(hostile.marker))
    hostile.meet(*READERS)


@pytest.mark.parametrize("name", ["state.json", "state.safetensors", "segment"])
def test_a_pickle_with_the_right_hash_is_refused(hostile: Hostile, name: str) -> None:
    name = hostile.segment if name == "segment" else name
    reseal(hostile.newest, {name: faults.pickled(hostile.marker)})
    hostile.refuse("resume")


ROW = {"dtype": "F32", "shape": [40, 9], "data_offsets": [0, 1440]}
TENSORS = {
    "overlapping": tensors_file({"rows": ROW, "other": {**ROW, "data_offsets": [720, 2160]}}, bytes(2160)),
    "same place twice": tensors_file({"rows": ROW, "other": ROW}, bytes(1440)),
    "offset 2^63": tensors_file({"rows": {**ROW, "data_offsets": [2**63, 2**63 + 1440]}}, bytes(1440)),
    "offset 2^64": tensors_file({"rows": {**ROW, "data_offsets": [0, 2**64]}}, bytes(1440)),
    "negative offset": tensors_file({"rows": {**ROW, "data_offsets": [-1440, 0]}}, bytes(1440)),
    "past the end": tensors_file({"rows": {**ROW, "data_offsets": [0, 2880], "shape": [80, 9]}}, bytes(1440)),
    "shape 2^62": tensors_file({"rows": {**ROW, "shape": [2**62, 9]}}, bytes(1440)),
    "shape overflows": tensors_file({"rows": {**ROW, "shape": [2**32, 2**32, 0]}}, bytes(1440)),
    "header of 2^60": tensors_file({"rows": ROW}, bytes(1440), length=2**60),
    "header of 2^64 - 1": tensors_file({"rows": ROW}, bytes(1440), length=2**64 - 1),
    "header of 200 MB": tensors_file({"rows": ROW}, bytes(1440), length=200_000_000),
    "no header": b"\x00" * 8,
    "nothing": b"",
    "deep header": tensors_file(b"[" * 100_000),
    "other type": tensors_file({"rows": {**ROW, "dtype": "F64", "shape": [20, 9]}}, bytes(1440)),
    "whole numbers": tensors_file({"rows": {**ROW, "dtype": "I32"}}, bytes(1440)),
    "bfloat": tensors_file({"rows": {**ROW, "dtype": "BF16", "shape": [80, 9]}}, bytes(1440)),
    "eight bits": tensors_file({"rows": {**ROW, "dtype": "F8_E4M3", "shape": [160, 9]}}, bytes(1440)),
    "unknown type": tensors_file({"rows": {**ROW, "dtype": "PICKLE"}}, bytes(1440)),
    "other name": tensors_file({"cols": ROW}, bytes(1440)),
    "other width": tensors_file({"rows": {**ROW, "shape": [120, 3]}}, bytes(1440)),
    "three axes": tensors_file({"rows": {**ROW, "shape": [40, 3, 3]}}, bytes(1440)),
    "no axes": tensors_file({"rows": {**ROW, "shape": [], "data_offsets": [0, 4]}}, bytes(4)),
    "too few rows": tensors_file({"rows": {**ROW, "shape": [10, 9], "data_offsets": [0, 360]}}, bytes(360)),
    "too many rows": tensors_file({"rows": {**ROW, "shape": [400, 9], "data_offsets": [0, 14400]}}, bytes(14400)),
    "no rows": tensors_file({"rows": {**ROW, "shape": [0, 9], "data_offsets": [0, 0]}}),
    "not finite": tensors_file({"rows": ROW}, np.full(360, np.nan, "f4").tobytes()),
}
WRONG_ROWS_ONLY = ("too few rows", "too many rows", "not finite")


@pytest.mark.parametrize("kind", TENSORS)
def test_hostile_numbers_in_the_replay_are_refused(hostile: Hostile, kind: str) -> None:
    reseal(hostile.newest, {hostile.segment: TENSORS[kind]})
    (answer,) = hostile.meet("resume")
    assert answer["outcome"] == "UserError", answer
    assert kind == "not finite" or "diverged" not in answer["text"], "refused before it was learned from"


SOME = ("overlapping", "offset 2^63", "header of 2^60", "bfloat", "no axes")


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind in SOME else pytest.mark.slow)
        for kind in TENSORS
        if kind not in WRONG_ROWS_ONLY
    ],
)
def test_hostile_numbers_in_state_and_policy_are_refused(hostile: Hostile, kind: str) -> None:
    reseal(hostile.newest, {"state.safetensors": TENSORS[kind]})
    (hostile.run / "best" / "seed-0.safetensors").write_bytes(TENSORS[kind])
    hostile.refuse("policy", "resume")


@pytest.mark.parametrize(
    "name",
    [
        "../../../outside/precious",
        "..",
        "/etc/passwd",
        "state.json/../../../../outside/precious",
        "nul\0.json",
        "a/b",
        "a\\b",
        "",
        ".",
        "state.json\n",
        "x" * 10_000_000,
        "ſtate.json",
        None,
        7,
        ["state.json"],
    ],
    ids=lambda name: repr(name)[:30],
)
@pytest.mark.parametrize("where", ["files", "segments"])
def test_a_manifest_may_name_nothing_but_plain_files(hostile: Hostile, name: Any, where: str) -> None:
    absolute = str(hostile.outside / "precious") if name == "/etc/passwd" else name
    manifest = json.loads((hostile.newest / "manifest.json").read_bytes())["manifest"]
    entry = [absolute, 8, "0" * 64]
    value = [*manifest["files"], entry] if where == "files" else [*manifest["segments"], [0, 240, 248, entry]]
    reseal(hostile.newest, {}, **{where: value})
    checkpoint, notes = newest(hostile.newest.parent)
    assert checkpoint is not None and checkpoint.step == 180, "the one before it"
    assert len(notes) == 1 and "000004-step-240 is damaged: manifest.json" in notes[0] and len(notes[0]) < 400
    (answer,) = hostile.meet("resume")
    assert answer["outcome"] == "done"


MANIFESTS = {
    "size 2^62": lambda m: {"files": [[name, 2**62, sha] for name, _, sha in m["files"]]},
    "negative size": lambda m: {"files": [[name, -1, sha] for name, _, sha in m["files"]]},
    "size in words": lambda m: {"files": [[name, "much", sha] for name, _, sha in m["files"]]},
    "no files": lambda m: {"files": []},
    "files twice": lambda m: {"files": m["files"] * 2},
    "files is a number": lambda m: {"files": 3},
    "files is a text": lambda m: {"files": "state.json"},
    "files is a dict": lambda m: {"files": {"state.json": 1}},
    "entries too long": lambda m: {"files": [[*file, 4] for file in m["files"]]},
    "no segments": lambda m: {"segments": []},
    "segments twice": lambda m: {"segments": m["segments"] * 2},
    "segments shifted": lambda m: {"segments": [[s, a + 10, b + 10, f] for s, a, b, f in m["segments"]]},
    "segments of 2^62": lambda m: {"segments": [[s, a, b + 2**62, f] for s, a, b, f in m["segments"]]},
    "segments before the beginning": lambda m: {"segments": [[s, a - 2**62, b, f] for s, a, b, f in m["segments"]]},
    "segments backwards": lambda m: {"segments": [[s, b, a, f] for s, a, b, f in m["segments"]]},
    "segments of another seed": lambda m: {"segments": [[s + 1, a, b, f] for s, a, b, f in m["segments"]]},
    "segments of 10^400": lambda m: {"segments": [[s, a, 10**400, f] for s, a, b, f in m["segments"]]},
    "step in words": lambda m: {"step": "many"},
    "step is a list": lambda m: {"step": []},
    "step is 10^400": lambda m: {"step": 10**400},
    "format is a text": lambda m: {"format": "1"},
    "format is null": lambda m: {"format": None},
    "format is negative": lambda m: {"format": -1},
}


@pytest.mark.parametrize("kind", MANIFESTS)
def test_a_sealed_manifest_that_lies_is_refused_or_passed_over(hostile: Hostile, kind: str) -> None:
    manifest = json.loads((hostile.newest / "manifest.json").read_bytes())["manifest"]
    reseal(hostile.newest, {}, **MANIFESTS[kind](manifest))
    hostile.meet("resume")


@pytest.mark.parametrize(
    "manifest", [b"", b"[]", b"null", b"7", b'"manifest"', b"{}", b'{"manifest":[],"sha256":""}', b'{"manifest":1e999}']
)
def test_what_is_no_manifest_is_passed_over(hostile: Hostile, manifest: bytes) -> None:
    (hostile.newest / "manifest.json").write_bytes(manifest)
    checkpoint, notes = newest(hostile.newest.parent)
    assert checkpoint is not None and checkpoint.step == 180 and "manifest.json" in notes[0]


DEEP = b"[" * 100_000


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize(
    "deep", [pytest.param("brackets", marks=pytest.mark.slow), pytest.param("whole", marks=pytest.mark.slow), "in TOML"]
)
def test_deep_brackets_are_refused(hostile: Hostile, name: str, deep: str) -> None:
    closed = DEEP + b"]" * 100_000
    kinds = {"brackets": DEEP, "whole": closed + b"\n", "in TOML": b"seeds = " + closed + b"\n"}
    (hostile.run / name).write_bytes(kinds[deep])
    hostile.meet(*readers(name))


def test_deep_brackets_with_the_right_hash_are_refused(hostile: Hostile) -> None:
    for content in (DEEP, b'{"config":' * 100_000 + b"1" + b"}" * 100_000):
        reseal(hostile.newest, {"state.json": content})
        hostile.refuse("resume")


@pytest.mark.parametrize("name", EVERY_NAME)
def test_a_pipe_does_not_hang_anything(hostile: Hostile, name: str) -> None:
    (hostile.run / name).unlink()
    os.mkfifo(hostile.run / name)
    hostile.meet(*readers(name))


def test_a_folder_in_place_of_a_file_is_refused_and_let_go(kept: Kept) -> None:
    file = kept.root / "000004-step-240" / "state.json"
    file.unlink()
    file.mkdir()
    assert_survived(kept, [file])
    opened = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        newest(kept.root)
    assert len(list(Path("/proc/self/fd").iterdir())) <= opened + 2


def test_a_folder_that_does_not_exist_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere"):
        list(t3d.resume(tmp_path / "nowhere"))


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


@pytest.mark.parametrize(
    "name", ["lock", "events.jsonl", "metrics.csv", "journal.jsonl", "config.toml", "config.toml.tmp"]
)
def test_a_link_under_a_name_that_is_written_is_not_followed(hostile: Hostile, name: str) -> None:
    (hostile.run / name).unlink(missing_ok=True)
    (hostile.run / name).symlink_to(hostile.outside / "precious")
    hostile.meet("resume")


@pytest.mark.parametrize("name", ["last/seed-0.json.tmp", "last/seed-0.safetensors.tmp"])
def test_a_link_in_place_of_a_temporary_file_is_not_followed(hostile: Hostile, name: str) -> None:
    (hostile.run / name).symlink_to(hostile.outside / "precious")
    hostile.meet("resume")


@pytest.mark.parametrize("name", ["best/seed-0.json", "best/seed-0.safetensors", "best", "checkpoints", "config.toml"])
def test_links_that_lead_in_a_circle_are_refused(hostile: Hostile, name: str) -> None:
    path = hostile.run / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    path.symlink_to(path)
    hostile.meet(*readers(name))


@pytest.mark.parametrize(
    "text",
    [
        b'{"pid": 1e999, "host": "x"}',
        b'{"pid": "many", "host": "x"}',
        b'{"pid": 1, "host": {"a": []}}',
        b"[]",
        b"7",
        b"\xff\xfe",
        b"[" * 999,
    ],
)
def test_whatever_the_lock_says_the_run_goes_on(hostile: Hostile, text: bytes) -> None:
    (hostile.run / "lock").write_bytes(text)
    (answer,) = hostile.meet("resume")
    assert answer["outcome"] == "done"


@pytest.mark.parametrize("name", [name for name in EVERY_NAME if name != "events.jsonl"])  # that one may be long
def test_a_huge_file_is_not_read_whole(hostile: Hostile, name: str) -> None:
    """A terabyte that takes no room on the disk, as a copied folder or an archive may hold."""
    os.truncate(hostile.run / name, 2**40)
    hostile.meet(*readers(name))


VALUES: list[Any] = ["x", [], {}, None, 10**30, -(10**30), -1, 0.5, float("inf"), float("nan"), True, ["x"], {"x": 1}]
STATE_PLACES = list(
    faults.places(
        {
            "collector": {
                "seed-0": {
                    "env-0": {
                        "bad_values": 0,
                        "episode": 0,
                        "length": 0,
                        "noise": 0,
                        "noise_stream": {"bit_generator": 0, "has_uint32": 0, "state": {"inc": 0, "state": 0}},
                        "trace": 0,
                        "warm_up_stream": {"bit_generator": 0, "state": 0, "uinteger": 0},
                    },
                    "taken": 0,
                }
            },
            "config": {"td3": {"gamma": 0, "actor_hidden": [0]}, "env": {"id": 0}, "seeds": [0], "total_steps": 0},
            "learner": {"updates": 0},
            "logs": {"events.jsonl": 0, "metrics.csv": 0},
            "memory": {"added": [0], "normaliser": 0, "sampler": 0},
            "progress": {"evaluated": 0, "log_due": 0, "seconds": 0, "step": 0, "best": 0},
            "seeds": [0],
            "versions": {"t3d": 0},
        }
    )
)


@both(20, 10_000)
@pytest.mark.timeout(1800)
def test_wrong_types_in_a_sealed_state_are_refused(stopped: Path, tmp_path: Path, prober: Prober, trials: int) -> None:
    """All hashes are right, and one value is not what T3D would have written."""
    changes = [(place, value) for place in STATE_PLACES for value in VALUES]
    wrong = []
    for trial, (place, value) in enumerate(random.Random(12).sample(changes, min(trials, len(changes)))):
        run = shutil.copytree(stopped, tmp_path / str(trial))
        folder = run / "checkpoints" / "000004-step-240"
        state = json.loads((folder / "state.json").read_bytes())
        faults.put_at(state, place, value)
        reseal(folder, {"state.json": json.dumps(state).encode()})
        answer = prober("resume", run)
        if answer["outcome"] not in ("done", "UserError"):
            wrong.append(f"{'/'.join(map(str, place))} = {value!r}: {answer['outcome']}: {answer['text'][:100]}")
        shutil.rmtree(run)
    assert wrong == [], "\n".join(wrong)


ARRAYS = {
    "gone": None,
    "no numbers": np.zeros(0, np.float32),
    "one number": np.zeros((), np.float32),
    "many axes": np.zeros((1, 1, 1, 1), np.float32),
    "whole numbers": np.zeros((1, 353), np.int64),
    "flags": np.zeros(1, np.bool_),
    "not finite": np.full((40, 1), np.nan, np.float32),
    "long": np.zeros((5000, 1), np.float32),
}


@both(14, 10_000)
@pytest.mark.timeout(600)
def test_wrong_arrays_in_a_sealed_state_are_refused(stopped: Path, tmp_path: Path, prober: Prober, trials: int) -> None:
    arrays = split(open_checkpoint(stopped / "checkpoints" / "000004-step-240").state())[1]
    changes = [(name, kind) for name in sorted(arrays) for kind in ARRAYS]
    wrong = []
    for trial, (name, kind) in enumerate(random.Random(14).sample(changes, min(trials, len(changes)))):
        run = shutil.copytree(stopped, tmp_path / str(trial))
        changed = {key: value for key, value in arrays.items() if key != name}
        if (array := ARRAYS[kind]) is not None:
            changed[name] = array
        reseal(run / "checkpoints" / "000004-step-240", {"state.safetensors": safetensors.numpy.save(changed)})
        answer = prober("resume", run)
        if answer["outcome"] not in ("done", "UserError"):
            wrong.append(f"{name} {kind}: {answer['outcome']}: {answer['text'][:100]}")
        shutil.rmtree(run)
    assert wrong == [], "\n".join(wrong)


@pytest.mark.parametrize("line", ["5", "[]", '"x"', "null", '{"event": []}', '{"event": "eval"}', "\x00", "\ud800"])
def test_lines_that_are_no_events_are_a_sentence(hostile: Hostile, line: str) -> None:
    with (hostile.run / "events.jsonl").open("ab") as file:
        file.write(line.encode("utf-8", "surrogatepass") + b"\n")
    hostile.meet("show", "eval")


@both(6, 25)
def test_evaluations_with_wrong_values_are_a_sentence(
    stopped: Path, tmp_path: Path, prober: Prober, trials: int
) -> None:
    lines = (stopped / "events.jsonl").read_text().splitlines()
    evaluation = next(json.loads(line) for line in lines if '"event": "eval"' in line)
    fields, values = ["seed", "mean_return", "step", "returns", "updates"], ["x", [], {}, None, 10**400]
    wrong = []
    for trial, (field, value) in enumerate(
        random.Random(15).sample([(field, value) for field in fields for value in values], trials)
    ):
        run = shutil.copytree(stopped, tmp_path / str(trial))
        with (run / "events.jsonl").open("a") as file:
            file.write(json.dumps({**evaluation, field: value}) + "\n")
        for action in ("show", "eval", "plot"):
            answer = prober(action, run)
            if answer["outcome"] not in ("done", "UserError"):
                wrong.append(f"{action}, {field} = {value!r:.20}: {answer['outcome']}: {answer['text'][:100]}")
        shutil.rmtree(run)
    assert wrong == [], "\n".join(wrong)


def test_nothing_in_the_source_can_execute_a_file() -> None:
    forbidden = re.compile(
        r"\b(c?pickle|dill|cloudpickle|joblib|marshal|shelve|jsonpickle)\b|(?<![\w.])(eval|exec|compile|__import__)\("
        r"|torch\.load\b|torch\.jit\.load\b|yaml\.(load|unsafe_load|full_load)\b|allow_pickle\s*=\s*True|np\.load\(|numpy\.load\("
    )
    files = sorted(SOURCE.rglob("*.py"))
    found = [
        f"{file.relative_to(SOURCE)}:{number}: {line.strip()}"
        for file in files
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if forbidden.search(line)
    ]
    allowed = [line for line in found if "safetensors.numpy.load(" in line]
    assert len(files) > 30 and [line for line in found if line not in allowed] == []


# One writer for one folder

HOLD = "import sys, time; from pathlib import Path; from t3d.store.lock import Lock; "
HOLD += "held = Lock(Path(sys.argv[1])); print('held', flush=True); time.sleep(600)"


def holder_of(run: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(run)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_a_second_process_is_refused_and_takes_over_after_a_kill(
    kept: Kept, capsys: pytest.CaptureFixture[str]
) -> None:
    from t3d.app.cli import main  # noqa: PLC0415

    with holder_of(kept.run) as process:
        before = contents_of(kept.run)
        with pytest.raises(UserError, match=rf"is in use by process {process.pid} on .*; stop that run first"):
            list(t3d.resume(kept.run))
        assert main(["resume", str(kept.run), "--no-video"]) == 2
        assert f"process {process.pid} " in capsys.readouterr().err
        assert contents_of(kept.run) == before, "who is refused changes nothing"
        process.send_signal(signal.SIGKILL)
        process.wait()
    events = list(t3d.resume(kept.run))
    assert isinstance(events[0], Resumed)
    assert any(f"process {process.pid} on " in note and "taken over" in note for note in events[0].notes)
    assert isinstance(events[-1], End) and events[-1].reason == "finished"
    assert (kept.run / "lock").read_bytes() == b"", "left in order"


def test_a_run_in_another_process_is_left_alone_until_it_is_killed(tmp_path: Path) -> None:
    """The holder is a real training, killed in the middle."""
    command = [sys.executable, "-m", "t3d", "train", "Pendulum-v1", "--preset", "quick", "--total-steps", "100000"]
    command += ["--td3.random-steps", "100", "--checkpoint.every-steps", "100", "--no-video", "--eval.episodes", "1"]
    command += ["--eval.every-steps", "50000", "--run.root", str(tmp_path), "--run.name", "held", "--threads", "1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            until = time.monotonic() + 60
            while newest(tmp_path / "held" / "checkpoints")[0] is None and time.monotonic() < until:
                time.sleep(0.05)
            with pytest.raises(UserError, match=rf"process {process.pid} on "):
                list(t3d.resume(tmp_path / "held"))
        finally:
            process.send_signal(signal.SIGKILL)
    events = t3d.resume(tmp_path / "held")
    resumed = next(events)
    events.close()
    assert isinstance(resumed, Resumed) and resumed.step >= 100
    assert [note for note in resumed.notes if f"process {process.pid} on " in note and "taken over" in note]
    assert [note for note in resumed.notes if "damaged" in note] == []
