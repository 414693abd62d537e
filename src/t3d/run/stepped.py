"""A run that its caller advances, stage by stage, in a world of the caller's own."""

from __future__ import annotations

import os
import shutil
import threading
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

from t3d.actors.governor import Governor
from t3d.actors.protocols import Collector, Evaluator
from t3d.config import Config, to_dict
from t3d.errors import UserError, as_sentence
from t3d.events import Event, Note, SaveFailed, Start
from t3d.run import placement
from t3d.run.build import World, parts_of, training_of
from t3d.run.loop import Trainer
from t3d.run.saver import Saver
from t3d.run.surroundings import Surroundings, TorchSettings
from t3d.store.folder import RunFolder
from t3d.store.lock import Lock
from t3d.types import Requests

ENDLESS = 10**12  # steps


class NotSaved(Saver):
    """Writes no checkpoints: whoever made the collector knows alone how to continue with it."""

    def save(self, reason: str) -> SaveFailed:
        self.unsaved = False  # as far as it can be
        return SaveFailed(step=self.parts.counters.step, text="the program that trains this run saves it", failures=0)

    def save_at_the_end(self) -> list[Event]:
        return []


class SteppedRun:
    """Collects, learns and reports as any other run, in the stages of the loop, and stands still between them.

    It never ends by itself. Its folder is created by `begin`, so what only acts has none; without a path it is
    temporary, and `close` removes it.
    """

    def __init__(self, cfg: Config, collector: Collector, evaluator: Evaluator, env_class: str) -> None:
        self.requested = cfg
        self.path: Path | None = None  # of its folder, once it has one
        self._opened, self._process, self._ended = ExitStack(), os.getpid(), ""
        settings = TorchSettings.current()
        self.surroundings = self._opened.enter_context(closing(Surroundings()))
        cfg = replace(placement.resolve(cfg), total_steps=ENDLESS)
        placement.set_tf32_for_process(cfg.tf32)
        replay_on = placement.replay_device(cfg, collector.spec)
        world = World(collector, evaluator, [], {"class": env_class}, None)
        with self.surroundings.for_updates(builds=True):
            self.parts, self.notes = parts_of(cfg, world, replay_on)
        settings.apply()

    def begin(self, total_steps: int, path: Path | None = None, governor: Governor | None = None) -> None:
        """Creates the folder of the run, which is said to take so many steps; a governor may call for other updates."""
        parts, total_steps = self.parts, max(total_steps, self.requested.random_steps + 1)
        limited, requested = (replace(cfg, total_steps=total_steps) for cfg in (parts.cfg, self.requested))
        requests = Requests(threading.Event(), threading.Event())
        with ExitStack() as opened:
            if path is None:
                path = Path(mkdtemp(prefix="t3d-"))  # a TemporaryDirectory would go with a forked child
                opened.callback(shutil.rmtree, path, ignore_errors=True)
            path.mkdir(parents=True, exist_ok=True)
            opened.enter_context(closing(Lock(path)))
            if (path / "events.jsonl").exists():
                raise UserError(f"{path} holds a run already; give another folder")
            with self.surroundings.for_updates(builds=True):
                parts.learner.prepare()
            folder = opened.enter_context(closing(RunFolder(path, limited, parts.collector.spec, requested=requested)))
            self._saver = NotSaved(parts, folder, None, self.surroundings)
            training = training_of(parts, self._saver, requests, opened, self.notes)
            notes = [Note(step=0, text=text) for text in training.notes]
            start = Start(**{**parts.about(folder), "config": to_dict(limited)})
            trainer = Trainer(training, [start, *notes], requests)
            parts.pace.governor = governor or parts.pace.governor
            self._opened.push(opened.pop_all())
        self._stages, self.path = trainer.stages(), path

    def advance(self) -> list[Event]:
        """Takes the next stage of the loop, which may have nothing to report."""
        try:
            return next(self._stages)
        except StopIteration:
            raise UserError(f"this run has ended{self._ended}") from None
        except BaseException as error:
            self._ended = f": {as_sentence(error)}"
            raise

    def write_policies(self) -> None:
        """Writes last/, so that the folder holds what has been learned."""
        self._saver.save_last_policies()

    def close(self) -> None:
        if self._process != os.getpid():  # a forked child has a copy of it
            return
        if self.path is not None:
            self._stages.close()
        self._opened.close()
