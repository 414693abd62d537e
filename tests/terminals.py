"""Commands in terminals, and what these show in the end; a training that takes a second."""

from __future__ import annotations

import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from fcntl import ioctl
from pathlib import Path

SMALL = "--total-steps 200 --random-steps 100 --td3.batch-size 16 --td3.actor-hidden 16 --td3.critic-hidden 16"
SMALL += " --eval.every-steps 100 --eval.episodes 1 --threads 1 --engine eager --no-video"
TRAIN = ["train", "Pendulum-v1", *SMALL.split()]
COMMAND = [sys.executable, "-m", "t3d", *TRAIN]


def read_until(terminal: int, mark: bytes, seconds: float = 30) -> bytes:
    """What is printed until the mark; without one, until the process ends."""
    shown, until = b"", time.monotonic() + seconds
    while not (mark and mark in shown) and time.monotonic() < until:
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                shown += os.read(terminal, 2**16)
            except OSError:  # its other end is closed
                return shown
    return shown


def lines_of(shown: str) -> list[str]:
    """What a terminal shows in the end: it knows carriage return, cursor up and erase line."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", shown):
        if part == "\r":
            column = 0
        elif part == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif part.startswith("\x1b"):
            count = int(re.sub(r"\D", "", part) or 1)
            row = max(0, row - count) if part.endswith("A") else row
            lines[row] = "" if part.endswith("K") else lines[row]
        else:
            lines[row] = lines[row][:column].ljust(column) + part + lines[row][column + len(part) :]
            column += len(part)
    return lines


def in_terminal(command: list[str], folder: Path, width: int = 80, height: int = 24) -> tuple[int, list[str]]:
    """Runs a command in a terminal of this size; its exit code and what the terminal holds in the end."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    surroundings = {**os.environ, "TERM": "xterm"}
    for name in ("COLUMNS", "LINES"):
        surroundings.pop(name, None)
    with subprocess.Popen(command, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, env=surroundings) as process:
        os.close(theirs)
        shown = read_until(ours, b"", seconds=60)
    os.close(ours)
    return process.returncode, lines_of(re.sub(r"\x1b\[[0-9;]*m", "", shown.decode()))
