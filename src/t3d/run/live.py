"""A run that this process trains, as its program sees it: Ctrl-C, leaving the loop and the program's end save it."""

from __future__ import annotations

import atexit
import inspect
import os
import signal
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NoReturn

import torch

from t3d.algo.rules import with_own_settings
from t3d.config import Config, merge
from t3d.config.presets import as_config
from t3d.errors import EnvironmentFailed, StoppedEarly, UserError
from t3d.events import End, Event, Note, Resumed, Session, Start
from t3d.modules import find_again
from t3d.run.build import assemble
from t3d.run.loop import Trainer
from t3d.run.origin import with_full_origin
from t3d.run.placement import resolve
from t3d.run.resume import load
from t3d.run.surroundings import Surroundings, TorchSettings
from t3d.store.lock import Lock
from t3d.store.log import remembered_files
from t3d.types import Requests
from t3d.world.factory import checked_factory, with_reference
from t3d.world.guard import EnvFactory
from t3d.world.make import env_factory, own_names, with_full_paths
from t3d.world.simulators import choose_graphics

Events = Generator[Event, None, None]


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
    return LiveRun(lambda: _train(cfg, requests, make_env), requests, make_env)


def _train(cfg: Config | Mapping[str, Any] | str, requests: Requests, make_env: EnvFactory | None) -> Events:
    given = as_config(cfg)
    requested = with_reference(with_full_paths(with_full_origin(given)), make_env)
    for name, value in given.env.args.items():
        if (other := requested.env.args[name]) != value:
            raise UserError(f"env.args says {name}={value}, and make_env gives {name}={other}; give it once")
    root = str(Path(requested.run.root).absolute())  # before the user's code can change the working directory
    if requested.env.pixels:
        choose_graphics()  # before the environment's file can import MuJoCo
    with ExitStack() as opened:
        surroundings = opened.enter_context(closing(Surroundings()))
        requested = with_full_paths(with_own_settings(requested))
        cfg = replace(requested, run=replace(requested.run, root=root))
        if make_env is None:
            make_env = by_id = env_factory(cfg.env)
            cfg = replace(cfg, env=by_id.env)
        else:
            make_env = checked_factory(make_env, cfg.env)
        training = assemble(resolve(cfg), requests, make_env, opened, surroundings, requested=requested)
        start = Start(**training.parts.about(training.saver.folder))
        notes = [Note(step=0, text=text) for text in training.notes]
        yield from Trainer(training, [start, *notes], requests).run()


def resume(
    path: str | Path,
    *,
    total_steps: int | None = None,
    actors: str | None = None,
    ray_address: str | None = None,
    ray_cpus: float | None = None,
    bad_values: Literal["raise", "skip", "clip"] | None = None,
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
    given = {"total_steps": total_steps, "actors": actors, "ray_address": ray_address, "ray_cpus": ray_cpus}
    given |= {"env.bad_values": bad_values, "env.hang_seconds": hang_seconds}
    changes = {name: value for name, value in given.items() if value is not None}
    folder = Path(path).absolute()
    return LiveRun(lambda: _resume(folder, changes, cfg, requests, make_env), requests, make_env)


def _resume(
    path: Path, changes: Mapping[str, Any], cfg: Config | None, requests: Requests, make_env: EnvFactory | None
) -> Events:
    if not path.is_dir():
        raise UserError(f"there is no run at {path}")
    close_runs_in(path)
    with ExitStack() as opened:
        surroundings = opened.enter_context(closing(Surroundings()))
        lock = opened.enter_context(closing(Lock(path)))
        cfg, requested, loaded, notes = load(
            path, changes, cfg and with_reference(with_full_paths(with_own_settings(cfg)), make_env)
        )
        cfg = resolve(with_reference(cfg, make_env))
        if not cfg.env.id and make_env is None:
            raise UserError(f"{path} was started in Python; resume it there: t3d.resume({str(path)!r}, make_env=...)")
        needed = [name for name in own_names(cfg) if make_env is None or name != cfg.env.id]
        find_again(needed, remembered_files(path), path)
        if cfg.env.pixels:
            choose_graphics()  # before the environment's file can import MuJoCo
        make_env = env_factory(cfg.env) if make_env is None else checked_factory(make_env, cfg.env)
        training = assemble(cfg, requests, make_env, opened, surroundings, path, loaded, requested)
        parts, folder = training.parts, training.saver.folder
        about, events = parts.about(folder), list[Event]()
        if folder.events.is_empty:
            events.append(Start(**about))
        notes = [lock.note, *folder.notes, *notes]
        if loaded:
            notes += training.notes
            name, best = loaded.checkpoint.name, parts.best.returns
        else:
            events += [Note(step=0, text=text) for text in training.notes]
            name, best = "", []
        events.append(Resumed(**about, checkpoint=name, best=best, notes=[text for text in notes if text]))
        if parts.task_changes:
            events.append(Note(step=parts.counters.step, text=parts.task_changes))
        yield from Trainer(training, events, requests).run()


class LiveRun(Iterator[Event], AbstractContextManager["LiveRun"]):
    """The events of a run as they happen.

    Leaving a loop over it, `close()` and the end of a `with` end the run: it saves itself and lets go of its folder.
    Another loop over it resumes it. While it works, torch has the run's settings, otherwise its caller's.

    Ctrl-C ends it, and KeyboardInterrupt is raised after that. Python would raise it anywhere, as in the middle of an
    update or while a notebook's traceback keeps the run alive. So while runs are alive, and nothing else handles
    Ctrl-C, a working run ends as soon as its state is consistent, and those that wait for their callers at once. A
    second Ctrl-C does not wait. Runs still alive when the program ends are ended then, while torch can still be used.
    """

    def __init__(self, begin: Callable[[], Events], requests: Requests, make_env: EnvFactory | None) -> None:
        self._events, self._begin, self._requests, self._make_env = begin(), begin, requests, make_env
        self.path: Path | None = None  # of its folder, once it has one
        self.step = 0  # of the newest event
        self._is_over = False  # after its last event
        self._closed = False  # from another thread than the one that it worked in
        self._interrupted, self._has_ended, self._process = False, False, os.getpid()
        self.cfg = Config()  # as the run was started, once it is
        self._turn = threading.Lock()  # held while the run works
        self._settings: TorchSettings | None = None  # of torch, while the run works

    def __iter__(self) -> Iterator[Event]:
        if inspect.getgeneratorstate(self._events) == inspect.GEN_CLOSED and not self._has_ended:
            if self._interrupted or self._closed:
                self._interrupted = self._closed = False
                self._requests.stop.clear()
            again = self.path and _resume(self.path, {}, None, self._requests, self._make_env)
            self._events = again or self._begin()
        return self._until_left()

    def __repr__(self) -> str:
        if self.path is None:
            return "<a run that has not begun: call finish(), or loop over it>"
        state = "has ended" if self._has_ended else "waits for its loop" if self in _alive else "was left"
        return f"<the run {self.path}, at step {self.step:,}, {state}>"

    def _until_left(self) -> Iterator[Event]:
        try:
            while (event := next(self, None)) is not None:
                yield event
        finally:
            self.close()

    def __next__(self) -> Event:
        if self._turn.locked():
            raise UserError("this run works in another thread; one loop at a time can follow it")
        _alive.add(self)
        on_main, handler = threading.current_thread() is threading.main_thread(), signal.getsignal(signal.SIGINT)
        if on_main and handler is signal.default_int_handler:
            signal.signal(signal.SIGINT, _interrupt)
        try:
            with self._working():
                event = next(self._events)
        except BaseException as error:
            self._stop_listening()
            if self._interrupted and isinstance(error, StoppedEarly | EnvironmentFailed):
                raise KeyboardInterrupt("; ".join([str(error), *getattr(error, "__notes__", [])])) from error
            raise
        if isinstance(event, Session):
            self.path, self.cfg = Path(event.folder), merge(Config(), event.config)
        self.step, self._is_over = event.step, isinstance(event, End)
        self._has_ended = isinstance(event, End) and event.reason == "finished"
        if self._interrupted:
            self._end()
        return event

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        """Whether it trains or waits for its loop."""
        return self in _alive and not self._is_over

    def save(self) -> None:
        """Asks for a checkpoint, which is written before the training goes on."""
        self._requests.save.set()

    def tell(self, kind: type[Event], **about: Any) -> None:
        """Has an event of the newest step recorded, and done what it says."""
        if not self.is_open:
            raise UserError(f"{self!r} does not train: tell it such things in a loop over it, between two events")
        self._requests.told.append((kind, about))

    def close(self) -> None:
        """Ends the run, which saves itself; one that works in another thread does so as soon as it can."""
        if self._process != os.getpid():  # a forked child has a copy of it
            return
        if self._turn.locked():
            self._closed = True
            self._requests.stop.set()
            return
        try:
            if inspect.getgeneratorstate(self._events) != inspect.GEN_CLOSED:
                with self._working():
                    self._events.close()
        finally:
            self._stop_listening()

    def __del__(self) -> None:
        self.close()

    def _end(self) -> NoReturn:
        """Raises KeyboardInterrupt in the run, which saves itself and says how to resume."""
        self._interrupted = True
        try:
            with self._working():
                self._events.throw(KeyboardInterrupt)
        finally:
            self._stop_listening()
        raise KeyboardInterrupt

    @contextmanager
    def _working(self) -> Iterator[None]:
        with self._turn:
            callers = TorchSettings.current()
            try:
                (self._settings or callers._replace(grad_mode=True, dtype=torch.float32)).apply()
                yield
            finally:
                self._settings = TorchSettings.current()
                callers.apply()

    def _stop_listening(self) -> None:
        _alive.discard(self)
        with suppress(ValueError):  # only the main thread may
            if not _alive and signal.getsignal(signal.SIGINT) is _interrupt:
                signal.signal(signal.SIGINT, signal.default_int_handler)


_alive: weakref.WeakSet[LiveRun] = weakref.WeakSet()


def close_runs_in(path: Path) -> None:
    """Ends the runs of this process that write in a folder and wait for their callers, so that another may resume."""
    for run in list(_alive):
        if run.path is not None and run.path.resolve() == path.resolve() and not run._turn.locked():
            run.close()


def _interrupt(number: int, frame: FrameType | None) -> None:
    alive = list(_alive)  # other threads may end theirs
    if not alive:  # the last one ended in another thread, which could not give Ctrl-C back
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.default_int_handler(number, frame)
    working = [run for run in alive if run._turn.locked()]
    if any(run._interrupted for run in working):
        signal.default_int_handler(number, frame)
    for run in working:
        run._interrupted = True
        run._requests.stop.set()
    if not working:
        *others, last = alive
        for run in others:
            run.close()
        last._end()


@atexit.register
def _end_all() -> None:
    for run in list(_alive):
        run.close()
