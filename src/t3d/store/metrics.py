"""Metrics, the numbers that a run reports: fields of its events, or entries of those that have several; and of whom."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import groupby
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from t3d.config import Member
from t3d.config.metrics import RETURN, SUCCESS
from t3d.config.sweeps import Values, by_values
from t3d.events import ActingEvent, Diagnosed, EpisodeEnd, Eval, Event, Logged, Update

Array = NDArray[np.float64]
KINDS: tuple[type[Event], ...] = (Eval, Update, Diagnosed, EpisodeEnd, ActingEvent, Logged)
OF_EPISODES = "metrics"  # the field of events that has the numbers of info
NOT_METRICS = {
    "step",
    "member",
    "seed",
    "time",
    "env",
    "episode",
    "since",
    "summary",
    "set",
    "chooses",
    "metric_counts",
}
LISTED = {  # what the entries of lists are called; those of others are numbered
    "td_quantiles": ("p5", "p25", "p50", "p75", "p95"),
    "sampled_age": ("p5", "p50", "p95"),
    "reward_range": ("low", "high"),
}


class Metric(NamedTuple):
    """A field of an event, and the name of an entry if it is a list or has names.

    Of an evaluation that chooses nothing, the entry is, or ends in, the name of its set: return.windy.
    """

    kind: type[Event]
    field: str
    entry: str = ""

    @property
    def name(self) -> str:
        """As --metric takes it: q_mean, gradient_norms.actor, or success; with the event if another one has it too."""
        is_short = self.field == OF_EPISODES and self.entry and not _has(*KINDS, field=self.entry)
        return self.full_name.replace(f"{OF_EPISODES}.", "", 1) if is_short else self.full_name

    @property
    def full_name(self) -> str:
        """With the field: metrics.success."""
        field = RETURN if self[:2] == MEAN_RETURN[:2] else self.field
        name = f"{field}.{self.entry}" if self.entry else field
        if field == RETURN:
            return name
        return name if _owner(self.field) is self.kind else f"{self.kind.event}.{name}"

    def in_set(self, name: str) -> Metric:
        """Returns the same metric of the evaluations of a set; without a name, of those that choose the best."""
        return self._replace(entry=".".join(filter(None, [self.entry, name])))

    def is_named(self, name: str) -> bool:
        """Whether a name means this metric, in this or any evaluation set, or all entries of its field."""
        named = parse_metric(name)
        in_a_set = bool(named.entry) and self == named.in_set(self.entry.removeprefix(f"{named.entry}."))
        return in_a_set or named in (self, self._replace(entry=""))

    @property
    def is_share(self) -> bool:
        """Whether each episode is either 0 or 1, so that a mean is a rate."""
        return self.field == "terminated" or (self.field == OF_EPISODES and self.entry.partition(".")[0] == SUCCESS)


MEAN_RETURN, STD_RETURN = Metric(Eval, "mean_return"), Metric(Eval, "std_return")


class Series(NamedTuple):
    """What one member, or the whole run, reported of a metric."""

    steps: Array  # (T,), increasing
    values: Array  # (T,)
    times: Array  # (T,), seconds, without those between a stop and a resume
    spread: Array | None = None  # (T,): of an evaluation's return, its standard deviation over episodes


def parse_metric(name: str) -> Metric:
    """Returns the metric that a name means, whether or not a run has it."""
    kind_name, _, rest = name.partition(".")
    kinds = [kind for kind in KINDS if kind.event == kind_name and rest]
    field, _, entry = (rest if kinds else name).partition(".")
    field = "mean_return" if field == RETURN else field
    if not _has(*KINDS, field=field):  # then it is a number of info
        field, entry = OF_EPISODES, rest if kinds else name
    return Metric(kinds[0] if kinds else _owner(field), field, entry)


def listing(metrics: Iterable[Metric]) -> str:
    """Lists metrics, the ones of each event in a line; of numbered entries only the first and the last."""
    names: dict[str, list[str]] = {}
    for (kind, _), group in groupby(metrics, lambda metric: (metric.kind, metric.field)):
        of_field = [*group]
        numbered = len(of_field) > 1 and all(metric.entry.isdecimal() for metric in of_field)
        short = [f"{of_field[0].name} to {of_field[-1].entry}"] if numbered else [metric.name for metric in of_field]
        names.setdefault(kind.event, []).extend(short)
    return "\n".join(f"  {kind}: {', '.join(of_kind)}" for kind, of_kind in names.items()) or "  it has none yet"


def entries(value: object, field: str) -> dict[str, Any]:
    """Returns the values of a field by the names of its entries; a plain one has no name."""
    if isinstance(value, Mapping):
        return {str(key): item for key, item in value.items()}
    if isinstance(value, list):
        names = LISTED.get(field, ())
        return dict(zip(names if len(names) == len(value) else map(str, range(len(value))), value, strict=True))
    return {"": value}


def series_of(steps: Array, values: Array, times: Array, spreads: Array) -> Series:
    """Returns a series of reports in their order; those of one step are averaged."""
    if (np.diff(steps) <= 0).any():  # several environments of a member ended an episode in one step
        steps, where = np.unique(steps, return_inverse=True)
        values, times, spreads = (
            np.bincount(where, column) / np.bincount(where) for column in (values, times, spreads)
        )
    return Series(steps, values, times, None if np.isnan(spreads).any() else spreads)


def without_pauses(times: Array, pauses: Sequence[tuple[float, float]]) -> Array:
    """Leaves out the time between a stop and a resume."""
    return times - sum((seconds * (times >= resumed) for resumed, seconds in pauses), np.zeros_like(times))


class StoredEvaluation(NamedTuple):
    """An evaluation of one member, as it was stored."""

    step: int
    time: float  # seconds since 1970
    updates: int
    mean_return: float
    std_return: float
    best: bool
    metrics: Mapping[str, float] = {}  # what info said


Evals = Mapping[Member, Sequence[StoredEvaluation]]  # in order


def member_of(event: Event, members: Sequence[Member]) -> Member | None:
    """Returns whom an event is about; nobody if it contradicts itself, because a file may say anything."""
    number = event.member
    if type(number) is not int or not 0 <= number < len(members) or members[number].seed != event.seed:
        return None
    return members[number]


def last_means(
    members: Sequence[Member],
    evals: Evals,
    diverged: Collection[Member],
    value: Callable[[StoredEvaluation], float] = lambda evaluation: evaluation.mean_return,
) -> dict[Values, float]:
    """Returns the mean over seeds of the last evaluations, by which the combinations of a sweep are compared.

    A combination is left out if one of its seeds has diverged or was not evaluated since training began.
    """
    compared = {member for member in members if member not in diverged and trained(evals.get(member, []))}
    return {
        values: fmean(value(evals[member][-1]) for member in group)
        for values, group in by_values(members).items()
        if compared.issuperset(group)
    }


def highest(means: Mapping[Values, float]) -> Values | None:
    """Returns the combination with the highest mean; none if two are equal."""
    ranked = sorted(means, key=means.__getitem__, reverse=True)
    tied = len(ranked) > 1 and means[ranked[0]] == means[ranked[1]]
    return ranked[0] if ranked and not tied else None


def best_of(evals: Sequence[StoredEvaluation]) -> StoredEvaluation:
    """Returns the evaluation of the best policy: the highest mean return since the task last changed."""
    marked = [evaluation for evaluation in evals if evaluation.best]
    return marked[-1] if marked else max(evals, key=lambda evaluation: evaluation.mean_return)


def trained(evals: Iterable[StoredEvaluation]) -> list[StoredEvaluation]:
    """Returns the evaluations of policies that have been updated."""
    return [evaluation for evaluation in evals if evaluation.updates > 0]


def stored_name(member: object) -> str:
    """Returns the name of a member in a file: early files of format 2 hold only its seed."""
    return f"seed-{member}" if str(member).isdecimal() else str(member)


def _owner(field: str) -> type[Event]:
    return next((kind for kind in KINDS if _has(kind, field=field)), Eval)


def _has(*kinds: type[Event], field: str) -> bool:
    return any(field in kind.__dataclass_fields__ for kind in kinds)
