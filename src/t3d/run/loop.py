"""The only training loop in the project."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from t3d.actors.governor import Governor, passed
from t3d.alarms.watch import watch_over
from t3d.config import Config
from t3d.config.presets import as_config
from t3d.errors import UserError, as_sentence
from t3d.events import End, Event, Note, Resumed, Start
from t3d.modules import find_again
from t3d.run.build import Training, assemble
from t3d.run.control import Control
from t3d.run.live import Events, LiveRun, let_go
from t3d.run.parts import Parts
from t3d.run.placement import resolve
from t3d.run.reporter import eval_event
from t3d.run.resume import BadValues, Changes, load
from t3d.run.surroundings import Surroundings
from t3d.store.folder import rooted
from t3d.store.journal import remembered_files
from t3d.store.lock import Lock
from t3d.types import Requests
from t3d.world.factory import checked_factory
from t3d.world.guard import BadValue, EnvFactory
from t3d.world.make import env_factory, own_names, with_full_paths
from t3d.world.names import with_reference
from t3d.world.pixels import prepare_graphics

UPDATES_AT_ONCE = {"cpu": 8, "cuda": 32}  # between two policies for the actors, and two checks of `stop`; chosen


def train(
    cfg: Config | Mapping[str, Any] | str,
    *,
    stop: threading.Event | None = None,
    save: threading.Event | None = None,
    make_env: EnvFactory | None = None,
) -> LiveRun:
    """Trains every seed of the configuration; the run that is returned yields what happens.

    Setting stop or leaving early ends it cleanly, with a checkpoint; setting save asks for one without ending.
    """
    requests = Requests(stop or threading.Event(), save or threading.Event())
    return _live(lambda: _train(cfg, requests, make_env), requests, make_env)


def _train(
    cfg: Config | Mapping[str, Any] | str, requests: Requests, make_env: EnvFactory | None
) -> Generator[Event, None, None]:
    asked = with_reference(with_full_paths(as_config(cfg)), make_env)
    cfg = rooted(asked)  # before an environment can change the working directory
    prepare_graphics(cfg.env)  # before the environment's file can import MuJoCo
    with ExitStack() as opened:
        surroundings = opened.enter_context(closing(Surroundings()))
        if make_env is None:
            make_env = by_id = env_factory(cfg.env)
            cfg = replace(cfg, env=by_id.env)
        else:
            make_env = checked_factory(make_env)
        training = assemble(resolve(cfg), requests, make_env, opened, asked=asked, surroundings=surroundings)
        yield from _run(training, _start_events(training), requests)


def resume(
    path: str | Path,
    *,
    total_steps: int | None = None,
    actors: str | None = None,
    ray_address: str | None = None,
    ray_cpus: float | None = None,
    bad_values: BadValues | None = None,
    hang_seconds: float | None = None,
    cfg: Config | None = None,
    stop: threading.Event | None = None,
    save: threading.Event | None = None,
    make_env: EnvFactory | None = None,
) -> LiveRun:
    """Resumes the run in a folder from its newest complete checkpoint, to total_steps if that is more than it had.

    A run that was killed before its first checkpoint starts again. If cfg is given, the folder may be anything that a
    kill left behind: without a checkpoint, cfg is trained in it from the start.
    """
    requests = Requests(stop or threading.Event(), save or threading.Event())
    changes = Changes(total_steps, actors, ray_address, ray_cpus, bad_values, hang_seconds)
    folder = Path(path).absolute()
    return _live(lambda: _resume(folder, changes, cfg, requests, make_env), requests, make_env)


def _live(begin: Callable[[], Events], requests: Requests, make_env: EnvFactory | None) -> LiveRun:
    return LiveRun(begin, requests.stop, lambda path: _resume(path, Changes(), None, requests, make_env))


def _resume(
    path: Path, changes: Changes, cfg: Config | None, requests: Requests, make_env: EnvFactory | None
) -> Generator[Event, None, None]:
    if not path.is_dir():
        raise UserError(f"there is no run at {path}")
    let_go(path)
    with ExitStack() as opened:
        surroundings = opened.enter_context(closing(Surroundings()))
        lock = opened.enter_context(closing(Lock(path)))
        cfg, asked, loaded, notes = load(path, changes, cfg and with_reference(with_full_paths(cfg), make_env))
        cfg = resolve(with_reference(cfg, make_env))
        if not cfg.env.id and make_env is None:
            raise UserError(f"{path} was started in Python; resume it there: t3d.resume({str(path)!r}, make_env=...)")
        needed = [name for name in own_names(cfg) if make_env is None or name != cfg.env.id]
        find_again(needed, remembered_files(path), path)
        prepare_graphics(cfg.env)  # before the environment's file can import MuJoCo
        make_env = env_factory(cfg.env) if make_env is None else checked_factory(make_env)
        training = assemble(cfg, requests, make_env, opened, path, loaded, asked, surroundings)
        parts, folder = training.parts, training.saver.folder
        start = [] if loaded else _start_events(training)
        if loaded and folder.has_no_events:
            start = [Start(**parts.about(folder))]
        others = training.notes if loaded else []  # otherwise reported at the start
        notes = [text for text in (lock.note, *folder.notes, *notes, *others) if text]
        name, best = (loaded.checkpoint.name, parts.best.returns) if loaded else ("", [])
        resumed = Resumed(**parts.about(folder), checkpoint=name, best=best, notes=notes)
        changed = [Note(step=parts.counters.step, text=parts.task_changes)] if parts.task_changes else []
        yield from _run(training, [*start, resumed, *changed], requests)


def _start_events(training: Training) -> list[Event]:
    about = training.parts.about(training.saver.folder)
    return [Start(**about), *(Note(step=0, text=text) for text in training.notes)]


def _run(training: Training, start: list[Event], requests: Requests) -> Iterator[Event]:
    """Drives the training, writes its events and yields them; however it ends, an end event is written."""
    parts, _, reporter, saver, beside, _ = training
    reason, text = "stopped", ""
    try:
        watch = watch_over(parts.cfg, saver.folder.path)
        control = Control(training, start, requests)
        for happened in chain([start], beside.follow(control.follow(_training(training, requests)))):
            disturbed = saver.surroundings.restore() if happened else []
            notes = [Note(step=parts.counters.step, text=text) for text in disturbed]
            events = watch.with_alarms([*happened, *notes])
            for event in events:
                saver.folder.write(event)
            yield from events
        if parts.counters.step == parts.counters.evaluated == parts.cfg.total_steps:
            reason = "finished"
        yield from saver.save_at_the_end()
    except BaseException as error:
        if not isinstance(error, GeneratorExit | KeyboardInterrupt):  # the caller has stopped iterating
            reason, text = "failed", as_sentence(error)
        if isinstance(error, BadValue):
            saver.folder.write(reporter.bad_value(error.fault._replace(text=str(error), count=1), error.member))
        error.add_note(saver.save_after_error())
        if isinstance(error, BadValue):
            error.add_note("Resumed with --bad-values skip, or clip, it continues in spite of such values")
        raise
    finally:
        problems = [saver.problem, *saver.save_last_policies(), *saver.folder.take_failures()]
        end = End(
            step=parts.counters.step,
            reason=reason,
            text=text or "; ".join(filter(None, problems)),
            saved=not saver.unsaved,
            diverged=[parts.cfg.members[member].name for member in parts.stopped],
            updates=parts.learner.updates,
            seconds=parts.counters.seconds,
        )
        saver.folder.write(end)
        saver.folder.close()
    yield end


def _training(training: Training, requests: Requests) -> Iterator[list[Event]]:
    """Yields lists of what has happened since the last; at each yield the run can be saved and resumed.

    Learning comes first: a run that was stopped with updates still due makes them before it acts again.
    """
    parts, publisher, reporter, saver, beside, _ = training
    counters, governor = parts.counters, Governor(parts.cfg)
    publisher.publish()
    while True:
        saver.unsaved = True
        yield _learn(training, governor, requests.stop)
        if _evaluation_due(parts) or saver.is_due or requests.save.is_set():
            yield parts.stop_diverged()
        parts.refuse_none_left()

        if _evaluation_due(parts) and not requests.stop.is_set() and parts.evaluator.has_room():
            snapshot = parts.snapshot()
            saver.folder.save_last(snapshot, counters.step)
            if parts.evaluator.submit(snapshot, counters.step):
                counters.submitted = counters.step
                beside.recorder.begin(counters.step)
        yield saver.unwritten()
        yield _evaluations(training)
        parts.refuse_none_left()

        if saver.is_due or requests.save.is_set():
            reason = "asked" if requests.save.is_set() else "schedule"
            requests.save.clear()
            yield [saver.save(reason)]
        if requests.stop.is_set():
            break
        if _evaluation_due(parts):  # interrupted by a request to save, or too many are in progress
            parts.collector.supervise()
            continue
        if counters.step == counters.evaluated == parts.cfg.total_steps:
            break

        yield _collect(training)
        parts.refuse_none_left()
    yield reporter.summary()


def _learn(training: Training, governor: Governor, stop: threading.Event) -> list[Event]:
    """Makes the updates that are due, and publishes what they changed."""
    parts, publisher, reporter, saver, _, _ = training
    learner, cfg = parts.learner, parts.cfg
    events: list[Event] = []
    before, due = learner.updates, governor.due(parts.added, learner.updates)
    while due and not stop.is_set():
        reports = parts.counters.log_due and due >= learner.updates_to_full_trace
        now_due = learner.updates_to_full_trace if reports else min(due, UPDATES_AT_ONCE[cfg.device])
        with saver.surroundings.for_updates(cfg.threads, builds=reports):
            started = time.perf_counter()
            with saver.changing():
                trace = learner.run(now_due)
            reporter.updated(now_due, time.perf_counter() - started)
            events += reporter.learned(trace) if reports else []
        due -= now_due
        publisher.publish()
    if learner.updates == before:
        publisher.finish()
        if cfg.normalise_observations:
            publisher.publish()
    return events


def _evaluation_due(parts: Parts) -> bool:
    """Whether an evaluation is due; one that was interrupted still is."""
    counters, cfg = parts.counters, parts.cfg
    at_the_end = counters.step == cfg.total_steps and counters.submitted < counters.step
    return at_the_end or passed(cfg.eval.every_steps, counters.submitted, counters.step)


def _evaluations(training: Training) -> list[Event]:
    """Reports evaluations that are ready; a member's best policy is written as soon as it is known."""
    parts, events = training.parts, list[Event]()
    evaluations, notes, diverged = parts.evaluator.poll(wait=_evaluation_due(parts))
    for evaluation in evaluations:
        is_best = parts.best.offer(evaluation)
        if is_best:
            parts.best.write(evaluation.member, training.saver.folder)
        parts.counters.evaluated = evaluation.step
        events.append(eval_event(evaluation, parts.cfg, is_best))
    events += [Note(step=parts.counters.step, text=text) for text in notes]
    return events + [parts.stop(member, why) for member, why in diverged]


def _collect(training: Training) -> list[Event]:
    """Collects the next transitions and adds them to the memory."""
    parts, before = training.parts, training.parts.counters.step
    with training.saver.changing():
        collected = training.reporter.diagnostics.timed(parts.collector.poll)
        parts.memory.add(*collected.rollouts)
        parts.counters.step = min(parts.added)
        stopped: list[Event] = [parts.stop(member, why) for member, why in collected.diverged if member in parts.living]
    return training.reporter.collected(collected, before) + stopped
