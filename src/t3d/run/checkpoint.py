"""Checkpoints: complete or absent, every byte hashed, and only as large as what is new.

    checkpoints/000007-step-70000/manifest.json        every file below with its size and SHA-256; written last
                                  state.json           counters, random streams, plain values
                                  state.safetensors    networks, moments, statistics, actions of the episodes in flight
    checkpoints/replay/000003-seed-0-30000-40000.safetensors   rows of the replay, written once and shared

A checkpoint is written under a temporary name, brought to the disk, and renamed. Older ones are removed afterwards.
"""

from __future__ import annotations

import errno
import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from t3d.errors import UserError
from t3d.files import Refused, read, sync_folder, write_new
from t3d.types import Floats, State

if TYPE_CHECKING:  # imports torch, which `t3d runs` must not wait for
    from t3d.data.replay import Replay

FORMAT = 1
KEPT = 3
SEGMENT_ROWS = 10_000  # rows of a shared segment; chosen: a checkpoint at the default interval has just one to write
SPARE_BYTES = 2**24  # to leave free on the disk beyond what a checkpoint needs; chosen
MOST_MANIFEST_BYTES, MOST_JSON_BYTES, MOST_BYTES = 2**26, 2**28, 2**36  # larger files are refused unread; chosen

FOLDER_NAME = re.compile(r"(\d{6,12})-step-\d{1,15}")
FILE_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,99}")
UNREADABLE = (OSError, ValueError, LookupError, TypeError, RecursionError, safetensors.SafetensorError)


class File(NamedTuple):
    """A file of a checkpoint, as its manifest promises it."""

    name: str
    size: int
    sha256: str


class Segment(NamedTuple):
    """A file with the rows of one seed's transitions first to stop, counted from the run's beginning."""

    seed: int
    first: int
    stop: int
    file: File


class Checkpoint(NamedTuple):
    """A checkpoint on the disk. Nothing of it is believed before its hash has been checked."""

    path: Path
    step: int
    files: tuple[File, ...]
    segments: tuple[Segment, ...]
    damaged: frozenset[str] = frozenset()  # segments that cannot be read, where no checkpoint is whole

    @property
    def name(self) -> str:
        return self.path.name

    def state(self) -> State:
        """What Parts.state gave."""
        content = {file.name: self._read(file) for file in self.files}
        plain = json.loads(content["state.json"])
        return joined(plain, safetensors.numpy.load(content["state.safetensors"]))

    def fill(self, replay: Replay, member: int, seed: int) -> None:
        """Puts a seed's rows back. Where a segment is damaged, the rows of a sound one stand in."""
        first, stop = replay.kept(member)
        mine = [segment for segment in self.segments if segment.seed == seed and segment.stop > first]
        sound: Floats | None = None
        for segment in sorted(mine, key=lambda one: one.file.name in self.damaged):
            if segment.file.name not in self.damaged:
                sound = self.read_rows(segment)
            if sound is None:
                raise Refused(f"no sound piece of the replay of seed {seed} is left")
            rows = np.resize(sound, (segment.stop - segment.first, replay.rows.shape[2])) if self.damaged else sound
            dead = max(0, first - segment.first)
            replay.put(member, segment.first + dead, rows[dead:])
        if sum(segment.stop - max(first, segment.first) for segment in mine) != stop - first:
            raise Refused(f"the pieces of the replay of seed {seed} do not make a whole")

    def read_rows(self, segment: Segment) -> Floats:
        """The rows in a segment."""
        rows: Floats = safetensors.numpy.load(self._read(segment.file))["rows"]
        return rows

    def problems(self) -> dict[str, str]:
        """What is wrong with which file, after reading all of them."""
        found = {}
        for file in [*self.files, *(segment.file for segment in self.segments)]:
            try:
                self._read(file)
            except (OSError, Refused) as error:
                found[file.name] = getattr(error, "strerror", None) or str(error)
        return found

    def _read(self, file: File) -> bytes:
        own = file in self.files
        folder = self.path if own else self.path.parent / "replay"
        most = MOST_JSON_BYTES if file.name.endswith(".json") else MOST_BYTES
        return read(folder / file.name, most, file.size, file.sha256)


def save(root: Path, step: int, state: State, replay: Replay, before: Checkpoint | None) -> tuple[Checkpoint, int]:
    """Writes the next checkpoint and removes what it makes superfluous; returns it and the bytes written."""
    serial = max((_serial(path) for path in root.glob("*-step-*")), default=0) + 1
    path = root / f"{serial:06}-step-{step}"
    temporary = path.with_suffix(".tmp")
    (root / "replay").mkdir(parents=True, exist_ok=True)
    plain, arrays = split(state)
    _check_space(root, sum(array.nbytes for array in arrays.values()) + _new_bytes(replay, before))
    written: list[Path] = []
    try:
        temporary.mkdir()
        segments = tuple(_write_segments(root / "replay", serial, state["seeds"], replay, before, written))
        contents = {"state.json": _json(plain), "state.safetensors": safetensors.numpy.save(arrays)}
        files = tuple(_write(temporary / name, content, written) for name, content in contents.items())
        manifest = {"format": FORMAT, "step": step, "files": files, "segments": segments}
        _write(temporary / "manifest.json", _sealed(manifest), written)
        sync_folder(root / "replay")
        sync_folder(temporary)
        new_bytes = sum(file.stat().st_size for file in written)
        temporary.rename(path)
        sync_folder(root)
    except BaseException:
        for file in written:
            file.unlink(missing_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _prune(root)
    return Checkpoint(path, step, files, segments), new_bytes


def newest(root: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that is whole, and what is wrong with newer ones.

    Where none is whole, the newest that lacks nothing but pieces of the replay: a run should not be lost for these.
    """
    notes: list[str] = []
    usable: Checkpoint | None = None
    for path in folders(root):
        try:
            checkpoint = open_checkpoint(path)
        except UNREADABLE as error:
            notes.append(
                f"checkpoint {path.name} is damaged: manifest.json: {getattr(error, 'strerror', None) or error}"
            )
            continue
        notes += _extra(checkpoint)
        problems = checkpoint.problems()
        if not problems:
            return checkpoint, notes
        notes += [f"checkpoint {path.name} is damaged: {name}: {problem}" for name, problem in problems.items()]
        if usable is None and not problems.keys() & {file.name for file in checkpoint.files}:
            usable = checkpoint._replace(damaged=frozenset(problems))
    if usable is not None:
        notes.append(
            f"no checkpoint is whole; {usable.name} lacks only pieces of the replay, for which others stand in: "
            "the run goes on, but not bit for bit"
        )
    return usable, notes


def open_checkpoint(path: Path) -> Checkpoint:
    """A checkpoint as its manifest describes it; a manifest of a newer format is an error for the user."""
    manifest = _unsealed(read(path / "manifest.json", MOST_MANIFEST_BYTES))
    if manifest["format"] > FORMAT:
        raise UserError(f"{path} has checkpoint format {manifest['format']}, this T3D reads {FORMAT}; update T3D")
    files = tuple(_file(*entry) for entry in manifest["files"])
    segments = tuple(
        Segment(int(seed), int(first), int(stop), _file(*entry)) for seed, first, stop, entry in manifest["segments"]
    )
    return Checkpoint(path, int(manifest["step"]), files, segments)


def split(state: State) -> tuple[State, dict[str, NDArray[Any]]]:
    """A nested state as its plain part and its arrays by path, e.g. learner/actor."""
    plain: State = {}
    arrays: dict[str, NDArray[Any]] = {}
    for key, value in state.items():
        if isinstance(value, dict):
            plain[key], inner = split(value)
            arrays |= {f"{key}/{name}": array for name, array in inner.items()}
        elif isinstance(value, np.ndarray):
            arrays[key] = value
        else:
            plain[key] = value
    return plain, arrays


def joined(plain: State, arrays: dict[str, NDArray[Any]]) -> State:
    """The inverse of split; plain is changed."""
    for name, array in arrays.items():
        *path, last = name.split("/")
        node = plain
        for key in path:
            node = node[key]
        node[last] = array
    return plain


def _write_segments(
    folder: Path, serial: int, seeds: list[int], replay: Replay, before: Checkpoint | None, written: list[Path]
) -> Iterator[Segment]:
    """The segments that together hold the replay: full ones of earlier checkpoints again, the rest written now."""
    for member, seed in enumerate(seeds):
        first, stop = replay.kept(member)
        for segment in _shared(before, seed, first):
            first = segment.stop
            yield segment
        while first < stop:
            end = min(stop, first + SEGMENT_ROWS)
            content = safetensors.numpy.save({"rows": replay.read(member, first, end)})
            name = f"{serial:06}-seed-{seed}-{first}-{end}.safetensors"
            yield Segment(seed, first, end, _write(folder / name, content, written))
            first = end


def _shared(before: Checkpoint | None, seed: int, first: int) -> list[Segment]:
    """A seed's full segments that still hold rows from first on. What is not full, or damaged, is written anew."""
    if before is None:
        return []
    full = [
        segment
        for segment in before.segments
        if segment.seed == seed and segment.stop > first and segment.stop - segment.first == SEGMENT_ROWS
    ]
    return [] if before.damaged else full


def _new_bytes(replay: Replay, before: Checkpoint | None) -> int:
    members, _, width = replay.rows.shape
    shared = sum(segment.stop - segment.first for segment in before.segments) if before else 0
    rows = max(0, sum(min(count, replay.capacity) for count in replay.added) - shared)
    return (rows + members * SEGMENT_ROWS) * width * replay.rows.element_size()


def _check_space(root: Path, needed: int) -> None:
    free = shutil.disk_usage(root).free
    if free < needed + SPARE_BYTES:
        raise OSError(errno.ENOSPC, f"{needed / 2**20:,.0f} MiB are needed and {free / 2**20:,.0f} MiB are free")


def _write(path: Path, content: bytes, written: list[Path]) -> File:
    written.append(path)
    return File(path.name, len(content), write_new(path, content))


def _prune(root: Path) -> None:
    """Removes checkpoints beyond the kept ones, broken-off tries, and segments that no kept one refers to."""
    found = folders(root)
    for path in found[KEPT:]:
        path.rename(path.with_suffix(".tmp"))  # what is half removed must not look whole
    for path in root.glob("*.tmp"):
        shutil.rmtree(path, ignore_errors=True)
    wanted: set[str] = set()
    for path in found[:KEPT]:
        try:
            wanted |= {segment.file.name for segment in open_checkpoint(path).segments}
        except (UserError, *UNREADABLE):
            continue
    for file in (root / "replay").iterdir():
        if file.name not in wanted:
            file.unlink()


def folders(root: Path) -> list[Path]:
    """Checkpoints that were completed, newest first."""
    if not root.is_dir():
        return []
    found = [path for path in root.iterdir() if FOLDER_NAME.fullmatch(path.name) and not path.is_symlink()]
    return sorted(found, key=_serial, reverse=True)


def _serial(path: Path) -> int:
    number = path.name.partition("-")[0]
    return int(number) if number.isdecimal() else 0


def _extra(checkpoint: Checkpoint) -> list[str]:
    known = {"manifest.json", *(file.name for file in checkpoint.files)}
    unknown = sorted(path.name for path in checkpoint.path.iterdir() if path.name not in known)
    return [
        f"checkpoint {checkpoint.name} holds {name!r:.80}, which is not its own and is not read" for name in unknown
    ]


def _file(name: str, size: int, sha256: str) -> File:
    if not FILE_NAME.fullmatch(name):
        raise Refused(f"it names a file {name!r:.80}, which is not a plain name")
    return File(name, int(size), str(sha256))


def _sealed(manifest: dict[str, Any]) -> bytes:
    content = _json(manifest)
    return _json({"manifest": manifest, "sha256": hashlib.sha256(content).hexdigest()})


def _unsealed(content: bytes) -> dict[str, Any]:
    manifest = json.loads(content)["manifest"]
    if _sealed(manifest) != content:
        raise Refused("its content has changed: the SHA-256 is another")
    return dict(manifest)


def _json(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False, sort_keys=True, separators=(",", ":")).encode()
