"""Worker processes as their parent sees them: started, watched, restarted after a fault, and given up when that fails.

Nothing here runs by itself but what drains their output: the owner of a slot checks it often.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import t3d
from t3d.actors.shared_memory import Channel, Heartbeat, Shared, Wakeup
from t3d.config import Config, to_dict
from t3d.errors import UserError
from t3d.files import Refused, error_text, open_log
from t3d.types import Fault
from t3d.world.factory import reference
from t3d.world.guard import BadValue, EnvFactory

MAX_BYTES = 2**23  # of the log; then it is renamed to .1, replacing the one before; chosen
PIPE_BYTES = 2**16  # the capacity of a Linux pipe


class WorkerLog:
    """Prints to stderr until it is given a file; must outlive the processes that print."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._problem, self._reported = "", False  # why output was dropped, and whether that was reported
        self._read_end, self.fd = os.pipe()  # processes print to fd
        self._closing = Wakeup()
        self._thread = threading.Thread(target=self._drain, name="worker log", daemon=True)
        self._thread.start()

    def print_to(self, path: Path) -> None:
        self._path = path

    def news(self) -> list[str]:
        if self._reported or not self._problem:
            return []
        self._reported = True
        return [f"what environments print is dropped, because it cannot be written: {self._problem}"]

    def close(self) -> None:
        self._closing.wake()
        self._thread.join()
        self._closing.close()
        os.close(self._read_end)
        os.close(self.fd)

    def _drain(self) -> None:
        poll = select.poll()
        poll.register(self._read_end, select.POLLIN)
        poll.register(self._closing.fd, select.POLLIN)
        while True:
            ready = dict(poll.poll())
            if self._read_end in ready:
                self._write(os.read(self._read_end, PIPE_BYTES))
            if self._closing.fd in ready:  # a stray process may keep printing; nobody waits for it
                return

    def _write(self, printed: bytes) -> None:
        """Appends to the file, opened each time: it may have been moved or removed meanwhile."""
        try:
            if self._path is None:
                os.write(2, printed)
                return
            if self._path.exists() and self._path.stat().st_size + len(printed) > MAX_BYTES:
                self._path.replace(self._path.with_name(f"{self._path.name}.1"))
            with open_log(self._path) as log:
                if log.write(printed) < len(printed):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except (OSError, Refused) as error:
            self._problem = error_text(error)


ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
START_SECONDS = 120.0  # for a worker to create its environments; chosen
LONGEST_GAP = 1.0  # most seconds between two checks that count: a parent that slept must not blame its workers
FIRST_BACK_OFF, LONGEST_BACK_OFF = 0.1, 10.0  # seconds before a worker is restarted, doubled with each fault in a row
MOST_DOUBLINGS = 20  # of them, so that none overflows
MAX_FAULTS = 5  # in a row; after one more the worker is given up; chosen
GRACE_SECONDS = 1.0  # for workers to close their environments when the run is over; chosen


class HangDetector:
    """How long a worker has given no sign of life."""

    def __init__(self) -> None:
        self._beats, self._seconds, self._checked_at = -1, 0.0, time.monotonic()

    def fault(self, beats: Any, hang_seconds: float, *, ready: bool) -> str:
        """Returns why it counts as hung, or an empty string; beats is a number that changes while it lives."""
        now = time.monotonic()
        self._seconds = 0.0 if beats != self._beats else self._seconds + min(now - self._checked_at, LONGEST_GAP)
        self._beats, self._checked_at = beats, now
        if self._seconds <= (hang_seconds if ready else max(hang_seconds, START_SECONDS)):
            return ""
        if not ready:
            return f"not started after {self._seconds:.0f} s"
        return f"no sign of life for {self._seconds:.1f} s; if a step may take that long, raise env.hang_seconds"


class Worker:
    """One process, from its start to its end."""

    def __init__(self, cfg: Config, task: dict[str, Any], fds: list[int], output: int) -> None:
        self.heartbeat, self.worker_wakeup = Heartbeat(), Wakeup()  # woken when there is something to do
        self.started = time.monotonic()
        self.ready = False  # whether its environments exist
        self.error: UserError | None = None  # what the user must fix
        self.crash_reason = ""  # as far as it could say
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-P", "-m", "t3d.actors.worker_main", str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,  # programs that an environment starts must not read ours
                stdout=output,
                stderr=output,
                pass_fds=[theirs.fileno(), *fds, self.heartbeat.fd, self.worker_wakeup.fd],
                env={**os.environ, **ONE_THREAD, "PYTHONPATH": python_path()},
                start_new_session=True,  # a terminal's Ctrl-C reaches only the parent
            )
        self.channel = Channel(ours)
        self._hang_detector = HangDetector()
        self.send(
            path=sys.path, config=to_dict(cfg), heartbeat=self.heartbeat.fd, worker_wakeup=self.worker_wakeup.fd, **task
        )

    def send(self, **message: Any) -> None:
        """Sends it a message; if it has ended, fault() will say so."""
        with suppress(ConnectionError):
            self.channel.send(**message)

    def receive(self) -> list[dict[str, Any]]:
        """Returns its messages, except its own errors, which are kept in `error` and `crash_reason`."""
        messages = []
        for message in self.channel.receive():
            if error := user_error(message):
                self.error = error
            elif "crash" in message:
                self.crash_reason = message["crash"]
            elif "ready" in message:
                self.ready = message["ready"]
            else:
                messages.append(message)
        return messages

    def fault(self, hang_seconds: float) -> str:
        """Returns why it has failed, or an empty string."""
        code = self.process.poll()
        if code is not None:
            return _in_words(code)
        return self._hang_detector.fault(self.heartbeat.arrays["beat"][0], hang_seconds, ready=self.ready)

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # and what its environments have started
        with suppress(subprocess.TimeoutExpired):  # one that survives SIGKILL is stuck in a device
            self.process.wait(GRACE_SECONDS)

    def close(self) -> None:
        self.channel.close()
        self.heartbeat.close()
        self.worker_wakeup.close()


class Slot:
    """A place for one worker, wherever it runs: how often it has failed, and when to restart it."""

    def __init__(self, number: int, members: Iterable[int] = ()) -> None:
        self.number, self.members = number, [*members]  # an evaluator's: whom it evaluates
        self.starts, self.delivered, self.faults_in_a_row, self._restart_at = 0, 0, 0, 0.0

    @property
    def given_up(self) -> bool:
        return self.faults_in_a_row > MAX_FAULTS

    @property
    def may_start(self) -> bool:
        return not self.given_up and time.monotonic() >= self._restart_at

    def record_start(self) -> None:
        self.starts, self.delivered = self.starts + 1, 0

    def record_fault(self, min_delivered: int) -> None:
        """Counts a fault; the count starts over if the worker has delivered min_delivered."""
        self.faults_in_a_row = 1 if self.delivered >= min_delivered else self.faults_in_a_row + 1
        self.back_off(self.faults_in_a_row)

    def back_off(self, faults: int) -> None:
        seconds = FIRST_BACK_OFF * 2 ** min(faults - 1, MOST_DOUBLINGS)
        self._restart_at = time.monotonic() + min(seconds, LONGEST_BACK_OFF)


class WorkerSlot(Slot):
    """A slot for a process on this machine."""

    worker: Worker | None = None
    question: Any = None  # what an evaluator was asked and has not finished

    def start(self, cfg: Config, task: dict[str, Any], shared: Sequence[Shared | Wakeup], output: int) -> None:
        self.record_start()
        self.worker = Worker(cfg, task, [resource.fd for resource in shared], output)

    def wake(self) -> None:
        if self.worker is not None:
            self.worker.worker_wakeup.wake()

    def close(self) -> None:
        if self.worker is not None:
            self.worker.close()
        self.worker = self.question = None


@contextmanager
def starting() -> Iterator[None]:
    """Wraps the start of a process: if the system runs out of something, says what to do."""
    try:
        yield
    except OSError as error:
        raise UserError(f"a worker process cannot be started ({error}); use fewer actors") from error


def end_all(slots: Sequence[WorkerSlot]) -> None:
    """Gives workers a moment to close their environments, then kills them."""
    workers = [slot.worker for slot in slots if slot.worker is not None]
    for worker in workers:
        worker.process.terminate()
    deadline = time.monotonic() + GRACE_SECONDS
    for worker in workers:
        with suppress(subprocess.TimeoutExpired):
            worker.process.wait(max(0.0, deadline - time.monotonic()))
        worker.end()
    for slot in slots:
        slot.close()


def for_workers(cfg: Config, make_env: EnvFactory) -> Config:
    """Returns the configuration by which another process finds the environment, even one given as a Python factory."""
    env_id, args = reference(make_env)
    return replace(cfg, env=replace(cfg.env, id=env_id, args={**cfg.env.args, **args}))


def acting_by(cfg: Config, worker_cfg: Config) -> Config:
    """Returns the configuration of workers with the noise and the arguments of the run's."""
    return replace(worker_cfg, noise=cfg.noise, env=replace(worker_cfg.env, args=cfg.env.args))


def python_path() -> str:
    """Returns the path on which a worker finds this very T3D."""
    here = str(Path(t3d.__file__).resolve().parents[1])
    return os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])


def _in_words(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    names = {kind.value: kind.name for kind in signal.Signals}  # most of the real-time signals have none
    return f"ended by {names.get(-code, f'signal {-code}')}"


def user_error(message: dict[str, Any]) -> UserError | None:
    """Returns the error in a worker's message that the user must fix, if there is one."""
    if "bad_value" in message:
        error = BadValue(message["where"], Fault(*message["bad_value"]))
        error.member = message["member"]
        return error
    return UserError(message["user_error"]) if "user_error" in message else None
