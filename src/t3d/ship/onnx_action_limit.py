"""The limit on changes of actions as nodes of an ONNX graph, as in policy/actions.py."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from t3d.policy.actions import bounds_inside
from t3d.policy.spec import Spec
from t3d.ship.onnx_operations import Graph, Value

PREVIOUS = "previous_action"  # the input


def precision(spec: Spec) -> type[np.float32 | np.float64]:
    """The type in which actions are rescaled."""
    return np.float32 if spec.action_dtype in ("float32", "float16") else np.float64


def flat_previous(graph: Graph, given: Value, spec: Spec) -> Value:
    """The previous actions (batch, action_size), within the bounds."""
    value, kind = given, precision(spec)
    if len(spec.action_shape) != 1:
        value = graph.add("Reshape", [value, graph.constant(np.array([-1, spec.action_size], np.int64))])
    if spec.action_dtype != np.dtype(kind).name:
        value = graph.add("Cast", [value], to=TensorProto.FLOAT)
    low, high = bounds_inside(spec) if kind is np.float32 else (spec.action_low, spec.action_high)
    return graph.add("Min", [graph.add("Max", [value, graph.constant(low)]), graph.constant(high)])


def with_previous(graph: Graph, vector: Value | None, previous: Value, spec: Spec) -> Value:
    """The vector of an observation, which ends with the previous action, scaled to [-1, 1]."""
    kind, size = precision(spec), spec.action_size
    low, span = (graph.constant(one.astype(kind)) for one in (spec.action_low, spec.action_high - spec.action_low))
    one, two = (graph.constant(np.array(number, kind)) for number in (1, 2))
    share = graph.add("Div", [graph.add("Sub", [previous, low]), span])
    scaled = graph.add("Sub", [graph.add("Mul", [share, two]), one], size)
    if kind is np.float64:
        scaled = graph.add("Cast", [scaled], size, to=TensorProto.FLOAT)
    return scaled if vector is None else graph.add("Concat", [vector, scaled], vector.width + size, axis=-1)


def limited(graph: Graph, action: Value, previous: Value, spec: Spec) -> Value:
    """Clips actions to what is within reach of the previous ones."""
    change = graph.constant((spec.max_action_change * (spec.action_high - spec.action_low)).astype(precision(spec)))
    least, most = graph.add("Sub", [previous, change]), graph.add("Add", [previous, change])
    return graph.add("Min", [graph.add("Max", [action, least]), most])
