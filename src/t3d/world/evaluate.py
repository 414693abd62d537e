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
        some = seeds[first : first + count]
        all_seeds = [*some, *[some[0]] * (count - len(some))]  # the other environments are stepped too, and ignored
        episodes = range(first_episode + first, first_episode + first + count)
        env_batch.take_faults()  # of an evaluation that was interrupted
        observations = [env_batch.reset(*start) for start in zip(range(count), all_seeds, episodes, strict=True)]
        totals, lengths, bad_values, playing = [0.0] * count, [0] * count, [0] * count, set(range(len(some)))
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
                    said = env_batch.guards[position].metrics.of_episode(result.info)
                    ended.append(EpisodeResult(position, episodes[position], *ending, *said))
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


class MemberEvaluator:
    """Evaluates one member."""

    def __init__(self, cfg: Config, member: int, make_env: EnvFactory, beat: Callable[[], object] = int) -> None:
        self.member, self.max_steps = member, cfg.eval.max_steps
        self.seeds = [derive(cfg.eval.seed, "evaluation", episode) for episode in range(cfg.eval.episodes)]
        where = f"the evaluation of {cfg.members[member].title}"
        self.env_batch = open_for_evaluation(make_env, cfg.env, where, self.seeds[0], beat)

    def evaluate(self, snapshot: PolicySnapshot, step: int, before_step: Callable[[], object] = int) -> Evaluation:
        playing = self.play(snapshot, range(len(self.seeds)))
        return Evaluation(step, self.member, snapshot, finish(playing, len(self.seeds), before_step))

    def play(self, snapshot: PolicySnapshot, episodes: range) -> Iterator[list[EpisodeResult]]:
        policy, seeds = MemberPolicy(snapshot, self.member), self.seeds[episodes.start : episodes.stop]
        return play_episodes(policy, self.env_batch, seeds, self.max_steps, episodes.start)
