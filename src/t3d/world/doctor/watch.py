"""A timeout for calls into the user's code: interrupts those that do not return, or warns where it cannot."""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

from t3d.errors import OwnSignal, UserError

CALL_SECONDS = 60.0  # for one call; chosen: compiling or loading a large simulator takes less
STDERR = 2


class TooLong(OwnSignal):
    """Raised inside a call that takes too long."""


class Watch:
    """Keeps track of the current call and when it started."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.can_interrupt = seconds, False
        self._now = ("", time.monotonic())  # one value, because another thread reads it

    def begin(self, what: str) -> None:
        """Marks the start of a call, or of a pause between them; the text starts the message if it takes too long."""
        self._now = (what, time.monotonic())
        if self.can_interrupt:
            signal.setitimer(signal.ITIMER_REAL, self.seconds, self.seconds)  # repeats, in case the call catches it

    def complaint(self) -> str:
        """The message about a call that has not returned."""
        return (
            f"{self._now[0]} after {self.seconds:g} s; find out why, or let training wait longer: "
            f"env.hang_seconds above {self.seconds:g}"
        )

    def warn_until(self, over: threading.Event) -> None:
        """Warns on stderr about every overdue call, once each."""
        reported = 0.0
        while not over.wait(self.seconds / 4):
            since = self._now[1]
            if since != reported and time.monotonic() - since > 1.25 * self.seconds:
                reported = since
                print(f"warning: {self.complaint()}", file=sys.stderr, flush=True)  # noqa: T201


@contextmanager
def watching(seconds: float) -> Iterator[Watch]:
    """Watches the calls made inside it; one that takes longer is a UserError if it can be interrupted.

    That requires the main thread and a call that runs Python code now and then; otherwise a warning goes to stderr. If
    the process crashes, it prints a Python traceback.
    """
    watch = Watch(seconds)
    with ExitStack() as opened:
        opened.enter_context(_crash_traceback())
        opened.enter_context(_warning(watch))
        if _alarm_is_free():
            opened.enter_context(_interrupting(watch))
        try:
            yield watch
        except TooLong as late:
            *_, where, _ = traceback.extract_tb(late.__traceback__)  # the last frame is the signal handler
            raise UserError(f"{late} (it was in {where.filename}, line {where.lineno})") from late


def _alarm_is_free() -> bool:
    return (
        hasattr(signal, "SIGALRM")  # not on Windows
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
        and signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    )


@contextmanager
def _interrupting(watch: Watch) -> Iterator[None]:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise TooLong(watch.complaint())

    before = signal.signal(signal.SIGALRM, interrupt)
    watch.can_interrupt = True
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _warning(watch: Watch) -> Iterator[None]:
    over = threading.Event()
    thread = threading.Thread(target=watch.warn_until, args=(over,), name="t3d-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def _crash_traceback() -> Iterator[None]:
    if faulthandler.is_enabled():
        yield
        return
    faulthandler.enable(STDERR)
    try:
        yield
    finally:
        faulthandler.disable()
