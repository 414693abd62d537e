"""Signals that stop or save a run."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType

Handler = Callable[[int, FrameType | None], None]
SHOW_CURSOR = b"\x1b[?25h"
STOPPING = "stopping: the run is being saved; a second Ctrl-C or SIGTERM quits at once"
SKIPPING = "the run has ended and is saved; the rest of the output is skipped"


@dataclass
class SignalRequests:
    """What signals have requested."""

    stop: threading.Event = field(default_factory=threading.Event)
    save: threading.Event = field(default_factory=threading.Event)
    received: int | None = None  # the signal that requested the stop
    on_screen: bool = False  # whether a live display shows the answer itself: a line would garble it
    answer: str = STOPPING  # printed when a stop is requested
    handlers: dict[signal.Signals, Handler] = field(default_factory=dict)

    def listen(self) -> None:
        """Installs its handlers where an environment has installed others; after a stop, the kernel's stay."""
        for number, handler in self.handlers.items() if self.received is None else ():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)

    @property
    def exit_code(self) -> int:
        """The exit code by shell convention: 130 after Ctrl-C, 143 after SIGTERM."""
        return 0 if self.received is None else 128 + self.received

    @property
    def is_urgent(self) -> bool:
        """Whether it was not Ctrl-C: a machine that shuts down waits for a few seconds only."""
        return self.received not in (None, signal.SIGINT)


@contextmanager
def handling_signals() -> Iterator[SignalRequests]:
    """Lets Ctrl-C, SIGTERM and a closed terminal (SIGHUP) request a stop, and SIGUSR1 a save.

    A second Ctrl-C or SIGTERM ends the process at once.
    """
    requested = SignalRequests()

    def request_stop(number: int, frame: FrameType | None) -> None:
        requested.received = number
        requested.stop.set()
        for stopping in (signal.SIGINT, signal.SIGTERM):
            signal.signal(stopping, signal.SIG_DFL)  # the kernel's default works even if Python hangs
        on_terminal = os.isatty(2) and os.environ.get("TERM") != "dumb"
        line = b"" if requested.on_screen and on_terminal else f"\n{requested.answer}\n".encode()
        with suppress(OSError):  # nobody may be reading
            os.write(2, (SHOW_CURSOR if on_terminal else b"") + line)

    def request_save(number: int, frame: FrameType | None) -> None:
        requested.save.set()

    requested.handlers = {signal.SIGINT: request_stop, signal.SIGTERM: request_stop, signal.SIGUSR1: request_save}
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        requested.handlers[signal.SIGHUP] = request_stop
    before = {number: signal.getsignal(number) for number in requested.handlers}
    requested.listen()
    try:
        yield requested
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
