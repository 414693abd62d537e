"""How good a policy is: own environments, the same starts each time and for all members, no noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from t3d.config import Config
from t3d.seeds import derive
from t3d.types import Evaluation, Policy, PolicySnapshot, State, Wishes
from t3d.world.envs import EnvFactory
from t3d.world.lanes import Lanes, open_lanes
from t3d.world.policy import MemberPolicy


class Stopped(Exception):
    """The run was asked for something in the middle of an evaluation, whose result is dropped."""


def evaluate(
    policy: Policy,
    lanes: Lanes,
    seeds: Sequence[int],
    max_steps: int,
    before_a_step: Callable[[], object] = int,
    first_episode: int = 0,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """One episode per seed, cut at max_steps, as many side by side as there are lanes: returns and lengths.

    Whatever before_a_step raises breaks it off; first_episode is for messages.
    """
    results: list[tuple[float, int]] = []
    for played in range(0, len(seeds), lanes.count):
        some = seeds[played : played + lanes.count]
        results += _play(policy, lanes, some, max_steps, before_a_step, first_episode + played)
    returns, lengths = zip(*results, strict=True)
    return np.array(returns), np.array(lengths)


def _play(
    policy: Policy, lanes: Lanes, seeds: Sequence[int], max_steps: int, before_a_step: Callable[[], object], first: int
) -> list[tuple[float, int]]:
    """One episode in each of the first lanes, without noise; the other lanes play along unseen."""
    all_seeds = [*seeds, *[seeds[0]] * (lanes.count - len(seeds))]
    observations = [lanes.reset(lane, seed, first + lane) for lane, seed in enumerate(all_seeds)]
    totals, lengths, playing = [0.0] * lanes.count, [0] * lanes.count, set(range(len(seeds)))
    while playing:
        before_a_step()
        for lane, result in enumerate(lanes.step(policy(np.stack(observations)))):
            if result.error is not None:
                raise result.error
            observations[lane] = result.observation
            if lane in playing:
                totals[lane] += result.reward
                lengths[lane] += 1
            if result.terminated or result.truncated or lengths[lane] == max_steps:
                playing.discard(lane)
                if playing:
                    observations[lane] = lanes.reset(lane, all_seeds[lane], first + lane)
    return list(zip(totals, lengths, strict=True))[: len(seeds)]


class Examiner:
    """Evaluates one member."""

    def __init__(self, cfg: Config, member: int, make_env: EnvFactory, beat: Callable[[], object] = int) -> None:
        seed = cfg.seeds[member]
        self.member, self.max_steps = member, cfg.eval.max_steps
        self.lanes = open_lanes(make_env, cfg.env, f"the evaluation of seed {seed}", beat=beat)
        self.seeds = [derive(cfg.eval.seed, "evaluation", episode) for episode in range(cfg.eval.episodes)]
        for lane in range(self.lanes.count):  # PyBullet differs on the first reset only: with it out of the way,
            self.lanes.reset(lane, self.seeds[0], 0)  # an episode is the same whenever it is played
        self.lanes.take_faults()

    def evaluate(self, snapshot: PolicySnapshot, step: int, before_a_step: Callable[[], object] = int) -> Evaluation:
        """Plays all of the member's evaluation episodes with its part of the snapshot."""
        return Evaluation(step, self.member, snapshot, *self.play(snapshot, range(len(self.seeds)), before_a_step))

    def play(
        self, snapshot: PolicySnapshot, episodes: Sequence[int], before_a_step: Callable[[], object] = int
    ) -> tuple[NDArray[np.float64], NDArray[np.int64], int]:
        """Plays these of them: returns, lengths, and how many bad values there were."""
        policy, seeds = MemberPolicy(snapshot, self.member), [self.seeds[episode] for episode in episodes]
        try:
            returns, lengths = evaluate(policy, self.lanes, seeds, self.max_steps, before_a_step, episodes[0])
        finally:
            bad_values = len(self.lanes.take_faults())  # broken off, they come again when the evaluation does
        return returns, lengths, bad_values


class InlineEvaluator:
    """Evaluates in this process while training waits."""

    def __init__(self, cfg: Config, make_env: EnvFactory, wishes: Wishes) -> None:
        self.wishes = wishes
        self.examiners = [Examiner(cfg, member, make_env) for member in range(len(cfg.seeds))]
        self._ready: list[Evaluation] = []

    def submit(self, snapshot: PolicySnapshot, step: int) -> bool:
        """Evaluates every member of the snapshot; dropped as a whole if the run is asked to stop or save meanwhile."""
        try:
            self._ready += [one.evaluate(snapshot, step, self._heed_wishes) for one in self.examiners]
        except Stopped:
            return False
        return True

    def _heed_wishes(self) -> None:
        if self.wishes.stop.is_set() or self.wishes.save.is_set():
            raise Stopped

    def poll(self) -> list[Evaluation]:
        """The evaluations that are ready; each is handed out once."""
        ready, self._ready = self._ready, []
        return ready

    def news(self) -> list[str]:
        """Nothing: there are no processes but this one."""
        return []

    def state(self) -> State:
        """Nothing: no evaluation is under way when a run is saved."""
        return {}

    def print_to(self, path: Path) -> None:
        """Nobody prints but this process."""

    def has_room(self) -> bool:
        """Always: an evaluation is over when submit returns."""
        return True

    def restore(self, state: State) -> list[int]:
        """Nothing was under way."""
        if state:
            raise ValueError("evaluations are under way, which one process does not have")
        return []

    def close(self) -> None:
        """Closes the environments."""
        for one in self.examiners:
            one.lanes.close()
