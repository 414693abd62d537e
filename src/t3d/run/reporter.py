"""Turns what acting, learning and evaluating produced into events, on the log schedule."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from t3d.actors.governor import passed
from t3d.actors.protocols import Collected
from t3d.config import Config
from t3d.config.metrics import RETURN
from t3d.events import ActingEvent, ActorEvent, BadValueFound, EpisodeEnd, Eval, Event, Note, TraceSummary, Update
from t3d.run.diagnostics import Diagnostics
from t3d.run.parts import Parts
from t3d.types import Evaluation, Fault, sample_std, values_of

FIRST_VALUES = 3
MOST_OUTSIDE = 0.05  # of the targets; chosen


class Reporter:
    """Reports what happens in a run; remembers its last report, for the speeds."""

    def __init__(self, parts: Parts) -> None:
        self.parts, self.diagnostics = parts, Diagnostics(parts)
        self._started = self._last = (parts.counters.step, parts.learner.updates, parts.collector.totals())
        self.last_at = time.monotonic()

    def learned(self, trace: Any) -> list[Event]:
        """Reports the newest update, whose trace this is, the members that it stops, and acting so far."""
        trace = type(trace)(*(None if value is None else value.cpu() for value in trace))  # one wait for each tensor
        parts, step, now = self.parts, self.parts.counters.step, time.monotonic()
        speed = (step - self._last[0]) / (now - self.last_at)
        events = parts.stop_diverged(trace)
        events += _update_events(trace, parts, step, speed)
        events += self._outside_support(trace.y[parts.living]) if parts.cfg.td3.critic_loss == "categorical" else []
        events += self.diagnostics.diagnose(trace) if parts.counters.diagnosis_due else []
        events += self.acting()
        self._last, self.last_at = (step, parts.learner.updates, parts.collector.totals()), now
        parts.counters.log_due = parts.counters.diagnosis_due = False
        return events

    def _outside_support(self, y: Tensor) -> list[Event]:
        """Says once that many targets lie beyond what a categorical critic can predict."""
        td3 = self.parts.cfg.td3
        share = float(((y < td3.value_low) | (y > td3.value_high)).float().mean()) if y.numel() else 0.0
        if share <= MOST_OUTSIDE or self.parts.counters.warned_out_of_support:
            return []
        self.parts.counters.warned_out_of_support = True
        support = f"from td3.value_low={td3.value_low:g} to td3.value_high={td3.value_high:g}"
        text = f"{share:.0%} of the targets are not {support} and are cut off there: widen it, or use --scale-rewards"
        return [self._note(text)]

    def collected(self, collected: Collected, before: int) -> list[Event]:
        """Reports episodes that ended, bad values and news of actors; before is the step until then."""
        step, events = self.parts.counters.step, list[Event]()
        for rollout in collected.rollouts:
            for result in rollout.episodes:
                fields = result._asdict()
                del fields["bad_values"], fields["unusable"]  # they are events of their own
                events.append(EpisodeEnd(**self._about(rollout.member), **fields))
                events += self._unusable(result.unusable)
            events += [self.bad_value(fault, rollout.member) for fault in rollout.faults]
        events += [ActorEvent(step=step, **news._asdict()) for news in collected.news]
        counters, log = self.parts.counters, self.parts.cfg.log
        counters.log_due = counters.log_due or passed(log.every_steps, before, step)
        counters.diagnosis_due = counters.diagnosis_due or passed(log.diagnose_every_steps, before, step)
        counters.keeping_due = counters.keeping_due or passed(self.parts.cfg.keep_policies, before, step)
        return events

    def evaluated(self, evaluations: Sequence[Evaluation]) -> list[Event]:
        """Says which metrics evaluations lack, and when they have reached the goal of the run."""
        cfg, events = self.parts.cfg, list[Event]()
        for evaluation in evaluations:
            metrics, missing = evaluation.metrics, dict[str, str]()
            for episode in evaluation.episodes:
                missing |= episode.unusable
            for criterion in (cfg.criterion, cfg.target.criterion if cfg.target else cfg.criterion):
                if criterion.metric not in (RETURN, *metrics):
                    missing.setdefault(criterion.metric, f"no evaluated episode says {criterion.metric} in its info")
            events += self._unusable(missing)
        return events + [self._note(text) for text in self.parts.goal.note_on(evaluations)]

    def _unusable(self, missing: Mapping[str, str]) -> list[Event]:
        """Says of each metric once that an episode lacks it."""
        reported = self.parts.counters.reported_metrics
        new = {name: why for name, why in missing.items() if name not in reported}
        reported.update(new)
        return [
            self._note(f"{why}; episodes without it do not count in the metric {name}") for name, why in new.items()
        ]

    def _note(self, text: str) -> Note:
        return Note(step=self.parts.counters.step, text=text)

    def bad_value(self, fault: Fault, member: int | None) -> BadValueFound:
        fields = fault._asdict()
        about = {**self._about(member), "handling": self.parts.cfg.env.bad_values, "count": fields.pop("number")}
        return BadValueFound(**about, **fields)

    def _about(self, member: int | None) -> dict[str, Any]:
        """Returns what an event says of a member, which has a step of its own, or of the whole run."""
        if member is None:
            return {"step": self.parts.counters.step}
        parts = self.parts
        return {"step": parts.steps[member], "member": member, "seed": parts.cfg.member_seeds[member]}

    def acting(self, *, summary: bool = False) -> list[Event]:
        """Reports acting since the last report, or the start; nothing if acting and learning take turns."""
        parts, totals = self.parts, self.parts.collector.totals()
        since, updates, before = self._started if summary else self._last
        if totals is None or before is None:
            return []
        step, new_updates = parts.counters.step, parts.learner.updates - updates
        ratio = new_updates / max(1, step - max(since, parts.cfg.steps_before_learning))
        return [ActingEvent(step=step, since=since, summary=summary, ratio=ratio, **totals.since(before))]


def _update_events(trace: Any, parts: Parts, step: int, steps_per_second: float) -> Iterator[Event]:
    """Yields the newest update by member: its losses (a resting actor has none), then what each step produced."""
    losses = {name: values.tolist() for name, values in trace.losses.items()}
    for member in parts.living:
        about: dict[str, Any] = {"step": step, "updates": parts.learner.updates}
        about |= {"member": member, "seed": parts.cfg.member_seeds[member]}
        yield Update(
            **about,
            critic_loss=losses["critic"][member],
            actor_loss=losses["actor"][member] if "actor" in losses else math.nan,  # it rests
            other_losses={name: values[member] for name, values in losses.items() if name not in ("critic", "actor")},
            q_mean=float(trace.q[member].mean()),
            y_mean=float(trace.y[member].mean()),
            td_abs_mean=float(trace.td[member].abs().mean()),
            steps_per_second=steps_per_second,
        )
        rows = {name: value[member] for name, value in trace._asdict().items() if value is not None}
        values = {
            name: {
                "shape": list(value.shape),
                "mean": float(value.mean()),
                "std": float(value.std(correction=0)),
                "first": value.flatten()[:FIRST_VALUES].tolist(),
            }
            for name, value in rows.items()
        }
        yield TraceSummary(**about, values=values)


def eval_event(evaluation: Evaluation, cfg: Config, best: bool) -> Eval:
    """Converts one member's evaluation to an event."""
    returns, lengths = evaluation.returns, [episode.length for episode in evaluation.episodes]
    metrics = evaluation.metrics
    return Eval(
        step=evaluation.step,
        member=evaluation.member,
        seed=cfg.members[evaluation.member].seed,
        updates=evaluation.snapshot.updates,
        mean_return=float(returns.mean()),
        std_return=float(sample_std(returns)),
        min_return=float(returns.min()),
        max_return=float(returns.max()),
        mean_length=float(np.mean(lengths)),
        returns=returns.tolist(),
        lengths=lengths,
        best=best,
        bad_values=sum(episode.bad_values for episode in evaluation.episodes),
        metrics=metrics,
        metric_counts={name: len(values_of(name, evaluation.episodes)) for name in metrics},
        set=evaluation.set,
        chooses=evaluation.chooses,
    )
