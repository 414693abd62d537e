"""Checkpoints: complete or absent, every byte hashed, and only as large as what is new.

    checkpoints/000007-step-70000/   manifest.json (size and SHA-256 of every file), state.json, state.safetensors
    checkpoints/replay/000003-seed-0-30000-40000.safetensors   rows of the replay, written once and shared

Everything in a state has a name, so a state may grow without a new format.
"""

from __future__ import annotations

import errno
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from t3d.errors import UserError
from t3d.files import CORRUPT_ERRORS, Refused, error_text, fields_in, read, refuse_link, sealed, sync_folder, to_json
from t3d.policy.spec import Floats
from t3d.store.contents import (
    FORMAT,
    File,
    Segment,
    contents_of,
    joined,
    new_bytes,
    read_manifest,
    shared_segments,
    split,
    write_file,
    write_segments,
)
from t3d.types import UNKNOWN, Rollout, State

if TYPE_CHECKING:  # imports torch, which `t3d runs` must not wait for
    from t3d.algo.learner import Learner
    from t3d.data.memory import Memory
    from t3d.data.replay import Replay

KEPT = 3
SPARE_BYTES = 2**24  # to leave free beyond what a checkpoint needs, for the run to continue with; chosen
MAX_JSON_BYTES, MAX_BYTES = 2**28, 2**33  # larger files are refused unread; chosen

FOLDER_NAME = re.compile(r"\d{6,}-step-\d{1,15}")
SEGMENT_NAME = re.compile(r"\d{6,}-([a-z0-9._-]+-)?seed-\d+-\d+-\d+\.safetensors")
MISSING = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)


class Checkpoint(NamedTuple):
    """A checkpoint on disk. Nothing in it is trusted before its hash has been checked."""

    path: Path
    step: int
    files: tuple[File, ...]
    segments: tuple[Segment, ...]
    damaged: frozenset[str] = frozenset()  # segments that cannot be read, if no checkpoint is complete

    @property
    def name(self) -> str:
        return self.path.name

    def state(self) -> State:
        content = {file.name: self._read(file) for file in self.files}
        return joined(fields_in(content["state.json"]), safetensors.numpy.load(content["state.safetensors"]))

    def restore_learning(self, state: State, members: list[str], learner: Learner, memory: Memory) -> None:
        learner.restore(state["learner"])
        memory.restore(state["memory"])
        for index, member in enumerate(members):
            self.fill(memory.replay, index, member)

    def fill(self, replay: Replay, index: int, member: str) -> None:
        """Restores a member's rows and links. Where a segment is damaged, the rows of an intact one replace it."""
        first, stop = replay.kept(index)
        own = [segment for segment in self.segments if segment.member == member and segment.stop > first]
        _refuse_gaps(own, first, stop)
        intact: dict[str, NDArray[Any]] = {}
        for segment in sorted(own, key=lambda segment: segment.file.name in self.damaged):
            count = segment.stop - segment.first
            if segment.file.name not in self.damaged:
                contents = intact = contents_of(segment, self._read(segment.file), replay)
            elif intact:
                names = intact.keys() - {"frames"}  # which are there already
                contents = {name: np.resize(intact[name], (count, *intact[name].shape[1:])) for name in names}
                contents["origins"] = np.full((count, 4), UNKNOWN, np.int32)
            else:
                raise Refused(f"no intact segment of the replay of {member} is left")
            replay.put(index, segment.first, contents, gone=max(0, first - segment.first))
        replay.rebuild(index, first, stop)

    def rollouts(self, member: str, index: int, replay: Replay) -> Iterator[Rollout]:
        """Yields as much of a member's replay as another has room for, as if its member `index` had collected it."""
        own = sorted((segment for segment in self.segments if segment.member == member), key=lambda own: own.first)
        for segment in own:
            if segment.stop > own[-1].stop - replay.capacity:
                contents = contents_of(segment, self._read(segment.file), replay)
                yield Rollout(index, contents["rows"], contents["origins"], replay.columns[0], [], [])

    def read_rows(self, segment: Segment) -> Floats:
        rows: Floats = safetensors.numpy.load(self._read(segment.file))["rows"]
        return rows

    def problems(self) -> dict[str, Exception]:
        problems: dict[str, Exception] = {}
        for file in [*self.files, *(segment.file for segment in self.segments)]:
            try:
                self._read(file)
            except (OSError, Refused, MemoryError) as error:
                problems[file.name] = error
        return problems

    def _read(self, file: File) -> bytes:
        own = file in self.files
        folder = self.path if own else self.path.parent / "replay"
        limit = MAX_JSON_BYTES if file.name.endswith(".json") else MAX_BYTES
        return read(folder / file.name, min(limit, file.size), file.sha256)


def save(
    root: Path, step: int, state: State, replay: Replay, before: Checkpoint | None, spare: int = 0
) -> tuple[Checkpoint, int]:
    """Writes the next checkpoint under a temporary name, and renames it; returns it and the bytes written."""
    for folder in (root, root / "replay"):  # but never the run's own, which may have been removed
        folder.mkdir(exist_ok=True)
        refuse_link(folder)
    serial = max((_serial(path) for path in folders(root)), default=0) + 1
    path = root / f"{serial:06}-step-{step}"
    temporary = path.with_suffix(".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    plain, arrays = split(state)
    usable = () if before is None or before.damaged else before.segments
    shared = shared_segments(root / "replay", usable, replay)
    needed = sum(array.nbytes for array in arrays.values()) + new_bytes(state["members"], replay, shared)
    free = shutil.disk_usage(root).free
    if free < needed + spare:
        new, kept, there = (f"{size / 2**20:,.1f} MiB" for size in (needed, spare, free))
        besides = f", {kept} must stay free besides" if spare else ""
        raise OSError(errno.ENOSPC, f"it needs {new}{besides}, and the disk has {there}")
    written: list[Path] = []
    try:
        temporary.mkdir()
        segments = tuple(write_segments(root / "replay", serial, state["members"], replay, shared, written))
        contents = {"state.json": to_json(plain), "state.safetensors": safetensors.numpy.save(arrays)}
        files = tuple(write_file(temporary / name, content, written) for name, content in contents.items())
        manifest = {"format": FORMAT, "step": step, "files": files, "segments": segments}
        write_file(temporary / "manifest.json", sealed("manifest", manifest), written)
        sync_folder(root / "replay")
        sync_folder(temporary)
        size = sum(file.stat().st_size for file in written)
        temporary.rename(path)
        sync_folder(root)
    except BaseException:
        with suppress(FileNotFoundError):
            path.rename(temporary)  # it may not be on disk, so it does not count
        for file in written:
            file.unlink(missing_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _prune(root)
    return Checkpoint(path, step, files, segments), size


def newest(root: Path) -> tuple[Checkpoint | None, list[str]]:
    """Returns the newest complete checkpoint, and what is wrong with newer ones.

    If none is complete, the newest that lacks only segments of the replay: a run should not be lost for these.
    """
    notes: list[str] = []
    errors: list[Exception] = []
    usable: Checkpoint | None = None
    try:
        refuse_link(root)
        refuse_link(root / "replay")
        paths = folders(root)
    except (OSError, Refused) as error:
        errors, paths = [error], []
        notes.append(f"the checkpoints cannot be read: {error_text(error)}")
    for path in paths:
        try:
            checkpoint = open_checkpoint(path)
            known = {"manifest.json", *(file.name for file in checkpoint.files)}
            for name in sorted({file.name for file in path.iterdir()} - known):
                notes.append(f"checkpoint {path.name} holds {name!r:.80}, which is not part of it and is not read")
        except CORRUPT_ERRORS as error:
            errors.append(error)
            notes.append(f"checkpoint {path.name} is damaged: manifest.json: {error_text(error)}")
            continue
        problems = checkpoint.problems()
        if not problems:
            return checkpoint, notes
        errors += problems.values()
        notes += [f"checkpoint {path.name} is damaged: {name}: {error_text(why)}" for name, why in problems.items()]
        members = {segment.member for segment in checkpoint.segments}
        intact = {segment.member for segment in checkpoint.segments if segment.file.name not in problems}
        if usable is None and members == intact and not any(file.name in problems for file in checkpoint.files):
            usable = checkpoint._replace(damaged=frozenset(problems))
    if usable is None and any(isinstance(error, OSError) and error.errno not in MISSING for error in errors):
        raise UserError(f"{'; '.join(notes)}. The disk may work again later")
    if usable is not None:
        notes.append(
            f"no checkpoint is complete; {usable.name} lacks only segments of the replay, which others replace: "
            "the run continues, but not bit for bit"
        )
    return usable, notes


def open_checkpoint(path: Path) -> Checkpoint:
    """Opens a checkpoint as its manifest describes it."""
    refuse_link(path)
    return Checkpoint(path, *read_manifest(path / "manifest.json"))


def folders(root: Path) -> list[Path]:
    """Lists the checkpoints that were completed, newest first."""
    if not root.is_dir():
        return []
    paths = [path for path in root.iterdir() if FOLDER_NAME.fullmatch(path.name)]
    return sorted(paths, key=_serial, reverse=True)


def _prune(root: Path) -> None:
    """Removes checkpoints beyond the kept ones, incomplete ones, and segments that no kept one refers to."""
    paths = folders(root)
    with suppress(OSError):
        for path in paths[KEPT:]:
            path.rename(path.with_suffix(".tmp"))  # half removed, it must not look complete
    for path in root.glob("*-step-*.tmp"):
        shutil.rmtree(path, ignore_errors=True)
    wanted: set[str] = set()
    try:
        for path in paths[:KEPT]:
            wanted |= {segment.file.name for segment in open_checkpoint(path).segments}
    except (UserError, *CORRUPT_ERRORS):
        return  # what it refers to is not known, so nothing is removed this time
    with suppress(OSError):
        for file in (root / "replay").iterdir():
            if SEGMENT_NAME.fullmatch(file.name) and file.name not in wanted:
                file.unlink()


def _refuse_gaps(segments: list[Segment], first: int, stop: int) -> None:
    """Every row from first to stop must come from just one segment."""
    ordered = sorted(segments, key=lambda segment: segment.first)
    starts = [max(first, segment.first) for segment in ordered]  # the oldest rows may be overwritten by now
    if [*starts, stop] != [first, *(segment.stop for segment in ordered)]:
        raise Refused("the segments of its replay have gaps or overlaps")


def _serial(path: Path) -> int:
    return int(path.name.partition("-")[0])
