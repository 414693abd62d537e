"""Checks that an engine computes correct updates on this machine, and finds the faster number of threads.

Compiled and hand-written updates that are silently wrong are a known problem, so none is used unchecked.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from t3d.algo.engines.graph import CYCLES_A_LAUNCH
from t3d.algo.learner import Learner
from t3d.config import TD3Config
from t3d.types import Batch, Spec, UpdateTrace

TOLERANCE = 0.01  # of the largest value in the tensor
MOVED_TOLERANCE = 0.03  # of how far a network has moved: targets move a thousand times less than online networks
ROUNDING = 1e-7
ODD_SHARE = 1e-3  # of the values may differ more: Adam takes a full step even if a gradient is nearly zero
CLEARLY_FASTER = 0.95  # of the time; chosen, so that noise does not flip the choice
ROUNDS = 5


def mismatch(engine: str, spec: Spec, cfg: TD3Config, seeds: Sequence[int], device: str) -> str:
    """Compares some updates with eager's, on networks of their own; returns why not to use the engine, or "".

    After the first update that moves the actor, the traces and Adam's moments are compared, which show wrong scales
    that Adam hides. After some more updates, of every kind that the engine has, the networks are compared.
    """
    cfg = dataclasses.replace(cfg, policy_delay=min(cfg.policy_delay, 3))  # a long one would only take longer
    batch = random_batch(spec, cfg, len(seeds), device)
    tf32 = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        truth, candidate = (Learner(spec, cfg, seeds, device, engine=name) for name in ("eager", engine))
        for learner in (truth, candidate):
            learner.nets.actor_target.flat.mul_(4)  # so that actions reach their bounds, and targets move visibly
        before = [network.flat.clone() for network in truth.nets]
        if engine == "graph":
            candidate.record(lambda: batch)
        expected, given = (learner.run(cfg.policy_delay, lambda: batch) for learner in (truth, candidate))
        doubt = _different_steps(expected, given) or _different_moments(truth, candidate)
        for learner in (truth, candidate):
            learner.run(CYCLES_A_LAUNCH * cfg.policy_delay, lambda: batch)
        return doubt or _different_networks(before, truth, candidate)
    except Exception as error:  # a compiler may fail in any way, and eager works all the same
        return f"{type(error).__name__}: {(str(error).strip() or 'no reason given').splitlines()[0]:.200}"
    finally:
        torch.backends.cuda.matmul.allow_tf32 = tf32


def _different_steps(expected: UpdateTrace, given: UpdateTrace) -> str:
    for name, right in expected._asdict().items():
        other = getattr(given, name)
        if other is None or other.shape != right.shape:
            return f"{name} is missing or of another shape"
        if _odd_share(other, right, TOLERANCE * float(right.abs().max())) > ODD_SHARE:
            return f"{name} differs from eager's in the first update that moves the actor"
    return ""


def _different_moments(truth: Learner, candidate: Learner) -> str:
    for owner, right, given in zip(truth.opts._fields, truth.opts, candidate.opts, strict=True):
        for name in ("mean", "square"):
            expected = getattr(right, name)
            if _odd_share(getattr(given, name), expected, TOLERANCE * float(expected.abs().max())) > ODD_SHARE:
                return f"the {name} of the {owner}'s gradients differs from eager's"
    return ""


def _different_networks(before: list[Tensor], truth: Learner, candidate: Learner) -> str:
    for name, start, right, given in zip(truth.nets._fields, before, truth.nets, candidate.nets, strict=True):
        odd = _odd_share(given.flat, right.flat, MOVED_TOLERANCE * float((right.flat - start).abs().max()))
        if odd > ODD_SHARE:
            return f"{odd:.1%} of the {name.replace('_', ' ')} differ from eager's after {truth.updates} updates"
    return ""


def _odd_share(given: Tensor, right: Tensor, tolerance: float) -> float:
    return float((~((given - right).abs() <= tolerance + ROUNDING)).float().mean())  # NaN is odd too


def faster_threads(engine: str, spec: Spec, cfg: TD3Config, seeds: Sequence[int]) -> int:
    """Returns 1, or torch's default number of threads if that is not slower; measures both alternately."""
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
                started = time.perf_counter()
                learner.run(cfg.policy_delay, lambda: batch)
                best[threads] = min(best[threads], time.perf_counter() - started)
    finally:
        torch.set_num_threads(usual)
    return 1 if best[1] < CLEARLY_FASTER * best[usual] else usual


def random_batch(spec: Spec, cfg: TD3Config, members: int, device: str) -> Batch:
    """Draws a plausible batch from its own random stream."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(members, cfg.batch_size, *shape, generator=generator, dtype=torch.float32).to(device)

    s, a, r, s2 = normal(spec.observation_size), normal(spec.action_size), normal(), normal(spec.observation_size)
    discount, weight = cfg.gamma / (1 + normal().square()), 0.5 + normal().square()
    return Batch(s, a.clamp(-1, 1), r, s2, (normal() > 1).float(), discount, weight, torch.zeros_like(r).long())
