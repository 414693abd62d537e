"""What tests of `t3d serve` need: policies of every kind, a client in this process, and a real server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from starlette.testclient import TestClient

from shipped_policies import bounded, made, of_vectors, vector_spec
from t3d.config.networks import architecture
from t3d.policy.acting import LoadedPolicy, SavedPolicy
from t3d.policy.files import save_policy
from t3d.policy.spec import Part, Spec
from t3d.ship.serve import BINARY, JSON, Application, Limits
from t3d.web import Access

SIZE = 5  # of the observations of of_vectors()
GOOD: dict[str, Any] = {"observation": [0.1, -0.2, 0.3, 0.0, 1.0]}
LIMITED = vector_spec()._replace(max_action_change=0.05)
GOOD_LIMITED = {**GOOD, "previous_action": [0.1, 0.2, 0.3]}
WS = "ws://127.0.0.1:8701/ws"
AS_JSON, AS_BYTES = {"content-type": JSON}, {"content-type": BINARY}


def of_parts() -> SavedPolicy:
    """A policy of a Dict with a Tuple, a Discrete and a MultiDiscrete in it."""
    gears = Part(("gears",), (2,), 10, 15, (0, 5), (2, 3))
    parts = (Part(("arm", 0), (2, 2), 0, 4), Part(("arm", 1), (), 4, 7, 1), Part(("speed",), (3,), 7, 10), gears)
    spec = bounded(Spec(parts, (2,), -np.ones(2), np.ones(2)))
    return made(architecture("mlp", (15, 16, 2), "relu"), spec)


def client_of(
    policy: LoadedPolicy | None = None, host: str = "127.0.0.1", token: str = "", **limits: Any
) -> TestClient:
    """A client of a server that listens on a host; what the server itself raises becomes an answer."""
    app = Application(policy or of_vectors(), Access(host, token=token), Limits(**limits))
    return TestClient(app, base_url="http://127.0.0.1:8701", raise_server_exceptions=False)


def is_good(action: Any, policy: LoadedPolicy, rows: int | None = None) -> bool:
    """Whether this is an action, or so many rows of them, finite and within the bounds."""
    found, spec = np.asarray(action, np.float64), policy.spec
    shape = spec.action_shape if rows is None else (rows, *spec.action_shape)
    return found.shape == shape and bool(((found >= spec.action_low) & (found <= spec.action_high)).all())


def pictures(policy: LoadedPolicy, count: int, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """Observations of of_images()."""
    found: dict[str, NDArray[Any]] = {"speed": rng.normal(size=(count, 2)).astype(np.float32)}
    for image in policy.spec.images:
        channels, height, width = image.shape
        shape = (height, width, channels) if image.channels_last else image.shape
        found[str(image.path[0])] = rng.integers(0, 256, (count, *shape), dtype=np.uint8)
    return found


def saved(folder: Path, policy: SavedPolicy) -> Path:
    """A folder with a policy in it, as a run has one."""
    folder.mkdir(exist_ok=True)
    about = {name: policy.about[name] for name in ("env", "kind", "seed", "step", "mean_return", "t3d")}
    save_policy(folder / "best" / "seed-3", policy.snapshot, 0, policy.spec, about)
    return folder


class Served(NamedTuple):
    """A server in a process of its own."""

    process: subprocess.Popen[str]
    port: int
    first_lines: str

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Signals it; returns its exit code and what it has said."""
        self.process.send_signal(number)
        assert self.process.stdout is not None
        said = self.process.stdout.read()
        return self.process.wait(60), said


@contextmanager
def served(
    folder: Path, *flags: str, policy: SavedPolicy | None = None, first: str = "", **environment: str
) -> Iterator[Served]:
    """Runs `t3d serve` on a free port, after some code of the test's."""
    saved(folder, policy or of_vectors())
    code = f"{first}\nimport sys\nfrom t3d.app.cli import main\nsys.exit(main(sys.argv[1:]))"
    command = [sys.executable, *(["-c", code] if first else ["-m", "t3d"]), "serve", str(folder), "--port", "0", *flags]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process: subprocess.Popen[str] = subprocess.Popen(command, env={**os.environ, **environment}, **pipes)  # type: ignore[call-overload]
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        while lines[-1] and not lines[-1].startswith("  curl "):  # the last line that it prints
            lines.append(process.stdout.readline())
        found = re.search(r":(\d+)/act", "".join(lines))
        assert found is not None, lines
        yield Served(process, int(found[1]), "".join(lines))
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def until(condition: Any, seconds: float = 20) -> None:
    """Waits until something is so."""
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.02)
