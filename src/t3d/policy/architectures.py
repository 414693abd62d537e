"""Network architectures as values: which parameters a network has, and how its output is computed from them.

Each is written once, the encoder of images too, which the actor and the critics of a member share. Its forward pass
works with any arrays that its operations understand: K networks at once in torch (algo/networks.py), or one network in
NumPy (policy/acting.py), for acting without torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np

from t3d.files import Refused, to_count, to_fields, to_list
from t3d.policy.spec import Floats

LEAST_MAGNITUDE = 1e-8  # that values are divided by, in avg_l1_norm
NORM_EPSILON = 1e-5  # PyTorch's default for layer normalisation
EXPANSION = 4  # of a residual block's hidden layer, as in SimBa
KERNEL = 3  # pixels each way of every convolution of images, as in DrQ-v2
BRIGHTEST, MIDDLE = 255, 0.5  # a pixel p becomes p / 255 - 0.5


class Parameter(NamedTuple):
    """A weight matrix (in, out), or a bias or scale (1, out), and its initial values: uniform in start ± bound."""

    shape: tuple[int, int]
    bound: float = 0.0
    start: float = 0.0


class Operations(NamedTuple):
    """What a forward pass is made of, besides arithmetic; each exists in torch and in NumPy."""

    linear: Callable[[Any, Any, Any], Any]  # x (..., N, in), weight, bias -> (..., N, out)
    layer_norm: Callable[[Any, Any, Any], Any]  # x (..., N, size), scale, shift -> the same shape
    activate: Callable[[Any], Any]
    # For images; `like` is a parameter, whose type of floats the result has.
    tanh: Callable[[Any], Any]
    join: Callable[[Sequence[Any]], Any]  # pieces (..., N, any) -> (..., N, all of them)
    floats: Callable[[Any, Any], Any]  # bytes (..., N, 4 n), like -> (..., N, n)
    pixels: Callable[[Any, Any], Any]  # bytes (..., N, channels, height, width), like -> what convolve takes
    convolve: Callable[[Any, Any, Any, int], Any]  # pixels, weight, bias, stride -> pixels, after a ReLU
    flattened: Callable[[Any], Any]  # pixels -> (..., N, values)
    # For networks with embeddings, which also join.
    elu: Callable[[Any], Any]
    avg_l1_norm: Callable[[Any], Any]  # x (..., N, size) / mean |x| over the last axis


class Kind(NamedTuple):
    """A kind of network."""

    layout: Callable[[tuple[int, ...]], list[Parameter]]  # layer sizes -> its parameters, in order
    forward: Callable[[Sequence[Any], Any, Operations], Any]  # parameters, x (..., N, in) -> (..., N, out)


class Encoder(NamedTuple):
    """Convolutions without padding, each with a ReLU; every image of an observation has its own."""

    images: tuple[tuple[int, int, int], ...]  # channels, height and width of each, in one frame
    stack: int  # frames in an observation; they are channels of one image
    strides: tuple[int, ...]
    channels: int  # that each convolution returns
    features: int  # that actor and critics each make of the encoder's outputs

    @property
    def frame_size(self) -> int:
        return sum(map(prod, self.images))

    @property
    def outputs(self) -> int:
        """Values that it makes of the images of an observation."""
        return sum(self.channels * self._shrunk(height) * self._shrunk(width) for _, height, width in self.images)

    @property
    def activations(self) -> int:
        """Values that it computes of one observation: its pixels, and what each convolution returns."""
        shorter = (self._replace(strides=self.strides[:count]) for count in range(1, len(self.strides) + 1))
        return self.stack * self.frame_size + sum(encoder.outputs for encoder in shorter)

    @property
    def layout(self) -> list[Parameter]:
        """A weight and a bias for each convolution as a product of matrices, image by image."""
        each = ([self.stack * channels, *[self.channels] * (len(self.strides) - 1)] for channels, _, _ in self.images)
        return [*chain(*(linear(inputs * KERNEL**2, self.channels) for inputs in chain(*each)))]

    def forward(self, parameters: Sequence[Any], observations: Any, ops: Operations) -> Any:
        """Observations (..., N, width), which are bytes -> (..., N, outputs and then the vector)."""
        *lead, width = observations.shape
        vector = width - self.stack * self.frame_size  # bytes
        frames = observations[..., vector:].reshape(*lead, self.stack, self.frame_size)
        pieces, start, layers = [], 0, iter(parameters)
        for channels, *sides in self.images:
            stop = start + channels * prod(sides)
            stacked = frames[..., start:stop].reshape(*lead, self.stack * channels, *sides)
            images = ops.pixels(stacked, parameters[0])
            for stride in self.strides:
                images = ops.convolve(images, next(layers), next(layers), stride)
            pieces.append(ops.flattened(images))
            start = stop
        if vector:
            pieces.append(ops.floats(observations[..., :vector], parameters[0]))
        return ops.join(pieces)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Encoder:
        images = []
        for shape in to_list(fields["images"]):
            channels, height, width = (to_count(size, least=1) for size in to_list(shape))
            images.append((channels, height, width))
        strides = tuple(to_count(stride, least=1) for stride in to_list(fields["strides"]))
        numbers = (to_count(fields[name], least=1) for name in ("channels", "features"))
        encoder = cls(tuple(images), to_count(fields["stack"], least=1), strides, *numbers)
        if not images or not strides or not encoder.outputs:
            raise ValueError("an encoder has images and strides")
        return encoder

    def _shrunk(self, side: int) -> int:
        left = side
        for stride in self.strides:
            if left < KERNEL:
                raise ValueError(f"convolutions with strides {list(self.strides)} leave nothing of {side} pixels")
            left = (left - KERNEL) // stride + 1
        return left


class Architecture(NamedTuple):
    """Everything about a network but the values of its parameters."""

    name: str  # in KINDS, or MODULE:NAME of the user's own
    kind: Kind
    sizes: tuple[int, ...]  # input, hidden..., output
    activation: str = "relu"
    encoder: Encoder | None = None  # of images; sizes then begin with what is not an image
    encoded: bool = False  # its input has been encoded already, by an encoder that it shares

    @property
    def layout(self) -> list[Parameter]:
        encoder = self.encoder
        if encoder is None:
            return self.kind.layout(self.sizes)
        projection = linear(encoder.outputs, encoder.features) + norm(encoder.features)
        first = projection if self.encoded else encoder.layout + projection
        return first + self.kind.layout(self.without_images.sizes)

    @property
    def size(self) -> int:
        return sum(prod(parameter.shape) for parameter in self.layout)

    def forward(self, parameters: Sequence[Any], x: Any, ops: Operations) -> Any:
        """Computes the output (..., N, out); x is (..., N, in), or the bytes of observations with images."""
        if self.encoder is None:
            return self.kind.forward(parameters, x, ops)
        if not self.encoded:
            split = 2 * len(self.encoder.images) * len(self.encoder.strides)
            x, parameters = self.encoder.forward(parameters[:split], x, ops), parameters[split:]
        return self.kind.forward(parameters[4:], project(self.encoder, parameters[:4], x, ops), ops)

    @property
    def convolutions(self) -> Architecture:
        encoder = self.encoder
        assert encoder is not None  # noqa: S101 (only networks with images are asked)
        return Architecture("encoder", Kind(lambda _: encoder.layout, encoder.forward), ())

    @property
    def without_images(self) -> Architecture:
        """What follows the encoder and the projection of its outputs."""
        features = 0 if self.encoder is None else self.encoder.features
        return self._replace(sizes=(features + self.sizes[0], *self.sizes[1:]), encoder=None, encoded=False)

    def parameters(self, flat: Any) -> list[Any]:
        """Views of K networks in flat (K, P), torch or NumPy: each parameter with a leading axis K."""
        views, start = [], 0
        for shape, *_ in self.layout:
            stop = start + prod(shape)
            views.append(flat[:, start:stop].reshape(flat.shape[0], *shape))
            start = stop
        return views

    def to_dict(self) -> dict[str, Any]:
        encoder = {} if self.encoder is None else {"encoder": self.encoder._asdict()}
        return {"name": self.name, "sizes": self.sizes, "activation": self.activation, **encoder}

    @classmethod
    def from_dict(cls, fields: dict[str, Any], own: Kind | None = None) -> Architecture:
        """Reads it; `own` is the user's network that it names, if it names one. Raises an error for other values."""
        name, activation = str(fields["name"]), str(fields["activation"])
        if (kind := SAVED_KINDS.get(name, own)) is None or activation not in ACTIVATIONS:
            raise Refused(f"its network is {name!r:.60} with activation {activation!r:.60}")
        encoder = Encoder.from_dict(to_fields(fields["encoder"])) if "encoder" in fields else None
        first, *others = to_list(fields["sizes"])
        least = 1 if encoder is None else 0
        sizes = (to_count(first, least=least), *(to_count(size, least=1) for size in others))
        return cls(name, kind, sizes, activation, encoder)


def linear(fan_in: int, fan_out: int) -> list[Parameter]:
    """Weight and bias of a layer, initialised as PyTorch initialises its Linear and Conv2d."""
    bound = fan_in**-0.5
    return [Parameter((fan_in, fan_out), bound), Parameter((1, fan_out), bound)]


def norm(size: int) -> list[Parameter]:
    """Scale and shift of a layer normalisation."""
    return [Parameter((1, size), start=1.0), Parameter((1, size))]


def mlp_layout(sizes: tuple[int, ...]) -> list[Parameter]:
    """A weight and a bias for each layer."""
    return [*chain(*(linear(fan_in, fan_out) for fan_in, fan_out in pairwise(sizes)))]


def mlp(parameters: Sequence[Any], x: Any, ops: Operations) -> Any:
    """The perceptron of the paper: an activation between layers, nothing after the last."""
    *hidden, weight, bias = parameters
    for start in range(0, len(hidden), 2):
        x = ops.activate(ops.linear(x, *hidden[start : start + 2]))
    return ops.linear(x, weight, bias)


def layer_norm_layout(sizes: tuple[int, ...]) -> list[Parameter]:
    """As mlp_layout, and a scale and a shift for each hidden layer."""
    *hidden, last = pairwise(sizes)
    layers = [linear(fan_in, fan_out) + norm(fan_out) for fan_in, fan_out in hidden]
    return [*chain(*layers), *linear(*last)]


def layer_norm(parameters: Sequence[Any], x: Any, ops: Operations) -> Any:
    """A perceptron whose hidden layers are normalised before their activation."""
    *hidden, weight, bias = parameters
    for start in range(0, len(hidden), 4):
        hidden_weight, hidden_bias, scale, shift = hidden[start : start + 4]
        x = ops.activate(ops.layer_norm(ops.linear(x, hidden_weight, hidden_bias), scale, shift))
    return ops.linear(x, weight, bias)


def residual_layout(sizes: tuple[int, ...]) -> list[Parameter]:
    """An embedding, a block for each hidden size (which must all be equal), a norm and the output layer."""
    first, *hidden, last = sizes
    if len(set(hidden)) != 1:
        raise ValueError(f"its hidden layers, at least one, must all have the same size, not {hidden}")
    size = hidden[0]
    block = norm(size) + linear(size, EXPANSION * size) + linear(EXPANSION * size, size)
    return linear(first, size) + block * len(hidden) + norm(size) + linear(size, last)


def residual(parameters: Sequence[Any], x: Any, ops: Operations) -> Any:
    """Residual blocks as in SimBa (Lee and others, 2024): each adds an MLP of the normalised features to them."""
    (weight, bias), blocks, (scale, shift, last_weight, last_bias) = parameters[:2], parameters[2:-4], parameters[-4:]
    x = ops.linear(x, weight, bias)
    for start in range(0, len(blocks), 6):
        block_scale, block_shift, wide_weight, wide_bias, weight, bias = blocks[start : start + 6]
        wide = ops.activate(ops.linear(ops.layer_norm(x, block_scale, block_shift), wide_weight, wide_bias))
        x = x + ops.linear(wide, weight, bias)
    return ops.linear(ops.layer_norm(x, scale, shift), last_weight, last_bias)


def project(encoder: Encoder, parameters: Sequence[Any], x: Any, ops: Operations) -> Any:
    """Reduces the encoder's outputs, the first values of x, to features: linear, normalised, tanh, as in DrQ-v2."""
    weight, bias, scale, shift = parameters
    outputs, rest = x[..., : encoder.outputs], x[..., encoder.outputs :]
    return ops.join([ops.tanh(ops.layer_norm(ops.linear(outputs, weight, bias), scale, shift)), rest])


def embed(parameters: Sequence[Any], x: Any, ops: Operations) -> Any:
    """TD7's encoder of states: a perceptron with ELU, whose outputs are divided by their mean size."""
    return ops.avg_l1_norm(mlp(parameters, x, ops._replace(activate=ops.elu)))


def beside_layout(sizes: tuple[int, ...]) -> list[Parameter]:
    """A layer that sees the inputs alone, and the perceptron that sees its output beside the embedding."""
    inputs, embedding, *hidden, output = sizes
    if not hidden:
        raise ValueError("it needs a hidden layer")
    return linear(inputs, hidden[0]) + mlp_layout((hidden[0] + embedding, *hidden, output))


def beside(parameters: Sequence[Any], x: Any, ops: Operations) -> Any:
    """TD7's actor and critics; x (..., N, inputs and then the embedding)."""
    inputs = parameters[0].shape[-2]
    return _beside(parameters, x[..., :inputs], x[..., inputs:], ops)


def _beside(parameters: Sequence[Any], inputs: Any, embedding: Any, ops: Operations) -> Any:
    first = ops.avg_l1_norm(ops.linear(inputs, *parameters[:2]))
    return mlp(parameters[2:], ops.join([first, embedding]), ops)


def embedding_layout(sizes: tuple[int, ...]) -> list[Parameter]:
    """The encoder's three layers, and what acts beside its embedding; sizes are those of one, then of the other."""
    encoder, hidden_and_output = sizes[:4], sizes[4:]
    if len(hidden_and_output) < 2:
        raise ValueError("it needs an encoder of three layers and a hidden layer")
    return mlp_layout(encoder) + beside_layout((sizes[0], sizes[3], *hidden_and_output))


def embedding(parameters: Sequence[Any], x: Any, ops: Operations) -> Any:
    """TD7's actor with its encoder."""
    zs = embed(parameters[:6], x, ops)
    return _beside(parameters[6:], x, zs, ops)


EMBEDDING = "embedding"  # no choice of settings, but in files
embedding_kind = Kind(embedding_layout, embedding)
KINDS = {
    "mlp": Kind(mlp_layout, mlp),
    "layer_norm": Kind(layer_norm_layout, layer_norm),
    "residual": Kind(residual_layout, residual),
}
SAVED_KINDS = {**KINDS, EMBEDDING: embedding_kind}


ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {
    "relu": lambda x: np.maximum(x, 0),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    # With tanh, because NumPy has no error function.
    "gelu": lambda x: 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x * x * x))),
    "silu": lambda x: 0.5 * x * (1 + np.tanh(0.5 * x)),  # x * sigmoid(x), without overflow
    "tanh": np.tanh,
}
