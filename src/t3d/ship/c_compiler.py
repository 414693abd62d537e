"""Compiles an exported C file with the system's compiler and calls it, to compare it with the policy."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3d.errors import UserError
from t3d.policy.spec import Spec

NAMES = ("cc", "gcc", "clang")
FLAGS = ("-std=c99", "-O2", "-pedantic", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")
LONGEST_SECONDS = 300


def compiler() -> str | None:
    """The path of a C compiler, if there is one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def compiled(source: str, spec: Spec) -> Iterator[Callable[[NDArray[Any], NDArray[Any] | None], NDArray[Any]]]:
    """A function from flat observations, and previous actions, to actions (N, action_size), computed by the C code."""
    with tempfile.TemporaryDirectory(prefix="t3d-c-") as folder:
        file, library = Path(folder, "policy.c"), Path(folder, "policy.so")
        file.write_text(source, encoding="ascii")
        command = [compiler() or "cc", *FLAGS, "-o", str(library), str(file), "-lm"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_SECONDS, check=False)  # noqa: S603
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UserError(f"the exported C code could not be compiled: {error}") from None
        if done.returncode:
            raise UserError(f"the exported C code does not compile with {command[0]}: {done.stderr.strip():.300}")
        act: Any = ctypes.CDLL(str(library)).t3d_act

        def actions(flat: NDArray[Any], previous: NDArray[Any] | None = None) -> NDArray[Any]:
            found = np.empty((len(flat), spec.action_size), np.float32)
            before = [] if previous is None else [previous.reshape(found.shape)]
            arrays = [*(np.ascontiguousarray(one, np.float32) for one in (flat[:, : spec.own_size], *before)), found]
            for row in zip(*arrays, strict=True):
                if not act(*(ctypes.c_void_p(one.ctypes.data) for one in row)):
                    raise UserError("the exported C code refuses an observation that the policy accepts")
            return found

        yield actions
