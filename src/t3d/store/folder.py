"""The run folder: config.toml, the policies, and logs.

events.jsonl and metrics.csv record the training, so a resumed run truncates them to its checkpoint. journal.jsonl
records what happened to the run (started, saved, alarmed, resumed, ended) and is never truncated.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import errno
import functools
import itertools
import os
import platform
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from t3d import events
from t3d.config import Config, Member, to_toml
from t3d.config.settings import SINKS
from t3d.errors import UserError
from t3d.files import Refused, clear_leftovers, display_path, error_text, open_log, refuse_link, replace
from t3d.policy.acting import PolicySnapshot
from t3d.policy.files import save_policy
from t3d.policy.spec import Spec
from t3d.store.log import last_event
from t3d.version import __version__

LOGS = ("events.jsonl", "metrics.csv")  # truncated by a resumed run
FIRST_LINE = "columns"  # the length of the first line of metrics.csv, which may be longer when a run is resumed
# A run that starts over has its own.
OF_ONE_RUN = (*LOGS, "checkpoints", "best", "last", "policies", "videos", "video.mp4", "video.json", *SINKS)
LONGEST_LINE = 2**20  # bytes
IN_METRICS: tuple[type[events.Event], ...] = (events.EpisodeEnd, events.Update, events.Eval, events.Logged)
FIELDS = dict.fromkeys(field.name for kind in IN_METRICS for field in dataclasses.fields(kind))
NOT_IN_METRICS = {
    *("step", "member", "seed", "time", "chooses"),
    *("returns", "lengths", "other_losses", "metrics", "metric_counts", "args"),  # which do not fit into a table
}
COLUMNS = [  # of metrics.csv, and then those of `info`
    *("event", "step", "member", "seed", "time"),
    *(name for name in FIELDS if name not in NOT_IN_METRICS),
]
ONLY_IN_JOURNAL = (events.Resumed, events.Saved, events.SaveFailed, events.Paused, events.Continued)
IN_JOURNAL = (events.Start, *ONLY_IN_JOURNAL, events.Alarm, events.End)  # which is short, so that lists can read it all


class Log:
    """A file of complete lines: a line that does not fit on the disk is lost, and the run continues without it.

    With a length it continues from there: what came after is cut off, and `note` says if something before is missing.
    """

    def __init__(self, path: Path, length: int | None = None, first: int | None = None) -> None:
        self.path, self.name, self.note = path, path.name, ""
        self.lost = 0
        self._file = open_log(path)
        self._length = os.fstat(self._file.fileno()).st_size
        if length is not None and first is not None:  # the first line had this length then
            length += len(self.first_line) - first
        end = self._length if length is None else min(length, self._length)
        begin = max(0, end - LONGEST_LINE)
        newline = os.pread(self._file.fileno(), end - begin, begin).rfind(b"\n")
        complete = begin + newline + 1 if newline >= 0 or begin == 0 else end
        if length is not None and complete < length:
            held = "it was changed" if self._length >= length else f"{self._length:,} of {length:,} bytes are left"
            self.note = f"{self.name} is damaged: {held}; events of earlier steps are missing, the run is not affected"
        elif length is None and complete < self._length:
            self.note = f"{self.name} ended in a torn line, which is cut off"
        if complete < self._length:
            self._truncate(complete)

    @property
    def is_empty(self) -> bool:
        return self._length == 0

    @property
    def first_line(self) -> bytes:
        return os.pread(self._file.fileno(), LONGEST_LINE, 0).partition(b"\r\n")[0]

    def begin_with(self, line: bytes) -> bool:
        """Writes another first line, and says whether that was possible."""
        if self.first_line != line:
            rest = os.pread(self._file.fileno(), self._length, 0).partition(b"\r\n")[2]
            try:
                replace(self.path, line + b"\r\n" + rest)
                self._file.close()
                self._file = open_log(self.path)
            except (OSError, Refused):
                self.lost += 1
            self._length = os.fstat(self._file.fileno()).st_size
        return self.first_line == line

    def write(self, text: str) -> None:
        line = text.encode()
        try:
            if self._file.write(line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            self.lost += 1
            self._truncate(self._length)
        else:
            self._length += len(line)

    def length(self) -> int:
        os.fsync(self._file.fileno())
        return self._length

    def close(self) -> None:
        self._file.close()

    def _truncate(self, length: int) -> None:
        with contextlib.suppress(OSError):  # if that fails too, half a line stays
            self._file.truncate(length)
        self._length = length


class RunFolder:
    """An open run folder; every event is in its file, on a line of its own, as soon as it is written."""

    def __init__(
        self,
        path: Path,
        cfg: Config,
        spec: Spec,
        lengths: dict[str, int] | None = None,
        requested: Config | None = None,
    ) -> None:
        self.path, self.cfg, self.spec, self.requested = path, cfg, spec, requested or cfg
        unnamed = dataclasses.replace(self.requested.run, name="")  # a repeated run gets another folder
        # as they were asked for, so that another machine can choose its own
        placed = {name: getattr(self.requested, name) for name in ("device", "engine", "threads")}
        try:
            for folder in (path, path / "best", path / "last"):
                clear_leftovers(folder)
            replace(path / "config.toml", to_toml(dataclasses.replace(cfg, run=unnamed, **placed)).encode())
            length = lengths or dict.fromkeys(LOGS, 0)
            self.events = Log(path / LOGS[0], length[LOGS[0]])
            self._metrics = Log(path / LOGS[1], length[LOGS[1]], length.get(FIRST_LINE))
            self._journal = Log(path / "journal.jsonl")
            self._logs = (self.events, self._metrics, self._journal)
        except (OSError, Refused) as error:
            raise UserError(f"cannot write the run in {path}: {error_text(error)}") from None
        self._unwritten: list[str] = []  # policies that could not be written, in words
        self._inode, self._checked_at = _identity(path), time.monotonic()
        self.notes = [log.note for log in self._logs if log.note]
        self._table: csv.DictWriter[str] | None = None

    def is_gone(self) -> bool:
        return _identity(self.path) != self._inode

    def refuse_if_gone(self, every_seconds: float = 0.0) -> None:
        """Ends a run whose folder was removed; looks for it only so often."""
        if time.monotonic() - self._checked_at < every_seconds:
            return
        self._checked_at = time.monotonic()
        if self.is_gone():
            raise UserError(f"the run's folder {display_path(self.path)} was removed or moved away while it trained")

    def write(self, event: events.Event) -> None:
        line = events.to_line(event) + "\n"
        if isinstance(event, IN_JOURNAL):
            self._journal.write(line)
        if not isinstance(event, ONLY_IN_JOURNAL):
            self.events.write(line)
        if isinstance(event, IN_METRICS):
            args = {f"args.{name}": value for name, value in getattr(event, "args", {}).items()}
            self._add_row(event, {**getattr(event, "metrics", {}), **args})

    def _add_row(self, event: events.Event, metrics: Mapping[str, Any]) -> None:
        """Adds a row to metrics.csv, whose first line gets a name for each metric when it is new."""
        if self._table is None or not metrics.keys() <= {*self._table.fieldnames}:
            before = self._metrics.first_line.decode(errors="replace").split(",")  # of an earlier process, too
            columns = [*dict.fromkeys([*(before if before[0] == COLUMNS[0] else COLUMNS), *metrics])]
            if self._metrics.begin_with(",".join(columns).encode()) or self._table is None:
                self._table = csv.DictWriter(self._metrics, columns, extrasaction="ignore")
        self._table.writerow({**metrics, "event": event.event, **vars(event)})

    def lengths(self) -> dict[str, int]:
        """Flushes the logs to disk and returns their lengths, to which a resumed run truncates them."""
        lengths = {log.name: log.length() for log in (self.events, self._metrics)}
        return {**lengths, FIRST_LINE: len(self._metrics.first_line)}

    def take_failures(self) -> list[str]:
        """Returns what could not be written since the last call, in words."""
        failures, self._unwritten = self._unwritten, []
        for log in self._logs:
            if log.lost:
                failures.append(f"{log.lost} lines of {log.name} could not be written")
                log.lost = 0
        return failures

    def save_policies(self, snapshot: PolicySnapshot, step: int, kind: str = "last") -> None:
        """Saves every member's newest policy; one that has diverged does not replace a finite one."""
        for member, parameters in enumerate(snapshot.flat):
            if np.isfinite(parameters).all():
                self.save_policy(kind, snapshot, member, self.cfg.members[member], {"step": step})

    def close(self) -> None:
        for log in self._logs:
            log.close()

    def save_policy(self, kind: str, snapshot: PolicySnapshot, row: int, member: Member, about: dict[str, Any]) -> None:
        """Saves the policy in a row of the snapshot as the member's best, last or kept one, in the folder of that."""
        env = self.cfg.env_of(member)
        about = {"env": env.id, "kind": kind, "seed": member.seed, "t3d": __version__, **about}
        about |= {"env_args": env.args} if env.args else {}
        about |= {"wrappers": [*env.wrappers]} if env.wrappers else {}
        about |= {"pixels": env.pixels, "camera": env.camera} if env.pixels else {}
        about |= {"action_repeat": env.action_repeat} if env.pixels or env.action_repeat > 1 else {}
        about |= {"values": dict(member.values)} if member.values else {}
        folder = self.path / kind
        try:
            refuse_link(folder.parent)
            if folder.parent != self.path:
                folder.parent.mkdir(exist_ok=True)
            folder.mkdir(exist_ok=True)  # a run folder that was removed is not made again
            save_policy(folder / member.name, snapshot, row, self.spec, about)
        except (OSError, Refused) as error:
            self._unwritten.append(f"the {kind} policy of {member.title} could not be written: {error_text(error)}")


def create_folder(cfg: Config) -> Path:
    """Creates a folder for a new run."""
    root = Path(cfg.run.root).absolute()
    try:
        if not cfg.run.name:
            return first_free(root, f"{folder_name(cfg)}-{cfg.preset}-{time.strftime('%Y%m%d-%H%M%S')}")
        root.mkdir(parents=True, exist_ok=True)
        (root / cfg.run.name).mkdir()
    except FileExistsError:
        name = display_path(root / cfg.run.name)
        resumed = f"or resume it: t3d resume {shlex.quote(name)}"
        raise UserError(f"a run named {name} already exists; choose another --run.name, {resumed}") from None
    except OSError as error:
        raise UserError(f"cannot write run folders in {root}: {error.strerror}; choose another --run.root") from None
    return root / cfg.run.name


def folder_name(cfg: Config) -> str:
    """Returns the name of the environment as names of folders have it."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(cfg.env.label).name)


def first_free(root: Path, name: str) -> Path:
    """Creates a folder of this name or, where there is one, of this name and a number."""
    root.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        with contextlib.suppress(FileExistsError):
            path = root / (name if number == 1 else f"{name}-{number}")
            path.mkdir()
            break
    return path


def worth_keeping(path: Path, cfg: Config) -> bool:
    """Whether a folder without a usable checkpoint holds more than a run that was killed before its first one."""
    last = last_event(path)
    step = last.get("step")
    far = isinstance(step, int) and step >= cfg.checkpoint.every_steps
    has_checkpoints = any((path / "checkpoints").glob("*-step-*"))
    of_an_earlier_build = bool(last) and not (path / "journal.jsonl").exists()
    return far or has_checkpoints or of_an_earlier_build or last.get("event") == "end"


def set_aside(path: Path, names: Sequence[str] = OF_ONE_RUN, of: str = "run") -> list[str]:
    """Moves files of an earlier run, or task, out of the way of the one that starts in its folder; says where to."""
    if not any((path / name).exists() for name in names):
        return []
    apart = next(apart for n in itertools.count(1) if not (apart := path / f"before-{n}").exists())
    apart.mkdir()
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            (path / name).rename(apart / name)
    return [f"what the folder held of an earlier {of} is in {apart}"]


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


@functools.cache
def versions() -> dict[str, str]:
    """Returns the versions that a run's results depend on, and the processor's name as far as Linux reports it."""
    known, cpu = {"t3d": __version__, "python": platform.python_version()}, platform.processor() or platform.machine()
    for name in ("torch", "numpy", "gymnasium", "mujoco", "mujoco_core", "pybullet", "box2d", "dm_control"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            known[name] = metadata.version(name)
    with contextlib.suppress(OSError):
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        names = re.findall(r"^model name\s*:\s*(.*?)\s*$", info, re.MULTILINE)
        cpu = names[0] if names else cpu
    return {**known, "cpu": cpu}
