"""Files for Weights & Biases: a run for each seed, a group for all; offline unless WANDB_MODE says otherwise."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from t3d.config import Config, to_dict
from t3d.files import Refused, open_plain, readable, refuse_link
from t3d.store.log import LONGEST_START

if TYPE_CHECKING:
    from t3d.sinks.process import Point

FOLDER = "wandb"
STEP = "global_step"  # the axis of all charts; W&B's own step only counts rows, because evaluations may come late
LEAST_FREE = 2**20  # bytes on the disk; chosen
UNWANTED = "disable_git disable_code disable_job_creation x_disable_meta x_disable_stats x_disable_machine_info"
OFF = {"WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}


class WeightsAndBiases:
    """Rewrites a run's files, under the ids that it has always had; the ones from before go when these are as far."""

    def __init__(self, path: Path, cfg: Config) -> None:
        if readable(str(path)) != str(path):
            raise Refused(f"the folder {readable(str(path))} has a name that is not UTF-8, and W&B cannot write there")
        for name, value in OFF.items():
            os.environ.setdefault(name, value)
        logging.raiseExceptions = False  # W&B's own log prints a traceback for each line that a full disk does not take
        self.path, self.cfg = path, cfg
        self._runs: dict[str, Any] = {}
        self._before: list[Path] = []  # folders that these replace
        refuse_link(path / FOLDER)
        (path / FOLDER).mkdir(exist_ok=True)

    def write(self, points: Iterable[Point]) -> None:
        for point in points:
            if point.name not in self._runs:
                self._runs[point.name] = self._open(point.name)
            self._runs[point.name].log({STEP: point.step, "_timestamp": point.time, **point.values})

    def flush(self) -> None:
        """Removes what is replaced; a process of W&B's own writes, and does not say what a full disk has cut off."""
        if shutil.disk_usage(self.path).free < LEAST_FREE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        while self._before:
            shutil.rmtree(self._before.pop(), ignore_errors=True)

    def close(self) -> None:
        for run in self._runs.values():
            run.finish()
        self.flush()

    def _open(self, name: str) -> Any:
        import wandb  # noqa: PLC0415 (after its environment is set)

        identity = f"{hashlib.sha256(self._first_event()).hexdigest()[:16]}-{name}"
        of_run = re.compile(rf".*-{re.escape(identity)}(-\d+)?")  # with a number: the second in the same second
        title = readable(self.path.resolve().name)
        before = [file for file in (self.path / FOLDER).iterdir() if of_run.fullmatch(file.name)]
        switches: dict[str, Any] = dict.fromkeys(UNWANTED.split(), True)
        nothing_else = wandb.Settings(console="off", x_save_requirements=False, **switches)
        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "t3d"),
            group=title,
            name=f"{title} {name}",
            id=identity,
            dir=str(self.path),
            config=to_dict(self.cfg),
            reinit="create_new",
            settings=nothing_else,
        )
        self._before += before
        run.define_metric(STEP)
        run.define_metric("*", step_metric=STEP)
        return run

    def _first_event(self) -> bytes:
        """Returns the line that says when the run first started: a resume leaves it, or has moved it to start over."""
        moved = self.path / "before-1" / "events.jsonl"
        with open_plain(moved if moved.exists() else self.path / "events.jsonl") as log:
            return log.readline(LONGEST_START)


SINK = WeightsAndBiases
