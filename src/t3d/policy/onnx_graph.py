"""Writes a policy as an ONNX graph, from the observations of the environment to its actions.

Networks are not written a second time: their forward passes (policy/architectures.py) are called with operations that
add nodes to the graph instead of computing. Files are loaded only if they have the graph that is written here, so the
nodes of networks and spaces that exist must stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from t3d.policy.acting import SCALED_LIMIT, PolicySnapshot
from t3d.policy.architectures import BRIGHTEST, KERNEL, LEAST_MAGNITUDE, MIDDLE, NORM_EPSILON, Operations, project
from t3d.policy.spec import Floats, Spec, bounds_inside

OPSET, IR_VERSION = 17, 8  # the oldest with LayerNormalization, so that runtimes of 2022 and newer take it
BATCH = "batch"
PREVIOUS = "previous_action"  # the input


class Value(NamedTuple):
    """A tensor (batch, width) of the graph, which formulas may use like an array; images have other shapes."""

    graph: Graph
    name: str
    width: int

    def __add__(self, other: Any) -> Value:
        return self.graph.add("Add", [self, other], self.width)

    def __sub__(self, other: Any) -> Value:
        return self.graph.add("Sub", [self, other], self.width)

    def __mul__(self, other: Any) -> Value:
        return self.graph.add("Mul", [self, other], self.width)

    def __rmul__(self, other: Any) -> Value:
        return self.graph.add("Mul", [other, self], self.width)

    def __truediv__(self, other: Any) -> Value:
        return self.graph.add("Div", [self, other], self.width)

    def __getitem__(self, key: Any) -> Value:  # type: ignore[override]
        """The columns x[..., start:stop]."""
        start, stop, _ = key[-1].indices(self.width)
        return self.graph.add("Slice", [self, *(np.array([end], np.int64) for end in (start, stop, -1))], stop - start)

    def to(self, element_type: int) -> Value:
        return self.graph.add("Cast", [self], self.width, to=element_type)

    def clipped(self, low: Any, high: Any) -> Value:
        return self.graph.add("Min", [self.graph.add("Max", [self, low]), high])


class Graph:
    """Nodes and constants, in the order in which they are added."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def add(self, operation: str, inputs: Sequence[Any], width: int = 0, **attributes: Any) -> Value:
        """Adds a node with one output; inputs that are numbers or arrays become constants."""
        names = [(given if isinstance(given, Value) else self.constant(given)).name for given in inputs]
        name = f"{operation.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operation, names, [name], name, **attributes))
        return Value(self, name, width)

    def constant(self, array: Any) -> Value:
        """Adds an array, or a number, which is float32."""
        array = array if isinstance(array, np.ndarray) else np.array(array, np.float32)
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return Value(self, name, array.shape[-1] if array.ndim else 0)


def model_of(snapshot: PolicySnapshot, spec: Spec, metadata: dict[str, str]) -> onnx.ModelProto:
    """The model of one policy: normaliser, image preprocessing, network and rescaling of actions."""
    graph = Graph()
    inputs: dict[str, tuple[int, list[Any]]] = {}  # type and shape; images as the environment returns them
    if spec.own_size:
        inputs["observation"] = (TensorProto.FLOAT, [BATCH, spec.own_size])
    if spec.max_action_change:
        inputs[PREVIOUS] = (_element_type(spec), [BATCH, *spec.action_shape])
    for name, image in zip(_image_names(spec), spec.images, strict=True):
        inputs[name] = (TensorProto.UINT8, [BATCH, spec.stack, *image.own_shape])
    values = {name: Value(graph, name, spec.own_size) for name in inputs}
    previous = _valid_previous(values.pop(PREVIOUS), spec) if spec.max_action_change else None
    if previous is not None:
        values["observation"] = _with_previous(graph, values.get("observation"), previous, spec)
    output = _rescaled(_forward(graph, snapshot, spec, values), spec, previous)
    body = helper.make_graph(
        graph.nodes,
        "t3d_policy",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info("action", _element_type(spec), [BATCH, *spec.action_shape])],
        graph.constants,
    )
    body.node.append(helper.make_node("Identity", [output.name], ["action"], "action"))
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    model.producer_name = "t3d"
    helper.set_model_props(model, metadata)
    onnx.checker.check_model(model, full_check=True)
    return model


def split_inputs(flat: NDArray[Any], previous: NDArray[Any] | None, spec: Spec) -> dict[str, NDArray[Any]]:
    """Flat observations (N, observation_width), and previous actions if it takes them, as the inputs of the model."""
    inputs = {} if previous is None else {PREVIOUS: previous}
    if not spec.images:
        return {**inputs, "observation": flat if previous is None else np.ascontiguousarray(flat[:, : spec.own_size])}
    if spec.own_size:
        inputs["observation"] = np.ascontiguousarray(flat[:, : 4 * spec.own_size]).view(np.float32)
    frames = flat[:, 4 * spec.observation_size :].reshape(len(flat), spec.stack, spec.frame_size)
    for name, image in zip(_image_names(spec), spec.images, strict=True):
        pixels = frames[:, :, image.start : image.stop].reshape(len(flat), spec.stack, *image.shape)
        inputs[name] = np.ascontiguousarray(pixels.transpose(0, 1, 3, 4, 2) if image.channels_last else pixels)
    return inputs


def _image_names(spec: Spec) -> list[str]:
    return ["image"] if len(spec.images) == 1 else [f"image_{index}" for index in range(len(spec.images))]


def _forward(graph: Graph, snapshot: PolicySnapshot, spec: Spec, inputs: dict[str, Value]) -> Value:
    """Actions (batch, action_size) in [-1, 1]."""
    network, encoder, x = snapshot.architecture, snapshot.architecture.encoder, inputs.get("observation")
    parameters = [stack[0] for stack in network.parameters(snapshot.flat[:1])]
    ops = operations(graph, network.activation)
    if encoder is not None:
        layers, pieces = iter(parameters), []  # as Encoder.forward computes them from bytes
        for name, image in zip(_image_names(spec), spec.images, strict=True):
            channels, height, width = image.shape
            value = inputs[name]
            if image.channels_last:
                value = graph.add("Transpose", [value], perm=[0, 1, 4, 2, 3])
            shape = np.array([0, spec.stack * channels, height, width], np.int64)  # 0 keeps the batch
            value = ops.pixels(graph.add("Reshape", [value, shape]), None)
            for stride in encoder.strides:
                value = ops.convolve(value, next(layers), next(layers), stride)
            pieces.append(ops.flattened(value)._replace(width=encoder._replace(images=(image.shape,)).outputs))
        x = ops.join(pieces if x is None else [*pieces, x])
        x, parameters = project(encoder, [next(layers) for _ in range(4)], x, ops), [*layers]
    elif snapshot.scaling is not None:
        mean, std = snapshot.scaling
        scaled = (inputs["observation"] - mean[0]) / std[0]
        x = graph.add("Clip", [scaled, -SCALED_LIMIT, SCALED_LIMIT], scaled.width)
    return _tanh(network.kind.forward(parameters, x, ops))


def _bounds(spec: Spec) -> tuple[NDArray[Any], NDArray[Any], type[np.float32 | np.float64]]:
    """Low, high and the type in which actions are rescaled: double unless they are float32 or less."""
    if spec.action_dtype in ("float32", "float16"):
        return *bounds_inside(spec), np.float32
    return spec.action_low, spec.action_high, np.float64


def _valid_previous(value: Value, spec: Spec) -> Value:
    low, high, kind = _bounds(spec)
    if len(spec.action_shape) != 1:
        value = value.graph.add("Reshape", [value, np.array([-1, spec.action_size], np.int64)])
    if spec.action_dtype != np.dtype(kind).name:
        value = value.to(TensorProto.FLOAT)
    return value.clipped(low, high)


def _with_previous(graph: Graph, vector: Value | None, previous: Value, spec: Spec) -> Value:
    (*_, kind), size = _bounds(spec), spec.action_size
    low, span = (graph.constant(array.astype(kind)) for array in (spec.action_low, spec.action_high - spec.action_low))
    one, two = (graph.constant(np.array(number, kind)) for number in (1, 2))
    scaled = ((previous - low) / span * two - one)._replace(width=size)
    if kind is np.float64:
        scaled = scaled.to(TensorProto.FLOAT)
    return scaled if vector is None else graph.add("Concat", [vector, scaled], vector.width + size, axis=-1)


def _rescaled(action: Value, spec: Spec, previous: Value | None) -> Value:
    """Actions in the environment's bounds, type and shape, within reach of the previous ones if these are given."""
    (low, high, kind), span = _bounds(spec), spec.action_high - spec.action_low
    value = action if kind is np.float32 else action.to(TensorProto.DOUBLE)
    value = (value + np.array(1, kind)) / np.array(2, kind) * span.astype(kind) + low
    if spec.has_integer_actions:
        value = value.graph.add("Round", [value])  # halves to even, as NumPy does
    value = value.clipped(low, high)
    if previous is not None:
        change = value.graph.constant((spec.max_action_change * span).astype(kind))
        value = value.clipped(previous - change, previous + change)
    if spec.action_dtype != np.dtype(kind).name:
        value = value.to(_element_type(spec))
    if len(spec.action_shape) == 1:
        return value
    return value.graph.add("Reshape", [value, np.array([0, *spec.action_shape], np.int64)])


def _element_type(spec: Spec) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(spec.action_dtype)))


def operations(graph: Graph, activation: str) -> Operations:
    """What forward passes call: each adds nodes to the graph."""

    def linear(x: Value, weight: Floats, bias: Floats) -> Value:
        return graph.add("Gemm", [x, weight, bias[0]], weight.shape[1])

    def layer_norm(x: Value, scale: Floats, shift: Floats) -> Value:
        return graph.add("LayerNormalization", [x, scale[0], shift[0]], x.width, axis=-1, epsilon=NORM_EPSILON)

    def join(pieces: Sequence[Value]) -> Value:
        pieces = [piece for piece in pieces if piece.width]
        width = sum(piece.width for piece in pieces)
        return pieces[0] if len(pieces) == 1 else graph.add("Concat", pieces, width, axis=-1)

    def pixels(image: Value, like: object) -> Value:
        return image.to(TensorProto.FLOAT) / BRIGHTEST - MIDDLE

    def convolve(image: Value, weight: Floats, bias: Floats, stride: int) -> Value:
        kernel = weight.T.reshape(weight.shape[1], -1, KERNEL, KERNEL)
        return graph.add("Relu", [graph.add("Conv", [image, kernel, bias[0]], strides=[stride, stride])])

    def flattened(image: Value) -> Value:
        return graph.add("Flatten", [image], 1, axis=1)

    def floats(values: object, like: object) -> Value:
        raise NotImplementedError("vectors are an input of their own")

    def avg_l1_norm(x: Value) -> Value:
        mean = graph.add("ReduceMean", [graph.add("Abs", [x], x.width)], 1, axes=[-1], keepdims=1)
        return x / graph.add("Max", [mean, LEAST_MAGNITUDE], 1)

    for_images = (_tanh, join, floats, pixels, convolve, flattened)
    return Operations(linear, layer_norm, ACTIVATIONS[activation], *for_images, ACTIVATIONS["elu"], avg_l1_norm)


def _tanh(x: Value) -> Value:
    return x.graph.add("Tanh", [x], x.width)


def _half_times_one_plus_tanh(x: Value, inner: Value) -> Value:
    one_more = _tanh(inner) + 1
    return 0.5 * x * one_more


ACTIVATIONS: dict[str, Callable[[Value], Value]] = {  # as in policy/architectures.py
    "relu": lambda x: x.graph.add("Relu", [x], x.width),
    "elu": lambda x: x.graph.add("Elu", [x], x.width),
    "gelu": lambda x: _half_times_one_plus_tanh(x, (2 / np.pi) ** 0.5 * (x + 0.044715 * x * x * x)),
    "silu": lambda x: _half_times_one_plus_tanh(x, 0.5 * x),
    "tanh": _tanh,
}
