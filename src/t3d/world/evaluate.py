"""How good a policy is: own environments, the same seeds each time, no noise."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from t3d.config import Config
from t3d.seeds import derive
from t3d.types import Evaluation, Policy, PolicySnapshot
from t3d.world.envs import EnvFactory, Environment
from t3d.world.policy import MemberPolicy


class Stopped(Exception):
    """The run was asked to stop in the middle of an evaluation, whose result is dropped."""


def play(policy: Policy, env: Environment, seed: int, stop: threading.Event | None = None) -> tuple[float, int]:
    """One episode without noise: its return and length."""
    observation, total_reward, length = env.reset(seed), 0.0, 0
    while True:
        if stop is not None and stop.is_set():
            raise Stopped
        observation, reward, terminated, truncated = env.step(policy(observation[None])[0])
        total_reward += reward
        length += 1
        if terminated or truncated:
            return total_reward, length


def evaluate(
    policy: Policy, env: Environment, seeds: Sequence[int], stop: threading.Event | None = None
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """One episode per seed: returns and lengths."""
    results = [play(policy, env, seed, stop) for seed in seeds]
    returns, lengths = zip(*results, strict=True)
    return np.array(returns), np.array(lengths)


class InlineEvaluator:
    """Evaluates in this process while training waits."""

    def __init__(self, cfg: Config, make_env: EnvFactory, stop: threading.Event) -> None:
        self.stop = stop
        self.envs = [Environment(make_env(), f"evaluation environment of seed {seed}") for seed in cfg.seeds]
        self.seeds = [
            [derive(seed, "evaluation", episode) for episode in range(cfg.eval.episodes)] for seed in cfg.seeds
        ]
        self._ready: list[Evaluation] = []

    def submit(self, snapshot: PolicySnapshot, step: int) -> None:
        """Evaluates every member of the snapshot; dropped as a whole if the run is asked to stop meanwhile."""
        results = []
        try:
            for member, (env, seeds) in enumerate(zip(self.envs, self.seeds, strict=True)):
                returns, lengths = evaluate(MemberPolicy(snapshot, member), env, seeds, self.stop)
                results.append(Evaluation(step, member, snapshot, returns, lengths))
        except Stopped:
            return
        self._ready += results

    def poll(self) -> list[Evaluation]:
        """The evaluations that are ready; each is handed out once."""
        ready, self._ready = self._ready, []
        return ready

    def close(self) -> None:
        """Closes the environments."""
        for env in self.envs:
            env.close()
