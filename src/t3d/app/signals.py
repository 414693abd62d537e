"""What signals mean to a run."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType

SHOW_CURSOR = b"\x1b[?25h"
STOPPING = "stopping: the run is being saved; the same again leaves at once"
SKIPPING = "the run has ended and is saved; what was left to show is skipped"


@dataclass
class Heard:
    """What the person, or the machine, has asked for by signals."""

    stop: threading.Event = field(default_factory=threading.Event)
    save: threading.Event = field(default_factory=threading.Event)
    received: int | None = None  # the signal that asked for the stop
    on_screen: bool = False  # whether a picture is being drawn that says so itself: a line would tear it
    answer: str = STOPPING  # what is said to it

    @property
    def exit_code(self) -> int:
        """As shells count: 130 after Ctrl-C, 143 after SIGTERM."""
        return 0 if self.received is None else 128 + self.received


@contextmanager
def listening() -> Iterator[Heard]:
    """Ctrl-C, SIGTERM and a terminal that is closed (SIGHUP) ask the run to stop; SIGUSR1 asks for a save.

    A second Ctrl-C or SIGTERM ends the process at once.
    """
    heard = Heard()

    def ask_to_stop(number: int, frame: FrameType | None) -> None:
        heard.received = number
        heard.stop.set()
        for stopping in (signal.SIGINT, signal.SIGTERM):
            signal.signal(stopping, signal.SIG_DFL)  # the kernel's own answer needs no Python to run
        on_terminal = os.isatty(2)
        line = b"" if heard.on_screen and on_terminal else f"\n{heard.answer}\n".encode()
        with suppress(OSError):  # nobody may be reading
            os.write(2, (SHOW_CURSOR if on_terminal else b"") + line)

    def ask_to_save(number: int, frame: FrameType | None) -> None:
        heard.save.set()

    handlers = {signal.SIGINT: ask_to_stop, signal.SIGTERM: ask_to_stop, signal.SIGUSR1: ask_to_save}
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
        handlers[signal.SIGHUP] = ask_to_stop
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
