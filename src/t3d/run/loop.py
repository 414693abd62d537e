"""The only training loop in the project: collect, learn, evaluate, save, report, and do what control.json asks.

`run` yields events. `stages` yields what each stage of the loop has reported, perhaps nothing: whoever advances it may
leave it wherever it stands, and continue later.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator

from t3d.actors.governor import passed
from t3d.alarms.watch import watch_over
from t3d.errors import as_sentence
from t3d.events import Continued, End, Event, Note, Paused, Session, SettingsChanged
from t3d.files import Refused
from t3d.run.build import Training
from t3d.run.reporter import eval_event
from t3d.store.control import CONTROL, ControlRequest, read_request
from t3d.types import Requests
from t3d.world.guard import BadValue

UPDATES_AT_ONCE = {"cpu": 8, "cuda": 32}  # between two policies for the actors, and two checks of `stop`; chosen
CHECK_SECONDS = 1.0  # between two looks at control.json: log steps may be far apart, or not reported yet; chosen
PAUSE_SECONDS = 0.1  # the same while the run is paused


class Trainer:
    """Drives a training and writes its events. At each yield the run can be saved and resumed."""

    def __init__(self, training: Training, start: list[Event], requests: Requests) -> None:
        self.parts, self.cfg, self.counters = training.parts, training.parts.cfg, training.parts.counters
        self.publisher, self.reporter, self.saver = training.publisher, training.reporter, training.saver
        self.jobs, self.surroundings, self.requests = training.jobs, training.surroundings, requests
        self.start, self.pace = start, self.parts.pace
        self._session = next((vars(event) for event in reversed(start) if isinstance(event, Session)), {})
        self._request, self._refused, self._checked_at = ControlRequest(), "", time.monotonic()

    def run(self) -> Iterator[Event]:
        """Trains, and yields each event, and after those of a stage what the caller has told the run meanwhile."""
        stages = self.stages()
        for reported in stages:
            events = reported
            while events:
                for event in events:
                    try:
                        yield event
                    except BaseException as error:  # which the caller has thrown: it ends the run
                        stages.throw(error)
                events = self._take_told()

    def stages(self) -> Generator[list[Event], None, None]:
        """Trains, and yields the events of each stage; however that ends, an end event is written."""
        parts, saver, reason, text = self.parts, self.saver, "stopped", ""
        try:
            self.watch = watch_over(self.cfg, saver.folder.path)
            yield self._record(self.start)
            yield from self._train()
            if self._is_over():
                reason = "finished"
            yield saver.save_at_the_end()
        except BaseException as error:
            if not isinstance(error, GeneratorExit | KeyboardInterrupt):  # the caller has stopped iterating
                reason, text = "failed", as_sentence(error)
            self._take_told()  # which the caller may have said last
            if isinstance(error, BadValue):
                fault = error.fault._replace(text=str(error), number=1)
                saver.folder.write(self.reporter.bad_value(fault, error.member))
            error.add_note(saver.save_after_error())
            if isinstance(error, BadValue):
                error.add_note("Resumed with --bad-values skip, or clip, it continues in spite of such values")
            raise
        finally:
            problems = [saver.problem, *saver.save_last_policies(), *saver.folder.take_failures()]
            end = End(
                step=self.counters.step,
                reason=reason,
                text=text or "; ".join(filter(None, problems)),
                saved=not saver.unsaved,
                diverged=[self.cfg.members[member].name for member in parts.stopped],
                updates=parts.learner.updates,
                seconds=self.counters.seconds,
            )
            saver.folder.write(end)
            saver.folder.close()
        yield [end]

    def _train(self) -> Iterator[list[Event]]:
        """Learns, evaluates, saves and collects until the run is over, or was asked to stop.

        Learning comes first: a run that was stopped with updates still due makes them before it acts again.
        """
        parts, saver, record = self.parts, self.saver, self._record
        self.publisher.publish()
        while True:
            for events in self._follow_requests():
                yield record(events)
            saver.unsaved = True  # now, because a paused run may have been saved just before

            yield record(self._learn())
            if self._evaluation_is_due() or self._save_is_due():
                yield record(parts.stop_diverged())
            parts.raise_if_all_diverged()

            if self._evaluation_is_due() and not self.requests.stop.is_set() and parts.evaluator.has_room():
                self._submit_evaluation()
            yield record(saver.unwritten())
            yield record(self._take_evaluations())
            parts.raise_if_all_diverged()
            saver.keep_policies()

            if self._save_is_due():
                reason = "asked" if self.requests.save.is_set() else "schedule"
                self.requests.save.clear()
                yield record([saver.save(reason)])
            if self.requests.stop.is_set() or self._is_over():
                break
            if self._evaluation_is_due():  # interrupted by a request to save, or too many are in progress
                parts.collector.supervise()
                continue

            yield record(self._collect())
            parts.raise_if_all_diverged()
        yield record(self.reporter.acting(summary=True))

    def _take_told(self) -> list[Event]:
        """Does what the caller has told the run between two events, and returns the events that say so."""
        events: list[Event] = []
        while self.requests.told:
            kind, about = self.requests.told.popleft()
            events.append(kind(step=self.counters.step, **about))
            if kind is SettingsChanged:
                with self.surroundings.for_updates(self.cfg.threads, builds=True):
                    self.parts.change(about["values"])
        return self._record(events)

    def _record(self, events: list[Event]) -> list[Event]:
        """Writes events to the run folder with the alarms that they set off, and returns all of them."""
        if not events:
            return events
        notes = [Note(step=self.counters.step, text=text) for text in self.surroundings.restore()]
        events = self.watch.with_alarms([*events, *notes])
        for event in events:
            self.saver.folder.write(event)
        return events

    def _follow_requests(self) -> Iterator[list[Event]]:
        """Does what control.json requests, read once a second, and yields the events of that."""
        step = self.counters.step
        yield self._job_notes()
        if time.monotonic() - self._checked_at < CHECK_SECONDS:
            return
        yield self._read_requests()
        if not self._request.pause or self.requests.stop.is_set():
            return
        paused_at = time.monotonic()
        yield [Paused(step=step)]
        while self._request.pause and not self.requests.stop.wait(PAUSE_SECONDS):
            self.parts.collector.supervise()
            yield [*self._job_notes(), *self.saver.unwritten()]
            yield self._read_requests()
            if self.requests.save.is_set():
                self.requests.save.clear()
                yield [self.saver.save("asked")]
        seconds = time.monotonic() - paused_at
        self.counters.started += seconds
        self.reporter.last_at += seconds
        self.reporter.diagnostics.last_at += seconds
        yield [Continued(step=step, paused_seconds=seconds)]

    def _job_notes(self) -> list[Event]:
        return [Note(step=self.counters.step, text=text) for text in self.jobs.news()]

    def _read_requests(self) -> list[Event]:
        """Reads the requests to this process; while the file cannot be read the last ones hold, which is noted once."""
        self._checked_at, before = time.monotonic(), self._request
        try:
            self._request = read_request(self.saver.folder.path, self._session)
        except (OSError, Refused) as error:
            previous, self._refused = self._refused, str(error)
            is_new = previous != self._refused
            return [Note(step=self.counters.step, text=f"{CONTROL} is not obeyed: {error}")] if is_new else []
        if self._request.save > before.save:
            self.requests.save.set()
        if self._request.stop:
            self.requests.stop.set()
        return []

    def _learn(self) -> list[Event]:
        """Makes the updates that are due, and publishes what they changed."""
        learner, events = self.parts.learner, list[Event]()
        before, due = learner.updates, self.pace.due()
        while due and not self.requests.stop.is_set():
            reports = self.counters.log_due and due >= learner.updates_to_full_trace
            count = learner.updates_to_full_trace if reports else min(due, UPDATES_AT_ONCE[self.cfg.device])
            with self.surroundings.for_updates(self.cfg.threads, builds=reports):
                with self.saver:
                    trace = self.pace.run(count)
                if reports:
                    events += self.reporter.learned(trace)
            due -= count
            if self.pace.lets_act:
                self.publisher.publish()
        if learner.updates == before:
            self.publisher.finish()
            if self.cfg.normalise_observations:  # actors use the newest scaling, so it is no state of its own to save
                self.publisher.publish()
        return events

    def _evaluation_is_due(self) -> bool:
        """Whether an evaluation is due; one that was interrupted still is."""
        step, submitted = self.counters.step, self.counters.submitted
        at_the_end = step == self.cfg.total_steps and submitted < step
        return at_the_end or passed(self.cfg.eval.every_steps, submitted, step)

    def _submit_evaluation(self) -> None:
        snapshot, step = self.parts.snapshot(), self.counters.step
        self.saver.folder.save_policies(snapshot, step)
        if self.parts.evaluator.submit(snapshot, step):
            self.counters.submitted = step
            self.jobs.recorder.begin(step)

    def _take_evaluations(self) -> list[Event]:
        """Reports evaluations that are ready; a member's best policy is written as soon as it is known."""
        parts, events = self.parts, list[Event]()
        evaluations, notes, diverged = parts.evaluator.poll(wait=self._evaluation_is_due())
        if not (evaluations or notes or diverged):  # as in most steps
            return events
        for evaluation in evaluations:
            is_best = parts.best.offer(evaluation)
            if is_best:
                parts.best.write(evaluation.member, self.saver.folder)
            self.counters.evaluated = evaluation.step
            events.append(eval_event(evaluation, self.cfg, is_best))
        events += self.reporter.evaluated(evaluations)
        events += [Note(step=self.counters.step, text=text) for text in notes]
        return events + [parts.stop(member, why) for member, why in diverged]

    def _save_is_due(self) -> bool:
        return self.saver.is_due or self.requests.save.is_set()

    def _is_over(self) -> bool:
        at_the_end = self.counters.step == self.counters.evaluated == self.cfg.total_steps
        return at_the_end or self.parts.goal.is_reached

    def _collect(self) -> list[Event]:
        parts, before = self.parts, self.counters.step
        with self.saver:
            started = time.monotonic()
            collected = parts.collector.poll()
            self.reporter.diagnostics.acted_seconds += time.monotonic() - started
            parts.take(collected)
            stopped: list[Event] = [
                parts.stop(member, why) for member, why in collected.diverged if member in parts.living
            ]
        return self.reporter.collected(collected, before) + stopped
