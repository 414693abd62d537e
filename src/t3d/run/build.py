"""Builds the parts of a run, new or restored from a checkpoint, and what publishes the newest policy to its actors."""

from __future__ import annotations

import threading
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from t3d.actors.checkup import Checkup, check
from t3d.actors.evaluators import ProcessEvaluator
from t3d.actors.inline import InlineCollector, InlineEvaluator
from t3d.actors.local import LocalCollector
from t3d.actors.protocols import Collector, Evaluator
from t3d.actors.supervisor import WorkerLog, for_workers
from t3d.algo.learner import Learner
from t3d.algo.own_code import check_own_code
from t3d.algo.rules import coefficients_of_members, rule_of
from t3d.config import Config
from t3d.data.memory import Memory
from t3d.errors import UserError
from t3d.policy.acting import PolicySnapshot
from t3d.run import placement
from t3d.run.background import BackgroundJobs
from t3d.run.origin import open_origin
from t3d.run.parts import Loaded, Parts
from t3d.run.reporter import Reporter
from t3d.run.saver import Saver
from t3d.run.surroundings import Surroundings
from t3d.store.folder import RunFolder, create_folder, set_aside
from t3d.store.lock import Lock
from t3d.types import Requests
from t3d.world.doctor import CALL_SECONDS, examine
from t3d.world.factory import other_environment
from t3d.world.fingerprint import fingerprints
from t3d.world.guard import EnvFactory
from t3d.world.make import factory_for


class DirectPublisher:
    """Publishes every policy at once: the learner waits for the copy."""

    def __init__(self, learner: Learner, memory: Memory, collector: Collector) -> None:
        self.learner, self.memory, self.collector = learner, memory, collector

    def publish(self) -> None:
        self._pass_on(self.learner.snapshot(self.learner.acting))

    def finish(self) -> None:
        """Passes on a policy that is still being copied; here none is."""

    def _pass_on(self, snapshot: PolicySnapshot) -> None:
        self.collector.publish(self.memory.scaled(snapshot), self.learner.updates)


class SharedPublisher(DirectPublisher):
    """On the CPU to a collector in this process: it acts with the very memory that updates change in place."""

    def __init__(self, learner: Learner, memory: Memory, collector: Collector) -> None:
        super().__init__(learner, memory, collector)
        acting = learner.acting
        self._snapshot = PolicySnapshot(learner.updates, acting.architecture, acting.flat.numpy())
        self._pass_on(self._snapshot)

    def publish(self) -> None:
        if self.memory.normaliser is not None:  # whose statistics are copied
            self._pass_on(self._snapshot)


class PipelinedPublisher(DirectPublisher):
    """From a GPU to asynchronous actors: each call starts a copy and passes on the one before.

    So the GPU always has the next updates to make while this process copies, and is never more than two calls ahead.
    """

    def __init__(self, learner: Learner, memory: Memory, collector: Collector) -> None:
        super().__init__(learner, memory, collector)
        new = partial(torch.empty_like, learner.acting.flat, device="cpu", pin_memory=True)
        self._pinned = [new(), new()]
        self._on_its_way: tuple[int, Tensor, torch.cuda.Event] | None = None  # updates, weights, their arrival

    def publish(self) -> None:
        updates, arrived = self.learner.updates, torch.cuda.Event()  # type: ignore[no-untyped-call]
        weights = self._pinned[0].copy_(self.learner.acting.flat, non_blocking=True)
        arrived.record()
        self._pinned.reverse()
        self.finish()
        self._on_its_way = updates, weights, arrived

    def finish(self) -> None:
        if self._on_its_way is not None:
            updates, weights, arrived = self._on_its_way
            arrived.synchronize()
            self._pass_on(PolicySnapshot(updates, self.learner.acting.architecture, weights.numpy()))
        self._on_its_way = None


class Training(NamedTuple):
    """What the loop drives."""

    parts: Parts
    publisher: DirectPublisher
    reporter: Reporter
    saver: Saver
    jobs: BackgroundJobs
    surroundings: Surroundings
    notes: list[str]  # worth knowing before it starts or resumes


class World(NamedTuple):
    """What collects and what evaluates."""

    collector: Collector
    evaluator: Evaluator
    warnings: list[str]  # the doctor's, if it plays the environment
    environment: dict[str, Any]  # its fingerprint
    log: WorkerLog | None  # what their processes print


def assemble(
    cfg: Config,
    requests: Requests,
    make_env: EnvFactory,
    opened: ExitStack,
    surroundings: Surroundings,
    path: Path | None = None,
    loaded: Loaded | None = None,
    requested: Config | None = None,
) -> Training:
    """Builds the parts, new or restored from a checkpoint, in a new run folder or at path.

    requested is the configuration before this machine chose device, engine and threads. `opened` closes each part.
    Whatever may raise does so before the folder is created or its logs are truncated.
    """
    origin = open_origin(cfg) if cfg.start_from and not loaded else None
    placement.set_tf32_for_process(cfg.tf32)
    world = _world(cfg, requests, make_env, opened, play=loaded is None)
    disturbed = surroundings.restore()
    if not (loaded or cfg.env.id or cfg.env.name):
        cfg = replace(cfg, env=replace(cfg.env, name=world.environment["class"]))
    placement.refuse_settings_of_images(cfg, world.collector.spec)
    replay_on = placement.replay_device(cfg, world.collector.spec)
    with surroundings.for_updates(builds=True):
        parts, about_learning = parts_of(cfg, world, replay_on)
        if origin is not None:
            about_learning.append(origin.begin(parts))
            requests.save.set()  # at once: then no resume needs what the run started from
        restored = parts.restore(loaded, requests.stop) if loaded else []
        parts.learner.prepare()
    folder = _open_folder(parts, opened, path, loaded, requested)
    if world.log is not None:
        world.log.print_to(folder.path / "workers.log")
    saver = Saver(parts, folder, loaded.checkpoint if loaded else None, surroundings)
    mistaken = [] if loaded else other_environment(cfg, make_env, world.environment["class"])
    notes = [*mistaken, *world.warnings, *disturbed, *about_learning, *restored]
    return training_of(parts, saver, requests, opened, notes)


def training_of(parts: Parts, saver: Saver, requests: Requests, opened: ExitStack, notes: list[str]) -> Training:
    """Adds to the parts of a run what the loop needs besides."""
    cfg = parts.cfg
    needs_newest = parts.learner.rule.hearing is not None  # it is what the next episode assesses
    to_others = (
        PipelinedPublisher if cfg.device == "cuda" and cfg.async_actors and not needs_newest else DirectPublisher
    )
    is_shared = cfg.device == "cpu" and parts.collector.takes_turns
    publisher = (SharedPublisher if is_shared else to_others)(parts.learner, parts.memory, parts.collector)
    jobs = opened.enter_context(BackgroundJobs(cfg, saver.folder.path, requests.stop))
    return Training(parts, publisher, Reporter(parts), saver, jobs, saver.surroundings, [*notes, *jobs.notes])


def parts_of(cfg: Config, world: World, replay_on: str) -> tuple[Parts, list[str]]:
    """Makes what remembers and learns; returns notes on the choice of the engine and its threads."""
    spec = world.collector.spec
    rule = rule_of(cfg.algo, spec)
    check_own_code(cfg, spec, rule)
    if cfg.actor_rests and rule.resting is None:
        raise UserError(f"an actor of algo={cfg.algo} cannot rest, with images none can; use --start-actor-after 0")
    coefficients = coefficients_of_members(cfg, rule)
    engine, reason, notes = placement.choose_engine(cfg, spec, rule, coefficients)
    threads, about_threads = placement.set_threads(cfg, spec, rule, engine, coefficients)
    cfg = replace(cfg, engine=engine, threads=threads)
    memory = Memory(spec, cfg, replay_on, coefficients.gamma)
    settings = cfg.settings_of(kind=rule.settings)
    learner = Learner(
        spec, settings, cfg.member_seeds, cfg.device, torch.float32, engine, rule, coefficients, memory, cfg.actor_rests
    )
    parts = Parts(cfg, world.collector, memory, learner, world.evaluator, world.environment, reason)
    return parts, [*notes, *about_threads]


def _open_folder(
    parts: Parts, opened: ExitStack, path: Path | None, loaded: Loaded | None, requested: Config | None
) -> RunFolder:
    aside: list[str] = []
    if path is None:
        path = create_folder(parts.cfg)
        opened.enter_context(closing(Lock(path)))
    elif loaded is None:
        aside = set_aside(path)
    elif parts.task_changes:
        parts.task_changes = "; ".join([parts.task_changes, *set_aside(path, ["best"], of="task")])
    folder = RunFolder(path, parts.cfg, parts.collector.spec, loaded.log_lengths if loaded else None, requested)
    opened.enter_context(closing(folder))
    folder.notes += [*aside, *parts.best.rewrite(folder)]
    return folder


def _world(cfg: Config, requests: Requests, make_env: EnvFactory, opened: ExitStack, *, play: bool) -> World:
    """Opens collector and evaluator, in this process or in others; with play the doctor checks the environment."""
    if not cfg.async_actors:
        patience = max(CALL_SECONDS, cfg.env.hang_seconds)
        first = cfg.env_of(cfg.members[0])
        warnings = examine(factory_for(make_env, first), first, patience) if play else []
        environment = fingerprints(cfg, partial(factory_for, make_env))
        inline = opened.enter_context(closing(InlineCollector(cfg, make_env)))
        evaluating = opened.enter_context(closing(InlineEvaluator(cfg, make_env, requests)))
        return World(inline, evaluating, warnings, environment, None)
    log = opened.enter_context(closing(WorkerLog()))
    checkup = check(cfg, make_env, log, requests.stop, play=play)
    if cfg.actors_kind == "ray":
        return _world_on_ray(cfg, make_env, opened, checkup, log, requests.stop)
    collector = opened.enter_context(closing(LocalCollector(cfg, make_env, checkup, log)))
    evaluator = opened.enter_context(closing(ProcessEvaluator(cfg, make_env, log)))
    return World(collector, evaluator, checkup.warnings, checkup.environment, log)


def _world_on_ray(
    cfg: Config, make_env: EnvFactory, opened: ExitStack, checkup: Checkup, log: WorkerLog, stop: threading.Event
) -> World:
    from t3d.actors import ray_cluster  # noqa: PLC0415 (Ray is an extra)

    connection = opened.enter_context(closing(ray_cluster.connect(for_workers(cfg, make_env), log.fd, stop)))
    from t3d.actors.ray_collector import RayCollector, RayEvaluator  # noqa: PLC0415 (imports Ray)
    from t3d.actors.ray_orders import end_actors  # noqa: PLC0415

    collector = opened.enter_context(closing(RayCollector(cfg, make_env, checkup, connection)))
    evaluator = opened.enter_context(closing(RayEvaluator(cfg, checkup, make_env, connection, log)))

    def end_all() -> None:  # at once, which takes no longer than one of them; their own close() then has nothing to do
        if not connection.lost():
            end_actors([*collector.slots, *evaluator.slots])

    opened.callback(end_all)
    warnings = [*checkup.warnings, *connection.warnings, *ray_cluster.waiting_for_cpus(cfg)]
    return World(collector, evaluator, warnings, checkup.environment, log)
