"""The ranges of what a policy observed and did: in training, and in episodes played since."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from t3d.config import Member
from t3d.files import CORRUPT_ERRORS, to_count
from t3d.insight.statistics import Array
from t3d.insight.wording import number_text
from t3d.policy.spec import Floats, Spec
from t3d.store.checkpoint import folders, open_checkpoint
from t3d.store.reader import Run
from t3d.types import Policy, row_sizes


class Range(NamedTuple):
    """The lowest and the highest values of some components."""

    low: Array  # (components,)
    high: Array

    def union(self, other: Range) -> Range:
        """Returns the range that covers both."""
        return Range(np.minimum(self.low, other.low), np.maximum(self.high, other.high))

    def exceeded_by(self, other: Range) -> list[int]:
        """Returns the components in which another range goes beyond this one."""
        return [int(place) for place in np.flatnonzero((other.low < self.low) | (other.high > self.high))]


NO_RANGE = Range(np.empty(0), np.empty(0))


class InputRanges(NamedTuple):
    """Ranges over transitions of one member."""

    transitions: int
    observations: Range  # without images
    actions: Range  # within the environment's bounds
    rewards: Range = NO_RANGE  # one component; a policy itself sees none

    def union(self, other: InputRanges) -> InputRanges:
        """Returns the ranges of both together."""
        pairs = zip(self[1:], other[1:], strict=True)
        return InputRanges(self.transitions + other.transitions, *(ours.union(theirs) for ours, theirs in pairs))

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, without rewards."""
        edges = {name: [edge.tolist() for edge in getattr(self, name)] for name in ("observations", "actions")}
        return {"transitions": self.transitions, **edges}

    @staticmethod
    def from_dict(fields: Any, spec: Spec) -> InputRanges | None:
        """Reverses to_dict; None if these are not ranges in such an environment, because a file may say anything."""
        try:
            observations = np.array(fields["observations"], np.float64).reshape(2, spec.observation_size)
            actions = np.array(fields["actions"], np.float64).reshape(2, spec.action_size)
            if not (np.isfinite(observations).all() and np.isfinite(actions).all()):
                return None
            return InputRanges(to_count(fields["transitions"]), Range(*observations), Range(*actions))
        except (TypeError, *CORRUPT_ERRORS):
            return None


class RangeRow(NamedTuple):
    """The range of one component: in training from, to, in fresh episodes from, to."""

    name: str
    cells: list[str]
    is_beyond: bool  # fresh episodes went beyond training


class RangeRecorder:
    """A policy that keeps the ranges of what it is shown and what it does."""

    def __init__(self, actor: Policy, spec: Spec) -> None:
        self.actor, self.spec = actor, spec
        self.ranges: InputRanges | None = None

    def __call__(self, observations: NDArray[Any]) -> Floats:
        actions = self.actor(observations)
        new = InputRanges(len(actions), _range(self._vectors(observations)), _action_range(actions, self.spec))
        self.ranges = new if self.ranges is None else self.ranges.union(new)
        return actions

    def _vectors(self, observations: NDArray[Any]) -> Array:
        """Returns observations without their images, whose bytes follow those of the vector."""
        if self.spec.images:
            observations = observations[:, : 4 * self.spec.observation_size].copy().view(np.float32)
        return observations.astype(np.float64)


def ranges_in_training(run: Run, member: Member, spec: Spec) -> InputRanges | None:
    """Reads the replay of the newest checkpoint that has it whole; None if there is none, as in a copy without them."""
    for path in folders(run.path / "checkpoints"):
        try:
            checkpoint = open_checkpoint(path)
            ranges: InputRanges | None = None
            for segment in checkpoint.segments:
                if segment.member == member.name:
                    new = _ranges_of_rows(checkpoint.read_rows(segment), spec)
                    ranges = new if ranges is None else ranges.union(new)
            if ranges is not None:
                return ranges
        except CORRUPT_ERRORS:
            continue
    return None


def range_rows(training: InputRanges | None, fresh: InputRanges | None, spec: Spec) -> list[RangeRow]:
    """Returns the range of each component of observations, of actions, and of rewards."""
    actions = [f"action {place}" for place in range(spec.action_size)]
    rows = _rows(_component_names(spec), training and training.observations, fresh and fresh.observations)
    rows += _rows(actions, training and training.actions, fresh and fresh.actions)
    return rows + _rows(["reward"], training and training.rewards, None)


def _component_names(spec: Spec) -> list[str]:
    """Names the components of an observation vector."""
    names: list[str] = []
    for part in spec.observation:
        label = part.name.removeprefix("observation") or "observation"
        count = part.stop - part.start
        names += [label if count == 1 and part.path else f"{label} {place}" for place in range(count)]
    return names + [f"previous action {place}" for place in range(spec.observation_size - spec.own_size)]


def _rows(names: Sequence[str], training: Range | None, fresh: Range | None) -> list[RangeRow]:
    beyond = training.exceeded_by(fresh) if training and fresh else []
    known = training or fresh
    return [
        RangeRow(name, [*_edges(training, place), *_edges(fresh, place)], place in beyond)
        for place, name in enumerate(names if known and len(known.low) else ())
    ]


def _edges(edges: Range | None, place: int) -> list[str]:
    return ["", ""] if edges is None else [number_text(float(edge[place])) for edge in edges]


def _ranges_of_rows(rows: Floats, spec: Spec) -> InputRanges:
    """Takes rows of the replay, [s, a, r, terminated, s2], which are without images."""
    columns = np.cumsum(row_sizes(spec._replace(images=(), stack=1)))
    s, a, r, _, s2 = np.split(rows.astype(np.float64), columns[:-1], axis=1)
    return InputRanges(len(rows), _range(s).union(_range(s2)), _action_range(a, spec), _range(r))


def _range(values: Array) -> Range:
    return Range(values.min(axis=0), values.max(axis=0))


def _action_range(actions: NDArray[Any], spec: Spec) -> Range:
    """Returns the range of actions, scaled from [-1, 1] to the environment's own bounds."""
    half = (spec.action_high - spec.action_low) / 2
    return Range(*(spec.action_low + (edge + 1) * half for edge in _range(actions.astype(np.float64))))
