"""What must be true of a Ray cluster: checked before it is joined, after, and while it is used."""

from __future__ import annotations

import importlib
import os
import platform
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from t3d.errors import UserError
from t3d.version import __version__

CONNECT_SECONDS = 5.0  # for the head to accept a connection
PROBE_SECONDS = 20.0  # for a process that imports Ray and asks the head one question
NODE_SECONDS = 60.0  # for all nodes together to start a worker, which unpacks the user's files, and to report
WATCH_SECONDS, LOST_SECONDS = 2.0, 20.0  # between two looks at the head; until it is given up; chosen
QUESTION = "import sys; from ray._raylet import GcsClient; GcsClient(address=sys.argv[1])"
REFUSED = "InvalidAuthToken"
DOCS = "docs/cluster.md says how to set it up"


class Versions(NamedTuple):
    """What a node runs."""

    ray: str
    python: str
    t3d: str

    def __str__(self) -> str:
        return f"Ray {self.ray}, Python {self.python} and T3D {self.t3d}"


class Started(NamedTuple):
    """Where an actor runs, and what its node runs."""

    host: str
    pid: int
    node: str  # Ray's id of it
    versions: Versions


def split_address(address: str) -> tuple[str, int]:
    """Splits HOST:PORT."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not (port.isascii() and port.isdigit() and 0 < int(port) < 2**16):
        raise UserError(
            f"ray_address={address} is not HOST:PORT; give what `ray start --head` prints, e.g. 10.0.0.1:6379"
        )
    return host.strip("[]"), int(port)


def asks_for_token(address: str) -> bool:
    """Returns whether the cluster requires a token; raises if ours is missing or wrong.

    Other processes ask: Ray remembers for the life of a process whether it uses a token, and prints what goes wrong.
    """
    try:
        socket.create_connection(split_address(address), CONNECT_SECONDS).close()
    except OSError as error:
        raise UserError(
            f"nothing answers at ray_address={address} ({error.strerror or error}); is the cluster running? {DOCS}"
        ) from None
    said = _ask(address, "disabled")
    if not said:
        return False
    if REFUSED not in said:
        last = said.strip().splitlines()[-1]
        raise UserError(f"what answers at ray_address={address} is not the head of a Ray cluster ({last})")
    said = _ask(address, "token")
    if not said:
        return True
    if REFUSED in said:
        raise UserError(
            f"the Ray cluster at {address} refuses this token; copy ~/.ray/auth_token from its head, and check that "
            "neither RAY_AUTH_TOKEN nor RAY_AUTH_TOKEN_PATH is set to another one"
        )
    raise UserError(
        f"the Ray cluster at {address} asks for a token, and there is none here; copy ~/.ray/auth_token from its "
        "head, or set RAY_AUTH_TOKEN_PATH to a file that contains it"
    )


def _ask(address: str, mode: str) -> str:
    """Asks the head for the cluster's id, with or without a token; returns what went wrong, or an empty string."""
    try:
        asked = subprocess.run(  # noqa: S603
            [sys.executable, "-P", "-c", QUESTION, address],
            env={**os.environ, "RAY_AUTH_MODE": mode},
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {PROBE_SECONDS:.0f} s"
    return asked.stderr or f"exit code {asked.returncode}" if asked.returncode else ""


@contextmanager
def joining(address: str) -> Iterator[None]:
    """Wraps joining a cluster: if Ray cannot, says why in a sentence."""
    try:
        yield
    except ConnectionError:  # the head did answer us
        raise UserError(
            f"the Ray cluster at {address} answers, but this machine is not one of its nodes; join it first with: "
            f"ray start --address={address}"
        ) from None
    except (RuntimeError, ValueError) as error:
        raise UserError(f"joining the Ray cluster at {address} failed: {' '.join(str(error).split())}") from error


@contextmanager
def starting_here() -> Iterator[None]:
    """Wraps starting a cluster on this machine: if Ray cannot, says so in a sentence."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # Ray raises plain exceptions, e.g. if this machine is too busy
        raise UserError(f"Ray could not start on this machine: {' '.join(str(error).split())}") from error


def what_runs_here() -> Versions:
    """Returns what this process runs; also asked of every node."""
    import ray  # noqa: PLC0415 (an extra)

    return Versions(ray.__version__, platform.python_version(), __version__)


def started_here() -> Started:
    """Returns where this process, an actor, runs."""
    import ray  # noqa: PLC0415

    return Started(platform.node(), os.getpid(), ray.get_runtime_context().get_node_id(), what_runs_here())


def nodes_now() -> set[str]:
    """Returns the ids of the nodes that are alive."""
    return {node["NodeID"] for node in _nodes()}


def differs(there: Versions) -> str:
    """Says what a node runs, if that differs from this process."""
    here = what_runs_here()
    return "" if there == here else f"runs {there}; this process {here}"


def differences() -> list[str]:
    """Asks each node what it runs, and returns a sentence about each that differs from this process."""
    import ray  # noqa: PLC0415
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415

    ask = ray.remote(num_cpus=0, max_retries=0)(what_runs_here)
    nodes = {node["NodeID"]: node["NodeManagerAddress"] for node in _nodes()}
    asked = {
        ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(): address
        for node, address in nodes.items()
    }
    answered, silent = ray.wait(list(asked), num_returns=len(asked), timeout=NODE_SECONDS)
    found = [f"node {asked[task]} has not started a worker within {NODE_SECONDS:.0f} s" for task in silent]
    for task in answered:
        if text := _difference(task):
            found.append(f"node {asked[task]} {text}")
    return found


def _nodes() -> list[dict[str, Any]]:
    """Returns what Ray says about each node that is alive."""
    ray: Any = importlib.import_module("ray")  # its list of nodes has no type
    return [node for node in ray.nodes() if node["Alive"]]


def _difference(task: Any) -> str:
    import ray  # noqa: PLC0415

    try:
        return differs(Versions(*ray.get(task)))
    except ray.exceptions.RuntimeEnvSetupError as error:
        return f"could not unpack the files that it was sent: {' '.join(str(error).split())}"
    except ray.exceptions.RayError as error:
        missing = "No module named 't3d'" in str(error)
        return "has no T3D; install it there" if missing else f"failed: {' '.join(str(error).split())[-200:]}"


class Watch:
    """Looks after the head of the cluster and this machine's node, in a thread.

    Ray ends the whole process, without a word to Python, some time after the head is lost.
    """

    def __init__(self) -> None:
        import ray  # noqa: PLC0415

        context = ray.get_runtime_context()
        here = next(node for node in _nodes() if node["NodeID"] == context.get_node_id())
        node = here["NodeManagerAddress"], int(here["NodeManagerPort"])
        self._watched = {"the head of the Ray cluster": split_address(context.gcs_address), "this machine's Ray": node}
        self._seen = dict.fromkeys(self._watched, time.monotonic())
        self._looked_at = time.monotonic()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._look, name="ray watch", daemon=True)
        self._thread.start()

    def lost(self) -> str:
        """Returns what is lost for good, or an empty string; never waits."""
        for name, seen in self._seen.items():
            if self._looked_at - seen > LOST_SECONDS:
                host, port = self._watched[name]
                return f"{name} ({host}:{port}) has not answered for {LOST_SECONDS:.0f} s"
        return ""

    def close(self) -> None:
        """Ends the thread."""
        self._closing.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._closing.wait(WATCH_SECONDS):
            for name, address in self._watched.items():
                try:
                    socket.create_connection(address, WATCH_SECONDS).close()
                    self._seen[name] = time.monotonic()
                except OSError:
                    pass
            self._looked_at = time.monotonic()
