"""What a report says about one run: facts from its folder, and in sentences the verdict and the card of its policy."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from t3d.alarms.watch import alarm_lines, notes_in_words
from t3d.config import Member
from t3d.config.metrics import Criterion
from t3d.config.sweeps import counted, swept, values_title
from t3d.errors import UserError
from t3d.events import ActorEvent, Alarm, Note, Resumed
from t3d.files import Refused, read, readable
from t3d.insight.best_member import Choice, known_choice
from t3d.insight.comparison import LAST, Comparison, Row, compare
from t3d.insight.groups import Group, Training
from t3d.insight.ranges import InputRanges, ranges_in_training
from t3d.insight.statistics import Estimate, Interval
from t3d.insight.wording import duration_text, estimated, members_text, metrics_text, number_text, size_text
from t3d.policy.acting import SavedPolicy
from t3d.store.best import Fresh, read_fresh
from t3d.store.columns import Columns, read_columns
from t3d.store.details import messages_of, videos_of
from t3d.store.log import journal_lines, prefixes
from t3d.store.metrics import best_of, highest, last_means
from t3d.store.reader import Run, open_run
from t3d.store.summary import Summary, read_summary
from t3d.types import mean_metrics
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


class Video(NamedTuple):
    """A video of a run."""

    name: str  # of the file, and its size
    content: bytes | None  # None: it is too large
    about: str  # whose policy it shows, in a sentence


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
    best, problem, scores = None, "", None
    try:
        best = _best(run)
    except UserError as error:
        problem = str(error)
    if run.evals and not swept(run.cfg.members):
        trainings = [Training(run, member) for member in run.evals]
        scores = compare([Group(readable(run.path.resolve().name), {run.cfg.env.title: trainings})])
    alarms, notes = alarm_lines(messages, summary.members), [*dict.fromkeys(notes_in_words(messages))]
    video = _video(run, best, video_bytes)
    return Facts(name, run, summary, columns, alarms, notes, scores, best, problem, video)


def _best(run: Run) -> Best:
    """Finds the best policy on fresh episodes, else that with the best evaluation."""
    choice = None
    with suppress(UserError):  # a policy cannot be read, which may not be the best one
        choice = known_choice(run) if len(run.contenders) > 1 else None
    member = choice.member if choice else run.best_member()
    policy, fresh = run.policy(member), read_fresh(run.path).by_member.get(member.name)
    fresh_ranges = InputRanges.from_dict(fresh.seen, policy.spec) if fresh else None
    return Best(member, policy, choice, fresh, fresh_ranges, ranges_in_training(run, member, policy.spec))


def _video(run: Run, best: Best | None, most: int) -> Video | None:
    """Returns a video of this policy, else the newest of its member, else the one of `t3d record`, else the newest."""
    videos, ours = videos_of(run.path), best and (best.member.name, best.policy.about["step"])
    if not videos:
        return None

    def rank(video: dict[str, Any]) -> tuple[bool, bool, bool]:
        is_of_member = ours is not None and video["member"] == ours[0]
        is_of_policy = is_of_member and (video["member"], video["step"]) == ours
        return is_of_policy, is_of_member, video["file"] == "video.mp4" and not is_of_member

    video = max(reversed(videos), key=rank)
    member, step = video["member"], video["step"]
    about = "The file does not say which policy it shows."
    if member is not None and step is not None:
        title = next((known.title for known in run.cfg.members if known.name == member), member)
        other = ", not the one above" if ours is not None and (member, step) != ours else ""
        about = f"It shows the policy of {title} at step {step:,}{other}."
    content = None
    with suppress(OSError, Refused):
        content = read(run.path / video["file"], most)
    return Video(f"{video['file']}, {size_text(video['bytes'])}", content, about)


def verdict(facts: Facts) -> list[str]:
    """Says how the run ended, whether it learned, how good the policy is, and what looks wrong."""
    summary, run, kinds = facts.summary, facts.run, len(facts.alarms)
    ended = ENDED.get(summary.status, f"Its status is {summary.status}")
    lines = [f"{ended}: step {summary.step:,} of {summary.total_steps:,}, after {duration_text(summary.took)}."]
    lines += summary.failure.splitlines()[:1]
    for member, stop in run.stopped.items():
        lines.append(f"{member.title} diverged at step {stop.step:,} and stopped: {stop.text}")
    means = last_means(run.cfg.members, run.evals, run.stopped)
    if facts.scores:
        lines.append(_learned(run, facts.scores.rows[0]))
    elif values := highest(means):
        highest_mean = number_text(means[values])
        lines.append(f"The highest mean of last evaluations is {highest_mean}, with {values_title(values)}.")
    for name, evals in run.other_sets.items():
        ends = [column[-1] for column in evals.values()]
        last = number_text(fmean(end.mean_return for end in ends)) + metrics_text(
            mean_metrics([end.metrics for end in ends])
        )
        lines.append(f"In the evaluation set {name} the mean return was {last} at the end.")
    it = "it says" if kinds == 1 else "they say"
    alarms = f"{counted(kinds, 'kind')} of alarm sounded; read what {it} below." if kinds else "No alarm sounded."
    return [*lines, fresh_in_words(facts), alarms, *(facts.scores.notes if facts.scores else [])]


def _learned(run: Run, row: Row) -> str:
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
    about, fresh = best.policy.about, best.fresh
    title = f"The best policy of {best.member.title}, of step {about['step']:,},"
    evaluated = ""
    if isinstance(about.get("mean_return"), float):
        by, of = facts.run.cfg.criterion, facts.run.compared_evals(best.member)
        which = f"the highest of {of}" if by == Criterion() else f"chosen by {facts.run.cfg.eval.best_by} from {of}"
        known = best_of(facts.run.evals[best.member]).metrics
        score = metrics_text({by.metric: known[by.metric]} if by.metric in known else {})
        evaluated = f" Its best evaluation was {number_text(about['mean_return'])}{score}, {which}."
    if fresh is None:
        return f"{title} has played no fresh episodes yet; t3d eval {facts.run.path} plays them.{evaluated}"
    untrained = "" if about["updates"] else " No evaluation beat this one, which is untrained."
    over = f"on average over {counted(fresh.episodes, 'fresh episode')}, without noise"
    return f"{title} returned {fresh_mean(fresh)}{metrics_text(fresh.metrics)} {over}.{evaluated}{untrained}"


def fresh_mean(fresh: Fresh) -> str:
    """Formats the mean return on fresh episodes, with its interval over episodes."""
    interval = None if fresh.low is None or fresh.high is None else Interval(fresh.low, fresh.high)
    return estimated(Estimate(fresh.mean, interval))


def card(facts: Facts) -> list[tuple[str, str]]:
    """Returns the card of the policy: what it is for, how it came to be, how good it is, what it has not seen."""
    best, cfg, summary = facts.best, facts.run.cfg, facts.summary
    updates = max((evals[-1].updates for evals in facts.run.evals.values()), default=0)
    resumes = sum(line.startswith(prefixes([Resumed])) for line in journal_lines(facts.run.path))
    trained = (
        f"{cfg.rule_title} with preset {summary.preset}, {members_text(summary, named=True)}: {summary.step:,} steps "
        f"each, the first {min(cfg.random_actions, summary.step):,} with random actions, {updates:,} updates"
        + (f"; started from {summary.origin}" if summary.origin else "")
        + (f"; resumed {counted(resumes, 'time')}." if resumes else ".")
    )
    if best is None:
        return [("Trained", trained), ("Policy", fresh_in_words(facts))]
    spec = best.policy.spec
    low, high = number_text(float(spec.action_low.min())), number_text(float(spec.action_high.max()))
    observed = [counted(spec.observation_size, "value")] if spec.observation_size else []
    observed += [f"an image of {size_of(image)}" for image in spec.images]
    frames = f" ({spec.stack} frames)" if spec.stack > 1 else ""
    evaluation = f"best evaluation by {cfg.eval.best_by}, at step {best.policy.about['step']:,}"
    chosen = f"Of {best.member.title}, the policy with the {evaluation}."
    if best.choice is not None:
        same = "those below" if best.fresh and best.fresh.of > 1 else "others than those below"
        played = f"{best.choice.episodes} fresh episodes each, {same}"
        chosen += f" Its seed was chosen among {len(best.choice.mean_returns)} on {played}."
    return [
        (
            "Intended use",
            f"Acting in {cfg.env.title}: it observes {' and '.join(observed)}{frames} and answers with "
            f"{counted(spec.action_size, 'number')} between {low} and {high}, always the same for the same "
            "observation. In anything else, such as other physics or a real machine, it is untested.",
        ),
        ("Trained", trained),
        ("Chosen", chosen),
        ("Evaluated", fresh_in_words(facts)),
        ("Limits", _limits(best.ranges, best.fresh_ranges)),
        ("File", f"best/{best.member.name}.safetensors, SHA-256 of its tensors {best.policy.sha256}"),
    ]


def _limits(ranges: InputRanges | None, fresh: InputRanges | None) -> str:
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
