"""Examines an environment before a run with actors, without making one in this process."""

from __future__ import annotations

import threading

from t3d.actors.checkup_worker import Checkup, Phase, spec_from_json
from t3d.actors.supervisor import Worker, for_workers, starting
from t3d.actors.worker_log import WorkerLog
from t3d.config import Config
from t3d.errors import StoppedEarly, UserError
from t3d.world.guard import EnvFactory

LOOK_SECONDS = 0.02  # between two looks at the process; chosen


def check(cfg: Config, make_env: EnvFactory, log: WorkerLog, stop: threading.Event, *, plays: bool) -> Checkup:
    """What a process of its own finds out about the environment, which it plays for a moment if asked to."""
    worker_cfg = for_workers(cfg, make_env)
    with starting():
        phase = Phase()
        worker = Worker(worker_cfg, {"role": "doctor", "plays": plays, "phase": phase.fd}, [phase.fd], log.fd)
    try:
        while True:
            fault = worker.fault(cfg.env.hang_seconds)
            for told in worker.receive():  # after the look: all that an ended process has said is there
                return Checkup(told["warnings"], spec_from_json(told["spec"]), told["vector"])
            if worker.error is not None:
                raise worker.error
            if fault:  # last words say where they come from
                why = worker.last_words or f"at {phase.text or 'the start of its process'}, {fault}"
                raise UserError(f"the environment failed its check before training: {why}; nothing was started")
            if stop.wait(LOOK_SECONDS):
                raise StoppedEarly("stopped while the environment was examined; nothing was started")
    finally:
        worker.end()
        worker.close()
        phase.close()
