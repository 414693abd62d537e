"""Checks an environment before a run with actors, in a process of its own: one that crashes or hangs does so there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from t3d.actors.shared_memory import Channel, Heartbeat, Shared
from t3d.actors.supervisor import Worker, WorkerLog, for_workers, starting
from t3d.config import Config
from t3d.errors import StoppedEarly, UserError
from t3d.policy.spec import Spec
from t3d.world.batch import VectorEnvBatch, open_batch
from t3d.world.doctor import examine
from t3d.world.fingerprint import fingerprint
from t3d.world.guard import EnvFactory
from t3d.world.make import env_factory

LONGEST_PHASE = 128  # bytes; chosen
NO_TIMEOUT = 1e6  # seconds for one call: the parent watches for hangs, and ends this process much earlier


class Checkup(NamedTuple):
    """The result of checking an environment before training."""

    warnings: list[str]
    spec: Spec
    vector: bool  # whether it is a VectorEnv, which is stepped as one
    environment: dict[str, Any]  # its fingerprint


class Phase(Shared):
    """The environment call in progress, which the parent can report after a crash."""

    def __init__(self, fd: int | None = None) -> None:
        super().__init__({"text": (np.uint8, (LONGEST_PHASE,))}, fd)

    @property
    def text(self) -> str:
        return self.arrays["text"].tobytes().rstrip(b"\0").decode(errors="replace")

    @text.setter
    def text(self, text: str) -> None:
        self.arrays["text"][:] = np.frombuffer(text.encode().ljust(LONGEST_PHASE, b"\0"), np.uint8)


class Doctor:
    """A worker role: checks the environment and reports the result."""

    def __init__(self, cfg: Config, task: dict[str, Any], parent: Channel, heartbeat: Heartbeat) -> None:
        self.cfg, self.parent, self.heartbeat = cfg, parent, heartbeat
        self.phase, self.play = Phase(task["phase"]), task["play"]
        self.make_env = env_factory(cfg.env)

    def run(self) -> None:
        """Checks and reports; a resumed run was checked before and needs only the environment's spec."""
        warnings = examine(self._make, self.cfg.env, NO_TIMEOUT) if self.play else []
        env_batch = open_batch(self._make, self.cfg.env, "the start")
        vector = isinstance(env_batch, VectorEnvBatch)
        env_batch.close()
        environment = fingerprint(self._make, self.cfg.env)
        self.parent.send(warnings=warnings, spec=env_batch.spec.to_dict(), vector=vector, environment=environment)

    def close(self) -> None:
        """Does nothing: run leaves nothing open."""

    def _make(self, **keywords: Any) -> Any:
        self.parent.send(ready=False)  # creating it may take as long as starting a worker
        self._set_phase("making the environment")
        env = self.make_env(**keywords)
        self.parent.send(ready=True)
        return Observed(env, self._set_phase) if isinstance(env, gym.Env) else env

    def _set_phase(self, text: str) -> None:
        self.phase.text = text
        self.heartbeat.beat()


class Observed(gym.Wrapper[Any, Any, Any, Any]):
    """Reports each call before it is made."""

    def __init__(self, env: gym.Env[Any, Any], set_phase: Callable[[str], None]) -> None:
        super().__init__(env)
        self._set_phase, self._episode, self._step = set_phase, -1, 0

    def reset(self, **keywords: Any) -> Any:
        self._episode, self._step = self._episode + 1, 0
        self._set_phase(f"reset of episode {self._episode}")
        return self.env.reset(**keywords)

    def step(self, action: Any) -> Any:
        self._step += 1
        self._set_phase(f"step {self._step} of episode {self._episode}")
        return self.env.step(action)

    def close(self) -> None:
        self._set_phase("closing the environment")
        self.env.close()


POLL_SECONDS = 0.02  # between two checks of the process; chosen


def check(cfg: Config, make_env: EnvFactory, log: WorkerLog, stop: threading.Event, *, play: bool) -> Checkup:
    """Checks the environment in a separate process, which also plays it briefly if play is set."""
    worker_cfg = for_workers(cfg, make_env)
    with starting():
        phase = Phase()
        worker = Worker(worker_cfg, {"role": "doctor", "play": play, "phase": phase.fd}, [phase.fd], log.fd)
    try:
        while True:
            fault = worker.fault(cfg.env.hang_seconds)
            for message in worker.receive():  # after fault(): an ended process has sent everything by then
                spec, vector = Spec.from_dict(message["spec"]), message["vector"]
                return Checkup(message["warnings"], spec, vector, message["environment"])
            if worker.error is not None:
                raise worker.error
            if fault:  # crash_reason says where it happened
                why = worker.crash_reason or f"at {phase.text or 'the start of its process'}, {fault}"
                raise UserError(f"the environment failed its check before training: {why}; nothing was started")
            if stop.wait(POLL_SECONDS):
                raise StoppedEarly("stopped while the environment was checked; nothing was started")
    finally:
        worker.end()
        worker.close()
        phase.close()
