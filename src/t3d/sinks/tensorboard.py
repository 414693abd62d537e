"""Files for TensorBoard: one folder for each seed, so that TensorBoard draws their curves over each other."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from t3d.config import Config
from t3d.files import open_plain, refuse_link

if TYPE_CHECKING:
    from t3d.sinks.process import Point

FOLDER = "tensorboard"
PREFIX = "events.out.tfevents."  # by which TensorBoard finds its files
UNFINISHED = "unfinished"


class TensorBoard:
    """Rewrites a run's files; the ones from before are replaced when these have caught up with the run."""

    def __init__(self, path: Path, cfg: Config) -> None:
        self.path = path / FOLDER
        self._files: dict[str, io.BufferedWriter] = {}
        refuse_link(self.path)
        self.path.mkdir(exist_ok=True)
        self._name = f"{PREFIX}{time.time():010.0f}.t3d.{os.getpid()}"

    def write(self, points: Iterable[Point]) -> None:
        for point in points:
            values = [Summary.Value(tag=tag, simple_value=value) for tag, value in point.values.items()]
            self._add(point.name, wall_time=point.time, step=point.step, summary=Summary(value=values))

    def flush(self) -> None:
        """Makes everything so far visible."""
        for name, file in self._files.items():
            file.flush()
            folder = self.path / name
            if (folder / UNFINISHED).exists():
                before = [old for old in folder.iterdir() if old.name.startswith(PREFIX) and old.name != self._name]
                (folder / UNFINISHED).rename(folder / self._name)
                for old in before:
                    old.unlink()

    def close(self) -> None:
        self.flush()
        for file in self._files.values():
            file.close()

    def _add(self, name: str, **fields: Any) -> None:
        if name not in self._files:
            folder = self.path / name
            refuse_link(folder)
            folder.mkdir(exist_ok=True)
            (folder / UNFINISHED).unlink(missing_ok=True)  # of a process that was killed
            file = open_plain(folder / UNFINISHED, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            self._files[name] = io.BufferedWriter(file)
            # a TensorBoard that is open already forgets what earlier files told it
            self._add(name, wall_time=fields["wall_time"], file_version="brain.Event:2")
            self._add(name, wall_time=fields["wall_time"], session_log=SessionLog(status=SessionLog.START))
        RecordWriter(self._files[name]).write(Event(**fields).SerializeToString())


SINK = TensorBoard
