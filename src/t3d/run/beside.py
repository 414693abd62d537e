"""What happens beside a training and never holds it up: files for other tools, and videos."""

from __future__ import annotations

import importlib.util
import logging
import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from t3d.config import Config
from t3d.events import Event, Note
from t3d.files import Refused, error_text, refuse_link
from t3d.run.child import HURRY, Child, Deadline
from t3d.run.parts import Counters

LOG = logging.getLogger("t3d.run")
LOOK_SECONDS = 1.0  # between two looks at what the processes say; chosen
PATIENCE = 60.0  # seconds for all of them to finish when the run is over; chosen
VIDEOS, POLICIES = "videos", ".policies"  # in the run's folder, and in that what is recorded just now


class Sinks:
    """Keeps other tools' files of a run up to date, in one process for all of them."""

    def __init__(self, cfg: Config, path: Path) -> None:
        missing = [name for name in cfg.sinks if importlib.util.find_spec(name) is None]
        self.notes = [
            f'{name} is not installed and gets nothing: pip install "t3d[{name}]", then t3d sinks RUN --to {name}'
            for name in missing
        ]
        names = [name for name in cfg.sinks if name not in missing]
        self._child: Child | None = None
        try:
            self._child = Child("t3d.sinks.process", {"path": str(path), "sinks": names}) if names else None
        except OSError as error:
            self.notes.append(f"{' and '.join(names)} get nothing: {error_text(error)}")

    def news(self) -> list[str]:
        """Returns what went wrong since the last call."""
        if self._child is None:
            return []
        code, lines = self._child.code, self._child.lines()
        found = [line.removeprefix("note: ") for line in lines if line.startswith("note: ")]
        if code is None:
            return found
        self._child.close()
        self._child = None
        why = lines[-1] if lines else f"code {code}"
        return found if code == 0 else [*found, f"the process that writes for other tools has failed: {why}"]

    def end(self) -> None:
        """Tells the process to write what is left and to end, without waiting."""
        if self._child is not None:
            self._child.end()

    def close(self, deadline: Deadline) -> None:
        """Waits for the process; if it takes longer, it goes on and ends by itself."""
        if self._child is not None:
            self._child.wait(deadline)
            for text in self.news():
                LOG.warning("%s", text)
        if self._child is not None:
            self._child.close()


class Recorder:
    """Records the policies of every N-th evaluation, one recording at a time."""

    def __init__(self, cfg: Config, path: Path) -> None:
        self.cfg, self.path = cfg, path
        self.is_on = cfg.record_every > 0 and cfg.env.id != ""
        self.notes = []
        if cfg.record_every and not self.is_on:
            self.notes = ["no videos are recorded: the environment was made in Python; only one with an id can be"]
        self._child: Child | None = None
        self._step = 0  # of the newest recording
        self._unsaid: list[str] = []
        self._said: set[str] = set()

    def begin(self, step: int) -> None:
        """Records the policies in last/, which are those evaluated at this step, if it is their turn."""
        if not self.is_on or step // self.cfg.eval.every_steps % self.cfg.record_every:
            return
        self._look()
        if self._child is not None:
            self._say(step, "an earlier one is still being recorded; a larger --record-every leaves more time")
            return
        try:
            self._copy_policies()
            self._child = Child("t3d.insight.video", {"path": str(self.path), "step": step})
            self._step = step
        except (OSError, Refused) as error:
            self._say(step, error_text(error))

    def news(self) -> list[str]:
        """Returns what went wrong since the last call."""
        self._look()
        news, self._unsaid = self._unsaid, []
        return news

    def close(self, deadline: Deadline, *, finish: bool) -> None:
        """Ends a recording: at once, or if it may finish, one that takes longer."""
        if finish and self._child is not None:
            self._child.wait(deadline)
        self._look()
        if self._child is not None:
            self._child.kill()
            self._child.close()
            self._child = None
            self._say(self._step, "the run was over before it was recorded")
        for text in self.news():
            LOG.warning("%s", text)
        if self.is_on:
            for left in [POLICIES, *(one.name for one in (self.path / VIDEOS).glob(".unfinished-*"))]:
                shutil.rmtree(self.path / VIDEOS / left, ignore_errors=True)

    def _look(self) -> None:
        """Forgets a recording that has ended."""
        if self._child is not None and self._child.code is not None:
            lines = self._child.lines() or [f"the recording ended with code {self._child.code}"]
            if self._child.code:
                self._say(self._step, lines[-1].removeprefix("error: "))
            self._child.close()
            self._child = None

    def _say(self, step: int, reason: str) -> None:
        """Says a reason once."""
        if reason not in self._said:
            self._said.add(reason)
            self._unsaid.append(f"no video of step {step:,}: {reason}")

    def _copy_policies(self) -> None:
        """Copies them, because the next evaluation replaces them."""
        folder = self.path / VIDEOS
        refuse_link(folder)
        folder.mkdir(exist_ok=True)
        shutil.rmtree(folder / POLICIES, ignore_errors=True)
        (folder / POLICIES).mkdir()
        for file in (self.path / "last").glob("*.safetensors"):
            shutil.copyfile(file, folder / POLICIES / file.name)


class Beside:
    """Everything that happens beside a training."""

    def __init__(self, cfg: Config, path: Path, counters: Counters, stop: threading.Event) -> None:
        self.sinks, self.recorder = Sinks(cfg, path), Recorder(cfg, path)
        self.notes = [*self.sinks.notes, *self.recorder.notes]
        self._counters, self._stop = counters, stop
        self._looked_at = time.monotonic()

    def follow(self, happenings: Iterable[list[Event]]) -> Iterator[list[Event]]:
        """Yields what happens and, in between, what is to say of the processes."""
        for happened in happenings:
            yield happened
            if time.monotonic() - self._looked_at >= LOOK_SECONDS:
                self._looked_at = time.monotonic()
                news = [*self.sinks.news(), *self.recorder.news()]
                yield [Note(step=self._counters.step, text=text) for text in news]

    def __enter__(self) -> Beside:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Ends the processes; those of a run that is over may finish what they are doing."""
        is_over = kind is None and not self._stop.is_set()
        deadline = Deadline(PATIENCE if is_over else HURRY, self._stop)
        self.sinks.end()
        self.recorder.close(deadline, finish=is_over)
        self.sinks.close(deadline)
