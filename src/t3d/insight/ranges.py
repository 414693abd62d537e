"""The ranges of what a policy observed and did: in training, and in episodes played since."""

from __future__ import annotations

from contextlib import suppress
from functools import reduce
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
        return Range(np.minimum(self.low, other.low), np.maximum(self.high, other.high))

    def exceeded_by(self, other: Range) -> list[int]:
        """Returns the components in which another range goes beyond this one."""
        return np.flatnonzero((other.low < self.low) | (other.high > self.high)).tolist()


NO_RANGE = Range(np.empty(0), np.empty(0))


class InputRanges(NamedTuple):
    """Ranges over transitions of one member."""

    transitions: int
    observations: Range  # without images
    actions: Range  # within the environment's bounds
    rewards: Range = NO_RANGE  # one component; a policy itself sees none

    def union(self, other: InputRanges) -> InputRanges:
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


class RangeRecorder:
    """A policy that keeps the ranges of what it is shown and what it does."""

    def __init__(self, actor: Policy, spec: Spec) -> None:
        self.actor, self.spec = actor, spec
        self.ranges: InputRanges | None = None

    def __call__(self, observations: NDArray[Any]) -> Floats:
        actions, vectors = self.actor(observations), observations
        if self.spec.images:  # their bytes follow those of the vector
            vectors = observations[:, : 4 * self.spec.observation_size].copy().view(np.float32)
        new = InputRanges(len(actions), _range(vectors.astype(np.float64)), _action_range(actions, self.spec))
        self.ranges = new if self.ranges is None else self.ranges.union(new)
        return actions


def ranges_in_training(run: Run, member: Member, spec: Spec) -> InputRanges | None:
    """Reads the replay of the newest checkpoint that has it whole; None if there is none, as in a copy without them."""
    for path in folders(run.path / "checkpoints"):
        with suppress(*CORRUPT_ERRORS):
            checkpoint = open_checkpoint(path)
            segments = [segment for segment in checkpoint.segments if segment.member == member.name]
            if segments:
                ranges = (_ranges_of_rows(checkpoint.read_rows(segment), spec) for segment in segments)
                return reduce(InputRanges.union, ranges)
    return None


def range_rows(
    training: InputRanges | None, fresh: InputRanges | None, spec: Spec
) -> list[tuple[str, list[str], bool]]:
    """Returns the range of each component of observations, of actions, and of rewards.

    It has a name, from, to in training and from, to in fresh episodes, and says whether these went beyond training.
    """
    components = {
        "observations": _component_names(spec),
        "actions": [f"action {number}" for number in range(spec.action_size)],
        "rewards": ["reward"],
    }
    rows = []
    for kind, names in components.items():
        before, after = (known and getattr(known, kind) for known in (training, fresh))
        before, after = (known if known and len(known.low) else None for known in (before, after))
        beyond = before.exceeded_by(after) if before and after else []
        for index, name in enumerate(names if before or after else ()):
            edges = [*(before or ("", "")), *(after or ("", ""))]
            cells = [number_text(float(edge[index])) if len(edge) else "" for edge in edges]
            rows.append((name, cells, index in beyond))
    return rows


def _component_names(spec: Spec) -> list[str]:
    names: list[str] = []
    for part in spec.observation:
        label = part.name.removeprefix("observation") or "observation"
        count = part.stop - part.start
        names += [label if count == 1 and part.path else f"{label} {index}" for index in range(count)]
    return names + [f"previous action {index}" for index in range(spec.observation_size - spec.own_size)]


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
