"""The Ray cluster on which actors run: started on this machine or joined, checked, and left again.

Ray is an extra: it is imported only when a run asks for it.
"""

from __future__ import annotations

import fcntl
import importlib
import importlib.util
import logging
import math
import os
import secrets
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from t3d.actors.ray_checks import (
    Started,
    Watch,
    asks_for_token,
    differences,
    differs,
    joining,
    nodes_now,
    starting_here,
)
from t3d.actors.ray_files import excluded, for_machines, needs_files
from t3d.actors.ray_output import printing_to
from t3d.actors.supervisor import ONE_THREAD
from t3d.config import Config
from t3d.errors import StoppedEarly, UserError

SHARED_MEMORY = "/dev/shm"  # noqa: S108 (Ray keeps there what is passed by reference)
MOST_BYTES = 2**30  # of shared memory for a cluster of our own, taken as it is needed; chosen
LEAST_BYTES = 100 * 2**20  # Ray refuses less than 75 MiB
SHARE_OF_FREE = 0.8  # of the free shared memory, at most; chosen
PREFIX, MARKER = "t3d-ray-", ".t3d-ray-cluster"  # of the folder of a cluster of our own, and of a file in it
MARK = b"Ray cluster of a T3D run: removed with it\n"
ALWAYS = {
    "RAY_prestart_worker_first_driver": "0",  # no idle Python processes, one for each core
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "600",  # then Ray ends the process; Watch.lost() comes long before
}


class Connection:
    """A cluster in use."""

    folder: Path | None = None  # of this machine, of which actors have a copy; None where they run on this machine

    def __init__(self, folder: Path | None, warnings: list[str], watch: Watch, opened: ExitStack) -> None:
        self.folder, self.warnings, self._watch, self._opened = folder, warnings, watch, opened
        self.known_nodes = nodes_now()  # whose versions are checked

    def for_actors(self, cfg: Config) -> Config:
        """Returns the configuration by which actors find the user's files."""
        return for_machines(cfg, self.folder)

    def warning(self, started: Started) -> str:
        """Returns what differs on the node of an actor, if it has joined since and is not known yet."""
        if started.node in self.known_nodes:
            return ""
        self.known_nodes.add(started.node)
        text = differs(started.versions)
        return f"node {started.host} {text}" if text else ""

    def lost(self) -> str:
        """Returns why the cluster is lost for good, or an empty string; never waits."""
        return self._watch.lost()

    def close(self) -> None:
        """Leaves the cluster, and ends it if it is our own."""
        self._opened.close()


def connect(cfg: Config, output: int | None = None) -> Connection:
    """Joins the cluster at ray_address, or starts one on this machine.

    What Ray and the actors print goes to the descriptor `output`, or nowhere.
    """
    if importlib.util.find_spec("ray") is None:
        raise UserError(f'actors={cfg.actors} needs Ray; install it with: pip install "t3d[ray]"')
    with ExitStack() as opened:
        opened.enter_context(printing_to(output))
        warnings = _join(cfg, opened) if cfg.ray_address else _start(cfg, opened)
        watch = Watch()
        opened.callback(watch.close)
        folder = Path.cwd() if cfg.ray_address else None
        return Connection(folder, [*warnings, *differences()], watch, opened.pop_all())


def actor_options(cfg: Config) -> dict[str, Any]:
    """Returns Ray's options for an actor. Restarting it is the collector's task: nothing may happen twice."""
    return {
        "num_cpus": cfg.ray_cpus,
        "scheduling_strategy": "SPREAD",
        "max_restarts": 0,
        "max_task_retries": 0,
    }


def _start(cfg: Config, opened: ExitStack) -> list[str]:
    """Starts a cluster that listens on this machine only, and admits only who has its token."""
    store = store_bytes(shutil.disk_usage(SHARED_MEMORY).free)
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    as_local = {"RAY_worker_niceness": "0"}  # actors have the learner's priority, as those of local:N
    opened.enter_context(_environment({**ALWAYS, **token, **as_local}))
    folder = opened.enter_context(_private_folder())
    ray = _ray()
    opened.callback(ray.shutdown)
    opened.callback(_kill_autoscaler)
    with starting_here(), _environment(ONE_THREAD), _loopback(), _own_signals():  # workers inherit the environment
        ray.init(
            address="local",
            num_cpus=max(1, math.ceil(cfg.async_actors * cfg.ray_cpus)),  # all actors fit; evaluators reserve none
            num_gpus=0,
            object_store_memory=store,
            include_dashboard=False,
            logging_level=logging.WARNING,
            _node_ip_address="127.0.0.1",
            _temp_dir=str(folder / "ray"),  # Ray opens it to all users; they cannot enter the folder around it
        )
    return []


def _join(cfg: Config, opened: ExitStack) -> list[str]:
    """Joins a cluster, and sends it the folder in which T3D was started if actors need files of it."""
    folder, address = Path.cwd(), cfg.ray_address
    needed = needs_files(cfg, folder)
    with_token = asks_for_token(address)
    opened.enter_context(_environment({**ALWAYS, "RAY_AUTH_MODE": "token" if with_token else "disabled"}))
    files = {"working_dir": str(folder), "excludes": excluded(cfg, folder)} if needed else {}
    ray = _ray()
    opened.callback(ray.shutdown)
    with joining(address), _own_signals():
        ray.init(address=address, logging_level=logging.WARNING, runtime_env={"env_vars": ONE_THREAD, **files})
    open_to_all = (
        f"the Ray cluster at {address} runs without authentication: everyone who reaches it can run programs on it; "
        "docs/cluster.md says how to switch it on"
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


def _ray() -> Any:
    """Imports Ray, which is an extra; this process must not be using it yet."""
    import ray  # noqa: PLC0415

    if ray.is_initialized():
        raise UserError("this process is using Ray already; call ray.shutdown() before t3d.train")
    return ray


@contextmanager
def _private_folder() -> Iterator[Path]:
    """Creates a folder that only this user can enter, with a short name: Ray has sockets in it, at most 107 bytes long.

    Its marker is locked while this process lives; folders of processes that were killed are removed.
    """
    _remove_abandoned(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    with (folder / MARKER).open("xb", buffering=0) as marker:
        try:
            fcntl.flock(marker, fcntl.LOCK_EX)
            marker.write(MARK)  # locked before it can be recognised
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(parent: Path) -> None:
    """Removes folders with our marker, of this user, that no process has locked."""
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError), ExitStack() as opened:  # no marker, another user's, in use, or gone meanwhile
            inside = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            opened.callback(os.close, inside)
            marker = os.open(MARKER, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=inside)
            opened.callback(os.close, marker)
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.read(marker, len(MARK) + 1) == MARK and os.fstat(inside).st_uid == os.getuid():
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables for Ray, which remembers what it has read of them, and resets them afterwards."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    _read_again()
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
        _read_again()


def _read_again() -> None:
    raylet: Any = importlib.import_module("ray._raylet")
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()


def _kill_autoscaler() -> None:
    """Ends a process of Ray's that has nothing to do here, and that Ray itself waits for a second to end."""
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if any("autoscaler" in word and word.endswith("monitor.py") for word in child.cmdline()):
                child.kill()


@contextmanager
def _loopback() -> Iterator[None]:
    """Lets Ray keep a loopback address: it replaces it by one that others reach, and then listens to all of them."""
    from ray._private import ray_constants  # noqa: PLC0415

    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def _own_signals() -> Iterator[None]:
    """Puts back the handler of SIGTERM, which Ray replaces by one that ends the process, and calls it if that has."""
    before, is_late = signal.getsignal(signal.SIGTERM), False
    try:
        yield
    except SystemExit:
        is_late = callable(before)
        if is_late:
            raise StoppedEarly("stopped while Ray started; nothing was begun") from None
        raise
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
        if is_late:
            signal.raise_signal(signal.SIGTERM)
