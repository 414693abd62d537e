"""The only training loop in the project."""

from __future__ import annotations

import dataclasses
import math
import os
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Literal, NamedTuple

import psutil
import torch

from t3d.algo.learner import Learner
from t3d.algo.td3 import numbers_per_member
from t3d.config import Config, to_dict
from t3d.data.memory import Memory, rows_needed
from t3d.data.replay import BYTES_PER_NUMBER, bytes_needed
from t3d.errors import UserError
from t3d.events import End, EpisodeEnd, Eval, Event, Note, Start
from t3d.run.folder import RunFolder, versions
from t3d.run.governor import Governor, passed
from t3d.run.report import eval_event, update_events
from t3d.types import PolicySnapshot, Rollout, Spec
from t3d.world.collect import InlineCollector
from t3d.world.doctor import examine
from t3d.world.envs import EnvFactory
from t3d.world.evaluate import InlineEvaluator
from t3d.world.find import env_factory

COPIES_IN_LEARNING = 5  # online, target, gradient and Adam's two moments


class Parts(NamedTuple):
    """What the loop drives."""

    collector: InlineCollector
    memory: Memory
    learner: Learner
    evaluator: InlineEvaluator
    folder: RunFolder
    warnings: list[str]  # what the environment doctor found
    cfg: Config  # resolved: nothing is "auto" any more

    def snapshot(self) -> PolicySnapshot:
        """The newest policy, with the observation scaling that goes with it."""
        return self.memory.scaled(self.learner.snapshot())


def train(cfg: Config, *, stop: threading.Event | None = None, make_env: EnvFactory | None = None) -> Iterator[Event]:
    """Trains every seed of the configuration and yields what happens; setting stop or leaving early ends it cleanly."""
    stop = stop or threading.Event()
    with ExitStack() as opened:
        parts = assemble(cfg, stop, make_env or env_factory(cfg.env.id), opened)
        begun = time.monotonic()
        reason, text = "stopped", ""
        try:
            for event in _training(parts, stop):
                parts.folder.write(event)
                yield event
            reason = "finished" if min(parts.memory.added) == cfg.total_steps else "stopped"
        except Exception as error:
            reason, text = "failed", f"{type(error).__name__}: {error}"
            raise
        finally:
            step, updates = min(parts.memory.added), parts.learner.updates
            try:
                parts.folder.save_last(parts.snapshot(), step)
            except OSError as error:
                text = text or f"the last policy could not be saved: {error}"
            end = End(step=step, reason=reason, text=text, updates=updates, seconds=time.monotonic() - begun)
            parts.folder.write(end)
        yield end


def _training(parts: Parts, stop: threading.Event) -> Iterator[Event]:
    collector, memory, learner, evaluator, folder, warnings, cfg = parts
    governor = Governor(cfg.td3)
    best = [-math.inf] * len(cfg.seeds)
    step, log_due, reported, reported_at = 0, False, 0, time.monotonic()

    yield _start(parts)
    for text in warnings:
        yield Note(step=0, text=text)
    collector.publish(parts.snapshot())
    evaluator.submit(parts.snapshot(), step)
    yield from _evaluations(parts, best)
    while step < cfg.total_steps and not stop.is_set():
        before = step
        for rollout in collector.poll():
            memory.add(rollout)
            yield from _episodes(rollout, cfg, memory.added[rollout.member])
        step = min(memory.added)

        log_due = log_due or passed(cfg.log.every_steps, before, step)
        made, due = learner.updates, governor.due(memory.added, learner.updates)
        if log_due and due >= learner.until_actor:
            due -= learner.until_actor
            steps = learner.run(learner.until_actor, memory.sample)
            now = time.monotonic()
            yield from update_events(steps, cfg, step, learner.updates, (step - reported) / (now - reported_at))
            log_due, reported, reported_at = False, step, now
        if due:
            learner.run(due, memory.sample)
        if learner.updates > made:  # a snapshot copies every actor, on a GPU across the bus
            collector.publish(parts.snapshot())

        if passed(cfg.eval.every_steps, before, step) or step == cfg.total_steps:
            snapshot = parts.snapshot()
            folder.save_last(snapshot, step)
            evaluator.submit(snapshot, step)
        yield from _evaluations(parts, best)


def assemble(cfg: Config, stop: threading.Event, make_env: EnvFactory, opened: ExitStack) -> Parts:
    """Builds the parts, each closed by `opened`; whatever may refuse does so before the run folder exists."""
    cfg = resolve(cfg)
    warnings = examine(make_env)
    collector = opened.enter_context(closing(InlineCollector(cfg, make_env)))
    evaluator = opened.enter_context(closing(InlineEvaluator(cfg, make_env, stop)))
    spec = collector.spec
    check_memory(cfg, spec)
    learner = Learner(spec, cfg.td3, cfg.seeds, cfg.device)
    memory = Memory(spec, cfg, cfg.device)
    folder = opened.enter_context(closing(RunFolder(cfg, spec)))
    return Parts(collector, memory, learner, evaluator, folder, warnings, cfg)


def resolve(cfg: Config) -> Config:
    """The configuration with this machine's device and thread count in it; bits depend on both."""
    if cfg.device == "cuda" and not torch.cuda.is_available():
        raise UserError("device=cuda, but torch sees no CUDA device here; use --device cpu, or auto")
    if cfg.threads:
        torch.set_num_threads(cfg.threads)
    automatic: Literal["cpu", "cuda"] = "cuda" if torch.cuda.is_available() else "cpu"
    device = automatic if cfg.device == "auto" else cfg.device
    return dataclasses.replace(cfg, device=device, threads=torch.get_num_threads())


def check_memory(cfg: Config, spec: Spec) -> None:
    """Refuses networks or a replay that do not fit before anything is allocated."""
    free = torch.cuda.mem_get_info()[0] if cfg.device == "cuda" else psutil.virtual_memory().available
    learning = len(cfg.seeds) * numbers_per_member(spec, cfg.td3) * BYTES_PER_NUMBER * COPIES_IN_LEARNING
    if learning > free:
        raise UserError(
            f"the networks need {learning / 2**30:,.1f} GiB to learn in and {free / 2**30:,.1f} GiB are free; "
            "make td3.actor_hidden and td3.critic_hidden smaller, or train fewer seeds at once"
        )
    replay = bytes_needed(spec, rows_needed(cfg), len(cfg.seeds))
    if learning + replay > free:
        fitting = int(rows_needed(cfg) * 0.9 * (free - learning) / replay)
        raise UserError(
            f"the replay needs {replay / 2**30:,.1f} GiB and {(free - learning) / 2**30:,.1f} GiB are free; "
            f"replay.capacity={fitting} would fit, or train fewer seeds at once"
        )


def _start(parts: Parts) -> Start:
    cfg = parts.cfg
    return Start(
        step=0,
        folder=str(parts.folder.path),
        config=to_dict(cfg),
        versions=versions(),
        pid=os.getpid(),
        host=platform.node(),
        parameters=numbers_per_member(parts.collector.spec, cfg.td3),
        replay_bytes=bytes_needed(parts.collector.spec, rows_needed(cfg), len(cfg.seeds)),
    )


def _episodes(rollout: Rollout, cfg: Config, step: int) -> Iterator[EpisodeEnd]:
    for episode in rollout.episodes:
        yield EpisodeEnd(step=step, member=rollout.member, seed=cfg.seeds[rollout.member], **episode._asdict())


def _evaluations(parts: Parts, best: list[float]) -> Iterator[Eval]:
    """Evaluations that have become ready; a member's best policy is kept the moment it is known."""
    for evaluation in parts.evaluator.poll():
        mean_return = float(evaluation.returns.mean())
        is_best = mean_return > best[evaluation.member]
        if is_best:
            best[evaluation.member] = mean_return
            parts.folder.save_best(evaluation)
        yield eval_event(evaluation, parts.cfg, is_best)
