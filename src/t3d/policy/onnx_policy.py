"""Runs a policy that was exported to ONNX, in onnxruntime."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

from t3d.errors import UserError
from t3d.files import CHANGED, CORRUPT_ERRORS, Refused, followed, read, to_count, to_fields, unsealed
from t3d.policy.acting import LoadedPolicy, PolicySnapshot, Scaling
from t3d.policy.architectures import Architecture
from t3d.policy.onnx_graph import model_of, split_inputs
from t3d.policy.spec import Spec

DESCRIPTION = "t3d"  # the metadata that holds the policy's description
MOST_BYTES = 2**31  # what protobuf allows


class OnnxPolicy(LoadedPolicy):
    """A policy in a session of onnxruntime, on one thread."""

    def __init__(self, content: bytes, spec: Spec, about: dict[str, Any]) -> None:
        super().__init__(spec, about, str(about["tensors_sha256"]))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3  # errors alone
        self._session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def actions(self, flat: NDArray[Any], previous: NDArray[Any] | None = None) -> NDArray[Any]:
        if flat.ndim == 1:
            (action,) = self.actions(flat[None], None if previous is None else previous[None])
            return np.asarray(action)
        actions: NDArray[Any] = self._session.run(["action"], split_inputs(flat, previous, self.spec))[0]
        if not np.isfinite(actions).all():
            raise UserError("the policy's action for this observation is not finite")
        return actions


def load(path: Path) -> OnnxPolicy:
    """Loads a file that `t3d export` wrote; refuses one that was changed, or that holds anything else."""
    try:
        content = read(followed(path), MOST_BYTES)
        about, spec = _description(content)
        for name in ("seed", "step", "updates"):
            to_count(about[name])
        policy = OnnxPolicy(content, spec, about)
        previous = policy.initial_action[None] if spec.max_action_change else None
        policy.actions(np.zeros((1, spec.observation_width), spec.observation_dtype), previous)  # fails on wrong shapes
        return policy
    except FileNotFoundError:
        raise UserError(f"there is no file {path}") from None
    except UserError:
        raise
    except Exception as error:  # onnxruntime and protobuf have exceptions of their own
        if isinstance(error, CORRUPT_ERRORS) or type(error).__module__.startswith(("onnx", "google")):
            raise UserError(f"{path} is not a policy that T3D exported: {str(error).splitlines()[0]:.200}") from None
        raise


def hash_of_model(model: onnx.ModelProto) -> str:
    """The SHA-256 of everything in a model but the description, which says it."""
    rest = onnx.ModelProto()
    rest.CopyFrom(model)
    del rest.metadata_props[:]
    rest.metadata_props.extend(entry for entry in model.metadata_props if entry.key != DESCRIPTION)
    return hashlib.sha256(rest.SerializeToString(deterministic=True)).hexdigest()


def _description(content: bytes) -> tuple[dict[str, Any], Spec]:
    """Reads the policy's description after checking that the model is one that T3D writes, unchanged."""
    model = onnx.load_model_from_string(content)
    text = {entry.key: entry.value for entry in model.metadata_props}.get(DESCRIPTION)
    if not isinstance(text, str):  # protobuf returns bytes where they are not UTF-8
        raise Refused("it has no description of T3D's")
    about = unsealed(DESCRIPTION, text.encode())
    if about["model_sha256"] != hash_of_model(model):
        raise Refused(CHANGED)
    spec, network = Spec.from_dict(about), Architecture.from_dict(to_fields(about["network"]))
    if 4 * network.size > len(content):
        raise Refused("it does not hold the numbers of its network")
    ones = np.ones((1, network.sizes[0]), np.float32)
    scaling = Scaling(ones, ones) if about["scaled"] is True else None
    expected = PolicySnapshot(0, network, np.zeros((1, network.size), np.float32), scaling)
    if _outline(model) != _outline(model_of(expected, spec, {})):
        raise Refused("it computes something else than its description says")
    return about, spec


def _outline(model: onnx.ModelProto) -> bytes:
    """Everything in a model but its floats and its metadata; numbers in other files have another outline.

    Listing harmless operations would not do: together they can fill any memory.
    """
    outline = onnx.ModelProto()
    outline.CopyFrom(model)
    del outline.metadata_props[:]
    for constant in outline.graph.initializer:
        if constant.data_type != onnx.TensorProto.INT64:
            constant.raw_data = str(len(constant.raw_data)).encode()
    return bytes(outline.SerializeToString(deterministic=True))
