"""Sorts the events of a run by the members that they are about."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from t3d.config import Member
from t3d.events import Eval, Event, SeedStopped


def evals_by_member(events: Iterable[Event], members: Sequence[Member]) -> dict[Member, list[Eval]]:
    """Groups the evaluations among events, in order."""
    evals: dict[Member, list[Eval]] = {}
    for event in events:
        if isinstance(event, Eval) and (member := member_of(event, members)) is not None:
            evals.setdefault(member, []).append(event)
    return evals


def stopped_members(events: Iterable[Event], members: Sequence[Member]) -> dict[Member, SeedStopped]:
    """Returns when and how members have diverged."""
    stops = [(member_of(event, members), event) for event in events if isinstance(event, SeedStopped)]
    return {member: event for member, event in stops if member is not None}


def member_of(event: Event, members: Sequence[Member]) -> Member | None:
    """Returns whom an event is about; nobody if it contradicts itself, because a file may say anything."""
    place = event.member
    if type(place) is not int or not 0 <= place < len(members) or members[place].seed != event.seed:
        return None
    return members[place]
