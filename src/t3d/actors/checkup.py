"""Checks an environment before a run with actors, without creating one in this process."""

from __future__ import annotations

import threading

from t3d.actors.checkup_worker import Checkup, Phase
from t3d.actors.supervisor import Worker, for_workers, starting
from t3d.actors.worker_log import WorkerLog
from t3d.config import Config
from t3d.errors import StoppedEarly, UserError
from t3d.policy.spec import Spec
from t3d.world.guard import EnvFactory

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
