"""Standard streams that never raise: any text can be printed, and failed writes are counted."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

from t3d.files import error_text, open_closed_descriptors


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
        """Writes line by line."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flushes without raising."""
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
        stream, number = self._stream, _number_of(self._stream)
        if number == 1:
            self._stream = open(os.dup(1), "w", encoding=stream.encoding)  # noqa: SIM115, PTH123
            os.dup2(2, 1)
        try:
            yield
        finally:
            sys.stdout = before
            self.flush()
            if number == 1:
                os.dup2(self._stream.fileno(), 1)
                with suppress(OSError):  # what cannot be flushed is lost
                    self._stream.close()
                self._stream = stream

    def lost(self) -> str:
        """Says how much output could not be written and why; empty if nothing was lost."""
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


def _number_of(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, ValueError):  # not a file, as in notebooks and tests
        return None


def printable(text: str) -> str:
    """Escapes the characters that would control the terminal instead of being shown."""
    return "".join(one if one.isprintable() or one in "\n\t" else ascii(one)[1:-1] for one in text)


def lost_output() -> bool:
    """Says whether something could not be written to stdout."""
    sys.stdout.flush()
    return isinstance(sys.stdout, Output) and sys.stdout.failures > 0


@contextmanager
def safe_streams() -> Iterator[None]:
    """Replaces stdout and stderr by Outputs, and reports at the end what could not be written."""
    open_closed_descriptors()
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
