"""Plays fresh episodes with best policies, and so chooses the best seed, in a sweep of its highest combination.

The learning curves cannot tell, because each one's highest evaluation is the luckiest of many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from itertools import groupby
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from t3d.config import EnvConfig, Member
from t3d.config.metrics import Criterion
from t3d.errors import UserError
from t3d.files import CORRUPT_ERRORS, to_fields, to_number
from t3d.insight.ranges import InputRanges, RangeRecorder
from t3d.insight.statistics import estimate, mean
from t3d.insight.wording import metrics_text, number_text
from t3d.policy.acting import SavedPolicy
from t3d.process import StandardStreams
from t3d.seeds import derive
from t3d.store.best import Fresh, read_fresh, write_fresh
from t3d.store.reader import Run
from t3d.types import EpisodeResult, mean_metrics, sample_std
from t3d.world.evaluate import Stopped, finish, open_for_evaluation, play_episodes
from t3d.world.factory import checked_factory
from t3d.world.fingerprint import check_fits
from t3d.world.guard import EnvFactory
from t3d.world.make import env_factory, factory_for

EPISODES_FACTOR = 3  # times eval.episodes; chosen
WHERE = {"choice": "the choice between seeds", "test": "the test"}


class Played(NamedTuple):
    """The fresh episodes of one policy."""

    policy: SavedPolicy
    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    seen: InputRanges | None
    episodes: list[EpisodeResult]


class Choice(NamedTuple):
    """How each member's best policy did on the same fresh episodes."""

    episodes: int
    criterion: Criterion
    mean_returns: dict[Member, float]
    scores: dict[Member, float]  # of the metric that chooses, if that is not the return, as far as episodes have it

    @property
    def ranked(self) -> list[Member]:
        """The best one first, by eval.best_by, and of equals the first."""
        return sorted(self.mean_returns, key=self._rank, reverse=True)

    @property
    def member(self) -> Member:
        return self.ranked[0]

    def text(self, member: Member) -> str:
        """Formats what a member returned, and the metric that chooses."""
        return number_text(self.mean_returns[member]) + metrics_text(self._score(member))

    def _rank(self, member: Member) -> tuple[float, float]:
        return self.criterion.rank(self.mean_returns[member], self._score(member))

    def _score(self, member: Member) -> dict[str, float]:
        return {self.criterion.metric: self.scores[member]} if member in self.scores else {}


def fresh_episodes(run: Run) -> int:
    """Returns how many episodes each member plays."""
    return EPISODES_FACTOR * run.cfg.eval.episodes


def known_choice(run: Run) -> Choice | None:
    """Reads an earlier choice between exactly these policies, if there is one; of one policy, its result."""
    members, known = run.contenders, read_fresh(run.path)
    if len(members) == 1:
        fresh = known.by_member.get(members[0].name)
        return Choice(fresh.episodes, run.cfg.criterion, {members[0]: fresh.mean}, {}) if fresh else None
    if known.choice.get("basis") != _basis(run, {member: run.policy(member) for member in members}):
        return None
    with suppress(*CORRUPT_ERRORS):
        means, scores = to_fields(known.choice["mean_returns"]), to_fields(known.choice["scores"])
        returns = {member: to_number(means[member.name]) for member in members}
        scored = {member: to_number(scores[member.name]) for member in members if member.name in scores}
        return Choice(fresh_episodes(run), run.cfg.criterion, returns, scored)
    return None


def play_choice(run: Run, before_a_step: Callable[[], object] = int) -> Choice:
    """Plays fresh episodes with every contender and saves the results; whatever before_a_step raises aborts it.

    A single one plays those that t3d eval plays.
    """
    policies = {member: run.policy(member) for member in run.contenders}
    purpose: Literal["choice", "test"] = "choice" if len(policies) > 1 else "test"
    try:
        played = play(run, policies, purpose, fresh_episodes(run), before_a_step)
    except (UserError, Stopped):
        raise
    except Exception as error:  # an environment may raise anything
        raise UserError(f"{run.cfg.env.id} failed: {error}") from error
    returns = {member: float(fresh.returns.mean()) for member, fresh in played.items()}
    metrics = {member: mean_metrics([each.metrics for each in fresh.episodes]) for member, fresh in played.items()}
    by = run.cfg.criterion.metric
    scores = {member: known[by] for member, known in metrics.items() if by in known}
    choice = Choice(fresh_episodes(run), run.cfg.criterion, returns, scores)
    numbers = {"mean_returns": returns, "scores": scores}
    stored = {name: {member.name: value for member, value in of.items()} for name, of in numbers.items()}
    save_played(run, played, choice.member, {"basis": _basis(run, policies), **stored} if len(policies) > 1 else None)
    return choice


def play(
    run: Run,
    policies: Mapping[Member, SavedPolicy],
    purpose: Literal["choice", "test"],
    episodes: int,
    before_a_step: Callable[[], object] = int,
    env: EnvConfig | None = None,
) -> dict[Member, Played]:
    """Plays the same fresh episodes with each policy; those of a choice are not those of a test."""
    envs, played = {member: env or run.env(None, member) for member in policies}, dict[Member, Played]()
    starts = [derive(run.cfg.eval.seed, purpose, episode) for episode in range(episodes)]
    streams = StandardStreams()
    try:
        for where, group in groupby(policies, envs.__getitem__):  # members of a sweep may have different ones
            opened = open_for_evaluation(factory_of(run, where), where, WHERE[purpose], starts[0])
            with closing(opened) as env_batch:
                for member in group:
                    policy = policies[member]
                    check_fits(policy, env_batch.spec, where.id)
                    watched = RangeRecorder(policy.actor, policy.spec)
                    playing = play_episodes(watched, env_batch, starts, run.cfg.eval.max_steps)
                    results = finish(playing, episodes, before_a_step)
                    returns = np.array([episode.total_reward for episode in results])
                    lengths = np.array([episode.length for episode in results])
                    played[member] = Played(policy, returns, lengths, watched.ranges, results)
    finally:
        streams.close()
    return played


def factory_of(run: Run, env: EnvConfig) -> EnvFactory:
    """Returns what makes an environment to play in: by its id, or as the program that opened the run says."""
    if env.id or run.make_env is None:
        return env_factory(env)
    return factory_for(checked_factory(run.make_env, run.cfg.env), env)


def save_played(
    run: Run, played: Mapping[Member, Played], chosen: Member | None = None, choice: Mapping[str, Any] | None = None
) -> None:
    """Records what best policies returned, for lists, reports and the dashboard; of the chosen one also what it saw."""
    results = {}
    for member, (policy, returns, lengths, seen, episodes) in played.items():
        value, interval = estimate(mean, [returns])
        results[member.name] = Fresh(
            policy=policy.sha256,
            episodes=len(returns),
            mean=value,
            std=float(sample_std(returns)),
            low=interval and interval.low,
            high=interval and interval.high,
            lowest=float(returns.min()),
            highest=float(returns.max()),
            mean_length=float(lengths.mean()),
            of=len(played),
            metrics=mean_metrics([episode.metrics for episode in episodes]),
            seen=seen.to_dict() if seen and chosen in (None, member) else None,
        )
    write_fresh(run.path, results, chosen.name if chosen else "", choice)


def _basis(run: Run, policies: dict[Member, SavedPolicy]) -> dict[str, Any]:
    """Returns what a choice depends on; if any of it changes, the choice is made again."""
    envs = {member.name: run.cfg.eval_env(member) for member in policies}
    other = {name: [env.id, env.args, [*env.wrappers]] for name, env in envs.items() if env != run.cfg.env}
    return {
        "env": run.cfg.env.id,
        **({"args": run.cfg.env.args} if run.cfg.env.args else {}),
        **({"best_by": run.cfg.eval.best_by} if run.cfg.criterion != Criterion() else {}),
        **({"wrappers": [*run.cfg.env.wrappers]} if run.cfg.env.wrappers else {}),
        **({"evaluated_in": other} if other else {}),
        "eval_seed": run.cfg.eval.seed,
        "episodes": fresh_episodes(run),
        "max_steps": run.cfg.eval.max_steps,
        "policies": {member.name: policy.sha256 for member, policy in policies.items()},
    }
