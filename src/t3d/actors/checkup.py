"""Checks an environment before a run with actors, in a process of its own: one that crashes or hangs does so there."""

from __future__ import annotations

import threading
from copy import copy
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from t3d.actors.shared_memory import Channel, Heartbeat, Shared
from t3d.actors.supervisor import Worker, WorkerLog, for_workers, starting
from t3d.config import Config, EnvConfig
from t3d.errors import StoppedEarly, UserError
from t3d.policy.spec import Spec
from t3d.world.arguments import accepted
from t3d.world.batch import VectorEnvBatch, open_batch
from t3d.world.doctor import examine
from t3d.world.fingerprint import fingerprints
from t3d.world.guard import EnvFactory
from t3d.world.make import env_factory, factory_for

LONGEST_PHASE = 128  # bytes; chosen
POLL_SECONDS = 0.02  # between two checks of the process; chosen


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
        first = self.cfg.env_of(self.cfg.members[0])
        make = self._factory_of(first)
        warnings = examine(make, first, begin=self._begin) if self.play else []
        env_batch = open_batch(make, first, "the start")
        self._begin("closing the environment")
        env_batch.close()
        environment = fingerprints(self.cfg, self._factory_of, lambda: self._begin("a seeded episode"))
        vector = isinstance(env_batch, VectorEnvBatch)
        self.parent.send(warnings=warnings, spec=env_batch.spec.to_dict(), vector=vector, environment=environment)

    def close(self) -> None:
        pass

    def _factory_of(self, env: EnvConfig) -> Any:
        factory: Any = copy(factory_for(self.make_env, env))
        factory.make = partial(self._make, factory.make)
        return factory

    def _make(self, make: EnvFactory, args: dict[str, Any], **keywords: Any) -> Any:
        self.parent.send(ready=False)  # creating it may take as long as starting a worker
        self._begin("making the environment")
        made = make(args, **accepted(make, keywords))
        self.parent.send(ready=True)
        return made

    def _begin(self, call: str) -> None:
        self.phase.text = call
        self.heartbeat.beat()


def check(cfg: Config, make_env: EnvFactory, log: WorkerLog, stop: threading.Event, *, play: bool) -> Checkup:
    """Checks the environment in a separate process, which also plays it briefly if play is set."""
    with starting():
        phase = Phase()
        task = {"role": "doctor", "play": play, "phase": phase.fd}
        worker = Worker(for_workers(cfg, make_env), task, [phase.fd], log.fd)
    try:
        while True:
            fault = worker.fault(cfg.env.hang_seconds)
            for message in worker.receive():  # after fault(): an ended process has sent everything by then
                return Checkup(**{**message, "spec": Spec.from_dict(message["spec"])})
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
