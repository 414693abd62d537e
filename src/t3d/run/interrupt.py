"""Ctrl-C in a program that only says `for event in t3d.train(cfg)`: the run ends where it can be saved."""

from __future__ import annotations

import signal
import threading
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from t3d.errors import EnvironmentFailed, StoppedEarly
from t3d.events import Event


class Interruptible(Iterator[Event]):
    """The events of a run, which Ctrl-C ends as leaving the loop would; KeyboardInterrupt goes on from there.

    Python raises KeyboardInterrupt anywhere: in the middle of an update, or in the caller's code while a variable or a
    notebook's traceback keeps the run alive. So while a run lives, and nobody else listens for Ctrl-C, a run that waits
    for its caller is ended at once, and one at work as soon as everything is whole. A second Ctrl-C waits for nothing.
    """

    def __init__(self, events: Generator[Event, None, None], stop: threading.Event) -> None:
        self._events, self._stop = events, stop
        self._at_work, self._interrupted = False, False
        self._handler: Callable[[int, FrameType | None], None] | None = None

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
        """Takes Ctrl-C over from Python itself, as long as this run lives."""
        on_main = threading.current_thread() is threading.main_thread()
        if not on_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            return
        weak = weakref.ref(self)

        def heard(number: int, frame: FrameType | None) -> None:
            run = weak()
            if run is None or run._interrupted:
                signal.default_int_handler(number, frame)
            elif run._at_work:
                run._interrupted = True
                run._stop.set()
            else:
                run._end()

        self._handler = heard
        signal.signal(signal.SIGINT, heard)

    def _stop_listening(self) -> None:
        with suppress(ValueError):  # another thread than the main one may not
            if self._handler is not None and signal.getsignal(signal.SIGINT) is self._handler:
                signal.signal(signal.SIGINT, signal.default_int_handler)
        self._handler = None
