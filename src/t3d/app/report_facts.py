"""What a report says about one run, gathered from its folder."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

from t3d.alarms.watch import alarm_lines
from t3d.config import Member
from t3d.config.sweeps import swept
from t3d.errors import UserError
from t3d.events import ActorEvent, Alarm, Event, Note
from t3d.files import Refused, read, readable
from t3d.insight.best_member import Choice, known_choice
from t3d.insight.comparison import Comparison, compare
from t3d.insight.groups import Group, Training
from t3d.insight.ranges import InputRanges, ranges_in_training
from t3d.policy.acting import SavedPolicy
from t3d.store.columns import Columns
from t3d.store.fresh import Fresh, read_fresh
from t3d.store.log import read_log
from t3d.store.reader import Run, open_run
from t3d.store.summary import Summary, read_summary
from t3d.store.videos import videos_of

MOST_VIDEO_BYTES = 10 * 2**20  # in one report; chosen: what can be mailed


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
    listed: Summary
    figures: Columns
    events: list[Event]  # alarms, notes and actors
    alarms: list[str]  # a line for each kind
    scores: Comparison | None  # of its only group; None: it was not evaluated, or is a sweep
    member: Member | None  # whose policy this is about
    policy: SavedPolicy | None
    problem: str  # why there is no policy
    choice: Choice | None  # how the seeds compared on fresh episodes
    fresh: Fresh | None  # what it returned on fresh episodes; None: it has played none
    seen_fresh: InputRanges | None  # in those
    seen: InputRanges | None  # in training
    video: Video | None


def gather(path: Path, name: str, video_bytes: int) -> Facts:
    """Reads a run."""
    run, listed, index = open_run(path), read_summary(path), Columns(path)
    index.refresh(math.inf)
    member, policy, problem = _chosen(run)
    fresh = read_fresh(path).by_member.get(member.name) if member and policy else None
    events = read_log(path, kinds=(Alarm, Note, ActorEvent)).events
    return Facts(
        name=name,
        run=run,
        listed=listed,
        figures=index,
        events=events,
        alarms=alarm_lines(events, listed.members),
        scores=_scores(run),
        member=member,
        policy=policy,
        problem=problem,
        choice=_known_choice(run) if policy else None,
        fresh=fresh,
        seen_fresh=InputRanges.from_dict(fresh.seen, policy.spec) if fresh and policy else None,
        seen=ranges_in_training(run, member, policy.spec) if member and policy else None,
        video=_video(run.path, member, policy, video_bytes),
    )


def _chosen(run: Run) -> tuple[Member | None, SavedPolicy | None, str]:
    """Finds the policy that the report is about: the best on fresh episodes, else that with the best evaluation."""
    try:
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


def _video(path: Path, member: Member | None, policy: SavedPolicy | None, most: int) -> Video | None:
    """Returns a video of this policy, else the newest of its member, else the one of `t3d record`, else the newest."""
    known = videos_of(path)
    if not known:
        return None
    whose, step = member and member.name, policy and policy.about["step"]
    of_policy = [one for one in known if (one["member"], one["step"]) == (whose, step)]
    of_member = [one for one in known if whose and one["member"] == whose]
    one = (of_policy or of_member or [one for one in known if one["file"] == "video.mp4"] or known)[-1]
    try:
        content = read(path / one["file"], most)
    except (OSError, Refused):
        content = None
    return Video(one["file"], int(one["bytes"]), content, one["member"], one["step"])
