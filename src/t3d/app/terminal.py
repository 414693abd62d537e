"""The process and its terminal: streams that never raise, text that is never markup, signals that stop a run."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, TextIO, cast

from rich.console import Console
from rich.text import Text

from t3d.errors import UserError
from t3d.files import display_path, error_text, printable
from t3d.process import open_closed_descriptors

Handler = Callable[[int, FrameType | None], None]
SHOW_CURSOR = b"\x1b[?25h"
STOPPING = "stopping: the run is being saved; a second Ctrl-C or SIGTERM quits at once"
SKIPPING = "the run has ended and is saved; the rest of the output is skipped"


class PlainConsole(Console):
    """rich's console that prints text literally: without markup, emoji codes and colouring of numbers."""

    def __init__(self, piped_width: int = 0, **options: Any) -> None:
        if os.environ.get("TERM") == "dumb":
            options = {"force_terminal": False, **options}  # plain lines, whatever FORCE_COLOR says
        file = sys.stderr if options.get("stderr") else sys.stdout  # as they are now: an environment may replace them
        super().__init__(markup=False, emoji=False, highlight=False, **{"file": file, **options})
        if piped_width and not self.is_terminal:
            self.width = piped_width

    def render_str(self, text: str, **keywords: Any) -> Text:
        """Escapes control characters; all strings pass through here, those in tables too."""
        return super().render_str(printable(text), **keywords)


def labelled(label: str, style: str, text: str) -> Text:
    """Returns a coloured label, if there is one, followed by the text."""
    return Text.assemble((label, style), " " if label else "", printable(text))


def draw_picture(draw: Callable[[], None], out: Path, console: PlainConsole) -> bool:
    """Calls what draws into a file: one that cannot be written is an error, a missing matplotlib a note and False."""
    try:
        draw()
    except (OSError, ValueError) as error:
        raise UserError(f"cannot write the image {out}: {error_text(error)}") from None
    except ImportError as error:
        console.print(labelled("note:", "yellow", f"no picture without matplotlib ({error})"), soft_wrap=True)
        return False
    console.print(f"plotted: {display_path(out)}", soft_wrap=True)
    return True


class Output:
    """Replaces a standard stream. Writing never raises; `failures` and `reader_left` say what went wrong."""

    def __init__(self, stream: TextIO) -> None:
        self.failures = 0
        self.reason = ""  # of the last failure
        self.reader_left = False  # as `| head` does
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)  # isatty, fileno, buffer, ...

    def write(self, text: str) -> int:
        """Writes what the stream's encoding can express and escapes the rest."""
        encoding = self._stream.encoding or "utf-8"
        plain = text if encoding.lower().startswith("utf") else text.replace("±", "+-")
        self._attempt(self._stream.write, plain.encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def flush(self) -> None:
        self._attempt(self._stream.flush)

    def close(self) -> None:
        """Only flushes: an environment that closes it must not silence the run."""
        self.flush()

    def finish(self) -> None:
        """Flushes a last time, so that the interpreter's own flush at exit cannot fail."""
        failed = self.failures
        self.flush()
        if self.reader_left or self.failures > failed:
            with suppress(OSError, ValueError):  # it was closed
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keeps standard output for what is written to this object: all else, of C code too, goes to standard error."""
        self.flush()
        before, sys.stdout = sys.stdout, sys.stderr
        ours, is_standard = self._stream, False
        with suppress(OSError, ValueError):  # not a file, as in notebooks and tests
            is_standard = ours.fileno() == 1
        if is_standard:
            self._stream = open(os.dup(1), "w", encoding=ours.encoding)  # noqa: SIM115, PTH123
            os.dup2(2, 1)
        try:
            yield
        finally:
            sys.stdout = before
            self.flush()
            if is_standard:
                os.dup2(self._stream.fileno(), 1)
                with suppress(OSError):  # what cannot be flushed is lost
                    self._stream.close()
                self._stream = ours

    def lost(self) -> str:
        many = "1 piece" if self.failures == 1 else f"{self.failures} pieces"
        return f"{many} of output could not be written: {self.reason}" if self.failures else ""

    def _attempt(self, action: Callable[..., object], *arguments: str) -> None:
        try:
            action(*arguments)
        except BrokenPipeError:
            self.reader_left = True
        except (OSError, ValueError) as error:  # ValueError: it was closed
            self.failures += 1
            self.reason = error_text(error)


def standard_output() -> Output:
    """Returns what print writes to."""
    return sys.stdout if isinstance(sys.stdout, Output) else Output(sys.stdout)


@contextmanager
def safe_streams() -> Iterator[Output]:
    """Replaces stdout and stderr by Outputs, yields the first, and reports at the end what could not be written."""
    open_closed_descriptors()
    before = sys.stdout, sys.stderr
    stdout, stderr = (Output(stream or open(os.devnull, "w", encoding="utf-8")) for stream in before)  # noqa: SIM115, PTH123
    sys.stdout, sys.stderr = cast(TextIO, stdout), cast(TextIO, stderr)
    try:
        yield stdout
    finally:
        stdout.finish()
        if stdout.failures:
            stderr.write(stdout.lost() + "\n")
        stderr.finish()
        sys.stdout, sys.stderr = before


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

    def request_stop(self, number: int, frame: FrameType | None) -> None:
        """Handles a signal that stops the run; the next one ends the process."""
        self.received = number
        self.stop.set()
        for stopping in (signal.SIGINT, signal.SIGTERM):
            signal.signal(stopping, signal.SIG_DFL)  # the kernel's default works even if Python hangs
        on_terminal = os.isatty(2) and os.environ.get("TERM") != "dumb"
        line = b"" if self.on_screen and on_terminal else f"\n{self.answer}\n".encode()
        with suppress(OSError):  # nobody may be reading
            os.write(2, (SHOW_CURSOR if on_terminal else b"") + line)

    @property
    def exit_code(self) -> int:
        """The exit code by shell convention: 130 after Ctrl-C, 143 after SIGTERM."""
        return 0 if self.received is None else 128 + self.received


@contextmanager
def handling_signals() -> Iterator[SignalRequests]:
    """Lets Ctrl-C, SIGTERM and a closed terminal (SIGHUP) request a stop, and SIGUSR1 a save."""
    requested = SignalRequests()
    stopping = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        stopping.append(signal.SIGHUP)
    requested.handlers = dict.fromkeys(stopping, requested.request_stop)  # one bound method, compared by identity
    requested.handlers[signal.SIGUSR1] = lambda number, frame: requested.save.set()
    before = {number: signal.getsignal(number) for number in requested.handlers}
    requested.listen()
    try:
        yield requested
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
