"""Obeys what is asked of a run through control.json in its folder: to pause, to save, to stop."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

from t3d.events import Continued, Event, Note, Paused, Resumed, Start
from t3d.files import Refused
from t3d.run.build import Training
from t3d.store.control import FILE, Asked, read_asked
from t3d.types import Requests

CHECK_SECONDS = 1.0  # between two looks at the file: log steps may be far apart, or not reported yet; chosen
PAUSE_SECONDS = 0.1  # the same while the run is paused


class Control:
    """Reads what this process is asked; a file that an earlier process was meant to obey asks nothing."""

    def __init__(self, training: Training, started: Iterable[Event], requests: Requests) -> None:
        self.training, self.requests = training, requests
        self._session: dict[str, Any] = {}
        for event in started:
            self._session = vars(event) if isinstance(event, Start | Resumed) else self._session
        self._asked, self._refused, self._looked_at = Asked(), "", time.monotonic()

    def follow(self, happenings: Iterable[list[Event]]) -> Iterator[list[Event]]:
        """Yields what happens and, in between, what was asked and is done now; at each the run can be saved."""
        for happened in happenings:
            yield happened
            if time.monotonic() - self._looked_at >= CHECK_SECONDS:
                yield from self._obey()

    def _obey(self) -> Iterator[list[Event]]:
        asked, notes = self._look()
        yield notes
        if asked.pause and not self.requests.stop.is_set():
            yield from self._pause()

    def _pause(self) -> Iterator[list[Event]]:
        """Waits until asked to continue or to stop; saves if asked to."""
        parts, paused_at = self.training.parts, time.monotonic()
        yield [Paused(step=parts.counters.step)]
        asked = Asked(pause=True)
        while asked.pause and not self.requests.stop.wait(PAUSE_SECONDS):
            parts.collector.supervise()
            yield self.training.saver.unwritten()
            asked, notes = self._look()
            yield notes
            if self.requests.save.is_set():
                self.requests.save.clear()
                yield [self.training.saver.save("asked")]
        seconds = time.monotonic() - paused_at
        parts.counters.started += seconds
        self.training.reporter.stood_still(seconds)
        yield [Continued(step=parts.counters.step, paused_seconds=seconds)]

    def _look(self) -> tuple[Asked, list[Event]]:
        """Reads the file, passes on requests to stop and to save, and returns what is asked and what is wrong.

        What was asked last holds for as long as the file cannot be read.
        """
        self._looked_at = time.monotonic()
        try:
            asked = read_asked(self.training.saver.folder.path, self._session)
        except (OSError, Refused) as error:
            told, self._refused = self._refused, str(error)
            note = Note(step=self.training.parts.counters.step, text=f"{FILE} is not obeyed: {error}")
            return self._asked, [note] if told != self._refused else []
        if asked.save > self._asked.save:
            self.requests.save.set()
        if asked.stop:
            self.requests.stop.set()
        self._asked = asked
        return asked, []
