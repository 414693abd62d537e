"""The encoder of images: convolutions that the actor and the critics of a member share.

Like the networks of policy/architectures.py it is written once: for K members in torch, or for one in NumPy (below).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from t3d.files import to_count, to_list
from t3d.policy.spec import Floats

if TYPE_CHECKING:
    from t3d.policy.architectures import Operations

KERNEL = 3  # pixels each way of every convolution, as in DrQ-v2
BRIGHTEST, MIDDLE = 255, 0.5  # a pixel p becomes p / 255 - 0.5


class Encoder(NamedTuple):
    """Convolutions without padding, each with a ReLU; every image of an observation has its own."""

    images: tuple[tuple[int, int, int], ...]  # channels, height and width of each, in one frame
    stack: int  # frames in an observation; they are channels of one image
    strides: tuple[int, ...]
    channels: int  # that each convolution returns
    features: int  # that actor and critics each make of the encoder's outputs (policy/architectures.py)

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
        pixels = self.stack * self.frame_size
        shorter = (self._replace(strides=self.strides[:count]) for count in range(1, len(self.strides) + 1))
        return pixels + sum(encoder.outputs for encoder in shorter)

    @property
    def layers(self) -> list[tuple[int, int]]:
        """Inputs and outputs of each convolution as a product of matrices, image by image."""
        layers = []
        for channels, _, _ in self.images:
            inputs = [self.stack * channels, *[self.channels] * (len(self.strides) - 1)]
            layers += [(count * KERNEL * KERNEL, self.channels) for count in inputs]
        return layers

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
        """What the convolutions leave of a side of an image."""
        left = side
        for stride in self.strides:
            if left < KERNEL:
                raise ValueError(f"convolutions with strides {list(self.strides)} leave nothing of {side} pixels")
            left = (left - KERNEL) // stride + 1
        return left


def pixels(images: NDArray[np.uint8], like: Floats) -> Floats:
    """Bytes as floats from -0.5 to 0.5."""
    values: Floats = np.divide(images, np.float32(BRIGHTEST), dtype=np.float32)
    values -= np.float32(MIDDLE)
    return values


def convolve(images: Floats, weight: Floats, bias: Floats, stride: int) -> Floats:
    """A convolution as a product of matrices, and a ReLU: (N, in, height, width) -> (N, out, less, less)."""
    windows = sliding_window_view(images, (KERNEL, KERNEL), (2, 3))[:, :, ::stride, ::stride]
    count, channels, height, width, *_ = windows.shape
    columns = windows.transpose(0, 1, 4, 5, 2, 3).reshape(count, channels * KERNEL * KERNEL, height * width)
    outputs: Floats = weight.T @ columns
    outputs += bias.T
    np.maximum(outputs, 0, out=outputs)
    return outputs.reshape(count, -1, height, width)
