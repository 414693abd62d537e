"""Which videos a run has."""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from t3d.files import CORRUPT_ERRORS, Refused, open_plain, read, refuse_link, replace, to_count, to_json

NAME = re.compile(r"(?P<member>[\w.-]+)-step-(?P<step>\d{1,18})\.mp4")
MOST_JSON = 2**10  # bytes


def videos_of(path: Path) -> list[dict[str, Any]]:
    """Lists the videos of a run folder by the step of the policy that they show; others come last."""
    videos = [_about(path / "video.mp4", ""), *(_about(file, "videos/") for file in _recorded(path))]
    return sorted(filter(None, videos), key=lambda video: (video["step"] is None, video["step"] or 0, video["file"]))


def describe_video(path: Path, member: str, step: int) -> None:
    """Notes in video.json whose policy the run folder's video.mp4 shows."""
    with suppress(OSError, ValueError):  # then it is not known
        size = (path / "video.mp4").stat().st_size
        replace(path / "video.json", to_json({"bytes": size, "member": member, "step": step}))


def open_video(path: Path, name: str) -> BinaryIO | None:
    """Opens a video that videos_of lists; links are none."""
    with suppress(OSError, Refused):
        return open_plain(path / name) if name in [video["file"] for video in videos_of(path)] else None
    return None


def _recorded(path: Path) -> list[Path]:
    try:
        refuse_link(path / "videos")
        return [path / "videos" / name for name in os.listdir(path / "videos") if name.endswith(".mp4")]  # noqa: PTH208
    except (OSError, Refused):
        return []


def _about(path: Path, folder: str) -> dict[str, Any] | None:
    try:
        with open_plain(path) as file:
            stat = os.fstat(file.fileno())
    except (OSError, Refused):
        return None
    match = NAME.fullmatch(path.name)
    member, step = (match["member"], int(match["step"])) if match else _described(path, stat.st_size)
    return {"file": folder + path.name, "bytes": stat.st_size, "time": stat.st_mtime, "step": step, "member": member}


def _described(path: Path, size: int) -> tuple[str | None, int | None]:
    """Returns whose policy video.mp4 shows and of which step, if what was noted is of this file."""
    with suppress(TypeError, *CORRUPT_ERRORS):
        fields = json.loads(read(path.with_suffix(".json"), MOST_JSON))
        if fields["bytes"] == size and NAME.fullmatch(f"{fields['member']}-step-{to_count(fields['step'])}.mp4"):
            return fields["member"], fields["step"]
    return None, None
