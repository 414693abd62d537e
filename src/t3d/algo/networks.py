"""Actor and critics as stacks: every weight has a leading axis, so M members with C critics are one batched product.

Layers are views of one flat tensor (K, P): Adam and Polyak are a few operations on it, and a snapshot is a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional

from t3d.policy.architectures import (
    BRIGHTEST,
    KERNEL,
    LEAST_MAGNITUDE,
    MIDDLE,
    NORM_EPSILON,
    Architecture,
    Kind,
    Operations,
    beside,
    beside_layout,
    embed,
    mlp_layout,
)

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "elu": functional.elu,
    "gelu": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
    "tanh": torch.tanh,
}


class Stack:
    """K independent networks of one architecture, of which every member has K / members."""

    def __init__(self, architecture: Architecture, flat: Tensor) -> None:
        self.architecture = architecture
        self.members = len(flat)
        self._ops = OPERATIONS._replace(activate=ACTIVATIONS[architecture.activation])
        self._view(flat)

    def _view(self, flat: Tensor) -> None:
        self.flat = flat  # (K, P)
        self.parameters: list[Tensor] = [view.detach().requires_grad_() for view in self.architecture.parameters(flat)]

    def over(self, flat: Tensor) -> Self:
        """The same networks with other parameters."""
        other = copy(self)
        other._view(flat)
        return other

    def copy(self) -> Self:
        return self.over(self.flat.clone())

    @property
    def parts(self) -> dict[str, Stack]:
        """The networks in it that learn, by name, if it consists of several."""
        return {}

    def gradient(self, loss: Tensor) -> Tensor:
        """d loss / d flat, (K, P); no other network's gradient is touched."""
        return gradients(loss, self)[0]

    def forward(self, x: Tensor, every: int = 1) -> Tensor:
        """Passes x (K, B, in) through the networks, or through every n-th of them only."""
        parameters = self.parameters if every == 1 else [parameter[::every] for parameter in self.parameters]
        y: Tensor = self.architecture.forward(parameters, x, self._ops)
        return y


def gradients(loss: Tensor, *stacks: Stack) -> list[Tensor]:
    """d loss / d flat of each stack, (K, P); no other network's gradient is touched."""
    inputs = [parameter for stack in stacks for parameter in stack.parameters]
    pieces = iter(torch.autograd.grad(loss, inputs=inputs))
    return [torch.cat([next(pieces).flatten(1) for _ in stack.parameters], dim=1) for stack in stacks]


class Actor(Stack):
    """s (M, B, observation) -> a (M, B, action) in [-1, 1]; world/guard.py scales to the environment's own bounds."""

    def __call__(self, s: Tensor) -> Tensor:
        return self.forward(s).tanh()


class EmbeddingActor(Actor):
    """TD7's actor behind its encoder of states, f; both are views of one flat tensor."""

    def _view(self, flat: Tensor) -> None:
        super()._view(flat)
        inputs, *hidden, embedding = self.architecture.sizes[:4]
        encoder = Architecture("f", Kind(mlp_layout, embed), (inputs, *hidden, embedding), "elu")
        sizes = (inputs, embedding, *self.architecture.sizes[4:])
        beside_f = Architecture("actor", Kind(beside_layout, beside), sizes, self.architecture.activation)
        self.f, self.actor = Stack(encoder, flat[:, : encoder.size]), Actor(beside_f, flat[:, encoder.size :])

    @property
    def parts(self) -> dict[str, Stack]:
        return {"actor": self.actor}

    def act(self, s: Tensor, zs: Tensor) -> Tensor:
        """Actions for states whose embeddings are known."""
        return self.actor(torch.cat([s, zs], dim=-1))


class ImageActor(Actor):
    """An actor that begins with the encoder of its images; both are views of one flat tensor."""

    def _view(self, flat: Tensor) -> None:
        super()._view(flat)
        convolutions = self.architecture.convolutions
        self.encoder = Stack(convolutions, flat[:, : convolutions.size])
        self.actor = Actor(self.architecture._replace(encoded=True), flat[:, convolutions.size :])

    @property
    def parts(self) -> dict[str, Stack]:
        return {"encoder": self.encoder, "actor": self.actor}

    def encode(self, s: Tensor) -> Tensor:
        """s (M, B, observation_width), uint8 -> what actors and critics see of it, (M, B, outputs and vector)."""
        return self.encoder.forward(s)


def only_output(outputs: Tensor) -> Tensor:
    """The value of a critic with one output."""
    return outputs.squeeze(-1)


class Critic(Stack):
    """C critics for each of M members; flat is (M * C, P), member by member."""

    def __init__(
        self, architecture: Architecture, flat: Tensor, members: int, value: Callable[[Tensor], Tensor] = only_output
    ) -> None:
        super().__init__(architecture, flat)
        self.members, self._critics = members, len(flat) // members
        self.value = value  # turns outputs (..., outputs) into values (...)

    def __call__(self, s: Tensor, a: Tensor) -> Tensor:
        return self.value(self.outputs(s, a))  # (M, C, B)

    def outputs(self, s: Tensor, a: Tensor) -> Tensor:
        """Returns the outputs of all critics, (M, C, B, outputs)."""
        x = torch.cat([s, a], dim=-1)
        each = x.unsqueeze(1).expand(-1, self._critics, -1, -1)
        y = self.forward(each.flatten(0, 1))  # (M * C, B, outputs)
        return y.view(self.members, self._critics, *y.shape[1:])

    def q1(self, s: Tensor, a: Tensor) -> Tensor:
        """Returns the first critic's values, (M, B): what the actor of the paper maximises."""
        return self.value(self.forward(torch.cat([s, a], dim=-1), every=self._critics))


def initial(architecture: Architecture, seeds: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Draws initial parameters, one network per seed: flat (K, P). On the CPU, so that devices agree."""
    flat = torch.empty(len(seeds), architecture.size, dtype=dtype)
    layout = architecture.layout
    for row, seed in zip(flat, seeds, strict=True):
        generator = torch.Generator().manual_seed(seed)
        for values, (_, bound, start) in zip(architecture.parameters(row.unsqueeze(0)), layout, strict=True):
            if bound:
                values.uniform_(start - bound, start + bound, generator=generator)
            else:
                values.fill_(start)
    return flat


def named_tensors(agent: Any) -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors of an agent that updates change in place, by the names of its fields."""
    for name, value in named_fields(agent):
        if isinstance(value, Stack):
            yield name, value.flat
        elif not hasattr(value, "_asdict"):
            yield name, value


def named_fields(agent: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the fields of an agent, and after one that is a NamedTuple its fields, by their names in checkpoints."""
    for name, value in agent._asdict().items():
        yield f"{prefix}{name}", value
        if hasattr(value, "_asdict"):
            yield from named_fields(value, f"{prefix}{name}_")


def with_tensors(agent: Any, tensors: Iterable[Tensor]) -> Any:
    """The same agent with other tensors, in the order of named_tensors."""
    rest = iter(tensors)

    def part(value: Any) -> Any:
        if hasattr(value, "_asdict"):
            return type(value)(*map(part, value))
        return value.over(next(rest)) if isinstance(value, Stack) else next(rest)

    return part(agent)


def layers_of(architecture: Architecture, flat: Tensor) -> list[list[Tensor]]:
    """Views of K networks, mlp or layer_norm: weight (K, in, out), bias (K, 1, out), scale and shift."""
    *hidden, weight, bias = architecture.parameters(flat)
    each = 4 if architecture.name == "layer_norm" else 2
    return [*(hidden[start : start + each] for start in range(0, len(hidden), each)), [weight, bias]]


def _layer_norm(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return torch.addcmul(shift, functional.layer_norm(x, x.shape[-1:], eps=NORM_EPSILON), scale)


def _pixels(images: Tensor, like: Tensor) -> list[Tensor]:
    """Keeps the networks' images apart until they are flattened, as loops are faster here: docs/lab/performance.md."""
    on_cpu = images.device.type == "cpu"  # where convolutions are faster with channels last in memory
    order = torch.channels_last if on_cpu else torch.contiguous_format
    return [image.contiguous(memory_format=order).to(like.dtype).div_(BRIGHTEST).sub_(MIDDLE) for image in images]


def _convolve(images: list[Tensor], weight: Tensor, bias: Tensor, stride: int) -> list[Tensor]:
    count, fan_in, out = weight.shape
    kernels = weight.mT.reshape(count, out, fan_in // KERNEL**2, KERNEL, KERNEL)
    each = zip(images, kernels.unbind(), bias.squeeze(1).unbind(), strict=True)
    return [functional.conv2d(x, kernel, shift, stride).relu_() for x, kernel, shift in each]


OPERATIONS = Operations(
    lambda x, weight, bias: torch.baddbmm(bias, x, weight),
    _layer_norm,
    torch.relu,  # which each stack replaces by its own
    torch.tanh,
    lambda pieces: torch.cat(list(pieces), dim=-1),
    lambda values, like: values.clone(memory_format=torch.contiguous_format).view(torch.float32).to(like.dtype),
    _pixels,
    _convolve,
    lambda images: torch.stack([image.flatten(1) for image in images]),
    functional.elu,
    lambda x: x / x.abs().mean(dim=-1, keepdim=True).clamp(min=LEAST_MAGNITUDE),
)
