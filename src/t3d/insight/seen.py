"""What a policy has seen: the ranges of observations, actions and rewards in training, and in episodes played since."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from t3d.config import Member
from t3d.files import CORRUPT_ERRORS, to_count
from t3d.insight.statistics import Array
from t3d.policy.spec import Floats, Spec
from t3d.store.checkpoint import folders, open_checkpoint
from t3d.store.reader import Run
from t3d.types import Policy, row_sizes


class Range(NamedTuple):
    """The lowest and the highest values of some components."""

    low: Array  # (components,)
    high: Array

    def around(self, other: Range) -> Range:
        """Returns the range that covers both."""
        return Range(np.minimum(self.low, other.low), np.maximum(self.high, other.high))


class Seen(NamedTuple):
    """Ranges of what one member has seen."""

    transitions: int
    observations: Range  # without images
    actions: Range  # within the environment's bounds
    rewards: Range  # one component; none of what a policy sees itself

    def and_then(self, later: Seen) -> Seen:
        """Returns the ranges of both together."""
        pairs = zip(self[1:], later[1:], strict=True)
        return Seen(self.transitions + later.transitions, *(ours.around(theirs) for ours, theirs in pairs))


def seen_in_training(run: Run, member: Member, spec: Spec) -> Seen | None:
    """Reads the replay of the newest checkpoint that has it whole; None if there is none, as in a copy without them."""
    for path in folders(run.path / "checkpoints"):
        try:
            checkpoint = open_checkpoint(path)
            found: Seen | None = None
            for segment in checkpoint.segments:
                if segment.member == member.name:
                    found = _with(found, checkpoint.read_rows(segment), spec)
            if found is not None:
                return found
        except CORRUPT_ERRORS:
            continue
    return None


def _with(found: Seen | None, rows: Floats, spec: Spec) -> Seen:
    """Adds rows of the replay, [s, a, r, terminated, s2], which are without images."""
    columns = np.cumsum(row_sizes(spec._replace(images=(), stack=1)))
    s, a, r, _, s2 = np.split(rows.astype(np.float64), columns[:-1], axis=1)
    new = Seen(len(rows), _range(s).around(_range(s2)), _bounded(a, spec), _range(r))
    return new if found is None else found.and_then(new)


class Watched:
    """A policy that keeps the ranges of what it is shown and what it does."""

    def __init__(self, actor: Policy, spec: Spec) -> None:
        self.actor, self.spec = actor, spec
        self.seen: Seen | None = None

    def __call__(self, observations: NDArray[Any]) -> Floats:
        actions = self.actor(observations)
        now = Seen(
            len(actions),
            _range(self._vectors(observations)),
            _bounded(actions, self.spec),
            Range(np.empty(0), np.empty(0)),
        )
        self.seen = now if self.seen is None else self.seen.and_then(now)
        return actions

    def _vectors(self, observations: NDArray[Any]) -> Array:
        """Returns observations without their images, whose bytes follow those of the vector."""
        if self.spec.images:
            observations = observations[:, : 4 * self.spec.observation_size].copy().view(np.float32)
        return observations.astype(np.float64)


def seen_fields(seen: Seen) -> dict[str, Any]:
    """Returns what a policy saw as plain values."""
    edges = {name: [edge.tolist() for edge in getattr(seen, name)] for name in ("observations", "actions")}
    return {"transitions": seen.transitions, **edges}


def seen_from(fields: Any, spec: Spec) -> Seen | None:
    """Reverses seen_fields; None if these are not ranges in such an environment, because a file may say anything."""
    try:
        seen = np.array(fields["observations"], np.float64).reshape(2, spec.observation_size)
        done = np.array(fields["actions"], np.float64).reshape(2, spec.action_size)
        if not (np.isfinite(seen).all() and np.isfinite(done).all()):
            return None
        return Seen(to_count(fields["transitions"]), Range(*seen), Range(*done), Range(np.empty(0), np.empty(0)))
    except (TypeError, *CORRUPT_ERRORS):
        return None


def _range(values: Array) -> Range:
    return Range(values.min(axis=0), values.max(axis=0))


def _bounded(actions: NDArray[Any], spec: Spec) -> Range:
    """Returns the range of actions, scaled from [-1, 1] to the environment's own bounds."""
    half = (spec.action_high - spec.action_low) / 2
    return Range(*(spec.action_low + (edge + 1) * half for edge in _range(actions.astype(np.float64))))
