"""Runs that a user's own program iterates over: Ctrl-C and the program's end leave them saved."""

from __future__ import annotations

import atexit
import signal
import threading
import weakref
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from t3d.errors import EnvironmentFailed, StoppedEarly
from t3d.events import Event


class Interruptible(Iterator[Event]):
    """The events of a run, which Ctrl-C ends as leaving the loop would; KeyboardInterrupt is raised after that.

    Python raises KeyboardInterrupt anywhere: in the middle of an update, or in the caller's code while a variable or a
    notebook's traceback keeps the run alive. So while runs are alive, and nothing else handles Ctrl-C, a working run
    ends as soon as its state is consistent, and those that wait for their callers at once. A second Ctrl-C does not
    wait. Runs still alive when the program ends are ended then, while torch can still be used.
    """

    def __init__(self, events: Generator[Event, None, None], stop: threading.Event) -> None:
        self._events, self._stop = events, stop
        self._is_working, self._interrupted = False, False

    def __next__(self) -> Event:
        self._listen()
        try:
            with self._working():
                event = next(self._events)
        except BaseException as error:
            self._stop_listening()
            if self._interrupted and isinstance(error, StoppedEarly | EnvironmentFailed):
                raise KeyboardInterrupt("; ".join([str(error), *getattr(error, "__notes__", [])])) from error
            raise
        if self._interrupted:
            self._end()
        return event

    def close(self) -> None:
        """Ends the run, which saves itself."""
        try:
            with self._working():
                self._events.close()
        finally:
            self._stop_listening()

    def __del__(self) -> None:
        self.close()

    def _end(self) -> NoReturn:
        """Raises KeyboardInterrupt in the run, which saves itself and says how to resume."""
        self._interrupted = True
        try:
            with self._working():
                self._events.throw(KeyboardInterrupt)
        finally:
            self._stop_listening()
        raise KeyboardInterrupt

    @contextmanager
    def _working(self) -> Iterator[None]:
        self._is_working = True
        try:
            yield
        finally:
            self._is_working = False

    def _listen(self) -> None:
        """Replaces Python's own Ctrl-C handler while runs are alive."""
        _alive.add(self)
        on_main = threading.current_thread() is threading.main_thread()
        if on_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _interrupt)

    def _stop_listening(self) -> None:
        _alive.discard(self)
        with suppress(ValueError):  # only the main thread may
            if not _alive and signal.getsignal(signal.SIGINT) is _interrupt:
                signal.signal(signal.SIGINT, signal.default_int_handler)


_alive: weakref.WeakSet[Interruptible] = weakref.WeakSet()


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Handles Ctrl-C while runs are alive."""
    working = [run for run in _alive if run._is_working]
    if any(run._interrupted for run in working):
        signal.default_int_handler(number, frame)
    for run in working:
        run._interrupted = True
        run._stop.set()
    if not working:
        *others, last = _alive
        for run in others:
            run.close()
        last._end()


@atexit.register
def _end_all() -> None:
    for run in list(_alive):
        run.close()
