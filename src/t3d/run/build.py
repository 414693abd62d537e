"""The parts that the loop drives: built, saved and brought back."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from t3d.actors.checkup import check
from t3d.actors.evaluators import ProcessEvaluator
from t3d.actors.governor import Governor
from t3d.actors.inline import InlineCollector, InlineEvaluator
from t3d.actors.local import LocalCollector
from t3d.actors.worker_log import WorkerLog
from t3d.algo.learner import Learner
from t3d.algo.td3 import numbers_per_member
from t3d.config import Config, to_dict
from t3d.data.memory import Memory, rows_needed
from t3d.data.replay import bytes_needed
from t3d.errors import Diverged, EnvironmentFailed, UserError
from t3d.events import Event, Saved, SaveFailed, Start
from t3d.files import CORRUPT_ERRORS, Refused, in_words, whole
from t3d.run.placement import choose_engine, replay_device
from t3d.run.publish import DirectPublisher, PipelinedPublisher
from t3d.run.reporter import refuse_divergence
from t3d.snapshots import PolicySnapshot
from t3d.store.best import BestPolicies
from t3d.store.checkpoint import Checkpoint, save
from t3d.store.folder import LOGS, RunFolder, create_folder, first_free, set_aside, versions
from t3d.store.lock import Lock
from t3d.types import Requests, State
from t3d.world.doctor import examine
from t3d.world.fit import difference, outline
from t3d.world.guard import EnvFactory
from t3d.world.watch import CALL_SECONDS

LONGEST_SECONDS = 1e9  # thirty years
Collector = InlineCollector | LocalCollector
Evaluator = InlineEvaluator | ProcessEvaluator


@dataclass
class Progress:
    """Where the loop is."""

    step: int = 0
    evaluated: int = -1  # step of the newest evaluation, and of the newest that was asked for
    submitted: int = -1
    saved: int = 0  # step of the newest checkpoint, written or tried
    log_due: bool = False
    reported: int = 0  # step of the newest report, the updates until then, and when it was made
    reported_updates: int = 0
    reported_at: float = field(default_factory=time.monotonic)
    begun_at: int = 0  # step where this process began, and the updates until then
    begun_updates: int = 0
    begun: float = field(default_factory=time.monotonic)  # of this process, moved back by what earlier ones took

    @property
    def seconds(self) -> float:
        """How long the run has taken so far."""
        return time.monotonic() - self.begun

    def state(self) -> State:
        """What must not be forgotten."""
        kept = {"step": self.step, "evaluated": self.evaluated, "submitted": self.submitted, "log_due": self.log_due}
        return {**kept, "seconds": self.seconds}

    def restore(self, state: State) -> None:
        """Goes on where a run was."""
        self.step = self.saved = self.reported = self.begun_at = whole(state["step"])
        self.evaluated, self.log_due = whole(state["evaluated"], least=-1), bool(state["log_due"])
        self.submitted = whole(state.get("submitted", state["evaluated"]), least=self.evaluated)  # as format 1 began
        if not 0 <= state["seconds"] <= LONGEST_SECONDS:
            raise ValueError(f"progress.seconds is {state['seconds']}")
        self.begun = time.monotonic() - state["seconds"]


@dataclass
class Parts:
    """What the loop drives."""

    cfg: Config  # resolved: nothing is "auto" any more
    collector: Collector
    memory: Memory
    learner: Learner
    publisher: DirectPublisher | PipelinedPublisher
    evaluator: Evaluator
    folder: RunFolder
    progress: Progress
    best: BestPolicies
    notes: list[str]  # what is worth knowing before it begins or goes on
    checkpoint: Checkpoint | None = None  # the newest one
    unsaved: bool = True  # whether something has happened since
    whole: bool = True  # whether the state is that of one moment, and so can be saved
    failures: int = 0  # times that something could not be written
    save_problem: str = ""  # why the newest checkpoint could not be written

    def snapshot(self) -> PolicySnapshot:
        """The newest policy, with the observation scaling that goes with it."""
        return self.memory.scaled(self.learner.snapshot())

    def state(self) -> State:
        """Everything that decides how the run goes on, but for the rows of the replay."""
        return {
            "seeds": list(self.cfg.seeds),
            "spec": outline(self.collector.spec),
            "config": to_dict(self.cfg),
            "versions": versions(),
            "logs": self.folder.lengths(),
            "progress": self.progress.state(),
            "best": self.best.state(),
            "learner": self.learner.state(),
            "memory": self.memory.state(),
            "collector": self.collector.state(),
            "evaluator": self.evaluator.state(),
        }

    def save(self, reason: str) -> Saved | SaveFailed:
        """Writes a checkpoint. If that fails the run goes on, with the checkpoints that it has."""
        step = self.progress.saved = self.progress.step
        refuse_divergence(self.learner, self.cfg, step)
        begun = time.monotonic()
        try:
            root = self.folder.path / "checkpoints"
            self.checkpoint, new_bytes = save(root, step, self.state(), self.memory.replay, self.checkpoint)
        except (OSError, Refused) as error:
            self.save_problem = f"the checkpoint could not be written: {in_words(error)}"
            return self._failed(self.save_problem)
        self.unsaved, self.save_problem = False, ""
        seconds = time.monotonic() - begun
        name = self.checkpoint.name
        return Saved(step=step, checkpoint=name, reason=reason, new_bytes=new_bytes, save_seconds=seconds)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Where an error leaves things half done; but environments and workers that fail are told between two steps."""
        self.whole, self.unsaved = False, True
        try:
            yield
        except (EnvironmentFailed, UserError) as error:
            self.whole = not isinstance(error, Diverged)
            raise
        self.whole = True

    def leave_folder(self) -> None:
        """Goes on in a new folder beside the old one, because somebody has removed that."""
        name = f"{self.folder.path.name}-rescued"
        path = first_free(self.folder.path.parent, [name, *(f"{name}-{again}" for again in range(2, 1000))])
        self.folder.close()
        self.folder, self.checkpoint = RunFolder(path, self.cfg, self.collector.spec, asked=self.folder.asked), None
        self.folder.write(Start(**self.about()))
        self.best.put_back(self.folder)

    def unwritten(self) -> list[Event]:
        """What the run folder could not write since the last call."""
        self.folder.refuse_if_gone_by_now()
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


class Loaded(NamedTuple):
    """A checkpoint and the state in it."""

    checkpoint: Checkpoint
    state: State


def assemble(
    cfg: Config,
    requests: Requests,
    make_env: EnvFactory,
    opened: ExitStack,
    path: Path | None = None,
    loaded: Loaded | None = None,
    asked: Config | None = None,
) -> Parts:
    """Builds the parts, as new or as a checkpoint left them, in a new run folder or at path.

    asked is the configuration before this machine chose device, engine and threads. Each part is closed by `opened`.
    Whatever may refuse does so before the folder is made or its logs are cut back.
    """
    collector, evaluator, warnings = _world(cfg, requests, make_env, opened, plays=loaded is None)
    spec = collector.spec
    replay_on = replay_device(cfg, spec)
    engine, threads, notes = choose_engine(cfg, spec)
    notes = [*warnings, *notes]
    cfg = replace(cfg, engine=engine, threads=threads)
    learner = Learner(spec, cfg.td3, cfg.seeds, cfg.device, engine=engine)
    memory = Memory(spec, cfg, replay_on, cfg.device)
    progress, best = Progress(), BestPolicies(len(cfg.seeds))
    if loaded is not None:
        notes += _restore(loaded, cfg, progress, best, learner, memory, collector, evaluator, requests.stop)
    if engine == "graph":
        state = memory.state()
        learner.record(memory.recorded, memory.refill)
        memory.restore(state)  # recording draws
    aside: list[str] = []
    if path is None:
        path = create_folder(cfg)
        opened.enter_context(closing(Lock(path)))
    elif loaded is None:
        aside = set_aside(path)
    folder = RunFolder(path, cfg, spec, _log_lengths(loaded) if loaded else None, asked)
    opened.enter_context(closing(folder))
    folder.notes += [*aside, *best.put_back(folder)]
    collector.print_to(path / "workers.log")
    evaluator.print_to(path / "workers.log")
    newest = loaded.checkpoint if loaded else None
    pipelined = cfg.local_actors > 0 and cfg.device == "cuda"
    publisher = (PipelinedPublisher if pipelined else DirectPublisher)(learner, memory, collector)
    return Parts(cfg, collector, memory, learner, publisher, evaluator, folder, progress, best, notes, newest)


def _world(
    cfg: Config, requests: Requests, make_env: EnvFactory, opened: ExitStack, *, plays: bool
) -> tuple[Collector, Evaluator, list[str]]:
    """Acting and evaluating, in this process or in others; and the doctor's warnings, if it plays the environment."""
    if not cfg.local_actors:
        patience = max(CALL_SECONDS, cfg.env.hang_seconds)
        warnings = examine(make_env, cfg.env.bad_values, patience) if plays else []
        inline = opened.enter_context(closing(InlineCollector(cfg, make_env)))
        return inline, opened.enter_context(closing(InlineEvaluator(cfg, make_env, requests))), warnings
    log = opened.enter_context(closing(WorkerLog()))
    found = check(cfg, make_env, log, requests.stop, plays=plays)
    collector = opened.enter_context(closing(LocalCollector(cfg, make_env, found, log)))
    evaluator = opened.enter_context(closing(ProcessEvaluator(cfg, found.spec, make_env, log)))
    return collector, evaluator, found.warnings


def _restore(
    loaded: Loaded,
    cfg: Config,
    progress: Progress,
    best: BestPolicies,
    learner: Learner,
    memory: Memory,
    collector: Collector,
    evaluator: Evaluator,
    stop: threading.Event,
) -> list[str]:
    """Puts everything back; says what is not as it was."""
    checkpoint, state = loaded
    try:
        now = outline(collector.spec)
        if changed := difference(state.get("spec", now), now):  # format 1 began without
            raise UserError(f"{cfg.env.title} is not what it was in {checkpoint.path}: {changed}")
        if state["seeds"] != list(cfg.seeds):
            raise ValueError(f"it holds seeds {state['seeds']}")
        progress.restore(state["progress"])
        before_they_were_kept = {"returns": state["progress"].get("best")}  # as format 1 began
        best.restore(state.get("best", before_they_were_kept), learner.nets.actor.sizes)
        learner.restore(state["learner"])
        progress.begun_updates = progress.reported_updates = learner.updates
        memory.restore(state["memory"])
        for member, seed in enumerate(cfg.seeds):
            checkpoint.fill(memory.replay, member, seed)
        notes = collector.restore(state["collector"], stop)
        restore_evaluations(progress, evaluator, state.get("evaluator", {}))  # format 1 began without
        counts = collector.taken
        if counts != memory.added or progress.step != min(counts) or learner.updates > Governor(cfg).due(counts, 0):
            raise ValueError("its counters contradict each other")
        return notes + _changed_versions(state["versions"])
    except CORRUPT_ERRORS as error:
        raise UserError(f"{checkpoint.path} does not fit this run ({type(error).__name__}: {error})") from error


def restore_evaluations(progress: Progress, evaluator: Evaluator, state: State) -> None:
    """Begins the evaluations that were under way, which must be those that the run still waits for."""
    pending = evaluator.restore(state)
    if max([progress.evaluated, *pending]) != progress.submitted or progress.submitted > progress.step:
        raise ValueError("its evaluations contradict each other")


def _log_lengths(loaded: Loaded) -> dict[str, int]:
    try:
        return {name: whole(loaded.state["logs"][name]) for name in LOGS}
    except CORRUPT_ERRORS as error:
        raise UserError(f"{loaded.checkpoint.path} does not say how long its logs were ({error})") from None


def _changed_versions(then: dict[str, str]) -> list[str]:
    now = versions()
    changed = [f"{name} {then[name]} is now {now.get(name)}" for name in then if then[name] != now.get(name)]
    return [f"bit for bit is not promised: {', '.join(changed)}"] if changed else []
