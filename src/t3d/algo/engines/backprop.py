"""Forward and backward passes of K networks at once, with gradients derived by hand, for graph.py.

Everything is a batched product or an operation that Inductor fuses with its neighbours: arithmetic, and sums along one
axis. policy/architectures.py is the reference for what the networks compute, autograd for their gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from t3d.algo.networks import Stack
from t3d.policy.architectures import NORM_EPSILON


class Hidden(NamedTuple):
    """What a hidden layer does with z (K, B, size), the linear function of its input; and the gradient of that."""

    parameters: int  # besides weight and bias, each (K, 1, size)
    forward: Callable[..., list[Tensor]]  # z, parameters -> the layer's output, then whatever else backward needs
    backward: Callable[..., list[Tensor]]  # d output, parameters, what forward returned -> d z, d each parameter


def relu(z: Tensor) -> list[Tensor]:
    """ReLU alone."""
    return [z.relu()]  # compiled, this and adding the bias are one kernel


def relu_backward(d_h: Tensor, h: Tensor) -> list[Tensor]:
    """The gradient of relu."""
    return [d_h * (h > 0)]


def norm_relu(z: Tensor, scale: Tensor, shift: Tensor) -> list[Tensor]:
    """Layer normalisation, then ReLU."""
    centred = z - z.mean(dim=-1, keepdim=True)
    per_deviation = (centred.square().mean(dim=-1, keepdim=True) + NORM_EPSILON).rsqrt()  # (K, B, 1)
    normal = centred * per_deviation
    return [(normal * scale + shift).relu(), normal, per_deviation]


def norm_relu_backward(
    d_h: Tensor, scale: Tensor, shift: Tensor, h: Tensor, normal: Tensor, per_deviation: Tensor
) -> list[Tensor]:
    """The gradient of norm_relu; d z has no part that would only move or stretch z, as normal would stay the same."""
    d_shift = d_h * (h > 0)
    d_normal = d_shift * scale
    moves = d_normal.mean(dim=-1, keepdim=True)
    stretches = normal * (d_normal * normal).mean(dim=-1, keepdim=True)
    return [(d_normal - moves - stretches) * per_deviation, d_shift * normal, d_shift]


HIDDEN = {"mlp": Hidden(0, relu, relu_backward), "layer_norm": Hidden(2, norm_relu, norm_relu_backward)}


class Network(NamedTuple):
    """K networks of one kind."""

    hidden: Hidden
    layers: list[list[Tensor]]  # of each its weight (K, in, out), its bias (K, 1, out), and what Hidden has besides


def network(stack: Stack, every: int = 1) -> Network:
    """All networks of a stack, or every n-th."""
    hidden = HIDDEN[stack.architecture.name]
    *parameters, weight, bias = stack.architecture.parameters(stack.flat[::every])
    each = 2 + hidden.parameters
    layers = [parameters[start : start + each] for start in range(0, len(parameters), each)]
    return Network(hidden, [*layers, [weight, bias]])


def forward(network: Network, x: Tensor) -> list[list[Tensor]]:
    """Returns the input, what each hidden layer's forward returned, and the output."""
    passed = [[x]]
    for weight, bias, *others in network.layers[:-1]:
        z = torch.bmm(passed[-1][0], weight) + bias
        passed.append(network.hidden.forward(z, *others))
    weight, bias = network.layers[-1]
    return [*passed, [torch.bmm(passed[-1][0], weight) + bias]]


def output(passed: list[list[Tensor]]) -> Tensor:
    """The networks' output, (K, B, out)."""
    return passed[-1][0]


def backward(network: Network, passed: list[list[Tensor]], d_output: Tensor) -> list[list[Tensor]]:
    """Returns d loss / d each layer's z, and what to sum over the batch for its other parameters, first layer first."""
    back = [[d_output]]
    layers = network.layers
    for layer, above, kept in zip(layers[-2::-1], layers[:0:-1], passed[-2:0:-1], strict=True):
        d_h = torch.bmm(back[-1][0], above[0].mT)
        back.append(network.hidden.backward(d_h, *layer[2:], *kept))
    return back[::-1]


def parameter_gradient(passed: list[list[Tensor]], back: list[list[Tensor]]) -> Tensor:
    """Returns d loss / d flat, (K, P), in the layout of the architecture."""
    pieces = []
    for (x, *_), (d_z, *others) in zip(passed[:-1], back, strict=True):
        pieces += [torch.bmm(x.mT, d_z).flatten(1), d_z.sum(dim=1), *(one.sum(dim=1) for one in others)]
    return torch.cat(pieces, dim=1)


def input_gradient(network: Network, passed: list[list[Tensor]], d_output: Tensor) -> Tensor:
    """Returns d loss / d x, (K, B, in)."""
    return torch.bmm(backward(network, passed, d_output)[0][0], network.layers[0][0].mT)
