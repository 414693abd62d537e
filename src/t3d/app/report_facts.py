"""What a report says about one run, gathered from its folder and from fresh episodes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from t3d.app.best_member import best_member
from t3d.app.evaluate import play_fresh
from t3d.app.plain_console import PlainConsole
from t3d.config import Member
from t3d.config.sweeps import swept
from t3d.dash.details import details
from t3d.dash.index import RunIndex
from t3d.dash.library import Listed
from t3d.dash.videos import videos_of
from t3d.errors import EnvironmentFailed, UserError
from t3d.events import ActorEvent, Alarm, Event, Note
from t3d.files import Refused, read, readable
from t3d.insight.best_member import Choice, known_choice
from t3d.insight.comparison import Comparison, compare
from t3d.insight.groups import Group, Training
from t3d.insight.seen import Seen, Watched, seen_in_training
from t3d.insight.statistics import Estimate, estimate, mean
from t3d.store.catalogue import read_entry
from t3d.store.notes import read_notes
from t3d.store.reader import Run, open_run, read_log
from t3d.world.policy import SavedPolicy

MOST_VIDEO_BYTES = 10 * 2**20  # in one report; chosen: what can be mailed


class Fresh(NamedTuple):
    """Episodes that played no part in training or in choosing the policy."""

    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    mean: Estimate  # over episodes
    seen: Seen


class Video(NamedTuple):
    """A video of a run."""

    file: str
    size: int
    content: bytes | None  # None: it is too large
    member: str | None  # whose policy it shows; None: the file does not say
    step: int | None


class Facts(NamedTuple):
    """One run."""

    name: str  # different from those of other runs in the report
    run: Run
    listed: Listed
    figures: RunIndex
    about: dict[str, Any]  # as the dashboard's run page has it
    events: list[Event]  # alarms, notes and actors
    scores: Comparison | None  # of its only group; None: it was not evaluated, or is a sweep
    member: Member | None  # whose policy this is about
    policy: SavedPolicy | None
    problem: str  # why there is no policy
    choice: Choice | None  # how the seeds compared on fresh episodes
    fresh: Fresh | None
    unplayed: str  # why no fresh episodes could be played, if they were wanted
    seen: Seen | None  # in training
    video: Video | None


def gather(path: Path, name: str, episodes: int, video_bytes: int, console: PlainConsole) -> Facts:
    """Reads a run, and plays fresh episodes with its best policy."""
    run, listed, index = open_run(path), Listed(read_entry(path), read_notes(path)), RunIndex(path)
    index.refresh(math.inf)
    member, policy, problem = _chosen(run, episodes, console)
    fresh, unplayed = _play(run, policy, episodes) if policy and episodes else (None, "")
    return Facts(
        name=name,
        run=run,
        listed=listed,
        figures=index,
        about=details(listed, index, complete=True),
        events=read_log(path, kinds=(Alarm, Note, ActorEvent)).events,
        scores=_scores(run),
        member=member,
        policy=policy,
        problem=problem,
        choice=_known_choice(run) if policy else None,
        fresh=fresh,
        unplayed=unplayed,
        seen=seen_in_training(run, member, policy.spec) if member and policy else None,
        video=_video(run.path, member, video_bytes),
    )


def _chosen(run: Run, episodes: int, console: PlainConsole) -> tuple[Member | None, SavedPolicy | None, str]:
    """Chooses the policy that the report is about; without playing, an earlier choice or the best evaluation."""
    try:
        if episodes and run.cfg.env.id:
            member = best_member(run, console)
        else:
            known = _known_choice(run)
            member = known.member if known else run.best_member()
        return member, run.policy(member), ""
    except UserError as error:
        return None, None, str(error)


def _known_choice(run: Run) -> Choice | None:
    try:
        return known_choice(run) if len(run.contenders) > 1 else None
    except UserError:
        return None


def _scores(run: Run) -> Comparison | None:
    if not run.evals or swept(run.cfg.members):
        return None
    trainings = [Training(run, member) for member in run.evals]
    return compare([Group(readable(run.path.resolve().name), {run.cfg.env.title: trainings})])


def _play(run: Run, policy: SavedPolicy, episodes: int) -> tuple[Fresh | None, str]:
    """Plays fresh episodes, or says why that is not possible here."""
    watched = Watched(policy.actor, policy.spec)
    if not run.cfg.env.id:
        return None, "its environment was made in Python and has no name by which it could be made here"
    try:
        returns, lengths = play_fresh(run, policy, watched, run.cfg.env.id, episodes)
    except (EnvironmentFailed, UserError) as error:
        return None, str(error)
    assert watched.seen is not None  # noqa: S101 (an episode has a step)
    return Fresh(returns, lengths, estimate(mean, [returns]), watched.seen), ""


def _video(path: Path, member: Member | None, most: int) -> Video | None:
    """Returns the newest video of this member, else the one of `t3d record`, else the newest."""
    known = videos_of(path)
    if not known:
        return None
    mine = [one for one in known if member is not None and one["member"] == member.name]
    one = (mine or [one for one in known if one["file"] == "video.mp4"] or known)[-1]
    try:
        content = read(path / one["file"], most)
    except (OSError, Refused):
        content = None
    return Video(one["file"], int(one["bytes"]), content, one["member"], one["step"])
