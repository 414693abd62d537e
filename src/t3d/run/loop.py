"""The only training loop in the project."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, closing
from itertools import chain
from pathlib import Path
from typing import Any

from t3d.actors.governor import Governor, passed
from t3d.config import Config
from t3d.config.presets import as_config
from t3d.errors import EnvironmentFailed, UserError
from t3d.events import ActorEvent, BadValueMet, End, EpisodeEnd, Event, Note, Resumed, Start
from t3d.files import shown
from t3d.run.build import Parts, assemble
from t3d.run.interrupt import Interruptible
from t3d.run.placement import resolve
from t3d.run.reporter import acting_events, eval_event, refuse_divergence, update_events
from t3d.run.resume import BadValues, Changes, load
from t3d.store.folder import rooted
from t3d.store.lock import Lock
from t3d.types import Fault, Requests, Rollout, UpdateTrace
from t3d.world.factory import checked_factory
from t3d.world.guard import BadValue, EnvFactory
from t3d.world.make import env_factory, with_full_id
from t3d.world.names import named

UPDATES_AT_ONCE = {"cpu": 8, "cuda": 32}  # between two policies for the actors, and two looks at `stop`; chosen


def train(
    cfg: Config | Mapping[str, Any] | str,
    *,
    stop: threading.Event | None = None,
    save: threading.Event | None = None,
    make_env: EnvFactory | None = None,
) -> Iterator[Event]:
    """Trains every seed of the configuration and yields what happens.

    Setting stop or leaving early ends it cleanly, with a checkpoint; setting save asks for one in passing.
    """
    requests = Requests(stop or threading.Event(), save or threading.Event())
    return Interruptible(_train(cfg, requests, make_env), requests.stop)


def _train(
    cfg: Config | Mapping[str, Any] | str, requests: Requests, make_env: EnvFactory | None
) -> Generator[Event, None, None]:
    asked = named(with_full_id(as_config(cfg)), make_env)
    cfg = rooted(asked)  # before an environment can change the working directory
    make_env = env_factory(cfg.env.id) if make_env is None else checked_factory(make_env)
    with ExitStack() as opened:
        parts = assemble(resolve(cfg), requests, make_env, opened, asked=asked)
        yield from _run(parts, _beginning(parts), requests)


def resume(
    path: str | Path,
    *,
    total_steps: int | None = None,
    actors: str | None = None,
    bad_values: BadValues | None = None,
    hang_seconds: float | None = None,
    cfg: Config | None = None,
    stop: threading.Event | None = None,
    save: threading.Event | None = None,
    make_env: EnvFactory | None = None,
) -> Iterator[Event]:
    """Goes on with the run in a folder from its newest whole checkpoint, to total_steps if that is more than it had.

    A run that was killed before its first checkpoint begins again. Where cfg is given, the folder may be anything that
    a kill left behind: without a checkpoint, cfg is trained in it from the beginning.
    """
    requests = Requests(stop or threading.Event(), save or threading.Event())
    changes = Changes(total_steps, actors, bad_values, hang_seconds)
    return Interruptible(_resume(Path(path).absolute(), changes, cfg, requests, make_env), requests.stop)


def _resume(
    path: Path, changes: Changes, cfg: Config | None, requests: Requests, make_env: EnvFactory | None
) -> Generator[Event, None, None]:
    if not path.is_dir():
        raise UserError(f"there is no run at {path}")
    with ExitStack() as opened:
        lock = opened.enter_context(closing(Lock(path)))
        cfg, asked, loaded, notes = load(path, changes, cfg and with_full_id(cfg))
        cfg = resolve(cfg)
        if not cfg.env.id and make_env is None:
            raise UserError(f"{path} was made in Python; go on with it there: t3d.resume({str(path)!r}, make_env=...)")
        make_env = env_factory(cfg.env.id) if make_env is None else checked_factory(make_env)
        parts = assemble(cfg, requests, make_env, opened, path, loaded, asked)
        begin = [] if loaded else _beginning(parts)
        if loaded and parts.folder.is_untold:
            begin = [Start(**parts.about())]
        others = parts.notes if loaded else []  # else told when it began
        notes = [text for text in (lock.note, *parts.folder.notes, *notes, *others) if text]
        name, best = (loaded.checkpoint.name, parts.best.returns) if loaded else ("", [])
        resumed = Resumed(**parts.about(), checkpoint=name, best=best, notes=notes)
        yield from _run(parts, [*begin, resumed], requests)


def _beginning(parts: Parts) -> list[Event]:
    return [Start(**parts.about()), *(Note(step=0, text=text) for text in parts.notes)]


def _run(parts: Parts, begin: list[Event], requests: Requests) -> Iterator[Event]:
    """Drives the training, writes down what happens and hands it on; however it ends, the end is told."""
    reason, text = "stopped", ""
    try:
        for events in chain([begin], _training(parts, requests), _summary(parts)):
            for event in events:
                parts.folder.write(event)
            yield from events
        if parts.progress.step == parts.cfg.total_steps and parts.progress.evaluated == parts.progress.step:
            reason = "finished"
        yield from _save_at_the_end(parts)
    except BaseException as error:
        if not isinstance(error, GeneratorExit | KeyboardInterrupt):  # whoever iterates has left
            reason, text = "failed", _in_words(error)
        if isinstance(error, BadValue):
            parts.folder.write(_bad_value(error.fault._replace(text=str(error), met=1), parts, error.member))
        error.add_note(_save_what_is_whole(parts))
        if isinstance(error, BadValue):
            error.add_note("With --bad-values skip, or clip, it goes on in spite of such values")
        raise
    finally:
        problems = [parts.save_problem, *_keep_last_policies(parts), *parts.folder.take_failures()]
        end = End(
            step=parts.progress.step,
            reason=reason,
            text=text or "; ".join(filter(None, problems)),
            saved=not parts.unsaved,
            updates=parts.learner.updates,
            seconds=parts.progress.seconds,
        )
        parts.folder.write(end)
        parts.folder.close()
    yield end


def _keep_last_policies(parts: Parts) -> list[str]:
    """Writes last/; what goes wrong, e.g. on a GPU that has failed, must not hide how the run ended."""
    try:
        parts.folder.save_last(parts.snapshot(), parts.progress.step)
    except Exception as error:
        return [f"the last policies could not be written: {_in_words(error)}"]
    return []


def _save_at_the_end(parts: Parts) -> list[Event]:
    parts.folder.refuse_if_gone()
    saved: list[Event] = [parts.save("end")] if parts.unsaved else []
    for event in saved:
        parts.folder.write(event)
    return saved


def _save_what_is_whole(parts: Parts) -> str:
    """Saves a run that an error ends, if it can be saved; says how to go on."""
    try:
        if parts.folder.is_gone():
            parts.leave_folder()
        if parts.whole:
            _save_at_the_end(parts)
    except Exception as problem:  # whatever it is, the error that has ended the run comes first
        parts.save_problem = parts.save_problem or _in_words(problem)
    where, cfg = shown(parts.folder.path), parts.cfg
    go_on = f"t3d resume {shlex.quote(where)}" if cfg.env.id else f"t3d.resume({where!r}, make_env=...) in Python"
    if not parts.unsaved:
        return f"The run is saved as it was before that: {go_on}"
    why = f" ({parts.save_problem})" if parts.save_problem else ""
    if parts.checkpoint is None:
        return f"The run could not be saved{why}; its logs and policies are in {where}"
    last = f"The last good checkpoint is of step {parts.checkpoint.step:,}: {go_on}"
    return f"This moment could not be saved{why}. {last}"


def _in_words(error: BaseException) -> str:
    """Sentences as they are, other errors with their kind."""
    return str(error) if isinstance(error, EnvironmentFailed | UserError) else f"{type(error).__name__}: {error}"


def _training(parts: Parts, requests: Requests) -> Iterator[list[Event]]:
    """Each list holds what has happened since the last; whenever one is handed out, the run can be saved and resumed.

    Learning comes first: a run that was stopped with updates still due makes them before it acts again.
    """
    progress, cfg = parts.progress, parts.cfg
    governor = Governor(cfg)
    parts.publisher.publish()
    while True:
        parts.unsaved = True
        yield _learn(parts, governor, requests.stop)

        if _evaluation_due(parts) and not requests.stop.is_set() and parts.evaluator.has_room():
            snapshot = parts.snapshot()
            parts.folder.save_last(snapshot, progress.step)
            if parts.evaluator.submit(snapshot, progress.step):
                progress.submitted = progress.step
        yield parts.unwritten()
        yield _evaluations(parts)

        if passed(cfg.checkpoint.every_steps, progress.saved, progress.step) or requests.save.is_set():
            reason = "asked" if requests.save.is_set() else "schedule"
            requests.save.clear()
            yield [parts.save(reason)]
        if requests.stop.is_set():
            return
        if _evaluation_due(parts):  # broken off by the wish to save, or too many are under way
            parts.collector.supervise()
            continue
        if progress.step == progress.evaluated == cfg.total_steps:
            return

        yield _collect(parts)


def _learn(parts: Parts, governor: Governor, stop: threading.Event) -> list[Event]:
    """Makes the updates that are due, and publishes what they changed."""
    learner, progress, cfg = parts.learner, parts.progress, parts.cfg
    events: list[Event] = []
    made, due = learner.updates, governor.due(parts.memory.added, learner.updates)
    while due and not stop.is_set():
        reports = progress.log_due and due >= learner.until_actor
        now_due = learner.until_actor if reports else min(due, UPDATES_AT_ONCE[cfg.device])
        with parts.changing():
            steps = learner.run(now_due, parts.memory.sample)
        due -= now_due
        events += _report(steps, parts) if reports else []
        parts.publisher.publish()
    if learner.updates == made:
        parts.publisher.finish()
        if cfg.td3.normalise_observations:
            parts.publisher.publish()
    return events


def _report(steps: UpdateTrace, parts: Parts) -> list[Event]:
    """The newest update and how acting goes; ends the run if learning has run away."""
    learner, progress, cfg, now = parts.learner, parts.progress, parts.cfg, time.monotonic()
    speed = (progress.step - progress.reported) / (now - progress.reported_at)
    events = [*update_events(steps, cfg, progress.step, learner.updates, speed)]
    made = learner.updates - progress.reported_updates
    events += acting_events(parts.collector.figures(), cfg, progress.step, progress.reported, made)
    refuse_divergence(learner, cfg, progress.step)
    progress.log_due, progress.reported, progress.reported_at = False, progress.step, now
    progress.reported_updates = learner.updates
    return events


def _summary(parts: Parts) -> Iterator[list[Event]]:
    progress, figures = parts.progress, parts.collector.figures(whole_run=True)
    made = parts.learner.updates - progress.begun_updates
    yield acting_events(figures, parts.cfg, progress.step, progress.begun_at, made, summary=True)


def _collect(parts: Parts) -> list[Event]:
    """Takes the next steps and remembers them."""
    progress, before = parts.progress, parts.progress.step
    events: list[Event] = []
    with parts.changing():
        rollouts = parts.collector.poll()
        parts.memory.add(*rollouts)
        progress.step = min(parts.memory.added)
    for rollout in rollouts:
        events += _episodes(rollout, parts)
    events += [ActorEvent(step=progress.step, **news._asdict()) for news in parts.collector.news()]
    progress.log_due = progress.log_due or passed(parts.cfg.log.every_steps, before, progress.step)
    return events


def _episodes(rollout: Rollout, parts: Parts) -> Iterator[Event]:
    member, step = rollout.member, parts.memory.added[rollout.member]
    for episode in rollout.episodes:
        yield EpisodeEnd(step=step, member=member, seed=parts.cfg.seeds[member], **episode._asdict())
    for fault in rollout.faults:
        yield _bad_value(fault, parts, member)


def _bad_value(fault: Fault, parts: Parts, member: int | None) -> BadValueMet:
    return BadValueMet(
        step=parts.progress.step if member is None else parts.memory.added[member],
        member=member,
        seed=None if member is None else parts.cfg.seeds[member],
        env=fault.env,
        episode=fault.episode,
        episode_step=fault.step,
        field=fault.field,
        text=fault.text,
        handling=parts.cfg.env.bad_values,
        count=fault.met,
    )


def _evaluation_due(parts: Parts) -> bool:
    """An evaluation that was broken off is still due, because nothing has come of it."""
    progress, cfg = parts.progress, parts.cfg
    at_the_end = progress.step == cfg.total_steps and progress.submitted < progress.step
    return at_the_end or passed(cfg.eval.every_steps, progress.submitted, progress.step)


def _evaluations(parts: Parts) -> list[Event]:
    """Evaluations that have become ready; a member's best policy is kept the moment it is known."""
    events: list[Event] = []
    progress = parts.progress
    for evaluation in parts.evaluator.poll():
        is_best = parts.best.offer(evaluation)
        if is_best:
            parts.best.write(evaluation.member, parts.folder)
        progress.evaluated = evaluation.step
        events.append(eval_event(evaluation, parts.cfg, is_best))
    return events + [Note(step=progress.step, text=text) for text in parts.evaluator.news()]
