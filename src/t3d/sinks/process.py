"""Follows a run's events.jsonl and writes it for other tools, in a process beside the training.

A resumed run has cut its log back to the checkpoint. Every process writes its files from the first event on, so that
they hold what the log holds: without gaps, and nothing twice.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from t3d.config import load_config
from t3d.events import Event
from t3d.files import Refused, error_text, open_log, read
from t3d.run.background import begin
from t3d.sinks.scalars import Point, Scalars
from t3d.store.lock import try_lock
from t3d.store.log import START, event_of, prefixes, read_lines
from t3d.store.metrics import KINDS

LOCK = "sinks.lock"  # names the tools for which all of the log was written
LONGEST = 1000  # bytes of that file
EVERY = 1.0  # seconds between two looks at the log; chosen
PATIENCE = 60.0
NICE = 10
WANTED = prefixes(KINDS)


class Sink(Protocol):
    """Where points go."""

    def write(self, points: Iterable[Point], /) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


class Follower:
    """Passes everything that a log tells to sinks, once; one that fails is reported and left out from then on."""

    def __init__(self, path: Path, names: Iterable[str], report: Callable[[str], None]) -> None:
        self.path, self.report = path, report
        self.cfg = load_config(path / "config.toml")
        self._place, self._scalars = START, Scalars(self.cfg)
        self.sinks: dict[str, Sink] = {}
        for name in names:
            with self._reported(name):
                self.sinks[name] = importlib.import_module(f"t3d.sinks.{name}").SINK(path, self.cfg)

    def read_on(self) -> bool:
        """Passes on what is new; returns whether this is still the same log, which no resume has cut back."""
        while self.sinks:
            try:
                lines, end, restarted = read_lines(self.path, self._place)
            except (OSError, Refused):  # it was removed
                return False
            if restarted:
                return False
            self._place = end
            self._write([point for event in _events(lines) for point in self._scalars.of(event)])
            if not lines:
                break
        self._each(lambda sink: sink.flush())
        return True

    def close(self) -> None:
        """Completes the files."""
        self._write([*self._scalars.rest()])
        self._each(lambda sink: sink.close())

    def _write(self, points: Sequence[Point]) -> None:
        self._each(lambda sink: sink.write(points))

    def _each(self, do: Callable[[Sink], None]) -> None:
        for name, sink in [*self.sinks.items()]:
            with self._reported(name):
                do(sink)

    @contextmanager
    def _reported(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # of whatever kind: other people's packages
            self.sinks.pop(name, None)
            self.report(
                f"{name} gets nothing more: {error_text(error)}; t3d sinks RUN --to {name} writes all of it again"
            )


def follow(
    path: Path, names: Sequence[str], stop: threading.Event, report: Callable[[str], None], patience: float = 0.0
) -> bool:
    """Follows a log until `stop`, and then to its end; returns whether this process was the one to do so.

    Waits up to `patience` seconds after `stop` for the sink process of a killed training to end.
    """
    with open_log(path / LOCK) as lock:
        while not try_lock(lock):
            if stop.is_set() and patience <= 0:
                return False
            patience -= EVERY if stop.is_set() else 0
            time.sleep(EVERY)
        lock.truncate(0)
        follower = Follower(path, names, report)
        while follower.sinks:
            is_over = stop.is_set()
            if not follower.read_on():
                return False  # another process follows what the log is now
            if is_over:
                break
            stop.wait(EVERY)
        follower.close()
        lock.write(" ".join(follower.sinks).encode())
    return True


def written_for(path: Path) -> list[str]:
    """Returns the tools that have all of a run, as far as it went."""
    try:
        return read(path / LOCK, LONGEST).decode(errors="replace").split()
    except (OSError, Refused):
        return []


def main() -> None:
    """Follows the run that the first line of standard input names, until that is closed."""
    stop = threading.Event()
    task = begin(NICE, stop.set)
    path, report = Path(task["path"]), lambda text: print(f"note: {text}", flush=True)  # noqa: T201
    follow(path, task["sinks"], stop, report, PATIENCE)


def _events(lines: Iterable[bytes]) -> Iterator[Event]:
    """Yields the events that carry numbers; damaged lines are left out, as everywhere."""
    for line in lines:
        event = event_of(line) if line.startswith(WANTED) else None
        if event is not None and 0 <= event.step < 2**62:  # which fits into other tools' files
            yield event


if __name__ == "__main__":
    main()
