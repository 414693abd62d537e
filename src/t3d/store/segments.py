"""Writes the replay in segments, each only once, so that a checkpoint costs only what is new."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.numpy
from numpy.typing import NDArray

from t3d.files import Refused
from t3d.store.manifest import Segment, write_file

if TYPE_CHECKING:  # imports torch, which `t3d runs` must not wait for
    from t3d.data.replay import Replay

SEGMENT_ROWS = 10_000  # chosen: a checkpoint at the default interval has just one to write for each seed
SEGMENT_FRAME_BYTES = 2**30  # with images a segment has fewer rows if their newest frames are more than this; chosen


def write_segments(
    folder: Path, serial: int, members: list[str], replay: Replay, shared: list[Segment], written: list[Path]
) -> Iterator[Segment]:
    """Yields the segments that hold the replay: full ones of earlier checkpoints, and the rest, written now."""
    for place, member in enumerate(members):
        first, stop = replay.kept(place)
        for segment in shared:
            if segment.member == member and segment.stop > first:
                first = segment.stop
                yield segment
        while first < stop:
            end = min(stop, first + rows_of(replay))
            content = safetensors.numpy.save(replay.contents(place, first, end))
            name = f"{serial:06}-{member}-{first}-{end}.safetensors"
            yield Segment(member, first, end, write_file(folder / name, content, written))
            first = end


def contents_of(segment: Segment, content: bytes, replay: Replay) -> dict[str, NDArray[Any]]:
    """Returns the arrays of a segment; their shapes and types must fit the replay."""
    found, count = safetensors.numpy.load(content), segment.stop - segment.first
    expected = {"rows": ("float32", (count, replay.rows.shape[2]))}
    if "origins" in found:  # added in the course of format 2
        expected["origins"] = "int32", (count, 4)
    if replay.frames is not None:
        expected["numbers"] = "int64", (count, replay.frames.stack + 1)
        expected["frames"] = "uint8", (len(found["frames"]), replay.frames.frame_size)
    for name, (dtype, shape) in expected.items():
        array = found[name]
        if array.shape != shape or str(array.dtype) != dtype:
            raise Refused(f"{segment.file.name} holds {name} of {array.dtype} {array.shape} instead of {dtype} {shape}")
    return found


def rows_of(replay: Replay) -> int:
    """Returns how many rows a full segment has."""
    if replay.frames is None:
        return SEGMENT_ROWS
    return min(SEGMENT_ROWS, max(1, SEGMENT_FRAME_BYTES // replay.frames.frame_size))


def shared_segments(folder: Path, before: Sequence[Segment], rows: int) -> list[Segment]:
    """Returns the full segments of the checkpoint before; none if one is missing: then all are written again."""
    full = [segment for segment in before if segment.stop - segment.first == rows]
    sizes = [path.stat().st_size if path.is_file() else -1 for path in (folder / one.file.name for one in full)]
    return full if sizes == [segment.file.size for segment in full] else []


def new_bytes(members: list[str], replay: Replay, shared: list[Segment]) -> int:
    """Returns how much write_segments will write, without the few bytes of each file's header."""
    total, rows = 0, rows_of(replay)
    for place, member in enumerate(members):
        first, stop = replay.kept(place)
        first = max([first, *(segment.stop for segment in shared if segment.member == member)])
        total += sum(replay.content_bytes(place, start, min(stop, start + rows)) for start in range(first, stop, rows))
    return total
