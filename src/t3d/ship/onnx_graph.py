"""Writes a policy as an ONNX graph, from the observations of the environment to its actions.

Networks are not written a second time: their forward passes (policy/architectures.py) are called with operations that
add nodes to the graph instead of computing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from t3d.policy.actions import bounds_inside
from t3d.policy.architectures import Operations, project
from t3d.policy.snapshots import SCALED_LIMIT, PolicySnapshot, Scaling
from t3d.policy.spec import Floats, Image, Spec
from t3d.ship.onnx_action_limit import PREVIOUS, flat_previous, limited, precision, with_previous
from t3d.ship.onnx_operations import Graph, Value, operations

OPSET, IR_VERSION = 17, 8  # the oldest with LayerNormalization, so that runtimes of 2022 and newer take it
BATCH = "batch"


def model_of(snapshot: PolicySnapshot, spec: Spec, metadata: dict[str, str]) -> onnx.ModelProto:
    """The model of one policy: normaliser, image preprocessing, network and rescaling of actions."""
    graph, inputs = Graph(), inputs_of(spec)
    values = {name: Value(graph, name, spec.own_size) for name in inputs}
    previous = flat_previous(graph, values.pop(PREVIOUS), spec) if spec.max_action_change else None
    if previous is not None:
        values["observation"] = with_previous(graph, values.get("observation"), previous, spec)
    output = _rescaled(graph, _forward(graph, snapshot, spec, values), spec, previous)
    made = helper.make_graph(
        graph.nodes,
        "t3d_policy",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info("action", _element_type(spec), [BATCH, *spec.action_shape])],
        graph.constants,
    )
    made.node.append(helper.make_node("Identity", [output.name], ["action"], "action"))
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    model.producer_name = "t3d"
    helper.set_model_props(model, metadata)
    onnx.checker.check_model(model, full_check=True)
    return model


def inputs_of(spec: Spec) -> dict[str, tuple[int, list[Any]]]:
    """Type and shape of each input: the vector, and each image as the environment returns it, frames oldest first."""
    found: dict[str, tuple[int, list[Any]]] = {}
    if spec.own_size:
        found["observation"] = (TensorProto.FLOAT, [BATCH, spec.own_size])
    if spec.max_action_change:
        found[PREVIOUS] = (_element_type(spec), [BATCH, *spec.action_shape])
    for name, image in zip(image_names(spec), spec.images, strict=True):
        found[name] = (TensorProto.UINT8, [BATCH, spec.stack, *_shape(image)])
    return found


def image_names(spec: Spec) -> list[str]:
    """The names of the inputs that take images."""
    return ["image"] if len(spec.images) == 1 else [f"image_{place}" for place in range(len(spec.images))]


def split_inputs(flat: NDArray[Any], previous: NDArray[Any] | None, spec: Spec) -> dict[str, NDArray[Any]]:
    """Flat observations (N, observation_width), and previous actions if it takes them, as the inputs of the model."""
    found = {} if previous is None else {PREVIOUS: previous}
    if not spec.images:
        return {**found, "observation": flat if previous is None else np.ascontiguousarray(flat[:, : spec.own_size])}
    if spec.own_size:
        found["observation"] = np.ascontiguousarray(flat[:, : 4 * spec.own_size]).view(np.float32)
    frames = flat[:, 4 * spec.observation_size :].reshape(len(flat), spec.stack, spec.frame_size)
    for name, image in zip(image_names(spec), spec.images, strict=True):
        pixels = frames[:, :, image.start : image.stop].reshape(len(flat), spec.stack, *image.shape)
        found[name] = np.ascontiguousarray(pixels.transpose(0, 1, 3, 4, 2) if image.channels_last else pixels)
    return found


def _shape(image: Image) -> tuple[int, int, int]:
    channels, height, width = image.shape
    return (height, width, channels) if image.channels_last else image.shape


def _forward(graph: Graph, snapshot: PolicySnapshot, spec: Spec, inputs: dict[str, Value]) -> Value:
    """Actions (batch, action_size) in [-1, 1]."""
    network, x = snapshot.architecture, inputs.get("observation")
    parameters = [one[0] for one in network.parameters(snapshot.flat[:1])]
    ops, split = operations(graph, network.activation), 0
    if network.encoder is not None:
        split = 2 * len(network.encoder.layers)
        pieces = _encoded(graph, snapshot, spec, inputs, parameters[:split], ops)
        x = ops.join(pieces if x is None else [*pieces, x])
        x, split = project(network.encoder, parameters[split : split + 4], x, ops), split + 4
    elif snapshot.scaling is not None:
        x = _normalised(graph, inputs["observation"], snapshot.scaling)
    action: Value = ops.tanh(network.kind.forward(parameters[split:], x, ops))
    return action


def _encoded(
    graph: Graph,
    snapshot: PolicySnapshot,
    spec: Spec,
    inputs: dict[str, Value],
    parameters: list[Floats],
    ops: Operations,
) -> list[Value]:
    """What the convolutions make of each image, as Encoder.forward computes it from bytes."""
    encoder, place, pieces = snapshot.architecture.encoder, 0, []
    assert encoder is not None  # noqa: S101 (the caller has one)
    for name, image in zip(image_names(spec), spec.images, strict=True):
        channels, height, width = image.shape
        value = inputs[name]
        if image.channels_last:
            value = graph.add("Transpose", [value], perm=[0, 1, 4, 2, 3])
        shape = graph.constant(np.array([0, spec.stack * channels, height, width], np.int64))  # 0 keeps the batch
        value = ops.pixels(graph.add("Reshape", [value, shape]), None)
        for stride in encoder.strides:
            value = ops.convolve(value, parameters[place], parameters[place + 1], stride)
            place += 2
        pieces.append(ops.flattened(value)._replace(width=encoder._replace(images=(image.shape,)).outputs))
    return pieces


def _normalised(graph: Graph, x: Value, scaling: Scaling) -> Value:
    mean, std = (graph.constant(one[0]) for one in scaling)
    scaled = graph.add("Div", [graph.add("Sub", [x, mean]), std])
    return graph.add("Clip", [scaled, graph.number(-SCALED_LIMIT), graph.number(SCALED_LIMIT)], x.width)


def _rescaled(graph: Graph, action: Value, spec: Spec, previous: Value | None) -> Value:
    """Actions in the environment's bounds, type and shape; in double precision unless these are float32."""
    kind = precision(spec)
    is_single = kind is np.float32
    low, high = bounds_inside(spec) if is_single else (spec.action_low, spec.action_high)
    span = (spec.action_high - spec.action_low).astype(kind)
    value = action if is_single else graph.add("Cast", [action], to=TensorProto.DOUBLE)
    share = graph.add(
        "Div", [graph.add("Add", [value, graph.constant(np.array(1, kind))]), graph.constant(np.array(2, kind))]
    )
    value = graph.add("Add", [graph.add("Mul", [share, graph.constant(span)]), graph.constant(low)])
    if spec.has_integer_actions:
        value = graph.add("Round", [value])  # halves to even, as NumPy does
    value = graph.add("Min", [graph.add("Max", [value, graph.constant(low)]), graph.constant(high)])
    if previous is not None:
        value = limited(graph, value, previous, spec)
    if spec.action_dtype != np.dtype(kind).name:
        value = graph.add("Cast", [value], to=_element_type(spec))
    if len(spec.action_shape) == 1:
        return value
    return graph.add("Reshape", [value, graph.constant(np.array([0, *spec.action_shape], np.int64))])


def _element_type(spec: Spec) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(spec.action_dtype)))
