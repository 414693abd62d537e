"""Checks that an engine computes correct updates on this machine, and finds the faster number of threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from t3d.algo.adam import AdamState
from t3d.algo.engines.capture import CYCLES_PER_BLOCK
from t3d.algo.learner import Learner
from t3d.algo.networks import Actor, named_tensors
from t3d.algo.rules import TD3, Rule
from t3d.config import RuleConfig
from t3d.policy.spec import Spec
from t3d.types import Batch, State

TOLERANCE = 0.01  # of the largest value in the tensor
MOVED_TOLERANCE = 0.03  # of how far a network has moved: targets move a thousand times less than online networks
ROUNDING = 1e-7
ODD_SHARE = 1e-3  # of the values may differ more: Adam takes a full step even if a gradient is nearly zero
ODD_SHARE_IMAGES = 1e-2  # convolutions round more: 0.12 % on an H200, and 0.06 % in eager alone with rounded weights
PATCH = 12  # pixels
CLEARLY_FASTER = 0.95  # of the time; chosen, so that noise does not flip the choice
ROUNDS = 5
ENOUGH_SECONDS = 5  # of rounds; chosen: an update with images may take a second


class FixedBatch:
    """A source that always returns the same batch."""

    capture_safe = True

    def __init__(self, batch: Batch) -> None:
        self.batch, self.device = batch, batch.s.device

    def sample(self) -> Batch:
        return self.batch

    def state(self) -> State:
        return {}

    def keep(self, members: Sequence[int]) -> Callable[[], None]:
        return lambda: None

    def feedback(self, index: Tensor, td: Tensor) -> None: ...
    def find_highest(self, members: Sequence[int]) -> None: ...
    def restore(self, state: State) -> None: ...


@contextmanager
def exact_products() -> Iterator[None]:
    """Switches off TF32, whose precision a CUDA graph would keep, and convolutions that round differently each time."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic
    try:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic = False, False, True
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic = before


def mismatch(
    engine: str,
    spec: Spec,
    cfg: RuleConfig,
    seeds: Sequence[int],
    device: str,
    rule: Rule = TD3,
    coefficients: Any = None,
) -> str:
    """Compares some updates with eager's, on agents of their own; returns why not to use the engine, or "".

    After the first update with a complete trace, the traces and Adam's moments are compared, which show wrong scales
    that Adam hides. After some more updates, of every kind that the engine has, everything else is compared.
    """
    cfg = replace(cfg, policy_delay=min(cfg.policy_delay, 3))  # a long one would only take longer
    source = FixedBatch(random_batch(spec, cfg, len(seeds), device))
    try:
        with exact_products():
            truth, candidate = (
                Learner(spec, cfg, seeds, device, engine=name, rule=rule, coefficients=coefficients, source=source)
                for name in ("eager", engine)
            )
            for learner in (truth, candidate):
                for name, value in learner.agent._asdict().items():
                    if isinstance(value, Actor) and name.endswith("_target"):
                        value.flat.mul_(4)  # so that actions reach their bounds, and targets visibly move
            before = {name: tensor.clone() for name, tensor in named_tensors(truth.agent)}
            candidate.prepare()
            cycle = len(truth.phases)
            expected, given = ({**learner.run(cycle)._asdict(), **_moments(learner)} for learner in (truth, candidate))
            doubt = _different_steps(expected, given)
            for learner in (truth, candidate):
                for operation in rule.periodic:
                    operation.run(learner.agent, cfg)
                learner.run(CYCLES_PER_BLOCK * cycle)
            return doubt or _different_agents(before, truth, candidate)
    except Exception as error:  # a compiler may fail in any way, and eager works all the same
        return f"{type(error).__name__}: {(str(error).strip() or 'no reason given').splitlines()[0]:.200}"


def _moments(learner: Learner) -> dict[str, Tensor]:
    return {
        f"the {name} of the {owner.removesuffix('_adam').replace('_', ' ')}'s gradients": getattr(adam, name)
        for owner, adam in learner.agent._asdict().items()
        if isinstance(adam, AdamState)
        for name in ("mean", "square")
    }


def _different_steps(expected: dict[str, Tensor | None], given: dict[str, Tensor | None]) -> str:
    for name, right in expected.items():
        other = given[name]
        if right is None or other is None or other.shape != right.shape:
            if right is not other:
                return f"{name} is missing or of another shape"
        elif _odd_share(other, right, TOLERANCE * float(right.abs().max())) > ODD_SHARE:
            return f"{name} differs from eager's in the first complete update"
    return ""


def _different_agents(before: dict[str, Tensor], truth: Learner, candidate: Learner) -> str:
    """Compares all but Adam's moments, which have drifted apart by now as far as rounding lets them."""
    adams = tuple(f"{owner}_" for owner, value in truth.agent._asdict().items() if isinstance(value, AdamState))
    given, allowed = dict(named_tensors(candidate.agent)), ODD_SHARE_IMAGES if truth.spec.images else ODD_SHARE
    for name, right in named_tensors(truth.agent):
        tolerance = MOVED_TOLERANCE * float((right - before[name]).abs().max())
        if not name.startswith(adams) and (odd := _odd_share(given[name], right, tolerance)) > allowed:
            return f"{odd:.1%} of the {name.replace('_', ' ')} differ from eager's after {truth.updates} updates"
    return ""


def _odd_share(given: Tensor, right: Tensor, tolerance: float) -> float:
    return float((~((given - right).abs() <= tolerance + ROUNDING)).float().mean())  # NaN is odd too


def faster_threads(
    engine: str, spec: Spec, cfg: RuleConfig, seeds: Sequence[int], rule: Rule = TD3, coefficients: Any = None
) -> int:
    """Returns 1, or torch's default number of threads if that is not slower; measures both alternately."""
    if (usual := torch.get_num_threads()) == 1:
        return 1
    source = FixedBatch(random_batch(spec, cfg, len(seeds), "cpu"))
    learner = Learner(spec, cfg, seeds, engine=engine, rule=rule, coefficients=coefficients, source=source)
    cycle = len(learner.phases)
    best = {1: float("inf"), usual: float("inf")}
    began = time.perf_counter()
    try:
        for _ in takewhile(lambda _: time.perf_counter() - began < ENOUGH_SECONDS, range(ROUNDS)):
            for threads in (1, usual):
                torch.set_num_threads(threads)
                learner.run(cycle)  # threads wake up
                started = time.perf_counter()
                learner.run(cycle)
                best[threads] = min(best[threads], time.perf_counter() - started)
    finally:
        torch.set_num_threads(usual)
    return 1 if best[1] < CLEARLY_FASTER * best[usual] else usual


def random_batch(spec: Spec, cfg: RuleConfig, members: int, device: str) -> Batch:
    """Draws a plausible batch from its own random stream."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(members, cfg.batch_size, *shape, generator=generator, dtype=torch.float32).to(device)

    def observations() -> Tensor:
        vector = normal(spec.observation_size)
        if not spec.images:
            return vector
        frames = torch.cat([pictures(*image.shape) for image in spec.images], dim=-1).flatten(2)
        return torch.cat([vector.view(torch.uint8), frames.to(device)], dim=-1)

    def pictures(channels: int, height: int, width: int) -> Tensor:
        """Patches of one colour, as real pictures have: of noise, gradients are so small that they round to others."""
        patches = (members, cfg.batch_size, spec.stack, channels, -(-height // PATCH), -(-width // PATCH))
        drawn = torch.randint(256, patches, generator=generator, dtype=torch.uint8)
        return drawn.repeat_interleave(PATCH, -2).repeat_interleave(PATCH, -1)[..., :height, :width].flatten(3)

    s, a, r, s2 = observations(), normal(spec.action_size), normal(), observations()
    discount, weight = cfg.gamma / (1 + normal().square()), 0.5 + normal().square()
    return Batch(s, a.clamp(-1, 1), r, s2, (normal() > 1).float(), discount, weight, torch.zeros_like(r).long())
