"""What the files of a checkpoint hold: a manifest with hashes, the replay in segments, and a state in two files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from t3d.errors import UserError
from t3d.files import Refused, read, to_count, to_fields, to_list, to_number, unsealed, write_new
from t3d.store.metrics import stored_name
from t3d.types import UNKNOWN, State

if TYPE_CHECKING:  # imports torch, which `t3d runs` must not wait for
    from t3d.data.replay import Replay

FORMAT = 2
MAX_MANIFEST_BYTES = 2**26  # a longer one is refused unread; chosen
FILE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,254}")
SEGMENT_ROWS = 10_000  # written once and shared: at the default interval a checkpoint has one to write a seed; chosen
SEGMENT_FRAME_BYTES = 2**30  # with images a segment has fewer rows if their newest frames are more than this; chosen


class File(NamedTuple):
    """A file of a checkpoint, as its manifest lists it."""

    name: str
    size: int
    sha256: str


class Segment(NamedTuple):
    """A file with the rows of one member's transitions first to stop, counted from the start of the run."""

    member: str  # its name
    first: int
    stop: int
    file: File


def read_manifest(path: Path) -> tuple[int, tuple[File, ...], tuple[Segment, ...]]:
    """Returns step, files and segments after checking hash and names; another format is an error for the user."""
    fields = unsealed("manifest", read(path, MAX_MANIFEST_BYTES))
    version = to_number(fields["format"])
    if version != FORMAT:
        raise UserError(
            f"{path.parents[2]} has checkpoint format {version:g}, and this T3D reads {FORMAT}; resume it with the "
            "version of T3D that wrote it, or train again"
        )
    files = tuple(_file(entry) for entry in to_list(fields["files"]))
    segments = tuple(
        Segment(stored_name(member), to_count(first), to_count(stop), _file(entry))
        for member, first, stop, entry in map(to_list, to_list(fields["segments"]))
    )
    return to_count(fields["step"]), files, segments


def write_file(path: Path, content: bytes, written: list[Path]) -> File:
    """Writes a file, which is added to `written` before it exists."""
    path.unlink(missing_ok=True)  # from an interrupted attempt
    written.append(path)
    return File(path.name, len(content), write_new(path, content))


def _file(entry: Any) -> File:
    name, size, sha256 = to_list(entry)
    if not isinstance(name, str) or not FILE_NAME.fullmatch(name):
        raise Refused(f"it names a file {name!r:.80}, which is not a plain name")
    return File(name, to_count(size), str(sha256))


def write_segments(
    folder: Path, serial: int, members: list[str], replay: Replay, shared: list[Segment], written: list[Path]
) -> Iterator[Segment]:
    """Yields the segments that hold the replay: full ones of earlier checkpoints, and the rest, written now."""
    for index, member in enumerate(members):
        oldest, _ = replay.kept(index)
        yield from (segment for segment in shared if segment.member == member and segment.stop > oldest)
        for first, stop in _new_spans(index, member, replay, shared):
            content = safetensors.numpy.save(replay.contents(index, first, stop))
            name = f"{serial:06}-{member}-{first}-{stop}.safetensors"
            yield Segment(member, first, stop, write_file(folder / name, content, written))


def new_bytes(members: list[str], replay: Replay, shared: list[Segment]) -> int:
    """Returns how much write_segments will write, without the few bytes of each file's header."""
    return sum(
        replay.content_bytes(index, first, stop)
        for index, member in enumerate(members)
        for first, stop in _new_spans(index, member, replay, shared)
    )


def _new_spans(index: int, member: str, replay: Replay, shared: list[Segment]) -> Iterator[tuple[int, int]]:
    """Yields where each segment to write begins and ends: all rows that no shared one holds."""
    first, stop = replay.kept(index)
    first = max([first, *(segment.stop for segment in shared if segment.member == member)])
    for start in range(first, stop, rows_of(replay)):
        yield start, min(stop, start + rows_of(replay))


def contents_of(segment: Segment, content: bytes, replay: Replay) -> dict[str, NDArray[Any]]:
    """Returns the arrays of a segment; their shapes and types must fit the replay."""
    arrays, count = safetensors.numpy.load(content), segment.stop - segment.first
    expected = {"rows": ("float32", (count, replay.rows.shape[2]))}
    arrays.setdefault("origins", np.full((count, 4), UNKNOWN, np.int32))  # added in the course of format 2
    expected["origins"] = "int32", (count, 4)
    if replay.spec.images:
        expected["numbers"] = "int64", (count, replay.spec.stack + 1)
        expected["frames"] = "uint8", (len(arrays["frames"]), replay.spec.frame_size)
    for name, (dtype, shape) in expected.items():
        array = arrays[name]
        if array.shape != shape or str(array.dtype) != dtype:
            raise Refused(f"{segment.file.name} holds {name} of {array.dtype} {array.shape} instead of {dtype} {shape}")
    return arrays


def rows_of(replay: Replay) -> int:
    """Returns how many rows a full segment has."""
    return min(SEGMENT_ROWS, max(1, SEGMENT_FRAME_BYTES // max(1, replay.spec.frame_size)))


def shared_segments(folder: Path, before: Sequence[Segment], replay: Replay) -> list[Segment]:
    """Returns the full segments of the checkpoint before; none if one is missing: then all are written again."""
    full = [segment for segment in before if segment.stop - segment.first == rows_of(replay)]
    sizes = [path.stat().st_size if path.is_file() else -1 for path in (folder / segment.file.name for segment in full)]
    return full if sizes == [segment.file.size for segment in full] else []


def split(state: State) -> tuple[State, dict[str, NDArray[Any]]]:
    """Splits a nested state into its plain part and its arrays by path, e.g. learner/actor."""
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
    """The inverse of split; changes plain."""
    for name, array in arrays.items():
        *path, last = name.split("/")
        node = plain
        for key in path:
            node = to_fields(node[key])
        to_fields(node)[last] = array
    return plain


def refuse_unlike(stored: Any, like: Any, name: str = "the state") -> None:
    """Raises ValueError where a state from a file has another kind of value than the same state of this run."""
    if isinstance(like, dict):
        for key in like.keys() & to_fields(stored).keys():
            refuse_unlike(stored[key], like[key], key)
    elif isinstance(like, np.ndarray):
        wrong = not isinstance(stored, np.ndarray) or (stored.ndim, stored.dtype) != (like.ndim, like.dtype)
        if wrong:
            raise ValueError(f"{name} is not an array of {like.ndim} axes of {like.dtype}")
    elif like is not None:
        kinds = (int, float) if isinstance(like, float) else (list, tuple) if isinstance(like, tuple) else type(like)
        if not isinstance(stored, kinds):
            raise ValueError(f"{name} is a {type(stored).__name__} instead of a {type(like).__name__}")
