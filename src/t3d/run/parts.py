"""The parts that the loop drives: built, saved and brought back."""

from __future__ import annotations

import math
import os
import platform
import threading
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import psutil
import torch

from t3d.algo.learner import Learner
from t3d.algo.proof import disproof, faster_threads
from t3d.algo.td3 import numbers_per_member
from t3d.config import Config, to_dict
from t3d.data.memory import Memory, rows_needed
from t3d.data.replay import BYTES_PER_NUMBER, bytes_needed
from t3d.errors import Diverged, UserError
from t3d.events import Saved, SaveFailed
from t3d.run.checkpoint import Checkpoint, save
from t3d.run.folder import RunFolder, create_folder, versions
from t3d.run.lock import Lock
from t3d.types import PolicySnapshot, Spec, State
from t3d.world.collect import InlineCollector
from t3d.world.envs import EnvFactory
from t3d.world.evaluate import InlineEvaluator

Engine = Literal["eager", "fused", "graph"]
AUTOMATIC: dict[str, Engine] = {"cpu": "fused", "cuda": "graph"}
ENGINES = {"cpu": ("auto", "fused", "eager"), "cuda": ("auto", "graph", "eager")}
COPIES_IN_LEARNING = 5  # online, target, gradient and Adam's two moments


@dataclass
class Progress:
    """Where the loop is."""

    best: list[float]  # each member's highest evaluation
    step: int = 0
    evaluated: int = -1  # step of the newest evaluation
    saved: int = 0  # step of the newest checkpoint, written or tried
    log_due: bool = False
    reported: int = 0  # step of the newest report, and when it was made
    reported_at: float = field(default_factory=time.monotonic)
    begun: float = field(default_factory=time.monotonic)  # of this process, moved back by what earlier ones took

    @property
    def seconds(self) -> float:
        """How long the run has taken so far."""
        return time.monotonic() - self.begun

    def state(self) -> State:
        """What must not be forgotten."""
        kept = {"step": self.step, "evaluated": self.evaluated, "log_due": self.log_due, "seconds": self.seconds}
        return {**kept, "best": np.array(self.best)}

    def restore(self, state: State) -> None:
        """Goes on where a run was."""
        self.best = state["best"].tolist()
        self.step = self.saved = self.reported = int(state["step"])
        self.evaluated, self.log_due = int(state["evaluated"]), bool(state["log_due"])
        self.begun = time.monotonic() - float(state["seconds"])


@dataclass
class Parts:
    """What the loop drives."""

    cfg: Config  # resolved: nothing is "auto" any more
    collector: InlineCollector
    memory: Memory
    learner: Learner
    evaluator: InlineEvaluator
    folder: RunFolder
    progress: Progress
    notes: list[str]  # what is worth knowing before it begins or goes on
    checkpoint: Checkpoint | None = None  # the newest one
    unsaved: bool = True  # whether something has happened since
    failures: int = 0  # times that something could not be written

    def snapshot(self) -> PolicySnapshot:
        """The newest policy, with the observation scaling that goes with it."""
        return self.memory.scaled(self.learner.snapshot())

    def state(self) -> State:
        """Everything that decides how the run goes on, but for the rows of the replay."""
        return {
            "seeds": list(self.cfg.seeds),
            "config": to_dict(self.cfg),
            "versions": versions(),
            "logs": self.folder.lengths(),
            "progress": self.progress.state(),
            "learner": self.learner.state(),
            "memory": self.memory.state(),
            "collector": self.collector.state(),
        }

    def save(self, reason: str) -> Saved | SaveFailed:
        """Writes a checkpoint. If that fails the run goes on, with the checkpoints that it has."""
        step = self.progress.saved = self.progress.step
        refuse_divergence(self.learner, self.cfg, step)
        begun = time.monotonic()
        try:
            root = self.folder.path / "checkpoints"
            self.checkpoint, new_bytes = save(root, step, self.state(), self.memory.replay, self.checkpoint)
        except OSError as error:
            return self._failed(f"the checkpoint could not be written: {error.strerror or error}")
        self.unsaved = False
        seconds = time.monotonic() - begun
        name = self.checkpoint.name
        return Saved(step=step, checkpoint=name, reason=reason, new_bytes=new_bytes, save_seconds=seconds)

    def unwritten(self) -> list[SaveFailed]:
        """What the run folder could not write since the last call."""
        return [self._failed(text) for text in self.folder.take_failures()]

    def _failed(self, text: str) -> SaveFailed:
        self.failures += 1
        return SaveFailed(step=self.progress.step, text=text, failures=self.failures)

    def about(self) -> dict[str, Any]:
        """What a run says of itself when it begins or goes on."""
        spec, cfg = self.collector.spec, self.cfg
        return {
            "step": self.progress.step,
            "folder": str(self.folder.path),
            "config": to_dict(cfg),
            "versions": versions(),
            "pid": os.getpid(),
            "host": platform.node(),
            "parameters": numbers_per_member(spec, cfg.td3),
            "replay_bytes": bytes_needed(spec, rows_needed(cfg), len(cfg.seeds)),
        }


def refuse_divergence(learner: Learner, cfg: Config, step: int) -> None:
    """Ends a run whose networks or moments hold a number that is not finite."""
    for name, member in learner.unsound():
        raise Diverged(f"the {name.replace('_', ' ')} of seed {cfg.seeds[member]} is not finite at step {step}")


class Loaded(NamedTuple):
    """A checkpoint and the state in it."""

    checkpoint: Checkpoint
    state: State


def assemble(
    cfg: Config,
    stop: threading.Event,
    make_env: EnvFactory,
    opened: ExitStack,
    path: Path | None = None,
    loaded: Loaded | None = None,
) -> Parts:
    """Builds the parts, as new or as a checkpoint left them, in a new run folder or at path.

    Each is closed by `opened`. Whatever may refuse does so before the folder is made or its logs are cut back.
    """
    collector = opened.enter_context(closing(InlineCollector(cfg, make_env)))
    evaluator = opened.enter_context(closing(InlineEvaluator(cfg, make_env, stop)))
    spec = collector.spec
    check_memory(cfg, spec)
    engine, threads, notes = choose_engine(cfg, spec)
    cfg = replace(cfg, engine=engine, threads=threads)
    learner = Learner(spec, cfg.td3, cfg.seeds, cfg.device, engine=engine)
    memory = Memory(spec, cfg, cfg.device)
    progress = Progress(best=[-math.inf] * len(cfg.seeds))
    notes += [] if loaded is None else _restore(loaded, progress, learner, memory, collector)
    if engine == "graph":
        state = memory.state()
        learner.record(memory.sample)
        memory.restore(state)  # recording draws
    if path is None:
        path = create_folder(cfg)
        opened.enter_context(closing(Lock(path)))
    folder = RunFolder(path, cfg, spec, loaded.state["logs"] if loaded else None)
    opened.enter_context(closing(folder))
    newest = loaded.checkpoint if loaded else None
    return Parts(cfg, collector, memory, learner, evaluator, folder, progress, notes, newest)


def _restore(
    loaded: Loaded, progress: Progress, learner: Learner, memory: Memory, collector: InlineCollector
) -> list[str]:
    """Puts everything back; says what is not as it was."""
    checkpoint, state = loaded
    try:
        progress.restore(state["progress"])
        learner.restore(state["learner"])
        memory.restore(state["memory"])
        for member, seed in enumerate(state["seeds"]):
            checkpoint.fill(memory.replay, member, seed)
        notes = collector.restore(state["collector"])
    except (LookupError, TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise UserError(f"{checkpoint.path} does not fit this run ({type(error).__name__}: {error})") from error
    now = versions()
    changed = [
        f"{name} {then} is now {now.get(name)}" for name, then in state["versions"].items() if then != now.get(name)
    ]
    if changed:
        notes.append(f"bit for bit is not promised: {', '.join(changed)}")
    return notes


def resolve(cfg: Config) -> Config:
    """The configuration with this machine's device in it."""
    if cfg.device == "cuda" and not torch.cuda.is_available():
        raise UserError("device=cuda, but torch sees no CUDA device here; use --device cpu, or auto")
    automatic: Literal["cpu", "cuda"] = "cuda" if torch.cuda.is_available() else "cpu"
    device = automatic if cfg.device == "auto" else cfg.device
    if cfg.engine not in ENGINES[device]:
        raise UserError(
            f"engine={cfg.engine} does not run on the {device}; there it is one of {', '.join(ENGINES[device])}"
        )
    torch.backends.cuda.matmul.allow_tf32 = cfg.tf32
    return replace(cfg, device=device)


def choose_engine(cfg: Config, spec: Spec) -> tuple[Engine, int, list[str]]:
    """The engine and the CPU threads to train with, and what to say about the choice."""
    engine = AUTOMATIC[cfg.device] if cfg.engine == "auto" else cfg.engine
    if cfg.threads:
        torch.set_num_threads(cfg.threads)
    notes: list[str] = []
    if engine != "eager":
        doubt = disproof(engine, spec, cfg.td3, cfg.seeds, cfg.device)
        if doubt:
            notes.append(f"engine {engine} is not used, eager is: {doubt}")
            engine = "eager"
    if not cfg.threads and cfg.device == "cpu":
        torch.set_num_threads(faster_threads(engine, spec, cfg.td3, cfg.seeds))
    return engine, torch.get_num_threads(), notes


def check_memory(cfg: Config, spec: Spec) -> None:
    """Refuses networks or a replay that do not fit before anything is allocated."""
    free = torch.cuda.mem_get_info()[0] if cfg.device == "cuda" else psutil.virtual_memory().available
    learning = len(cfg.seeds) * numbers_per_member(spec, cfg.td3) * BYTES_PER_NUMBER * COPIES_IN_LEARNING
    if learning > free:
        raise UserError(
            f"the networks need {learning / 2**30:,.1f} GiB to learn in and {free / 2**30:,.1f} GiB are free; "
            "make td3.actor_hidden and td3.critic_hidden smaller, or train fewer seeds at once"
        )
    needed = bytes_needed(spec, rows_needed(cfg), len(cfg.seeds))
    if learning + needed > free:
        fitting = int(rows_needed(cfg) * 0.9 * (free - learning) / needed)
        raise UserError(
            f"the replay needs {needed / 2**30:,.1f} GiB and {(free - learning) / 2**30:,.1f} GiB are free; "
            f"replay.capacity={fitting} would fit, or train fewer seeds at once"
        )
