"""Writes the replay in segments, each only once, so that a checkpoint costs only what is new."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import safetensors.numpy

from t3d.store.manifest import Segment, write_file

if TYPE_CHECKING:  # imports torch, which `t3d runs` must not wait for
    from t3d.data.replay import Replay

SEGMENT_ROWS = 10_000  # chosen: a checkpoint at the default interval has just one to write for each seed


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
            end = min(stop, first + SEGMENT_ROWS)
            arrays = {"rows": replay.read(place, first, end), "origins": replay.origins(place, first, end)}
            content = safetensors.numpy.save(arrays)
            name = f"{serial:06}-{member}-{first}-{end}.safetensors"
            yield Segment(member, first, end, write_file(folder / name, content, written))
            first = end


def shared_segments(folder: Path, before: Sequence[Segment]) -> list[Segment]:
    """Returns the full segments of the checkpoint before; none if one is missing: then all are written again."""
    full = [segment for segment in before if segment.stop - segment.first == SEGMENT_ROWS]
    sizes = [path.stat().st_size if path.is_file() else -1 for path in (folder / one.file.name for one in full)]
    return full if sizes == [segment.file.size for segment in full] else []


def new_bytes(members: list[str], replay: Replay, shared: list[Segment]) -> int:
    """Returns how much write_segments will write, without the few bytes of each file's header."""
    rows = 0
    for place, member in enumerate(members):
        first, stop = replay.kept(place)
        rows += stop - max([first, *(segment.stop for segment in shared if segment.member == member)])
    return rows * (replay.rows[0, :1].nbytes + replay.links.origins[0, :1].nbytes)
