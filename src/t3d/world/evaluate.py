"""Evaluates policies: separate environments, the same start states every time and for all members, no noise."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from t3d.config import Config
from t3d.policy.snapshots import MemberPolicy, PolicySnapshot
from t3d.seeds import derive
from t3d.types import Evaluation, Policy
from t3d.world.batch import EnvBatch, open_batch
from t3d.world.guard import EnvFactory

T = TypeVar("T")


class Stopped(Exception):
    """A request interrupted an evaluation, whose result is dropped."""


def evaluate(
    policy: Policy,
    env_batch: EnvBatch,
    seeds: Sequence[int],
    max_steps: int,
    before_a_step: Callable[[], object] = int,
    first_episode: int = 0,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Plays one episode per seed, at most max_steps long, env_batch.count at a time; gives their returns and lengths.

    Any exception from before_a_step interrupts it; first_episode is for messages.
    """
    return _finished(_played(policy, env_batch, seeds, max_steps, first_episode), before_a_step)


def _finished(playing: Generator[None, None, T], before_a_step: Callable[[], object]) -> T:
    """Plays to the end and returns the result."""
    while True:
        try:
            next(playing)
        except StopIteration as end:
            result: T = end.value
            return result
        before_a_step()


def _played(
    policy: Policy, env_batch: EnvBatch, seeds: Sequence[int], max_steps: int, first: int
) -> Generator[None, None, tuple[NDArray[np.float64], NDArray[np.int64]]]:
    """Plays one episode per seed and returns their returns and lengths; yields before each step."""
    results: list[tuple[float, int]] = []
    for place in range(0, len(seeds), env_batch.count):
        some = seeds[place : place + env_batch.count]
        results += yield from _play(policy, env_batch, some, max_steps, first + place)
    returns, lengths = zip(*results, strict=True)
    return np.array(returns), np.array(lengths)


def _play(
    policy: Policy, env_batch: EnvBatch, seeds: Sequence[int], max_steps: int, first: int
) -> Generator[None, None, list[tuple[float, int]]]:
    """Plays one episode in each of the first environments; the others are stepped too, and ignored.

    Yields before each step.
    """
    all_seeds = [*seeds, *[seeds[0]] * (env_batch.count - len(seeds))]
    observations = [env_batch.reset(position, seed, first + position) for position, seed in enumerate(all_seeds)]
    totals, lengths, playing = [0.0] * env_batch.count, [0] * env_batch.count, set(range(len(seeds)))
    while playing:
        yield
        for position, result in enumerate(env_batch.step(policy(np.stack(observations)))):
            if result.error is not None:
                raise result.error
            observations[position] = result.observation
            if position in playing:
                totals[position] += result.reward
                lengths[position] += 1
            if result.terminated or result.truncated or lengths[position] == max_steps:
                playing.discard(position)
                if playing:
                    observations[position] = env_batch.reset(position, all_seeds[position], first + position)
    return list(zip(totals, lengths, strict=True))[: len(seeds)]


class Played(NamedTuple):
    """The result of some evaluation episodes."""

    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    bad_values: int  # found and kept out


class MemberEvaluator:
    """Evaluates one member."""

    def __init__(self, cfg: Config, member: int, make_env: EnvFactory, beat: Callable[[], object] = int) -> None:
        self.member, self.max_steps = member, cfg.eval.max_steps
        self.env_batch = open_batch(make_env, cfg.env, f"the evaluation of {cfg.members[member].title}", beat=beat)
        self.seeds = [derive(cfg.eval.seed, "evaluation", episode) for episode in range(cfg.eval.episodes)]
        # PyBullet differs on the first reset only; after it, an episode is the same whenever it is played.
        for position in range(self.env_batch.count):
            self.env_batch.reset(position, self.seeds[0], 0)
        self.env_batch.take_faults()

    def evaluate(self, snapshot: PolicySnapshot, step: int, before_a_step: Callable[[], object] = int) -> Evaluation:
        """Plays all of the member's evaluation episodes with its part of the snapshot."""
        return Evaluation(step, self.member, snapshot, *self.play(snapshot, range(len(self.seeds)), before_a_step))

    def play(
        self, snapshot: PolicySnapshot, episodes: Sequence[int], before_a_step: Callable[[], object] = int
    ) -> Played:
        """Plays the given evaluation episodes."""
        return _finished(self.playing(snapshot, episodes), before_a_step)

    def playing(self, snapshot: PolicySnapshot, episodes: Sequence[int]) -> Generator[None, None, Played]:
        """Plays the given evaluation episodes and yields before each step, so that the caller can do something else."""
        policy, seeds = MemberPolicy(snapshot, self.member), [self.seeds[episode] for episode in episodes]
        try:
            returns, lengths = yield from _played(policy, self.env_batch, seeds, self.max_steps, episodes[0])
        finally:
            bad_values = len(self.env_batch.take_faults())  # if interrupted, they recur when it is evaluated again
        return Played(returns, lengths, bad_values)
