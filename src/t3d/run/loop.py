"""The only training loop in the project."""

from __future__ import annotations

import dataclasses
import math
import os
import threading
import time
from collections.abc import Iterator
from typing import Literal, NamedTuple

import psutil
import torch

from t3d.algo.learner import Learner
from t3d.config import Config, to_dict
from t3d.data.memory import Memory, rows_needed
from t3d.data.replay import bytes_needed
from t3d.errors import UserError
from t3d.events import End, EpisodeEnd, Eval, Event, Start
from t3d.run.governor import Every, Governor
from t3d.run.record import RunFolder, versions
from t3d.run.report import eval_event, update_events
from t3d.types import PolicySnapshot, Rollout, Spec
from t3d.world.collect import InlineCollector
from t3d.world.envs import EnvFactory, env_factory
from t3d.world.evaluate import InlineEvaluator


class Parts(NamedTuple):
    """What the loop drives."""

    collector: InlineCollector
    memory: Memory
    learner: Learner
    evaluator: InlineEvaluator
    folder: RunFolder
    cfg: Config  # resolved: nothing is "auto" any more

    def snapshot(self) -> PolicySnapshot:
        """The newest policy, with the observation scaling that goes with it."""
        return self.memory.scaled(self.learner.snapshot())

    def close(self) -> None:
        """Gives everything back."""
        self.collector.close()
        self.evaluator.close()
        self.folder.close()


def train(cfg: Config, *, stop: threading.Event | None = None, make_env: EnvFactory | None = None) -> Iterator[Event]:
    """Trains every seed of the configuration and yields what happens; setting stop or leaving early ends it cleanly."""
    stop = stop or threading.Event()
    parts = assemble(cfg, stop, make_env or env_factory(cfg.env.id))
    begun = time.monotonic()
    reason = "failed"
    try:
        for event in _training(parts, stop):
            parts.folder.write(event)
            yield event
        reason = "stopped" if stop.is_set() else "finished"
    except (GeneratorExit, KeyboardInterrupt):
        reason = "stopped"
        raise
    finally:
        step, updates = min(parts.memory.added), parts.learner.updates
        parts.folder.save_last(parts.snapshot(), step)
        end = End(step=step, reason=reason, updates=updates, seconds=time.monotonic() - begun)
        parts.folder.write(end)
        parts.close()
    yield end


def _training(parts: Parts, stop: threading.Event) -> Iterator[Event]:
    collector, memory, learner, evaluator, _, cfg = parts
    governor, log, evaluate = Governor(cfg.td3), Every(cfg.log.every_steps), Every(cfg.eval.every_steps)
    best = [-math.inf] * len(cfg.seeds)
    steps, step, reported, reported_at = None, 0, 0, time.monotonic()

    yield _start(parts)
    collector.publish(parts.snapshot())
    evaluator.submit(parts.snapshot(), step)
    yield from _evaluations(parts, best)
    while step < cfg.total_steps and not stop.is_set():
        for rollout in collector.poll():
            memory.add(rollout)
            yield from _episodes(rollout, cfg, memory.added[rollout.member])
        step = min(memory.added)

        due = governor.due(memory.added, learner.updates)
        if due:
            steps = learner.run(due, memory.sample)
            collector.publish(parts.snapshot())

        if log.due(step) and steps is not None:
            now = time.monotonic()
            yield from update_events(steps, cfg, step, learner.updates, (step - reported) / (now - reported_at))
            reported, reported_at = step, now
        if evaluate.due(step) or step == cfg.total_steps:
            evaluator.submit(parts.snapshot(), step)
            parts.folder.save_last(parts.snapshot(), step)
        yield from _evaluations(parts, best)


def assemble(cfg: Config, stop: threading.Event, make_env: EnvFactory) -> Parts:
    """Builds the parts; whatever may refuse does so before the run folder exists."""
    cfg = resolve(cfg)
    collector = InlineCollector(cfg, make_env)
    spec = collector.spec
    check_memory(cfg, spec)
    learner = Learner(spec, cfg.td3, cfg.seeds, cfg.device)
    memory = Memory(spec, cfg, cfg.device)
    evaluator = InlineEvaluator(cfg, make_env, stop)
    folder = RunFolder(cfg, spec)
    return Parts(collector, memory, learner, evaluator, folder, cfg)


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
    """Refuses a replay that does not fit before anything is allocated."""
    needed = bytes_needed(spec, rows_needed(cfg), len(cfg.seeds))
    free = torch.cuda.mem_get_info()[0] if cfg.device == "cuda" else psutil.virtual_memory().available
    if needed > free:
        fitting = rows_needed(cfg) * free // needed
        raise UserError(
            f"the replay needs {needed / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are free; "
            f"replay.capacity={fitting} would just fit, or train fewer seeds at once"
        )


def _start(parts: Parts) -> Start:
    cfg = parts.cfg
    return Start(
        step=0,
        folder=str(parts.folder.path),
        config=to_dict(cfg),
        versions=versions(),
        pid=os.getpid(),
        parameters=parts.learner.parameters_per_member,
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
