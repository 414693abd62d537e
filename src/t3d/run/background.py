"""Processes beside a training, which never hold it up: files for other tools, videos, the dashboard."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from t3d.config import Config
from t3d.files import STARTED_IN, Refused, error_text, refuse_link
from t3d.process import lower_priority

LOG = logging.getLogger("t3d.run")
MOST_READ = 2**16  # bytes that are read of what a process prints at a time
LOOK_SECONDS = 1.0  # between two looks at what the processes say; chosen
PATIENCE = 60.0  # seconds for all of them to finish when the run is over; chosen
HURRY = 1.0  # seconds that they have left, all together, once the run was told to stop; chosen
VIDEOS, POLICIES = "videos", ".policies"  # in the run's folder, and in that what is recorded just now


class Deadline:
    """Until when processes are waited for: so many seconds from now, or HURRY from a request to stop."""

    def __init__(self, seconds: float, stop: threading.Event) -> None:
        self._until, self._stop = time.monotonic() + seconds, stop

    def is_over(self) -> bool:
        if self._stop.is_set():
            self._until = min(self._until, time.monotonic() + HURRY)
        return time.monotonic() >= self._until


def begin(nice: int, end: Callable[[], object]) -> Any:
    """In such a process: lowers its priority, returns its task, and calls `end` when its standard input is closed."""

    def wait() -> None:
        os.read(0, 1)
        end()

    lower_priority(nice)
    task = json.loads(sys.stdin.readline())
    threading.Thread(target=wait, daemon=True).start()
    return task


class Child:
    """A process that ends when its standard input is closed, and so with this one, however that ends."""

    def __init__(
        self, module: str, task: dict[str, Any], *, inherited: Sequence[int] = (), shows_errors: bool = False
    ) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (not a pipe, so that it never waits for a reader)
        self._read = 0
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=self._output,
            stderr=None if shows_errors else self._output, pass_fds=inherited, cwd=STARTED_IN, start_new_session=True,
        )  # fmt: skip
        assert self._process.stdin is not None  # noqa: S101 (it is a pipe)
        self._input = self._process.stdin
        with suppress(OSError):  # it has died already, and said why
            self._input.write(json.dumps(task).encode() + b"\n")
            self._input.flush()

    @property
    def code(self) -> int | None:
        return self._process.poll()

    def lines(self) -> list[str]:
        """Returns the complete lines that it has printed since the last call."""
        printed = os.pread(self._output.fileno(), MOST_READ, self._read)
        printed = printed[: printed.rfind(b"\n") + 1]
        self._read += len(printed)
        return printed.decode(errors="replace").splitlines()

    def end(self) -> None:
        with suppress(OSError):
            self._input.close()

    def wait(self, deadline: Deadline) -> None:
        while self.code is None and not deadline.is_over():
            time.sleep(0.05)

    def kill(self) -> None:
        """Ends it and what it has started."""
        with suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):  # it hangs in the kernel
            self._process.wait(HURRY)

    def close(self) -> None:
        """Lets go of it; if it still runs, it finishes and ends by itself, and something waits for that."""
        self.end()
        if self.code is None:
            threading.Thread(target=self._process.wait, daemon=True).start()
        self._output.close()


class Job:
    """A kind of work that one process at a time does, and what is to be said of it."""

    failure: str  # what has happened if its process fails

    def __init__(self) -> None:
        self.child: Child | None = None
        self._notes: list[str] = []
        self._last_line = ""  # that the process has printed: if it fails, the reason

    def say(self, text: str) -> None:
        self._notes.append(text)

    def news(self) -> list[str]:
        """Returns what went wrong since the last call."""
        self.look()
        notes, self._notes = self._notes, []
        return notes

    def look(self) -> None:
        if self.child is None:
            return
        code, lines = self.child.code, self.child.lines()
        for self._last_line in lines:
            if self._last_line.startswith("note: "):
                self.say(self._last_line.removeprefix("note: "))
        if code:
            why = self._last_line.removeprefix("error: ") or f"it ended with code {code}"
            self.say(f"{self.failure}: {why}")
        if code is not None:
            self.forget_child()

    def close(self, deadline: Deadline | None) -> None:
        """Waits for the process until the deadline, and leaves it then."""
        if self.child is not None and deadline is not None:
            self.child.wait(deadline)
        self.look()
        self.forget_child()
        for text in self.news():
            LOG.warning("%s", text)

    def forget_child(self) -> None:
        """Lets it go on: it ends by itself."""
        if self.child is not None:
            self.child.close()
            self.child, self._last_line = None, ""


class Sinks(Job):
    """Keeps other tools' files of a run up to date, in one process for all of them."""

    failure = "the process that writes for other tools has failed"

    def __init__(self, cfg: Config, path: Path) -> None:
        super().__init__()
        missing = [name for name in cfg.sinks if importlib.util.find_spec(name) is None]
        for name in missing:
            install = f'pip install "t3d[{name}]", then t3d sinks RUN --to {name}'
            self.say(f"{name} is not installed and gets nothing: {install}")
        names = [name for name in cfg.sinks if name not in missing]
        try:
            self.child = Child("t3d.sinks.process", {"path": str(path), "sinks": names}) if names else None
        except OSError as error:
            self.say(f"{self.failure}: {error_text(error)}")


class Recorder(Job):
    """Records the policies of every N-th evaluation, one recording at a time."""

    def __init__(self, cfg: Config, path: Path) -> None:
        super().__init__()
        self.cfg, self.path = cfg, path
        self.is_on = cfg.record_every > 0 and cfg.env.id != ""
        self._said: set[str] = set()
        if cfg.record_every and not self.is_on:
            self.say("no videos are recorded: the environment was made in Python; only one with an id can be")

    def begin(self, step: int) -> None:
        """Records the policies in last/, which are those evaluated at this step, if it is their turn."""
        if not self.is_on or step // self.cfg.eval.every_steps % self.cfg.record_every:
            return
        self.look()
        failure = f"no video of step {step:,}"
        if self.child is not None:
            self.say(f"{failure}: an earlier one is still being recorded; a larger --record-every leaves more time")
            return
        folder = self.path / VIDEOS
        try:
            refuse_link(folder)
            folder.mkdir(exist_ok=True)
            shutil.rmtree(folder / POLICIES, ignore_errors=True)
            (folder / POLICIES).mkdir()
            for file in (self.path / "last").glob("*.safetensors"):  # which the next evaluation replaces
                shutil.copyfile(file, folder / POLICIES / file.name)
            self.child = Child("t3d.insight.video", {"path": str(self.path), "step": step})
            self.failure = failure
        except (OSError, Refused) as error:
            self.say(f"{failure}: {error_text(error)}")

    def say(self, text: str) -> None:
        reason = text.partition(": ")[2] or text
        if reason not in self._said:
            self._said.add(reason)
            super().say(text)

    def close(self, deadline: Deadline | None) -> None:
        """Ends a recording that is not complete by the deadline, or without one at once."""
        if self.child is not None and deadline is not None:
            self.child.wait(deadline)
        self.look()
        if self.child is not None:
            self.child.kill()
            self.say(f"{self.failure}: the run was over before it was recorded")
            self.forget_child()
        super().close(None)
        if self.is_on:
            for left in [POLICIES, *(path.name for path in (self.path / VIDEOS).glob(".unfinished-*"))]:
                shutil.rmtree(self.path / VIDEOS / left, ignore_errors=True)


class BackgroundJobs(AbstractContextManager["BackgroundJobs"]):
    """Everything that happens beside a training."""

    def __init__(self, cfg: Config, path: Path, stop: threading.Event) -> None:
        self.sinks, self.recorder = Sinks(cfg, path), Recorder(cfg, path)
        self.notes = [*self.sinks.news(), *self.recorder.news()]
        self._stop, self._looked_at = stop, time.monotonic()

    def news(self) -> list[str]:
        """Returns what went wrong since the last call; looks at the processes once a second."""
        if time.monotonic() - self._looked_at < LOOK_SECONDS:
            return []
        self._looked_at = time.monotonic()
        return [*self.sinks.news(), *self.recorder.news()]

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Ends the processes; those of a run that is over may finish what they are doing."""
        is_over = kind is None and not self._stop.is_set()
        deadline = Deadline(PATIENCE if is_over else HURRY, self._stop)
        if self.sinks.child is not None:
            self.sinks.child.end()  # it writes what is left
        self.recorder.close(deadline if is_over else None)
        self.sinks.close(deadline)
