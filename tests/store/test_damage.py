"""R3, R4 and the half of R5 that is about reading: damaged, missing and unexpected files in checkpoints."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import t3d
from faults import Kept, both, contents_of, reseal
from t3d.errors import UserError
from t3d.events import End, Resumed, SaveFailed
from t3d.store.checkpoint import newest

pytestmark = pytest.mark.usefixtures("shared_segments")

KINDS = ["manifest.json", "state.json", "state.safetensors", "replay"]


def test_the_run_that_is_damaged_has_what_there_is_to_damage(kept: Kept) -> None:
    assert list(kept.needs) == ["000004-step-240", "000003-step-180", "000002-step-120"]
    shared = set.intersection(*kept.needs.values())
    assert {file.partition("-")[2] for file in shared} == {"seed-0-0-50.safetensors", "seed-0-50-100.safetensors"}
    assert len(kept.files) == 16 and all(kept.of_kind(kind) for kind in KINDS)
    checkpoint, notes = newest(kept.root)
    assert checkpoint is not None and (checkpoint.step, notes, checkpoint.problems()) == (240, [], {})


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
    assert checkpoint is not None and (checkpoint.name, checkpoint.damaged) == (expected, frozenset(lacking))
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


@pytest.mark.parametrize("newer", [3, 7, 10**9, 2.5])
def test_a_newer_format_is_refused_in_a_sentence(kept: Kept, newer: Any) -> None:
    before = contents_of(kept.run)
    reseal(kept.root / "000004-step-240", {}, format=newer)
    manifest = (kept.root / "000004-step-240" / "manifest.json").read_bytes()
    for read in (lambda: newest(kept.root), lambda: list(t3d.resume(kept.run))):
        with pytest.raises(UserError, match=r"has checkpoint format .*with the version of T3D") as refused:
            read()
        assert "\n" not in str(refused.value) and len(str(refused.value)) < 400
    before["checkpoints/000004-step-240/manifest.json"] = manifest
    assert contents_of(kept.run) == before, "a T3D that is too old changes nothing"


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
