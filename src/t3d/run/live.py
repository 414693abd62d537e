"""A run that this process trains, as its program sees it: Ctrl-C, leaving the loop and the program's end save it."""

from __future__ import annotations

import atexit
import inspect
import os
import signal
import threading
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NamedTuple, NoReturn, Self

import torch

from t3d.errors import EnvironmentFailed, StoppedEarly, UserError
from t3d.events import End, Event, Resumed, Start

Events = Generator[Event, None, None]


class TorchSettings(NamedTuple):
    """Settings of torch that a run and its caller may want to differ; None where torch does not tell."""

    threads: int
    tf32: tuple[bool, bool] | None
    grad_mode: bool
    dtype: torch.dtype

    @classmethod
    def current(cls) -> TorchSettings:
        """Reads them."""
        tf32 = None
        with suppress(RuntimeError):  # the caller has used torch's other way to set it
            tf32 = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        return cls(torch.get_num_threads(), tf32, torch.is_grad_enabled(), torch.get_default_dtype())

    def apply(self) -> None:
        """Sets them."""
        torch.set_num_threads(self.threads)
        if self.tf32 is not None:
            torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = self.tf32
        torch.set_grad_enabled(self.grad_mode)
        torch.set_default_dtype(self.dtype)


class LiveRun(Iterator[Event]):
    """The events of a run as they happen.

    Leaving a loop over it, `close()` and the end of a `with` end the run: it saves itself and lets go of its folder.
    Another loop over it resumes it. While it works, torch has the run's settings, otherwise its caller's.

    Ctrl-C ends it as leaving the loop would; KeyboardInterrupt is raised after that. Python raises it anywhere: in the
    middle of an update, or in the caller's code while a variable or a notebook's traceback keeps the run alive. So
    while runs are alive, and nothing else handles Ctrl-C, a working run ends as soon as its state is consistent, and
    those that wait for their callers at once. A second Ctrl-C does not wait. Runs still alive when the program ends
    are ended then, while torch can still be used.
    """

    def __init__(self, begin: Callable[[], Events], stop: threading.Event, resume: Callable[[Path], Events]) -> None:
        self._events, self._stop, self._begin, self._resume = begin(), stop, begin, resume
        self.path: Path | None = None  # of its folder, once it has one
        self.step = 0  # of the newest event
        self._interrupted, self._has_ended, self._process = False, False, os.getpid()
        self._turn = threading.Lock()  # held while the run works
        self._settings: TorchSettings | None = None  # of torch, while the run works

    def __iter__(self) -> Iterator[Event]:
        if inspect.getgeneratorstate(self._events) == inspect.GEN_CLOSED and not self._has_ended:
            if self._interrupted:
                self._interrupted = False
                self._stop.clear()
            self._events = self._begin() if self.path is None else self._resume(self.path)
        return self._until_left()

    def __repr__(self) -> str:
        if self.path is None:
            return "<a run that has not begun: loop over it>"
        state = "has ended" if self._has_ended else "waits for its loop" if self in _alive else "was left"
        return f"<the run {self.path}, at step {self.step:,}, {state}>"

    def _until_left(self) -> Iterator[Event]:
        try:
            while (event := next(self, None)) is not None:
                yield event
        finally:
            self.close()

    def __next__(self) -> Event:
        if self._is_working:
            raise UserError("this run works in another thread; one loop at a time can follow it")
        self._listen()
        try:
            with self._working():
                event = next(self._events)
        except BaseException as error:
            self._stop_listening()
            if self._interrupted and isinstance(error, StoppedEarly | EnvironmentFailed):
                raise KeyboardInterrupt("; ".join([str(error), *getattr(error, "__notes__", [])])) from error
            raise
        if isinstance(event, Start | Resumed):
            self.path = Path(event.folder)
        self.step, self._has_ended = event.step, isinstance(event, End) and event.reason == "finished"
        if self._interrupted:
            self._end()
        return event

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the run, which saves itself; one that works in another thread does so as soon as it can."""
        if self._process != os.getpid():  # a forked child has a copy of it
            return
        if self._is_working:
            self._stop.set()
            return
        try:
            if inspect.getgeneratorstate(self._events) != inspect.GEN_CLOSED:
                with self._working():
                    self._events.close()
        finally:
            self._stop_listening()

    @property
    def _is_working(self) -> bool:
        return self._turn.locked()

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
        with self._turn:
            callers = TorchSettings.current()
            try:
                (self._settings or callers._replace(grad_mode=True, dtype=torch.float32)).apply()
                yield
            finally:
                self._settings = TorchSettings.current()
                callers.apply()

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


_alive: weakref.WeakSet[LiveRun] = weakref.WeakSet()


def let_go(path: Path) -> None:
    """Ends the runs of this process that write in a folder and wait for their callers, so that another may resume."""
    for run in list(_alive):
        if run.path is not None and run.path.resolve() == path.resolve() and not run._is_working:
            run.close()


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Handles Ctrl-C while runs are alive."""
    alive = list(_alive)  # other threads may end theirs
    if not alive:  # the last one ended in another thread, which could not give Ctrl-C back
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.default_int_handler(number, frame)
    working = [run for run in alive if run._is_working]
    if any(run._interrupted for run in working):
        signal.default_int_handler(number, frame)
    for run in working:
        run._interrupted = True
        run._stop.set()
    if not working:
        *others, last = alive
        for run in others:
            run.close()
        last._end()


@atexit.register
def _end_all() -> None:
    for run in list(_alive):
        run.close()
