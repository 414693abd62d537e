"""Saves a run: on schedule, on request, and whatever ends it."""

from __future__ import annotations

import shlex
import time

from t3d.actors.governor import passed
from t3d.errors import Diverged, EnvironmentFailed, FramesNotWritten, UserError, as_sentence
from t3d.events import Event, Saved, SaveFailed, Start
from t3d.files import Refused, display_path, error_text
from t3d.run.parts import Parts
from t3d.run.surroundings import Surroundings
from t3d.store.checkpoint import SPARE_BYTES, Checkpoint, save
from t3d.store.folder import RunFolder, first_free

CHECK_SECONDS = 1.0  # between two checks that the run's folder still exists; chosen


class Saver:
    """Knows the newest checkpoint, whether something has happened since, and what could not be written.

    What changes the run's state happens `with saver`.
    """

    def __init__(
        self, parts: Parts, folder: RunFolder, checkpoint: Checkpoint | None, surroundings: Surroundings
    ) -> None:
        self.parts, self.folder, self.checkpoint, self.surroundings = parts, folder, checkpoint, surroundings
        self.unsaved = True  # whether something has happened since the newest checkpoint
        self.problem = ""  # why that could not be written
        self._tried = parts.counters.step  # step of the newest checkpoint, written or tried
        self._consistent = True  # whether the state is that of one moment, and so can be saved
        self._failures = 0  # times that something could not be written

    @property
    def is_due(self) -> bool:
        return passed(self.parts.cfg.checkpoint.every_steps, self._tried, self.parts.counters.step)

    def keep_policies(self) -> None:
        """Writes policies/ where keep_policies asks for it, once the updates then due are made."""
        parts, counters, every = self.parts, self.parts.counters, self.parts.cfg.keep_policies
        if counters.keeping_due and not parts.pace.due():
            kind = f"policies/step-{counters.step // every * every}"
            self.folder.save_policies(parts.snapshot(), counters.step, kind)
            counters.keeping_due = False

    def save(self, reason: str) -> Saved | SaveFailed:
        """Writes a checkpoint. If that fails, the run continues with the checkpoints that it has."""
        parts = self.parts
        step = self._tried = parts.counters.step
        started = time.monotonic()
        self.surroundings.restore()
        try:
            state = {**parts.state(), "logs": self.folder.lengths()}
            root = self.folder.path / "checkpoints"
            spare = 0 if reason == "end" else SPARE_BYTES
            self.checkpoint, new_bytes = save(root, step, state, parts.memory.replay, self.checkpoint, spare)
        except (OSError, Refused) as error:
            self.problem = f"the checkpoint could not be written: {error_text(error)}"
            return self._failed(self.problem)
        self.unsaved, self.problem = False, ""
        seconds = time.monotonic() - started
        name = self.checkpoint.name
        return Saved(step=step, checkpoint=name, reason=reason, new_bytes=new_bytes, save_seconds=seconds)

    def __enter__(self) -> None:
        """Begins changes that an error leaves half done; environments and workers fail only between two steps."""
        self._consistent, self.unsaved = False, True

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        is_between = isinstance(error, EnvironmentFailed | UserError)
        self._consistent = error is None or (is_between and not isinstance(error, Diverged | FramesNotWritten))

    def unwritten(self) -> list[Event]:
        self.folder.refuse_if_gone(every_seconds=CHECK_SECONDS)
        return [self._failed(text) for text in self.folder.take_failures()]

    def save_at_the_end(self) -> list[Event]:
        self.folder.refuse_if_gone()
        if not self.unsaved:
            return []
        stopped = self.parts.stop_diverged()
        for event in stopped:  # before the checkpoint, which knows how long the log is
            self.folder.write(event)
        self.parts.raise_if_all_diverged()
        saved = self.save("end")
        self.folder.write(saved)
        return [*stopped, saved]

    def save_last_policies(self) -> list[str]:
        """Writes last/; what goes wrong, e.g. on a GPU that has failed, must not hide how the run ended."""
        try:
            self.folder.save_policies(self.parts.snapshot(), self.parts.counters.step)
        except Exception as error:
            return [f"the last policies could not be written: {as_sentence(error)}"]
        return []

    def save_after_error(self) -> str:
        """Saves a run that an error ends, if it can be saved; says how to resume."""
        try:
            if self.folder.is_gone():
                self._leave_folder()
            if self._consistent and self.parts.living:
                self.save_at_the_end()
        except Exception as problem:  # whatever it is, the error that ended the run comes first
            self.problem = self.problem or as_sentence(problem)
        where, has_id = display_path(self.folder.path), self.parts.cfg.env.id
        resume = f"t3d resume {shlex.quote(where)}" if has_id else f"t3d.resume({where!r}, make_env=...) in Python"
        if not self.unsaved:
            return f"The run is saved as it was before that: {resume}"
        why = f" ({self.problem})" if self.problem else ""
        if self.checkpoint is None:
            return f"The run could not be saved{why}; its logs and policies are in {where}"
        last = f"The last good checkpoint is of step {self.checkpoint.step:,}: {resume}"
        return f"The current state could not be saved{why}. {last}"

    def _leave_folder(self) -> None:
        """Switches to a new folder beside the old one, which was removed."""
        parts, old = self.parts, self.folder
        path = first_free(old.path.parent, f"{old.path.name}-rescued")
        old.close()
        self.folder, self.checkpoint = RunFolder(path, parts.cfg, parts.collector.spec, requested=old.requested), None
        self.folder.write(Start(**parts.about(self.folder)))
        parts.best.rewrite(self.folder)

    def _failed(self, text: str) -> SaveFailed:
        self._failures += 1
        return SaveFailed(step=self.parts.counters.step, text=text, failures=self._failures)
