"""The encoder's convolutions for several members, written in three ways, each in both orders of memory.

All take x (M, B, channels, height, width) and for each layer weights (M, out, in, 3, 3); pixel_speed.py times them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from t3d.config import TD3Config

Weights = list[Tensor]
Strides = tuple[int, ...]
# TF32, deterministic, benchmark
SWITCHES = [(tf32, *rest) for tf32 in (False, True) for rest in ((False, False), (True, False), (False, True))]


@contextmanager
def switched(tf32: bool, deterministic: bool, benchmark: bool) -> Iterator[None]:
    """Sets torch's switches for a while."""
    cudnn, products = torch.backends.cudnn, torch.backends.cuda.matmul
    before = products.allow_tf32, cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark
    try:
        products.allow_tf32 = cudnn.allow_tf32 = tf32
        cudnn.deterministic, cudnn.benchmark = deterministic, benchmark
        yield
    finally:
        products.allow_tf32, cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark = before


def loop(x: Tensor, weights: Weights, strides: Strides, order: Any) -> Tensor:
    """One member after the other."""
    found = []
    for member, images in enumerate(x):
        y = images.contiguous(memory_format=order)
        for weight, stride in zip(weights, strides, strict=True):
            y = functional.conv2d(y, weight[member].contiguous(memory_format=order), stride=stride).relu()
        found.append(y)
    return torch.stack(found)


def grouped(x: Tensor, weights: Weights, strides: Strides, order: Any) -> Tensor:
    """Members are groups of channels."""
    y = x.transpose(0, 1).flatten(1, 2).contiguous(memory_format=order)
    for weight, stride in zip(weights, strides, strict=True):
        kernels = weight.flatten(0, 1).contiguous(memory_format=order)
        y = functional.conv2d(y, kernels, stride=stride, groups=len(x)).relu()
    return y.unflatten(1, (len(x), -1)).transpose(0, 1)


def unfolded(x: Tensor, weights: Weights, strides: Strides, order: Any) -> Tensor:
    """Windows copied to the rows of a matrix (channels last) or to its columns, and a batched product."""
    if order is torch.contiguous_format:
        y = x
        for weight, stride in zip(weights, strides, strict=True):
            side = (y.shape[-1] - 3) // stride + 1
            columns = functional.unfold(y.flatten(0, 1), 3, stride=stride).unflatten(0, x.shape[:2])
            y = (weight.flatten(2).unsqueeze(1) @ columns).relu().unflatten(-1, (-1, side))
        return y
    y = x.permute(0, 1, 3, 4, 2).contiguous()
    for weight, stride in zip(weights, strides, strict=True):
        windows = y.unfold(2, 3, stride).unfold(3, 3, stride)  # (M, B, height, width, channels, 3, 3)
        rows = windows.reshape(len(x), -1, weight[0, 0].numel())
        y = torch.bmm(rows, weight.flatten(2).mT).relu().unflatten(1, windows.shape[1:4])
    return y.permute(0, 1, 4, 2, 3)


WAYS = {"loop": loop, "grouped": grouped, "unfold": unfolded}


def steps(
    cfg: TD3Config, shape: tuple[int, int, int, int, int], device: str
) -> dict[str, Callable[[], tuple[Tensor, ...]]]:
    """Forward and backward passes by name, which return the gradients of the weights; they must agree."""
    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(shape, generator=generator) - 0.5).to(device)
    weights = []
    for inputs, outputs in pairwise([shape[2], *[cfg.encoder_channels] * len(cfg.encoder_strides)]):
        drawn = torch.rand(shape[0], outputs, inputs, 3, 3, generator=generator) - 0.5
        weights.append((drawn * 2 * (9 * inputs) ** -0.5).to(device).requires_grad_())

    def step(way: Callable[..., Tensor], order: Any) -> tuple[Tensor, ...]:
        return torch.autograd.grad(way(x, weights, cfg.encoder_strides, order).square().mean(), weights)

    orders = {"": torch.contiguous_format, ", channels last": torch.channels_last}
    found = {name + suffix: partial(step, way, order) for name, way in WAYS.items() for suffix, order in orders.items()}
    expected = found["loop"]()
    for name, one in found.items():
        for ours, theirs in zip(one(), expected, strict=True):
            distance = float((ours - theirs).abs().max() / theirs.abs().max())
            if not distance < 0.02:  # TF32 keeps three digits
                raise RuntimeError(f"{name} differs from the loop by {distance:.3f} of the largest gradient")
    return found
