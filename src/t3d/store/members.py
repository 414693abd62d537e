"""Members in what is stored of a run: whose evaluations those are, and which combination of a sweep is the best."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from t3d.config import Member
from t3d.config.sweeps import Values, by_values, swept
from t3d.events import Event


class StoredEvaluation(NamedTuple):
    """An evaluation of one member, as it was stored."""

    step: int
    time: float  # seconds since 1970
    updates: int
    mean_return: float
    std_return: float
    best: bool


Evals = Mapping[Member, Sequence[StoredEvaluation]]  # in order


def member_of(event: Event, members: Sequence[Member]) -> Member | None:
    """Returns whom an event is about; nobody if it contradicts itself, because a file may say anything."""
    number = event.member
    if type(number) is not int or not 0 <= number < len(members) or members[number].seed != event.seed:
        return None
    return members[number]


def last_means(members: Sequence[Member], evals: Evals, diverged: Collection[Member]) -> dict[Values, float]:
    """Returns the mean over seeds of the last evaluations, by which the combinations of a sweep are compared.

    A combination is left out if one of its seeds has diverged or was not evaluated since training began.
    """
    compared = {member for member in members if member not in diverged and trained(evals.get(member, []))}
    return {
        values: fmean(evals[member][-1].mean_return for member in group)
        for values, group in by_values(members).items()
        if compared.issuperset(group)
    }


def highest(means: Mapping[Values, float]) -> Values | None:
    """Returns the combination with the highest mean; none if two are equal."""
    ranked = sorted(means, key=means.__getitem__, reverse=True)
    tied = len(ranked) > 1 and means[ranked[0]] == means[ranked[1]]
    return ranked[0] if ranked and not tied else None


def contenders(members: Sequence[Member], evals: Evals, diverged: Collection[Member]) -> list[Member]:
    """Returns those that the best member is chosen from: in a sweep the seeds of the highest combination."""
    if not swept(members):
        return [*evals]
    living = [member for member in evals if member not in diverged] or [*evals]
    chosen = highest(last_means(members, evals, diverged))
    return [member for member in living if member.values == chosen] or living


def best_of(evals: Sequence[StoredEvaluation]) -> StoredEvaluation:
    """Returns the evaluation of the best policy: the highest mean return since the task last changed."""
    marked = [evaluation for evaluation in evals if evaluation.best]
    return marked[-1] if marked else max(evals, key=lambda evaluation: evaluation.mean_return)


def trained(evals: Iterable[StoredEvaluation]) -> list[StoredEvaluation]:
    """Returns the evaluations of policies that have been updated."""
    return [evaluation for evaluation in evals if evaluation.updates > 0]


def stored_name(said: object) -> str:
    """Returns the name of a member as a file says it: early files of format 2 say only its seed."""
    return f"seed-{said}" if str(said).isdecimal() else str(said)
