"""Turns what learning and evaluating produced into events."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from t3d.algo.learner import Learner
from t3d.config import Config
from t3d.errors import Diverged
from t3d.events import ActingEvent, Eval, Event, StepsTaken, Update
from t3d.types import Acting, Evaluation, UpdateTrace

FIRST_VALUES = 3


def update_events(steps: UpdateTrace, cfg: Config, step: int, updates: int, steps_per_second: float) -> Iterator[Event]:
    """The newest update, which moved the actor, member by member: its losses, then what each step produced."""
    steps = UpdateTrace._make(
        None if value is None else value.cpu() for value in steps
    )  # one wait for each, not hundreds
    assert steps.actor_loss is not None  # noqa: S101 (the loop waits for such an update)
    critic_loss, actor_loss = steps.critic_loss.tolist(), steps.actor_loss.tolist()
    for member, seed in enumerate(cfg.seeds):
        update = Update(
            step=step,
            member=member,
            seed=seed,
            updates=updates,
            critic_loss=critic_loss[member],
            actor_loss=actor_loss[member],
            q_mean=float(steps.q[member].mean()),
            y_mean=float(steps.y[member].mean()),
            td_abs_mean=float(steps.td[member].abs().mean()),
            steps_per_second=steps_per_second,
        )
        _refuse_infinite_loss(update)
        yield update
        values = {name: _summary(value[member]) for name, value in steps._asdict().items()}
        yield StepsTaken(step=step, member=member, seed=seed, updates=updates, values=values)


def eval_event(evaluation: Evaluation, cfg: Config, best: bool) -> Eval:
    """One member's evaluation as an event."""
    returns, lengths = evaluation.returns, evaluation.lengths
    return Eval(
        step=evaluation.step,
        member=evaluation.member,
        seed=cfg.seeds[evaluation.member],
        updates=evaluation.snapshot.updates,
        mean_return=float(returns.mean()),
        std_return=float(returns.std()),
        min_return=float(returns.min()),
        max_return=float(returns.max()),
        mean_length=float(lengths.mean()),
        returns=returns.tolist(),
        lengths=lengths.tolist(),
        best=best,
        bad_values=evaluation.bad_values,
    )


def acting_events(
    figures: Acting | None, cfg: Config, step: int, since: int, updates: int, *, summary: bool = False
) -> list[Event]:
    """How acting and learning got along since some step, in which so many updates were made; nothing if inline."""
    if figures is None:
        return []
    ratio = updates / max(1, step - max(since, cfg.td3.random_steps))
    return [ActingEvent(step=step, since=since, summary=summary, ratio=ratio, **figures._asdict())]


def _summary(value: Tensor) -> dict[str, Any]:
    return {
        "shape": list(value.shape),
        "mean": float(value.mean()),
        "std": float(value.std(correction=0)),
        "first": value.flatten()[:FIRST_VALUES].tolist(),
    }


def refuse_divergence(learner: Learner, cfg: Config, step: int) -> None:
    """Ends a run whose networks or moments hold a number that is not finite."""
    for name, member in learner.unsound():
        raise Diverged(f"the {name.replace('_', ' ')} of seed {cfg.seeds[member]} is not finite at step {step}")


def _refuse_infinite_loss(update: Update) -> None:
    figures = {"critic loss": update.critic_loss, "actor loss": update.actor_loss}
    for name, value in figures.items():
        if not math.isfinite(value):
            raise Diverged(f"the {name} of seed {update.seed} is {value} at step {update.step}")
