"""Standard streams that a run cannot die of: any text can be printed, and what cannot be written is counted."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

from t3d.files import in_words


class Output:
    """Stands in for a standard stream. Writing never raises; `failures` and `reader_left` say what went wrong."""

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
        """As write, line by line."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Sends what was written on its way."""
        self._attempt(self._stream.flush)

    def finish(self) -> None:
        """Flushes for the last time: the interpreter, which flushes too, must find nothing left that could fail."""
        failed = self.failures
        self.flush()
        if self.reader_left or self.failures > failed:
            with suppress(OSError, ValueError):  # somebody has closed it
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def lost(self) -> str:
        """What could not be written, in words; empty if nothing was lost."""
        many = "1 piece" if self.failures == 1 else f"{self.failures} pieces"
        return f"{many} of what was printed could not be written: {self.reason}" if self.failures else ""

    def _attempt(self, action: Callable[..., object], *arguments: str) -> None:
        try:
            action(*arguments)
        except BrokenPipeError:
            self.reader_left = True
        except (OSError, ValueError) as error:  # ValueError: somebody has closed it
            self.failures += 1
            self.reason = in_words(error)


def printable(text: str) -> str:
    """The text with everything escaped that would steer the terminal instead of being shown."""
    return "".join(one if one.isprintable() or one in "\n\t" else ascii(one)[1:-1] for one in text)


def lost_output() -> bool:
    """Whether something could not be written to stdout."""
    sys.stdout.flush()
    return isinstance(sys.stdout, Output) and sys.stdout.failures > 0


@contextmanager
def safe_streams() -> Iterator[None]:
    """Puts an Output in the place of stdout and of stderr, and says at the end what could not be written."""
    _open_closed_descriptors()
    before = sys.stdout, sys.stderr
    stdout, stderr = (Output(stream or open(os.devnull, "w", encoding="utf-8")) for stream in before)  # noqa: SIM115, PTH123
    sys.stdout, sys.stderr = cast(TextIO, stdout), cast(TextIO, stderr)
    try:
        yield
    finally:
        stdout.finish()
        if stdout.failures:
            stderr.write(stdout.lost() + "\n")
        stderr.finish()
        sys.stdout, sys.stderr = before


def _open_closed_descriptors() -> None:
    """Where a standard stream is closed, the next file that is opened would get its number, and what is printed."""
    for number in range(3):
        with suppress(OSError):
            os.fstat(number)
            continue
        os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
