"""One float32 update on the CPU: the stacked eager update against the oracle, interleaved in one run.

    python experiments/update_time.py [--threads N]

HalfCheetah sizes, 256-256 networks, batch 256. Prints the best and the median of each in milliseconds, and their ratio.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from t3d.algo.learner import Learner
from t3d.bench.oracle import Oracle
from t3d.config import TD3Config
from t3d.types import Batch, Draws, Part, Spec

REPETITIONS, UPDATES = 15, 40


def milliseconds(update: Callable[[], object]) -> float:
    begun = time.perf_counter()
    for _ in range(UPDATES):
        update()
    return (time.perf_counter() - begun) / UPDATES * 1000


def times(cfg: TD3Config, observation_size: int = 17, action_size: int = 6) -> tuple[list[float], list[float]]:
    """Milliseconds an update of (stacked, oracle), repetition by repetition."""
    part = Part((), (observation_size,), 0, observation_size)
    spec = Spec((part,), (action_size,), -np.ones(action_size), np.ones(action_size))
    shape = (1, cfg.batch_size)
    s, s2 = torch.randn(*shape, observation_size), torch.randn(*shape, observation_size)
    a, noise = torch.rand(*shape, action_size) * 2 - 1, torch.randn(*shape, action_size)
    r, terminated, ones = torch.randn(shape), (torch.rand(shape) < 0.01).float(), torch.ones(shape)
    batch = Batch(s, a, r, s2, terminated, ones * cfg.gamma, ones, torch.zeros(shape, dtype=torch.long))
    learner, oracle = Learner(spec, cfg, (0,)), Oracle(observation_size, action_size, cfg)

    def stacked() -> None:
        learner.update(batch, Draws(noise))

    def plain() -> None:
        oracle.update(s[0], a[0], r[0].unsqueeze(1), s2[0], terminated[0].unsqueeze(1), noise[0])

    pairs = [(milliseconds(stacked), milliseconds(plain)) for _ in range(REPETITIONS)][1:]  # the first warms up
    ours, theirs = zip(*pairs, strict=True)
    return list(ours), list(theirs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    torch.set_num_threads(parser.parse_args().threads)
    ours, theirs = times(TD3Config())
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    for name, values in (("stacked eager", ours), ("oracle", theirs)):
        print(f"{name:<14} best {min(values):.2f} ms, median {statistics.median(values):.2f} ms")
    medians = statistics.median(ours) / statistics.median(theirs)
    print(f"stacked / oracle: best {min(ours) / min(theirs):.3f}, median {medians:.3f}")


if __name__ == "__main__":
    main()
