"""How good a policy is: own environments, the same seeds each time, no noise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from t3d.config import Config
from t3d.seeds import derive
from t3d.types import Evaluation, Policy, PolicySnapshot, Wishes
from t3d.world.envs import EnvFactory
from t3d.world.lanes import Lanes, open_lanes
from t3d.world.policy import MemberPolicy


class Stopped(Exception):
    """The run was asked for something in the middle of an evaluation, whose result is dropped."""


def evaluate(
    policy: Policy, lanes: Lanes, seeds: Sequence[int], max_steps: int, wishes: Wishes | None = None
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """One episode per seed, cut at max_steps, as many side by side as there are lanes: returns and lengths."""
    results: list[tuple[float, int]] = []
    for first in range(0, len(seeds), lanes.count):
        results += _play(policy, lanes, seeds[first : first + lanes.count], max_steps, wishes)
    returns, lengths = zip(*results, strict=True)
    return np.array(returns), np.array(lengths)


def _play(
    policy: Policy, lanes: Lanes, seeds: Sequence[int], max_steps: int, wishes: Wishes | None
) -> list[tuple[float, int]]:
    """One episode in each of the first lanes, without noise; the other lanes play along unseen."""
    all_seeds = [*seeds, *[seeds[0]] * (lanes.count - len(seeds))]
    observations = [lanes.reset(lane, seed, lane) for lane, seed in enumerate(all_seeds)]
    totals, lengths, playing = [0.0] * lanes.count, [0] * lanes.count, set(range(len(seeds)))
    while playing:
        if wishes is not None and (wishes.stop.is_set() or wishes.save.is_set()):
            raise Stopped
        for lane, result in enumerate(lanes.step(policy(np.stack(observations)))):
            observations[lane] = result.observation
            if lane in playing:
                totals[lane] += result.reward
                lengths[lane] += 1
            if result.terminated or result.truncated or lengths[lane] == max_steps:
                playing.discard(lane)
                if playing:
                    observations[lane] = lanes.reset(lane, all_seeds[lane], lane)
    return list(zip(totals, lengths, strict=True))[: len(seeds)]


class InlineEvaluator:
    """Evaluates in this process while training waits."""

    def __init__(self, cfg: Config, make_env: EnvFactory, wishes: Wishes) -> None:
        self.wishes, self.max_steps = wishes, cfg.eval.max_steps
        self.lanes = [open_lanes(make_env, cfg.env, f"the evaluation of seed {seed}", count=1) for seed in cfg.seeds]
        self.seeds = [
            [derive(seed, "evaluation", episode) for episode in range(cfg.eval.episodes)] for seed in cfg.seeds
        ]
        for lanes, seeds in zip(self.lanes, self.seeds, strict=True):  # PyBullet differs on the first reset only:
            for lane in range(lanes.count):  # with it out of the way, an episode is the same whenever it is played
                lanes.reset(lane, seeds[0], 0)
            lanes.take_faults()
        self._ready: list[Evaluation] = []

    def submit(self, snapshot: PolicySnapshot, step: int) -> None:
        """Evaluates every member of the snapshot; dropped as a whole if the run is asked to stop or save meanwhile."""
        results = []
        try:
            for member, (lanes, seeds) in enumerate(zip(self.lanes, self.seeds, strict=True)):
                returns, lengths = evaluate(MemberPolicy(snapshot, member), lanes, seeds, self.max_steps, self.wishes)
                bad_values = len(lanes.take_faults())
                results.append(Evaluation(step, member, snapshot, returns, lengths, bad_values))
        except Stopped:
            for lanes in self.lanes:
                lanes.take_faults()  # they come again when the evaluation does
            return
        self._ready += results

    def poll(self) -> list[Evaluation]:
        """The evaluations that are ready; each is handed out once."""
        ready, self._ready = self._ready, []
        return ready

    def close(self) -> None:
        """Closes the environments."""
        for lanes in self.lanes:
            lanes.close()
