"""The Ray cluster on which actors run: started on this machine or joined, watched, and left again.

Ray is an extra: it is imported only when a run asks for it.
"""

from __future__ import annotations

import importlib
import logging
import math
import os
import secrets
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from t3d.actors.ray_actor import Started, installed_versions
from t3d.actors.ray_files import environments_there, own_there, runtime_env
from t3d.actors.supervisor import ONE_THREAD, python_path
from t3d.config import Config
from t3d.errors import StoppedEarly, UserError, check_installed

SHARED_MEMORY = "/dev/shm"  # noqa: S108 (Ray keeps there what is passed by reference)
MOST_BYTES = 2**30  # of shared memory for a cluster of our own, taken as it is needed; chosen
LEAST_BYTES = 100 * 2**20  # Ray refuses less than 75 MiB
SHARE_OF_FREE = 0.8  # of the free shared memory, at most; chosen
CONNECT_SECONDS = 5.0  # for a head to accept a connection; chosen
PROBE_SECONDS = 20.0  # for `ray status` to be answered; chosen
STOP_SECONDS = 0.1  # between two looks at whether to stop; chosen
CLOSE_SECONDS = 10.0  # for a cluster of our own to end; chosen
WATCH_SECONDS, LOST_SECONDS = 2.0, 20.0  # between two looks at the head; until it is given up; chosen
TOKEN = secrets.token_hex(32)  # of our own clusters
NOT_STARTED = "Ray could not start on this machine"
STOPPED = "stopped while Ray started; nothing was begun"
VARIABLES = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # then Ray does not replace 127.0.0.1 by an address for others
    "RAY_gcs_rpc_server_reconnect_timeout_s": "600",  # then Ray ends the process; Connection.lost() comes long before
    "RAY_prestart_worker_first_driver": "0",  # no idle Python processes, one for each core
    "RAY_worker_niceness": "0",  # actors have the learner's priority, as those of local:N
    "RAY_USAGE_STATS_ENABLED": "0",
}
READ_BY_RAY: dict[str, str | None] = {}  # which token, if any: Ray reads that once, when we import it


class Connection:
    """A cluster in use. A thread looks after its head and this machine's node.

    Ray ends the whole process, without a word to Python, some time after the head is lost.
    """

    def __init__(self, folder: Path | None, warnings: list[str], opened: ExitStack) -> None:
        import ray  # noqa: PLC0415

        # The folder of this machine of which actors have a copy; None where they run on this machine.
        self.folder, self.warnings = folder, warnings
        self.known_nodes: set[str] = set()  # whose versions were compared with ours
        context = ray.get_runtime_context()
        here = next(node for node in ray.nodes() if node["NodeID"] == context.get_node_id())  # type: ignore[no-untyped-call]
        node = f"{here['NodeManagerAddress']}:{here['NodeManagerPort']}"
        self._watched = {"the head of the Ray cluster": context.gcs_address, "this machine's Ray": node}
        self._answered_at = dict.fromkeys(self._watched, time.monotonic())
        self._looked_at = time.monotonic()
        self._closing = threading.Event()
        thread = threading.Thread(target=self._look, name="ray watch", daemon=True)
        thread.start()
        opened.callback(thread.join)
        opened.callback(self._closing.set)
        self._opened = opened.pop_all()

    def for_actors(self, cfg: Config) -> Config:
        return environments_there(cfg, self.folder)

    def network_there(self, name: str) -> str:
        return own_there(name, self.folder)

    def warning(self, started: Started) -> str:
        """Returns what differs on the node of an actor, if it is the first one there."""
        here, is_known = installed_versions(), started.node in self.known_nodes
        self.known_nodes.add(started.node)
        is_same = is_known or started.versions == here
        return "" if is_same else f"node {started.host} runs {started.versions}; this process {here}"

    def lost(self) -> str:
        for name, answered_at in self._answered_at.items():
            if self._looked_at - answered_at > LOST_SECONDS:
                return f"{name} ({self._watched[name]}) has not answered for {LOST_SECONDS:.0f} s"
        return ""

    def _look(self) -> None:
        while not self._closing.wait(WATCH_SECONDS):
            for name, address in self._watched.items():
                with suppress(OSError):
                    socket.create_connection(split_address(address), WATCH_SECONDS).close()
                    self._answered_at[name] = time.monotonic()
            self._looked_at = time.monotonic()

    def close(self) -> None:
        self._opened.close()


def connect(cfg: Config, output: int, stop: threading.Event) -> Connection:
    """Joins the cluster at ray_address, or starts one here, until `stop`; what Ray prints goes to `output`."""
    check_installed(f"actors={cfg.actors}", ["ray"], "ray")
    with ExitStack() as opened:
        warnings = _join(cfg, opened, output) if cfg.ray_address else _start(cfg, opened, output, stop)
        if stop.is_set():
            raise StoppedEarly(STOPPED)
        return Connection(Path.cwd() if cfg.ray_address else None, warnings, opened)


def _start(cfg: Config, opened: ExitStack, output: int, stop: threading.Event) -> list[str]:
    """Starts a cluster that listens on this machine only, and admits only who has its token."""
    store = store_bytes(shutil.disk_usage(SHARED_MEMORY).free)
    opened.enter_context(_environment({**VARIABLES, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}))
    ray = _import_ray()
    cpus = max(1, math.ceil(cfg.async_actors * cfg.ray_cpus))  # all actors fit; evaluators reserve none
    try:
        folder = tempfile.mkdtemp(prefix="t3d-ray-")  # that only this user can enter
        opened.callback(shutil.rmtree, folder, ignore_errors=True)
        guard = subprocess.Popen(  # noqa: S603
            [sys.executable, "-P", "-m", "t3d.actors.ray_guard", str(os.getpid()), folder, str(cpus), str(store)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,  # so that select knows of every line
            env={**os.environ, **ONE_THREAD, "PYTHONPATH": python_path(), "RAY_TMPDIR": folder},
            start_new_session=True,  # a terminal's Ctrl-C reaches only the learner
        )
    except OSError as error:  # the system has run out of something
        raise UserError(f"{NOT_STARTED}: {error}") from error
    opened.callback(_end, guard)
    assert guard.stdout is not None  # noqa: S101 (it is a pipe)
    line = ""
    while not line.startswith("address "):
        if stop.is_set():
            raise StoppedEarly(STOPPED)
        if select.select([guard.stdout], [], [], STOP_SECONDS)[0]:
            printed = guard.stdout.readline()
            if not printed:
                raise UserError(f"{NOT_STARTED}: {line}")
            line = printed.decode(errors="replace").strip() or line
    _init(ray, opened, output, NOT_STARTED, address=line.removeprefix("address "))
    return []


def _end(guard: subprocess.Popen[bytes]) -> None:
    try:
        guard.communicate(timeout=CLOSE_SECONDS)  # which closes its stdin
    except subprocess.TimeoutExpired:  # another process, forked from ours, holds it open
        guard.terminate()
        with suppress(subprocess.TimeoutExpired):
            guard.wait(CLOSE_SECONDS)


def _join(cfg: Config, opened: ExitStack, output: int) -> list[str]:
    """Joins a cluster, and sends it the folder in which T3D was started if actors need files of it."""
    address, environment = cfg.ray_address, {"env_vars": ONE_THREAD, **runtime_env(cfg, Path.cwd())}
    with_token = asks_for_token(address)
    opened.enter_context(_environment({**VARIABLES, "RAY_AUTH_MODE": "token" if with_token else "disabled"}))
    ray = _import_ray()
    try:
        problem = f"joining the Ray cluster at {address} failed"
        _init(ray, opened, output, problem, address=address, runtime_env=environment)
    except UserError as error:
        if not isinstance(error.__cause__, ConnectionError):
            raise
        raise UserError(  # the head did answer us
            f"the Ray cluster at {address} answers, but this machine is not one of its nodes; join it first with: "
            f"ray start --address={address}"
        ) from None
    open_to_all = (
        f"the Ray cluster at {address} runs without authentication: everyone who reaches it can run programs on it; "
        "docs/actors-and-clusters.md says how to switch it on"
    )
    return [] if with_token else [open_to_all]


def store_bytes(free: int) -> int:
    """Returns how much of the free shared memory a cluster of our own may use."""
    most = min(MOST_BYTES, int(SHARE_OF_FREE * free))
    if most < LEAST_BYTES:
        raise UserError(
            f"{SHARED_MEMORY} has {free / 2**20:.0f} MiB free, and Ray needs {LEAST_BYTES / SHARE_OF_FREE / 2**20:.0f} "
            "MiB; start a container with --shm-size=1g"
        )
    return most


def waiting_for_cpus(cfg: Config) -> list[str]:
    """Says so if the cluster has no CPUs free for some of the actors."""
    import ray  # noqa: PLC0415

    free = ray.available_resources().get("CPU", 0.0)  # type: ignore[no-untyped-call]
    waiting = cfg.async_actors - math.floor(free / cfg.ray_cpus) if cfg.ray_cpus else 0
    if waiting <= 0:
        return []
    return [
        f"the Ray cluster has {free:g} CPUs free, and each of {cfg.async_actors} actors reserves {cfg.ray_cpus:g}: "
        f"{waiting} of them wait until there are more; --ray-cpus lets several share one"
    ]


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
            f"nothing answers at ray_address={address} ({error.strerror or error}); is the cluster running? "
            "docs/actors-and-clusters.md says how to set it up"
        ) from None
    for mode in ("disabled", "token"):
        problem = _problem_of_status(address, mode)
        if not problem:
            return mode == "token"
        if mode == "disabled" and "InvalidAuthToken" not in problem:
            raise UserError(
                f"what answers at ray_address={address} is not the head of a Ray cluster "
                f"({problem.strip().splitlines()[-1]})"
            )
    raise UserError(
        f"the Ray cluster at {address} asks for its token, and there is none here, or another one; copy "
        "~/.ray/auth_token from its head, or set RAY_AUTH_TOKEN_PATH to a file that contains it"
    )


def _problem_of_status(address: str, mode: str) -> str:
    command = [sys.executable, "-P", "-m", "ray.scripts.scripts", "status", f"--address={address}"]  # `ray status`
    variables = {**os.environ, **VARIABLES, "RAY_AUTH_MODE": mode}
    try:
        status = subprocess.run(command, env=variables, capture_output=True, timeout=PROBE_SECONDS, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        return f"no answer within {PROBE_SECONDS:.0f} s"
    text = status.stderr.decode(errors="replace").strip()
    return (text or f"exit code {status.returncode}") if status.returncode else ""


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def _settings() -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")}


def _import_ray() -> Any:
    """Imports Ray under the current environment; this process must not be using it yet."""
    if "ray" not in sys.modules:
        READ_BY_RAY.update(_settings())
    import ray  # noqa: PLC0415

    if ray.is_initialized():
        raise UserError("this process is using Ray already; call ray.shutdown() before t3d.train")
    if _settings() != READ_BY_RAY:
        raise UserError(
            "this process imported Ray before the run, or used it with another token, and Ray reads its settings only "
            "once; start a new process (in a notebook: restart the kernel) that imports ray after the run has started, "
            "for example inside of functions"
        )
    return ray


def _init(ray: Any, opened: ExitStack, output: int, problem: str, **options: Any) -> None:
    """Connects to a cluster, in another thread: in the main one Ray would replace our handler of SIGTERM."""
    opened.enter_context(_printing_to(output))
    opened.callback(ray.shutdown)
    try:
        with ThreadPoolExecutor(1) as other:
            # It warns of the thread at once, which users would see: a run has no workers.log yet.
            other.submit(ray.init, logging_level=logging.ERROR, **options).result()
    except Exception as error:  # Ray raises plain exceptions, e.g. if this machine is too busy
        raise UserError(f"{problem}: {' '.join(str(error).split())}") from error
    logging.getLogger("ray").setLevel(logging.WARNING)


@contextmanager
def _printing_to(output: int) -> Iterator[None]:
    """Sends Ray's log and what its workers print to the descriptor."""
    # All that we use of Ray's private API: Ray prints through this function, and has no setting to print elsewhere.
    # With a release in which it has another name, what actors print appears in the console.
    worker: Any = importlib.import_module("ray._private.worker")
    log = logging.getLogger("ray")
    before = log.handlers, log.propagate, getattr(worker, "print_to_stdstream", None)
    with os.fdopen(os.dup(output), "w", buffering=1, errors="replace") as stream:

        def print_lines(data: dict[str, Any], ignore_prefix: bool = False) -> None:
            for line in data["lines"] if data["pid"] != "autoscaler" else ():  # it reports every few seconds
                stream.write(f"({data.get('ip', 'ray')}, {data['pid']}) {line}\n")

        log.handlers, log.propagate, worker.print_to_stdstream = [logging.StreamHandler(stream)], False, print_lines
        try:
            yield
        finally:
            log.handlers, log.propagate, worker.print_to_stdstream = before
