"""Calls into somebody else's code that do not come back: broken off where that works, and told where it does not."""

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
    """Raised in the middle of a call."""


class Watch:
    """Knows which call is under way and since when."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.breaks_off = seconds, False
        self._now = ("", time.monotonic())  # one value: it is read by another thread

    def begin(self, what: str) -> None:
        """A call begins, or a pause between calls; the text says what is to be complained of if it takes too long."""
        self._now = (what, time.monotonic())
        if self.breaks_off:
            signal.setitimer(signal.ITIMER_REAL, self.seconds, self.seconds)  # again, if it is caught

    def complaint(self) -> str:
        """What has not come back."""
        return (
            f"{self._now[0]} after {self.seconds:g} s; see why, or let training wait longer: "
            f"env.hang_seconds above {self.seconds:g}"
        )

    def tell(self, over: threading.Event) -> None:
        """Until it is over, says on stderr, once for each, which calls are long overdue."""
        told = 0.0
        while not over.wait(self.seconds / 4):
            since = self._now[1]
            if since != told and time.monotonic() - since > 1.25 * self.seconds:
                told = since
                print(f"warning: {self.complaint()}", file=sys.stderr, flush=True)  # noqa: T201


@contextmanager
def watching(seconds: float) -> Iterator[Watch]:
    """Watches the calls that are begun in it. One that takes longer is a UserError where it can be broken off.

    That takes the main thread and a call that returns to Python now and then; otherwise stderr is told. A crash of the
    process prints where in Python it was.
    """
    watch = Watch(seconds)
    with ExitStack() as opened:
        opened.enter_context(_crashes_told())
        opened.enter_context(_telling(watch))
        if _alarm_is_free():
            opened.enter_context(_breaking_off(watch))
        try:
            yield watch
        except TooLong as late:
            *_, where, _ = traceback.extract_tb(late.__traceback__)  # the last is who broke it off
            raise UserError(f"{late} (it was in {where.filename}, line {where.lineno})") from late


def _alarm_is_free() -> bool:
    return (
        hasattr(signal, "SIGALRM")  # not on Windows
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
        and signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    )


@contextmanager
def _breaking_off(watch: Watch) -> Iterator[None]:
    def break_off(number: int, frame: FrameType | None) -> None:
        raise TooLong(watch.complaint())

    before = signal.signal(signal.SIGALRM, break_off)
    watch.breaks_off = True
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _telling(watch: Watch) -> Iterator[None]:
    over = threading.Event()
    teller = threading.Thread(target=watch.tell, args=(over,), name="t3d-watch", daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()


@contextmanager
def _crashes_told() -> Iterator[None]:
    if faulthandler.is_enabled():
        yield
        return
    faulthandler.enable(STDERR)
    try:
        yield
    finally:
        faulthandler.disable()
