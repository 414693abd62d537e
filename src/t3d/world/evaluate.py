"""Evaluates policies: separate environments, the same start states every time and for all members, no noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from t3d.config import Config, EnvConfig
from t3d.policy.acting import MemberPolicy, PolicySnapshot
from t3d.seeds import derive
from t3d.types import EpisodeResult, Evaluation, Policy
from t3d.world.batch import EnvBatch, open_batch
from t3d.world.guard import EnvFactory
from t3d.world.make import factory_for


class Stopped(Exception):
    """A request interrupted an evaluation, whose result is dropped."""


def play_episodes(
    policy: Policy, env_batch: EnvBatch, seeds: Sequence[int], max_steps: int, first_episode: int = 0
) -> Iterator[list[EpisodeResult]]:
    """Plays one episode per seed, at most max_steps long, env_batch.count at a time.

    Before each step, and at the end, it yields the episodes that have ended since: there the caller may stop, or do
    something else first. `first_episode` is the number of the first one.
    """
    count = env_batch.count
    for first in range(0, len(seeds), count):
        batch = seeds[first : first + count]
        all_seeds = [*batch, *[batch[0]] * (count - len(batch))]  # the other environments are stepped too, and ignored
        episodes = range(first_episode + first, first_episode + first + count)
        env_batch.take_faults()  # of an evaluation that was interrupted
        observations = [env_batch.reset(*start) for start in zip(range(count), all_seeds, episodes, strict=True)]
        totals, lengths, bad_values, playing = [0.0] * count, [0] * count, [0] * count, set(range(len(batch)))
        ended: list[EpisodeResult] = []
        while playing:
            yield ended
            ended = []
            results = env_batch.step(policy(np.stack(observations)))
            for fault in env_batch.take_faults():
                bad_values[fault.env] += fault.env in playing
            for position, result in enumerate(results):
                if result.error is not None:
                    raise result.error
                observations[position] = result.observation
                if position in playing:
                    totals[position] += result.reward
                    lengths[position] += 1
                if not (result.terminated or result.truncated or lengths[position] == max_steps):
                    continue
                if position in playing:
                    playing.remove(position)
                    ending = totals[position], lengths[position], result.terminated, bad_values[position]
                    metrics = env_batch.guards[position].metrics.of_episode(result.info)
                    ended.append(EpisodeResult(position, episodes[position], *ending, *metrics))
                if playing:
                    observations[position] = env_batch.reset(position, all_seeds[position], episodes[position])
        yield ended


def finish(
    playing: Iterator[list[EpisodeResult]], count: int = 0, before_step: Callable[[], object] = int
) -> list[EpisodeResult]:
    """Plays these `count` episodes and returns them in their order; whatever before_step raises interrupts it."""
    results: list[EpisodeResult] = []
    for ended in playing:
        results += ended
        if len(results) < count:
            before_step()
    return sorted(results, key=lambda result: result.episode)


def open_for_evaluation(
    make_env: EnvFactory, cfg: EnvConfig, where: str, seed: int, beat: Callable[[], object] = int
) -> EnvBatch:
    """Opens environments and resets each once: PyBullet differs on the first reset only.

    After it, an episode is the same whenever it is played.
    """
    env_batch = open_batch(make_env, cfg, where, beat=beat)
    try:
        for position in range(env_batch.count):
            env_batch.reset(position, seed, 0)
    except BaseException:
        env_batch.close()
        raise
    return env_batch


def eval_seeds(cfg: Config, set_name: str) -> list[int]:
    """Returns the start of each episode of a set, the same for all members; the first set has those without sets."""
    purpose = "evaluation" if set_name == cfg.eval.set_names[0] else f"evaluation {set_name}"
    return [derive(cfg.eval.seed, purpose, episode) for episode in range(cfg.eval.episodes)]


def evaluations_of(
    cfg: Config, step: int, member: int, snapshot: PolicySnapshot, played: Sequence[EpisodeResult]
) -> list[Evaluation]:
    """Divides the episodes of all sets, which were played in their order, into an evaluation for each."""
    count, names = cfg.eval.episodes, cfg.eval.set_names
    parts = [[*played[at * count : (at + 1) * count]] for at in range(len(names))]
    return [
        Evaluation(step, member, snapshot, part, name, name == names[0])
        for name, part in zip(names, parts, strict=True)
    ]


class MemberEvaluator:
    """Evaluates one member under all conditions; the episodes of the sets, one after the other, have one numbering."""

    def __init__(self, cfg: Config, member: int, make_env: EnvFactory, beat: Callable[[], object] = int) -> None:
        self.cfg, self.member, who = cfg, member, cfg.members[member]
        self.seeds = [eval_seeds(cfg, name) for name in cfg.eval.set_names]
        self.env_batches: list[EnvBatch] = []
        for name, seeds in zip(cfg.eval.set_names, self.seeds, strict=True):
            env, where = cfg.eval_env(who, name), f"the evaluation of {who.title}{name and f', set {name}'}"
            self.env_batches.append(open_for_evaluation(factory_for(make_env, env), env, where, seeds[0], beat))

    def evaluate(
        self, snapshot: PolicySnapshot, step: int, before_step: Callable[[], object] = int
    ) -> list[Evaluation]:
        played, count = list[EpisodeResult](), self.cfg.eval.episodes
        for first in range(0, self.cfg.eval.all_episodes, count):
            played += finish(self.play(snapshot, range(first, first + count)), count, before_step)
        return evaluations_of(self.cfg, step, self.member, snapshot, played)

    def next_episodes(self, first: int) -> range:
        """Returns as many episodes from the first on as are played at once."""
        at, number = divmod(first, self.cfg.eval.episodes)
        return range(first, first + min(self.env_batches[at].count, self.cfg.eval.episodes - number))

    def play(self, snapshot: PolicySnapshot, episodes: range) -> Iterator[list[EpisodeResult]]:
        """Plays episodes of one set."""
        at, first = divmod(episodes.start, self.cfg.eval.episodes)
        seeds = self.seeds[at][first : first + len(episodes)]
        policy = MemberPolicy(snapshot, self.member)
        return play_episodes(policy, self.env_batches[at], seeds, self.cfg.eval.max_steps, first)

    def close(self) -> None:
        for env_batch in self.env_batches:
            env_batch.close()
