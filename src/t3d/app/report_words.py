"""What a report says in sentences: the verdict on a run, and the card of its policy."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from t3d.app.compare import estimated
from t3d.app.report_facts import Facts, Video
from t3d.app.runs_text import duration_text, seeds_text
from t3d.app.tables import figure
from t3d.config.sweeps import counted, noun, values_title
from t3d.events import Resumed
from t3d.insight.comparison import Row
from t3d.insight.ranges import Range
from t3d.insight.scores import LAST
from t3d.insight.statistics import Estimate, Interval
from t3d.policy.spec import Spec
from t3d.store.fresh import Fresh
from t3d.store.journal import journal_lines
from t3d.store.log import prefixes
from t3d.store.members import highest, last_means
from t3d.store.reader import Run
from t3d.world.spec import size_of

ENDED = {
    "finished": "It finished",
    "running": "It is still training, and this is how it stands",
    "paused": "It is paused, and this is how it stands",
    "stopped": "It was stopped before its end",
    "failed": "It failed",
    "died": "Its process is gone and never wrote an end (killed, out of memory, or the machine crashed)",
}


class SeenRow(NamedTuple):
    """The range of one component: in training from, to, in fresh episodes from, to."""

    name: str
    cells: list[str]
    is_beyond: bool  # fresh episodes went beyond training


def verdict(facts: Facts) -> list[str]:
    """Says how the run ended, whether it learned, how good the policy is, and what looks wrong."""
    entry, run = facts.listed, facts.run
    ended = ENDED.get(entry.status, f"Its status is {entry.status}")
    said = [f"{ended}: step {entry.step:,} of {entry.total_steps:,}, after {duration_text(entry.took)}."]
    said += entry.failure.splitlines()[:1]
    said += [
        f"{member.title} diverged at step {stop.step:,} and stopped: {stop.text}"
        for member, stop in run.stopped.items()
    ]
    said += [_learned(facts, facts.scores.rows[0])] if facts.scores else _highest(run)
    said.append(fresh_in_words(facts))
    kinds = len(facts.alarms)
    said.append(
        f"{counted(kinds, 'kind')} of alarm sounded; read what {'it says' if kinds == 1 else 'they say'} below."
        if kinds
        else "No alarm sounded."
    )
    return [*said, *(facts.scores.notes if facts.scores else [])]


def _highest(run: Run) -> list[str]:
    """Says which combination of a sweep ended highest."""
    means = last_means(run.cfg.members, run.evals, run.stopped)
    found = highest(means)
    return (
        [f"The highest mean of last evaluations is {figure(means[found])}, with {values_title(found)}."]
        if found
        else []
    )


def _learned(facts: Facts, row: Row) -> str:
    """Compares the end of training with the policy before it."""
    seeds, after = row.scored.seeds, row.mean
    evals = [facts.run.evals[seed.training.member] for seed in seeds]
    before = fmean(mine[0].mean_return for mine in evals)
    if not any(one.updates for mine in evals for one in mine):
        return f"It has not been evaluated since it began to learn; before, its mean return was {figure(before)}."
    count = min(LAST, max(sum(one.step > 0 for one in mine) for mine in evals))
    last = "evaluation" if count == 1 else f"{count} evaluations"
    end = f"{estimated(after)} at the end, the mean of the last {last} of {counted(len(seeds), 'seed')}"
    if any(mine[0].updates for mine in evals):
        return f"Its mean return was {end}."
    went = f"the mean return went from {figure(before)} before learning to {end}"
    if after.interval is None:
        return f"{went[0].upper()}{went[1:]}."
    if after.interval.low > before:
        return f"It learned: {went}."
    if after.interval.high < before:
        return f"It became worse: {went}."
    return f"These seeds do not show that it learned: {went}."


def fresh_in_words(facts: Facts) -> str:
    """Says what the policy returned on fresh episodes."""
    if facts.member is None or facts.policy is None:
        return f"There is no policy to report on: {facts.problem}."
    whose = f"The best policy of {facts.member.title}, of step {facts.policy.about['step']:,},"
    noted, count = facts.policy.about.get("mean_return"), len(facts.run.evals.get(facts.member, []))
    best = f" Its best evaluation was {figure(noted)}, the highest of {count}." if isinstance(noted, float) else ""
    if facts.fresh is None:
        return f"{whose} has played no fresh episodes yet; t3d eval {facts.run.path} plays them.{best}"
    episodes = counted(facts.fresh.episodes, "fresh episode")
    untrained = "" if facts.policy.about["updates"] else " No evaluation beat this one, which is untrained."
    return f"{whose} returned {fresh_mean(facts.fresh)} on average over {episodes}, without noise.{best}{untrained}"


def fresh_mean(fresh: Fresh) -> str:
    """Formats the mean return on fresh episodes, with its interval over episodes."""
    interval = None if fresh.low is None or fresh.high is None else Interval(fresh.low, fresh.high)
    return estimated(Estimate(fresh.mean, interval))


def video_in_words(facts: Facts, video: Video) -> str:
    """Says whose policy a video shows."""
    if video.member is None or video.step is None:
        return "The file does not say which policy it shows."
    whose = next((one.title for one in facts.run.cfg.members if one.name == video.member), video.member)
    is_other = (
        facts.policy is not None
        and facts.member is not None
        and (video.member, video.step) != (facts.member.name, facts.policy.about["step"])
    )
    return f"It shows the policy of {whose} at step {video.step:,}{', not the one above' if is_other else ''}."


def card(facts: Facts) -> list[tuple[str, str]]:
    """Returns the card of the policy: what it is for, how it came to be, how good it is, what it has not seen."""
    policy, cfg = facts.policy, facts.run.cfg
    rows = [("Trained", _trained(facts))]
    if policy is None or facts.member is None:
        return [*rows, ("Policy", fresh_in_words(facts))]
    use = (
        f"Acting in {cfg.env.title}: it observes {observed(policy.spec)} and answers with {_acts(policy.spec)}, always "
        "the same for the same observation. In anything else, such as other physics or a real machine, it is untested."
    )
    return [
        ("Intended use", use),
        *rows,
        ("Chosen", _chosen(facts)),
        ("Evaluated", fresh_in_words(facts)),
        ("Limits", limits(facts)),
        ("File", f"best/{facts.member.name}.safetensors, SHA-256 of its tensors {policy.sha256}"),
    ]


def _trained(facts: Facts) -> str:
    cfg, entry = facts.run.cfg, facts.listed
    updates = max((evals[-1].updates for evals in facts.run.evals.values()), default=0)
    resumes = sum(line.startswith(prefixes([Resumed])) for line in journal_lines(facts.run.path))
    seeds = f"{noun(entry.members)}{'s' if len(entry.members) > 1 else ''}"
    which = f"{len(entry.members)} {seeds}" if entry.members[0].values else f"{seeds} {seeds_text(entry.seeds)}"
    again = f"; resumed {counted(resumes, 'time')}" if resumes else ""
    return (
        f"{cfg.rule_title} with preset {entry.preset}, {which}: {entry.step:,} steps each, the first "
        f"{min(cfg.random_steps, entry.step):,} with random actions, {updates:,} updates{again}."
    )


def _chosen(facts: Facts) -> str:
    assert facts.policy is not None and facts.member is not None  # noqa: S101
    own = f"Of {facts.member.title}, the policy with the highest evaluation, at step {facts.policy.about['step']:,}."
    if facts.choice is None:
        return own
    played = f"{facts.choice.episodes} fresh episodes each"
    same = "those below" if facts.fresh and facts.fresh.of > 1 else "others than those below"
    return f"{own} Its seed was chosen among {len(facts.choice.mean_returns)} on {played}, {same}."


def limits(facts: Facts) -> str:
    """Says what the policy has seen in training, and whether fresh episodes went beyond it."""
    seen, fresh = facts.seen, facts.seen_fresh
    if seen is None:
        return (
            "What it saw in training is not known: the folder has no checkpoint with its replay. "
            + ("The ranges below are of the fresh episodes." if fresh else "")
        ).strip()
    count = len(seen.observations.low)
    if not count:
        return "It was trained on images, whose range is not listed; on others it is untested."
    known = f"Its training saw the ranges listed below, in its newest {seen.transitions:,} transitions"
    if fresh is None:
        return f"{known}; beyond them it is untested."
    beyond = seen.observations.exceeded_by(fresh.observations)
    went = f"{len(beyond)} of {count} components of fresh observations went" if beyond else "no fresh observation went"
    return f"{known}; {went} beyond them."


def observed(spec: Spec) -> str:
    """Says what a policy is shown."""
    parts = [counted(spec.observation_size, "value")] if spec.observation_size else []
    parts += [f"an image of {size_of(image)}" for image in spec.images]
    return " and ".join(parts) + (f" ({spec.stack} frames)" if spec.stack > 1 else "")


def _acts(spec: Spec) -> str:
    low, high = figure(float(spec.action_low.min())), figure(float(spec.action_high.max()))
    return f"{counted(spec.action_size, 'number')} between {low} and {high}"


def component_names(spec: Spec) -> list[str]:
    """Names the components of an observation vector."""
    names: list[str] = []
    for part in spec.observation:
        label = part.name.removeprefix("observation") or "observation"
        count = part.stop - part.start
        names += [label if count == 1 and part.path else f"{label} {place}" for place in range(count)]
    return names + [f"previous action {place}" for place in range(spec.observation_size - spec.own_size)]


def seen_rows(facts: Facts, spec: Spec) -> list[SeenRow]:
    """Returns what was seen of each component of observations, of actions, and of rewards."""
    training, fresh = facts.seen, facts.seen_fresh
    actions = [f"action {place}" for place in range(spec.action_size)]
    rows = _rows(component_names(spec), training and training.observations, fresh and fresh.observations)
    rows += _rows(actions, training and training.actions, fresh and fresh.actions)
    return rows + _rows(["reward"], training and training.rewards, None)


def _rows(names: Sequence[str], training: Range | None, fresh: Range | None) -> list[SeenRow]:
    beyond = training.exceeded_by(fresh) if training and fresh else []
    known = training or fresh
    return [
        SeenRow(name, [*_edges(training, place), *_edges(fresh, place)], place in beyond)
        for place, name in enumerate(names if known and len(known.low) else ())
    ]


def _edges(one: Range | None, place: int) -> list[str]:
    return ["", ""] if one is None else [figure(float(edge[place])) for edge in one]
