"""Runs that a program of the user's own iterates over: Ctrl-C and the program's end leave them saved."""

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
    """The events of a run, which Ctrl-C ends as leaving the loop would; KeyboardInterrupt goes on from there.

    Python raises KeyboardInterrupt anywhere: in the middle of an update, or in the caller's code while a variable or a
    notebook's traceback keeps the run alive. So while runs live, and nobody else listens for Ctrl-C, one at work is
    ended as soon as everything is whole, and those that wait for their callers at once. A second Ctrl-C waits for
    nothing. What still lives when the program ends is ended then, while torch can still be used.
    """

    def __init__(self, events: Generator[Event, None, None], stop: threading.Event) -> None:
        self._events, self._stop = events, stop
        self._at_work, self._interrupted = False, False

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
        """Lets KeyboardInterrupt pass through the run, which saves itself and says how to go on."""
        self._interrupted = True
        try:
            with self._working():
                self._events.throw(KeyboardInterrupt)
        finally:
            self._stop_listening()
        raise KeyboardInterrupt

    @contextmanager
    def _working(self) -> Iterator[None]:
        self._at_work = True
        try:
            yield
        finally:
            self._at_work = False

    def _listen(self) -> None:
        """Takes Ctrl-C over from Python itself, as long as runs live."""
        _alive.add(self)
        on_main = threading.current_thread() is threading.main_thread()
        if on_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _interrupt)

    def _stop_listening(self) -> None:
        _alive.discard(self)
        with suppress(ValueError):  # another thread than the main one may not
            if not _alive and signal.getsignal(signal.SIGINT) is _interrupt:
                signal.signal(signal.SIGINT, signal.default_int_handler)


_alive: weakref.WeakSet[Interruptible] = weakref.WeakSet()


def _interrupt(number: int, frame: FrameType | None) -> None:
    """What Ctrl-C does while runs live."""
    at_work = [run for run in _alive if run._at_work]
    if any(run._interrupted for run in at_work):
        signal.default_int_handler(number, frame)
    for run in at_work:
        run._interrupted = True
        run._stop.set()
    if not at_work:
        *others, last = _alive
        for run in others:
            run.close()
        last._end()


@atexit.register
def _end_all() -> None:
    for run in list(_alive):
        run.close()
