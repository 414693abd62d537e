"""The operations of networks as nodes of an ONNX graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from t3d.policy.architectures import NORM_EPSILON, Operations
from t3d.policy.encoders import BRIGHTEST, KERNEL, MIDDLE
from t3d.policy.spec import Floats


class Value(NamedTuple):
    """A tensor (batch, width) of the graph, which forward passes may add and slice; images have other shapes."""

    graph: Graph
    name: str
    width: int

    def __add__(self, other: Value) -> Value:  # type: ignore[override]
        return self.graph.add("Add", [self, other], self.width)

    def __getitem__(self, key: Any) -> Value:  # type: ignore[override]
        """The columns x[..., start:stop]."""
        start, stop, _ = key[-1].indices(self.width)
        ends = [self.graph.constant(np.array([one], np.int64)) for one in (start, stop, -1)]
        return self.graph.add("Slice", [self, *ends], stop - start)


class Graph:
    """Nodes and constants, in the order in which they are added."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def add(self, operation: str, inputs: Sequence[Value], width: int = 0, **attributes: Any) -> Value:
        """Adds a node with one output."""
        name = f"{operation.lower()}_{len(self.nodes)}"
        node = helper.make_node(operation, [one.name for one in inputs], [name], name, **attributes)
        self.nodes.append(node)
        return Value(self, name, width)

    def constant(self, array: NDArray[Any]) -> Value:
        """Adds an array."""
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return Value(self, name, array.shape[-1] if array.ndim else 0)

    def number(self, number: float) -> Value:
        """Adds a single float."""
        return self.constant(np.array(number, np.float32))


def operations(graph: Graph, activation: str) -> Operations:
    """What forward passes call: each adds nodes to the graph."""

    def linear(x: Value, weight: Floats, bias: Floats) -> Value:
        return graph.add("Gemm", [x, graph.constant(weight), graph.constant(bias[0])], weight.shape[1])

    def layer_norm(x: Value, scale: Floats, shift: Floats) -> Value:
        inputs = [x, graph.constant(scale[0]), graph.constant(shift[0])]
        return graph.add("LayerNormalization", inputs, x.width, axis=-1, epsilon=NORM_EPSILON)

    def tanh(x: Value) -> Value:
        return graph.add("Tanh", [x], x.width)

    def join(pieces: Sequence[Value]) -> Value:
        some = [piece for piece in pieces if piece.width]
        return some[0] if len(some) == 1 else graph.add("Concat", some, sum(one.width for one in some), axis=-1)

    def pixels(image: Value, like: object) -> Value:
        """Bytes as floats from -0.5 to 0.5."""
        cast = graph.add("Cast", [image], to=TensorProto.FLOAT)
        return graph.add("Sub", [graph.add("Div", [cast, graph.number(BRIGHTEST)]), graph.number(MIDDLE)])

    def convolve(image: Value, weight: Floats, bias: Floats, stride: int) -> Value:
        kernel = weight.T.reshape(weight.shape[1], -1, KERNEL, KERNEL)
        inputs = [image, graph.constant(kernel), graph.constant(bias[0])]
        return graph.add("Relu", [graph.add("Conv", inputs, strides=[stride, stride])])

    def flattened(image: Value) -> Value:
        return graph.add("Flatten", [image], 1, axis=1)

    def floats(values: object, like: object) -> Value:
        raise NotImplementedError("vectors are an input of their own")

    return Operations(linear, layer_norm, activate(graph, activation), tanh, join, floats, pixels, convolve, flattened)


def activate(graph: Graph, name: str) -> Any:
    """An activation, computed as in policy/architectures.py."""

    def half_times_one_plus_tanh(x: Value, inner: Value) -> Value:
        one_more = graph.add("Add", [graph.add("Tanh", [inner]), graph.number(1)])
        return graph.add("Mul", [graph.add("Mul", [graph.number(0.5), x]), one_more], x.width)

    def gelu(x: Value) -> Value:
        cubed = graph.add("Mul", [graph.add("Mul", [graph.add("Mul", [graph.number(0.044715), x]), x]), x])
        return half_times_one_plus_tanh(
            x, graph.add("Mul", [graph.number((2 / np.pi) ** 0.5), graph.add("Add", [x, cubed])])
        )

    return {
        "relu": lambda x: graph.add("Relu", [x], x.width),
        "elu": lambda x: graph.add("Elu", [x], x.width),
        "tanh": lambda x: graph.add("Tanh", [x], x.width),
        "silu": lambda x: half_times_one_plus_tanh(x, graph.add("Mul", [graph.number(0.5), x])),
        "gelu": gelu,
    }[name]
