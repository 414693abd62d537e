"""Videos of a run: which there are, and parts of their bytes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from t3d.files import CORRUPT_ERRORS, Refused, open_plain, read, refuse_link, replace, to_count, to_json

NAME = re.compile(r"(?P<member>[\w.-]+)-step-(?P<step>\d{1,18})\.mp4")
AT_ONCE, MOST_JSON = 2**18, 2**10  # bytes
RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


class NoSuchVideo(Exception):
    """There is no video of this name."""


class Part(NamedTuple):
    """Which bytes of a file to send, and of how many."""

    start: int
    stop: int
    size: int


def videos_of(path: Path) -> list[dict[str, Any]]:
    """Lists the videos of a run folder by the step of the policy that they show; others come last."""
    found = [_about(path / "video.mp4", ""), *(_about(one, "videos/") for one in _recorded(path))]
    return sorted(filter(None, found), key=lambda one: (one["step"] is None, one["step"] or 0, one["file"]))


def describe_video(path: Path, member: str, step: int) -> None:
    """Notes in video.json whose policy the run folder's video.mp4 shows."""
    with suppress(OSError, ValueError):  # then it is not known
        size = (path / "video.mp4").stat().st_size
        replace(path / "video.json", to_json({"bytes": size, "member": member, "step": step}))


def open_video(path: Path, name: str) -> BinaryIO:
    """Opens a video that videos_of lists; links are not followed."""
    listed = [one["file"] for one in videos_of(path)]
    with suppress(OSError, Refused):
        if name in listed:
            return open_plain(path / name)
    raise NoSuchVideo


def part_of(asked: str | None, size: int) -> Part | None:
    """Returns what a Range header asks for: all if it is missing or not understood, None if there is no such part."""
    match = RANGE.fullmatch(asked or "")
    if match is None or match.groups() == ("", ""):
        return Part(0, size, size)
    first, last = match.groups()
    start = int(first) if first else max(0, size - int(last))
    stop = min(size, int(last) + 1) if first and last else size
    return Part(start, stop, size) if start < stop else None


def pieces(file: BinaryIO, part: Part) -> Iterator[bytes]:
    """Yields the bytes of a part and closes the file."""
    with file:
        file.seek(part.start)
        left = part.stop - part.start
        while left and (piece := file.read(min(left, AT_ONCE))):
            left -= len(piece)
            yield piece


def _recorded(path: Path) -> list[Path]:
    try:
        refuse_link(path / "videos")
        return [path / "videos" / name for name in os.listdir(path / "videos") if name.endswith(".mp4")]  # noqa: PTH208
    except (OSError, Refused):
        return []


def _about(path: Path, folder: str) -> dict[str, Any] | None:
    try:
        with open_plain(path) as file:
            found = os.fstat(file.fileno())
    except (OSError, Refused):
        return None
    said = NAME.fullmatch(path.name)
    member, step = (said["member"], int(said["step"])) if said else _described(path, found.st_size)
    return {"file": folder + path.name, "bytes": found.st_size, "time": found.st_mtime, "step": step, "member": member}


def _described(path: Path, size: int) -> tuple[str | None, int | None]:
    """Returns whose policy video.mp4 shows and of which step, if what was noted is of this file."""
    with suppress(TypeError, *CORRUPT_ERRORS):
        fields = json.loads(read(path.with_suffix(".json"), MOST_JSON))
        if fields["bytes"] == size and NAME.fullmatch(f"{fields['member']}-step-{to_count(fields['step'])}.mp4"):
            return fields["member"], fields["step"]
    return None, None
