"""How long one update takes: the oracle, the engines and the bare matrix products, in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from t3d.algo.engines import ENGINES
from t3d.algo.engines.verify import random_batch
from t3d.algo.learner import Learner
from t3d.algo.oracle import Oracle
from t3d.config import Config, TD3Config
from t3d.config.networks import actor_architecture, critic_architecture
from t3d.config.presets import preset
from t3d.data.memory import Memory
from t3d.policy.spec import Part, Spec

HALF_CHEETAH = Spec((Part((), (17,), 0, 17),), (6,), -np.ones(6), np.ones(6))  # of HalfCheetah-v5
REPLAY_ROWS = 100_000

Run = Callable[[int], object]  # makes the given number of updates, or of anything else
Sizes = tuple[int, ...]
Product = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """What to time."""

    device: str
    threads: int
    batch: int
    hidden: tuple[int, ...]
    seeds: int
    critics: int
    preset: str = "default"

    @property
    def cfg(self) -> TD3Config:
        sizes: dict[str, Any] = {"actor_hidden": self.hidden, "critic_hidden": self.hidden}
        return replace(preset(self.preset).td3, batch_size=self.batch, critics=self.critics, **sizes)

    @property
    def normalised(self) -> bool:
        return preset(self.preset).normalise_observations


def update_rows(case: Case, engines: list[str], seconds: float) -> Iterator[dict[str, Any]]:
    """Yields a row for each engine, timed in turns."""
    torch.set_num_threads(case.threads)
    runs = {engine: _runner(engine, case) for engine in engines}
    for engine, times in timed_in_turns(runs, seconds, case.device).items():
        yield {"what": "update", "engine": engine, **vars(case), **times}


def timed_in_turns(runs: Mapping[str, Run], seconds: float, device: str) -> dict[str, dict[str, float]]:
    """Returns the best and the median time of one repetition of each, timed in turns for about the given seconds."""
    each = {}  # an even number of repetitions that takes about 50 ms
    for name, run in runs.items():
        _seconds(run, 10, device)  # warms up
        each[name] = max(2, int(0.05 / (_seconds(run, 10, device) / 10)) // 2 * 2)
    times: dict[str, list[float]] = {name: [] for name in runs}
    until = time.monotonic() + seconds * len(runs)
    while time.monotonic() < until or min(map(len, times.values())) < 3:
        for name, run in runs.items():
            times[name].append(_seconds(run, each[name], device) / each[name])
    return {
        name: {"ms_best": round(1000 * min(values), 4), "ms_median": round(1000 * statistics.median(values), 4)}
        for name, values in times.items()
    }


def growth_cases(base: Case) -> list[Case]:
    """Varies one size at a time, from small to large, to show where an update starts to cost more."""
    changes: dict[str, list[Any]] = {
        "batch": [32, 64, 128, 256, 512, 1024],
        "hidden": [(64, 64), (128, 128), (256, 256), (512, 512), (1024, 1024)],
        "seeds": [1, 2, 4, 8, 16],
        "critics": [1, 2, 4, 8],
    }
    return [Case(**{**vars(base), name: value}) for name, values in changes.items() for value in values]


def _runner(engine: str, case: Case) -> Run:
    if engine == "floor":
        return repeated(Floor(HALF_CHEETAH, case.cfg, case.seeds, case.device))
    batch = random_batch(HALF_CHEETAH, case.cfg, case.seeds, case.device)
    if engine == "oracle":  # one for each seed, one after the other
        oracles = [Oracle(17, 6, case.cfg) for _ in range(case.seeds)]
        for oracle in oracles:
            for module in (oracle.actor, oracle.actor_target, *oracle.critics, *oracle.critic_targets):
                module.to(case.device)
        noise = torch.randn(case.seeds, case.batch, 6, device=case.device)
        columns = batch.s, batch.a, batch.r.unsqueeze(-1), batch.s2, batch.terminated.unsqueeze(-1), noise
        return repeated(*(partial(oracle.update, *part) for oracle, *part in zip(oracles, *columns, strict=True)))
    seeds = tuple(range(case.seeds))
    if not ENGINES[engine].records:
        learner = Learner(HALF_CHEETAH, case.cfg, seeds, case.device, engine=engine)
        draws = learner.draw()
        return repeated(lambda: learner.update(batch, draws))
    cfg = Config(total_steps=REPLAY_ROWS, td3=case.cfg, seeds=seeds, normalise_observations=case.normalised)
    memory = Memory(HALF_CHEETAH, cfg, case.device)  # a graph includes the sampling
    memory.replay.rows.uniform_(-1, 1)
    memory.replay.set_added([REPLAY_ROWS] * case.seeds)
    learner = Learner(HALF_CHEETAH, case.cfg, seeds, case.device, engine=engine, source=memory)
    learner.prepare()
    return learner.run


def repeated(*functions: Callable[[], object]) -> Run:
    """Returns what calls functions in turn, the given number of times."""

    def run(n: int) -> None:
        for _ in range(n):
            for function in functions:
                function()

    return run


def _seconds(run: Run, n: int, device: str) -> float:
    started = time.perf_counter()
    run(n)
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


class Floor:
    """Only the matrix products of an update, in its order and textbook layouts, each on its own buffers."""

    def __init__(self, spec: Spec, cfg: TD3Config, members: int, device: str) -> None:
        self.batch, self.device, self.policy_delay, self.updates = cfg.batch_size, device, cfg.policy_delay, 0
        actor, critic = actor_architecture(spec, cfg).sizes, critic_architecture(spec, cfg).sizes
        critics = members * cfg.critics
        self.every = self._forward(members, actor) + self._forward(critics, critic) + self._forward(critics, critic)
        self.every += self._weights(critics, critic) + self._inputs(critics, critic[1:])
        from_action = (spec.action_size, *critic[1:-1])  # only the action part of Q1's input has a gradient
        self.delayed = self._forward(members, actor) + self._forward(members, critic[:-1])
        self.delayed += self._inputs(members, from_action) + self._weights(members, actor)
        self.delayed += self._inputs(members, actor[1:])

    def __call__(self) -> None:
        self.updates += 1
        for multiply in self.every if self.updates % self.policy_delay else self.every + self.delayed:
            multiply()

    def _forward(self, count: int, sizes: Sizes) -> list[Product]:
        return [self._product((count, self.batch, i), (count, i, o)) for i, o in pairwise(sizes)]

    def _weights(self, count: int, sizes: Sizes) -> list[Product]:
        return [self._product((count, self.batch, i), (count, self.batch, o), turned=0) for i, o in pairwise(sizes)]

    def _inputs(self, count: int, sizes: Sizes) -> list[Product]:
        return [self._product((count, self.batch, o), (count, i, o), turned=1) for i, o in pairwise(sizes)]

    def _product(self, *shapes: Sizes, turned: int | None = None) -> Product:
        left, right = (torch.randn(shape, device=self.device) for shape in shapes)
        left, right = left.mT if turned == 0 else left, right.mT if turned == 1 else right
        out = torch.empty(left.shape[0], left.shape[1], right.shape[2], device=self.device)
        return lambda: torch.bmm(left, right, out=out)
