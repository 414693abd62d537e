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
    folder: Path, serial: int, seeds: list[int | str], replay: Replay, shared: list[Segment], written: list[Path]
) -> Iterator[Segment]:
    """Yields the segments that hold the replay: full ones of earlier checkpoints, and the rest, written now."""
    for member, seed in enumerate(seeds):
        first, stop = replay.kept(member)
        for segment in shared:
            if segment.seed == seed and segment.stop > first:
                first = segment.stop
                yield segment
        while first < stop:
            end = min(stop, first + SEGMENT_ROWS)
            arrays = {"rows": replay.read(member, first, end), "origins": replay.origins(member, first, end)}
            content = safetensors.numpy.save(arrays)
            owner = seed if isinstance(seed, str) else f"seed-{seed}"
            name = f"{serial:06}-{owner}-{first}-{end}.safetensors"
            yield Segment(seed, first, end, write_file(folder / name, content, written))
            first = end


def shared_segments(folder: Path, before: Sequence[Segment]) -> list[Segment]:
    """Returns the full segments of the checkpoint before; none if one is missing: then all are written again."""
    full = [segment for segment in before if segment.stop - segment.first == SEGMENT_ROWS]
    sizes = [path.stat().st_size if path.is_file() else -1 for path in (folder / one.file.name for one in full)]
    return full if sizes == [segment.file.size for segment in full] else []


def new_bytes(seeds: list[int | str], replay: Replay, shared: list[Segment]) -> int:
    """Returns how much write_segments will write, without the few bytes of each file's header."""
    rows = 0
    for member, seed in enumerate(seeds):
        first, stop = replay.kept(member)
        rows += stop - max([first, *(segment.stop for segment in shared if segment.seed == seed)])
    return rows * (replay.rows[0, :1].nbytes + replay.links.origins[0, :1].nbytes)
