"""One writer for one run folder."""

from __future__ import annotations

import fcntl
import json
import os
import platform
from pathlib import Path

from t3d.errors import UserError

LONGEST = 1000  # bytes of the file that are read


class Lock:
    """Held as long as this process lives: the kernel lets go of it however the process ends."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / "lock").open("a+", encoding="utf-8")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(self._file.name)
            self._file.close()
            raise UserError(f"{folder} is in use by {holder}; stop that run first, or choose another name") from None
        self.note = ""
        if (folder / "lock").stat().st_size:
            self.note = f"{_holder(self._file.name)} ended without leaving the run's folder; its lock is taken over"
        self._file.truncate(0)
        self._file.write(json.dumps({"pid": os.getpid(), "host": platform.node()}))
        self._file.flush()

    def close(self) -> None:
        """Leaves the folder in order."""
        self._file.truncate(0)
        self._file.close()


def _holder(path: str) -> str:
    try:
        said = json.loads(Path(path).read_bytes()[:LONGEST])
        return f"process {int(said['pid'])} on {str(said['host'])[:60]}"
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return "another process"
