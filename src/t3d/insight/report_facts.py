"""What a report says about one run: facts from its folder, and in sentences the verdict and the card of its policy."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from t3d.alarms.watch import alarm_lines, notes_in_words
from t3d.config import Member
from t3d.config.sweeps import counted, noun, swept, values_title
from t3d.errors import UserError
from t3d.events import ActorEvent, Alarm, Note, Resumed
from t3d.files import Refused, read, readable
from t3d.insight.best_member import Choice, known_choice
from t3d.insight.comparison import LAST, Comparison, Row, compare
from t3d.insight.groups import Group, Training
from t3d.insight.ranges import InputRanges, ranges_in_training
from t3d.insight.statistics import Estimate, Interval
from t3d.insight.wording import duration_text, estimated, number_text, seeds_text
from t3d.policy.acting import SavedPolicy
from t3d.policy.spec import Spec
from t3d.store.best import Fresh, read_fresh
from t3d.store.columns import Columns, read_columns
from t3d.store.details import messages_of
from t3d.store.journal import journal_lines
from t3d.store.log import prefixes
from t3d.store.members import highest, last_means
from t3d.store.reader import Run, open_run
from t3d.store.summary import Summary, read_summary
from t3d.store.videos import videos_of
from t3d.world.spec import size_of

MOST_VIDEO_BYTES = 10 * 2**20  # in one report; chosen: what can be mailed
ENDED = {
    "finished": "It finished",
    "running": "It is still training, and this is how it stands",
    "paused": "It is paused, and this is how it stands",
    "stopped": "It was stopped before its end",
    "failed": "It failed",
    "died": "Its process is gone and never wrote an end (killed, out of memory, or the machine crashed)",
}


class Best(NamedTuple):
    """The policy that a report is about."""

    member: Member
    policy: SavedPolicy
    choice: Choice | None  # how the seeds compared on fresh episodes
    fresh: Fresh | None  # what it returned on fresh episodes; None: it has played none
    fresh_ranges: InputRanges | None  # in those
    ranges: InputRanges | None  # in training

    @property
    def title(self) -> str:
        """Whose policy it is, and of which step."""
        return f"The best policy of {self.member.title}, of step {self.policy.about['step']:,},"


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
    summary: Summary
    columns: Columns
    alarms: list[str]  # a line for each kind
    notes: list[str]
    scores: Comparison | None  # of its only group; None: it was not evaluated, or is a sweep
    best: Best | None
    problem: str  # why there is no policy
    video: Video | None


def gather(path: Path, name: str, video_bytes: int) -> Facts:
    """Reads a run."""
    run, summary, columns = open_run(path), read_summary(path), read_columns(path)
    messages = messages_of(columns, Alarm, Note, ActorEvent)
    try:
        best, problem = _best(run), ""
    except UserError as error:
        best, problem = None, str(error)
    return Facts(
        name=name,
        run=run,
        summary=summary,
        columns=columns,
        alarms=alarm_lines(messages, summary.members),
        notes=[*dict.fromkeys(notes_in_words(messages))],
        scores=_scores(run),
        best=best,
        problem=problem,
        video=_video(run.path, best, video_bytes),
    )


def _best(run: Run) -> Best:
    """Finds the best policy on fresh episodes, else that with the best evaluation."""
    choice = _known_choice(run)
    member = choice.member if choice else run.best_member()
    policy, fresh = run.policy(member), read_fresh(run.path).by_member.get(member.name)
    fresh_ranges = InputRanges.from_dict(fresh.seen, policy.spec) if fresh else None
    return Best(member, policy, choice, fresh, fresh_ranges, ranges_in_training(run, member, policy.spec))


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


def _video(path: Path, best: Best | None, most: int) -> Video | None:
    """Returns a video of this policy, else the newest of its member, else the one of `t3d record`, else the newest."""
    videos = videos_of(path)
    if not videos:
        return None
    of_member = [video for video in videos if best and video["member"] == best.member.name]
    of_policy = [video for video in of_member if best and video["step"] == best.policy.about["step"]]
    recorded = [video for video in videos if video["file"] == "video.mp4"]
    video = (of_policy or of_member or recorded or videos)[-1]
    try:
        content = read(path / video["file"], most)
    except (OSError, Refused):
        content = None
    return Video(video["file"], int(video["bytes"]), content, video["member"], video["step"])


def verdict(facts: Facts) -> list[str]:
    """Says how the run ended, whether it learned, how good the policy is, and what looks wrong."""
    summary, run, kinds = facts.summary, facts.run, len(facts.alarms)
    ended = ENDED.get(summary.status, f"Its status is {summary.status}")
    it = "it says" if kinds == 1 else "they say"
    return [
        f"{ended}: step {summary.step:,} of {summary.total_steps:,}, after {duration_text(summary.took)}.",
        *summary.failure.splitlines()[:1],
        *(
            f"{member.title} diverged at step {stop.step:,} and stopped: {stop.text}"
            for member, stop in run.stopped.items()
        ),
        *([_learned(run, facts.scores.rows[0])] if facts.scores else _highest(run)),
        fresh_in_words(facts),
        f"{counted(kinds, 'kind')} of alarm sounded; read what {it} below." if kinds else "No alarm sounded.",
        *(facts.scores.notes if facts.scores else []),
    ]


def _highest(run: Run) -> list[str]:
    """Says which combination of a sweep ended highest."""
    means = last_means(run.cfg.members, run.evals, run.stopped)
    values = highest(means)
    if not values:
        return []
    return [f"The highest mean of last evaluations is {number_text(means[values])}, with {values_title(values)}."]


def _learned(run: Run, row: Row) -> str:
    """Compares the end of training with the policy before it."""
    seeds, after = row.scored.seeds, row.mean
    evals = [run.evals[seed.training.member] for seed in seeds]
    before = fmean(mine[0].mean_return for mine in evals)
    if not any(event.updates for mine in evals for event in mine):
        return f"It has not been evaluated since it began to learn; before, its mean return was {number_text(before)}."
    count = min(LAST, max(sum(event.step > 0 for event in mine) for mine in evals))
    last = "evaluation" if count == 1 else f"{count} evaluations"
    end = f"{estimated(after)} at the end, the mean of the last {last} of {counted(len(seeds), 'seed')}"
    if any(mine[0].updates for mine in evals):
        return f"Its mean return was {end}."
    went = f"the mean return went from {number_text(before)} before learning to {end}."
    if after.interval is None:
        return went[0].upper() + went[1:]
    if after.interval.low > before:
        return f"It learned: {went}"
    if after.interval.high < before:
        return f"It became worse: {went}"
    return f"These seeds do not show that it learned: {went}"


def fresh_in_words(facts: Facts) -> str:
    """Says what the policy returned on fresh episodes."""
    best = facts.best
    if best is None:
        return f"There is no policy to report on: {facts.problem}."
    noted, count = best.policy.about.get("mean_return"), facts.run.compared_evals(best.member)
    is_noted = isinstance(noted, float)
    evaluated = f" Its best evaluation was {number_text(noted)}, the highest of {count}." if is_noted else ""
    if best.fresh is None:
        return f"{best.title} has played no fresh episodes yet; t3d eval {facts.run.path} plays them.{evaluated}"
    episodes = counted(best.fresh.episodes, "fresh episode")
    untrained = "" if best.policy.about["updates"] else " No evaluation beat this one, which is untrained."
    mean = fresh_mean(best.fresh)
    return f"{best.title} returned {mean} on average over {episodes}, without noise.{evaluated}{untrained}"


def fresh_mean(fresh: Fresh) -> str:
    """Formats the mean return on fresh episodes, with its interval over episodes."""
    interval = None if fresh.low is None or fresh.high is None else Interval(fresh.low, fresh.high)
    return estimated(Estimate(fresh.mean, interval))


def video_in_words(facts: Facts, video: Video) -> str:
    """Says whose policy a video shows."""
    best = facts.best
    if video.member is None or video.step is None:
        return "The file does not say which policy it shows."
    whose = next((member.title for member in facts.run.cfg.members if member.name == video.member), video.member)
    is_other = best and (video.member, video.step) != (best.member.name, best.policy.about["step"])
    return f"It shows the policy of {whose} at step {video.step:,}{', not the one above' if is_other else ''}."


def card(facts: Facts) -> list[tuple[str, str]]:
    """Returns the card of the policy: what it is for, how it came to be, how good it is, what it has not seen."""
    best, env = facts.best, facts.run.cfg.env.title
    if best is None:
        return [("Trained", _trained(facts)), ("Policy", fresh_in_words(facts))]
    spec = best.policy.spec
    low, high = number_text(float(spec.action_low.min())), number_text(float(spec.action_high.max()))
    return [
        (
            "Intended use",
            f"Acting in {env}: it observes {observed(spec)} and answers with {counted(spec.action_size, 'number')} "
            f"between {low} and {high}, always the same for the same observation. In anything else, such as other "
            "physics or a real machine, it is untested.",
        ),
        ("Trained", _trained(facts)),
        ("Chosen", _chosen(best)),
        ("Evaluated", fresh_in_words(facts)),
        ("Limits", limits(best)),
        ("File", f"best/{best.member.name}.safetensors, SHA-256 of its tensors {best.policy.sha256}"),
    ]


def _trained(facts: Facts) -> str:
    cfg, summary = facts.run.cfg, facts.summary
    updates = max((evals[-1].updates for evals in facts.run.evals.values()), default=0)
    resumes = sum(line.startswith(prefixes([Resumed])) for line in journal_lines(facts.run.path))
    which = counted(len(summary.members), noun(summary.members))
    if not summary.members[0].values:
        which = f"{'seed' if len(summary.seeds) == 1 else 'seeds'} {seeds_text(summary.seeds)}"
    again = f"; resumed {counted(resumes, 'time')}" if resumes else ""
    return (
        f"{cfg.rule_title} with preset {summary.preset}, {which}: {summary.step:,} steps each, the first "
        f"{min(cfg.random_steps, summary.step):,} with random actions, {updates:,} updates{again}."
    )


def _chosen(best: Best) -> str:
    own = f"Of {best.member.title}, the policy with the highest evaluation, at step {best.policy.about['step']:,}."
    if best.choice is None:
        return own
    played = f"{best.choice.episodes} fresh episodes each"
    same = "those below" if best.fresh and best.fresh.of > 1 else "others than those below"
    return f"{own} Its seed was chosen among {len(best.choice.mean_returns)} on {played}, {same}."


def limits(best: Best) -> str:
    """Says what the policy has seen in training, and whether fresh episodes went beyond it."""
    ranges, fresh = best.ranges, best.fresh_ranges
    if ranges is None:
        unknown = "What it saw in training is not known: the folder has no checkpoint with its replay."
        return f"{unknown} The ranges below are of the fresh episodes." if fresh else unknown
    count = len(ranges.observations.low)
    if not count:
        return "It was trained on images, whose range is not listed; on others it is untested."
    known = f"Its training saw the ranges listed below, in its newest {ranges.transitions:,} transitions"
    if fresh is None:
        return f"{known}; beyond them it is untested."
    beyond = ranges.observations.exceeded_by(fresh.observations)
    went = f"{len(beyond)} of {count} components of fresh observations went" if beyond else "no fresh observation went"
    return f"{known}; {went} beyond them."


def observed(spec: Spec) -> str:
    """Says what a policy is shown."""
    parts = [counted(spec.observation_size, "value")] if spec.observation_size else []
    parts += [f"an image of {size_of(image)}" for image in spec.images]
    return " and ".join(parts) + (f" ({spec.stack} frames)" if spec.stack > 1 else "")
