"""What several tests need: specs, random batches, the oracle filled with a member's weights, small environments."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np
import psutil
import pytest
import torch
from torch import Tensor, nn

from t3d.algo.learner import Learner
from t3d.algo.networks import Stack, layers_of, named_tensors
from t3d.algo.oracle import Oracle
from t3d.algo.td3 import Agent
from t3d.config import Config, RuleConfig, TD3Config, merge
from t3d.config.networks import architecture
from t3d.policy.acting import PolicySnapshot
from t3d.policy.architectures import Architecture
from t3d.policy.spec import Floats, Part, Spec
from t3d.types import UNKNOWN, Batch, Draws, Rollout

Part_ = TypeVar("Part_")


def make_spec(observation_size: int = 5, action_size: int = 3) -> Spec:
    part = Part((), (observation_size,), 0, observation_size)
    return Spec((part,), (action_size,), -np.ones(action_size), np.ones(action_size))


def random_batches(
    spec: Spec, cfg: RuleConfig, members: int, count: int, dtype: torch.dtype = torch.float64, seed: int = 0
) -> Iterator[tuple[Batch, Draws]]:
    """Batches with large noise and frequent termination, so that every clip, clamp and mask matters."""
    generator = torch.Generator().manual_seed(seed)
    shape = (members, cfg.batch_size)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=dtype)

    for _ in range(count):
        yield (
            Batch(
                s=normal(*shape, spec.observation_size),
                a=normal(*shape, spec.action_size).clamp(-1, 1),
                r=normal(*shape),
                s2=normal(*shape, spec.observation_size),
                terminated=(torch.rand(shape, generator=generator) < 0.3).to(dtype),
                discount=torch.full(shape, cfg.gamma, dtype=dtype),
                weight=torch.ones(shape, dtype=dtype),
                index=torch.zeros(shape, dtype=torch.long),
            ),
            Draws(normal(*shape, spec.action_size), normal(members, cfg.critics)),
        )


def member_of(batch: Batch, draws: Draws, member: int) -> tuple[Batch, Draws]:
    """The batch and the draws of one member alone."""
    rows = slice(member, member + 1)
    parts: list[Any] = [None if value is None else value[rows] for value in draws]
    return Batch(*(value[rows] for value in batch)), Draws(*parts)


def snapshot_for(spec: Spec, members: int) -> PolicySnapshot:
    sizes = (spec.observation_size, 4, spec.action_size)
    flat = np.random.default_rng(0).normal(size=(members, mlp(*sizes).size)).astype(np.float32)
    return PolicySnapshot(0, mlp(*sizes), flat)


def mlp(*sizes: int) -> Architecture:
    """A ReLU perceptron."""
    return architecture("mlp", sizes, "relu")


def fill(module: nn.Sequential, stack: Stack, row: int) -> None:
    """Gives a plain module the numbers of one network of a stack."""
    linears = [layer for layer in module if isinstance(layer, nn.Linear)]
    for linear, (weight, bias) in zip(linears, layers_of(stack.architecture, stack.flat), strict=True):
        linear.weight.data.copy_(weight[row].T)
        linear.bias.data.copy_(bias[row, 0])


def flat_of(module: nn.Module) -> Tensor:
    """A plain module's numbers in the order of a stack's row."""
    pieces = [p.data.T.reshape(-1) if p.ndim == 2 else p.data for p in module.parameters()]
    return torch.cat(pieces)


def oracle_of(agent: Agent, spec: Spec, cfg: TD3Config, member: int) -> Oracle:
    """The oracle in the state of one member."""
    oracle = Oracle(spec.observation_size, spec.action_size, cfg)
    for module in [oracle.actor, oracle.actor_target, *oracle.critics, *oracle.critic_targets]:
        module.to(agent.actor.flat.dtype)
    fill(oracle.actor, agent.actor, member)
    fill(oracle.actor_target, agent.actor_target, member)
    for which in range(cfg.critics):
        fill(oracle.critics[which], agent.critic, member * cfg.critics + which)
        fill(oracle.critic_targets[which], agent.critic_target, member * cfg.critics + which)
    return oracle


def oracle_update(oracle: Oracle, batch: Batch, draws: Draws, member: int) -> None:
    b = batch
    oracle.update(
        b.s[member],
        b.a[member],
        b.r[member].unsqueeze(1),
        b.s2[member],
        b.terminated[member].unsqueeze(1),
        draws.target_noise[member],
    )


def difference(agent: Agent, oracle: Oracle, cfg: TD3Config, member: int) -> float:
    """The largest distance between any number of a member's four networks and the oracle's."""
    rows = slice(member * cfg.critics, (member + 1) * cfg.critics)
    pairs = [
        (agent.actor.flat[member], flat_of(oracle.actor)),
        (agent.actor_target.flat[member], flat_of(oracle.actor_target)),
        (agent.critic.flat[rows], torch.stack([flat_of(critic) for critic in oracle.critics])),
        (agent.critic_target.flat[rows], torch.stack([flat_of(critic) for critic in oracle.critic_targets])),
    ]
    return max(float((ours - theirs).abs().max()) for ours, theirs in pairs)


def small_config(**changes: Any) -> Config:
    """A run of a few hundred steps on tiny networks, on the CPU even where there is a GPU."""
    base: dict[str, Any] = {
        "device": "cpu",
        "total_steps": 300,
        "env": {"id": "Pendulum-v1"},
        "random_steps": 100,
        "td3": {"batch_size": 16, "actor_hidden": [16, 16], "critic_hidden": [16, 16]},
        "eval": {"every_steps": 150, "episodes": 2, "max_steps": 50},
        "log": {"every_steps": 50, "diagnose_every_steps": 100},
    }
    return merge(merge(Config(), base), changes)


def rollout_of(member: int, s: Floats, a: Floats, r: Floats, s2: Floats, terminated: Any) -> Rollout:
    """Transitions given column by column."""
    columns = [s, a, r[:, None], terminated[:, None], s2]
    origins = np.full((len(s), 4), UNKNOWN, np.int32)
    return Rollout(member, np.concatenate(columns, axis=1, dtype=np.float32), origins, s.shape[1], [], [])


def caught(monkeypatch: pytest.MonkeyPatch, kind: type[Part_]) -> list[Part_]:
    """Fills with the parts of this kind that runs make from now on."""
    made: list[Part_] = []

    def catch(*arguments: Any, **keywords: Any) -> Part_:
        made.append(kind(*arguments, **keywords))
        return made[-1]

    monkeypatch.setattr(f"t3d.run.build.{kind.__name__}", catch)
    return made


def replace_updates(monkeypatch: pytest.MonkeyPatch, update: Callable[[Learner, int], Any]) -> None:
    """Has runs make their updates one by one, by a method that replaces Learner.run."""

    def one_by_one(learner: Learner, n: int) -> Any:
        for _ in range(n):
            trace = update(learner, 1)
        return trace

    monkeypatch.setattr(Learner, "run", one_by_one)


def all_finite(learner: Learner) -> bool:
    """Whether every number of all four networks and of both optimisers is finite."""
    return all(bool(torch.isfinite(numbers).all()) for _, numbers in named_tensors(learner.agent))


SLEEP = f"7654.{os.getpid()}"  # seconds that a simulator sleeps: nobody else's sleep so long


def simulators() -> list[psutil.Process]:
    """The processes that environments of this test have started, if SLEEP is their time."""
    return [one for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] == ["sleep", SLEEP]]


def products(**values: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrizes a test with combinations that hold every pair of values; `make test-all` adds all others."""
    names = list(values)
    combinations = list(itertools.product(*values.values()))
    pairs = {each: {*itertools.combinations(enumerate(map(str, each)), 2)} for each in combinations}
    missing = set[Any]().union(*pairs.values())
    quick = []
    while missing:
        quick.append(max(combinations, key=lambda each: len(pairs[each] & missing)))
        missing -= pairs[quick[-1]]
    slow = [pytest.param(*each, marks=pytest.mark.slow) for each in combinations if each not in quick]
    return pytest.mark.parametrize(names, [*quick, *slow], ids=str)


class CountingEnv(gym.Env[Any, Any]):
    """Observations and rewards say where they come from: (environment, episode, t); actions do not matter.

    Episodes end after 3 to 7 steps, by termination when their number is even and by truncation when it is odd.
    """

    made = 0

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
        self.number = CountingEnv.made
        CountingEnv.made += 1
        self.episode = -1
        self.buffer = np.zeros(3, np.float32)  # reused on purpose: T3D must copy

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode += 1
        self.t = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        over = self.t == length_of(self.episode)
        even = self.episode % 2 == 0
        reward = self.number * 100 + self.episode + self.t / 10
        return self._observe(), reward, over and even, over and not even, {}

    def _observe(self) -> Any:
        self.buffer[:] = (self.number, self.episode, self.t)
        return self.buffer


def length_of(episode: int) -> int:
    return 3 + episode % 5
