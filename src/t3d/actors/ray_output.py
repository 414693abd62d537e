"""Where the messages of Ray and the prints of its actors go: to a descriptor of ours instead of the user's console."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _ToDescriptor(logging.Handler):
    """Writes log records to a descriptor, if there is one."""

    def __init__(self, output: int | None) -> None:
        super().__init__(logging.WARNING)
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        write(self._output, f"(ray) {record.getMessage()}")


def write(output: int | None, line: str) -> None:
    """Writes one line to a descriptor, if there is one."""
    if output is not None:
        os.write(output, f"{line}\n".encode(errors="replace"))


@contextmanager
def printing_to(output: int | None) -> Iterator[None]:
    """Sends Ray's log, its messages about the cluster and what its workers print to the descriptor, or nowhere."""
    worker: Any = importlib.import_module("ray._private.worker")

    def to_output(data: dict[str, Any], ignore_prefix: bool = False) -> None:
        for line in data["lines"] if data["pid"] != "autoscaler" else ():  # it reports every few seconds
            write(output, f"({data.get('ip', 'ray')}, {data['pid']}) {line}")

    log = logging.getLogger("ray")
    before = log.handlers, log.propagate, getattr(worker, "print_to_stdstream", None)
    log.handlers, log.propagate = [_ToDescriptor(output)], False
    worker.print_to_stdstream = to_output  # Ray prints through this function, and has no setting to print elsewhere
    try:
        yield
    finally:
        log.handlers, log.propagate, worker.print_to_stdstream = before
