"""Does what is asked of a run through control.json in its folder: to pause, to save, to stop."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

from t3d.events import Continued, Event, Note, Paused, Session
from t3d.files import Refused
from t3d.run.build import Training
from t3d.store.control import FILE, ControlRequest, read_request
from t3d.types import Requests

CHECK_SECONDS = 1.0  # between two looks at the file: log steps may be far apart, or not reported yet; chosen
PAUSE_SECONDS = 0.1  # the same while the run is paused


class Control:
    """Reads what this process is asked; a file that was meant for an earlier process asks nothing."""

    def __init__(self, training: Training, started: Iterable[Event], requests: Requests) -> None:
        self.training, self.requests = training, requests
        self._session: dict[str, Any] = {}
        for event in started:
            self._session = vars(event) if isinstance(event, Session) else self._session
        self._request, self._refused, self._checked_at = ControlRequest(), "", time.monotonic()

    def apply(self) -> Iterator[list[Event]]:
        """Does what is asked, once a second, and yields what is to say; at each yield the run can be saved."""
        yield self._news()
        if time.monotonic() - self._checked_at < CHECK_SECONDS:
            return
        yield self._read()
        if not self._request.pause or self.requests.stop.is_set():
            return
        parts, paused_at = self.training.parts, time.monotonic()
        yield [Paused(step=parts.counters.step)]
        while self._request.pause and not self.requests.stop.wait(PAUSE_SECONDS):
            parts.collector.supervise()
            yield [*self._news(), *self.training.saver.unwritten()]
            yield self._read()
            if self.requests.save.is_set():
                self.requests.save.clear()
                yield [self.training.saver.save("asked")]
        seconds = time.monotonic() - paused_at
        parts.counters.started += seconds
        self.training.reporter.stood_still(seconds)
        yield [Continued(step=parts.counters.step, paused_seconds=seconds)]

    def _news(self) -> list[Event]:
        step = self.training.parts.counters.step
        return [Note(step=step, text=text) for text in self.training.jobs.news()]

    def _read(self) -> list[Event]:
        """Reads the file and passes on requests to stop and to save; says once why it cannot.

        What was asked last holds for as long as the file cannot be read.
        """
        self._checked_at = time.monotonic()
        before = self._request
        try:
            self._request = read_request(self.training.saver.folder.path, self._session)
        except (OSError, Refused) as error:
            previous, self._refused = self._refused, str(error)
            note = Note(step=self.training.parts.counters.step, text=f"{FILE} is not obeyed: {error}")
            return [note] if previous != self._refused else []
        if self._request.save > before.save:
            self.requests.save.set()
        if self._request.stop:
            self.requests.stop.set()
        return []
