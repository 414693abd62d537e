"""The proof that an engine is right on this machine, and the number of threads that is faster on it.

Compiled and hand-written updates that are silently wrong are a known disease of this field, so none is trusted unseen.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from t3d.algo.learner import Learner
from t3d.config import TD3Config
from t3d.types import Batch, Spec

UPDATES = 4
TOLERANCE = 0.03  # of how far a network has moved: targets move a thousand times less than what they follow
ROUNDING = 1e-7
ODD_SHARE = 1e-3  # of the numbers may be further apart: Adam makes a whole step of a gradient that is nearly zero
MUCH_FASTER = 0.95  # of the time; chosen, so that noise does not flip the choice
ROUNDS = 5


def disproof(engine: str, spec: Spec, cfg: TD3Config, seeds: Sequence[int], device: str) -> str:
    """Why an engine must not be used, or nothing: four updates beside eager, on networks of their own."""
    batch = random_batch(spec, cfg, len(seeds), device)
    tf32 = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        truth = Learner(spec, cfg, seeds, device)
        candidate = Learner(spec, cfg, seeds, device, engine=engine)
        if engine == "graph":
            candidate.record(lambda: batch)
        before = [network.flat.clone() for network in truth.nets]
        updates = -(-UPDATES // cfg.policy_delay) * cfg.policy_delay
        for learner in (truth, candidate):
            learner.run(updates, lambda: batch)
    except Exception as error:  # a compiler may fail in any way, and eager works all the same
        return f"{type(error).__name__}: {(str(error).strip() or 'no reason given').splitlines()[0]:.200}"
    finally:
        torch.backends.cuda.matmul.allow_tf32 = tf32
    for name, start, right, given in zip(truth.nets._fields, before, truth.nets, candidate.nets, strict=True):
        tolerance = TOLERANCE * float((right.flat - start).abs().max()) + ROUNDING
        odd = float((~((given.flat - right.flat).abs() <= tolerance)).float().mean())  # NaN is odd too
        if odd > ODD_SHARE:
            return f"{odd:.1%} of the {name.replace('_', ' ')} differ from eager's after {updates} updates"
    return ""


def faster_threads(engine: str, spec: Spec, cfg: TD3Config, seeds: Sequence[int]) -> int:
    """One thread, or as many as torch takes by itself if that is not slower; tried in turns."""
    usual = torch.get_num_threads()
    if usual == 1:
        return 1
    learner, batch = Learner(spec, cfg, seeds, engine=engine), random_batch(spec, cfg, len(seeds), "cpu")
    best = {1: float("inf"), usual: float("inf")}
    try:
        for _ in range(ROUNDS):
            for threads in (1, usual):
                torch.set_num_threads(threads)
                learner.run(cfg.policy_delay, lambda: batch)  # threads wake up
                begun = time.perf_counter()
                learner.run(cfg.policy_delay, lambda: batch)
                best[threads] = min(best[threads], time.perf_counter() - begun)
    finally:
        torch.set_num_threads(usual)
    return 1 if best[1] < MUCH_FASTER * best[usual] else usual


def random_batch(spec: Spec, cfg: TD3Config, members: int, device: str) -> Batch:
    """Sane random numbers, from a stream of their own."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(members, cfg.batch_size, *shape, generator=generator).to(device)

    s, a, r, s2 = normal(spec.observation_size), normal(spec.action_size), normal(), normal(spec.observation_size)
    ones = torch.ones_like(r)
    return Batch(s, a.clamp(-1, 1), r, s2, (normal() > 1).float(), cfg.gamma * ones, ones, ones.long())
