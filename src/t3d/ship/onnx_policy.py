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
from t3d.files import CHANGED, CORRUPT_ERRORS, Refused, read, to_count, unsealed
from t3d.ship.onnx_graph import OPSET, inputs_of, split_inputs
from t3d.types import Spec
from t3d.world.policy import LoadedPolicy
from t3d.world.policy_files import spec_from

DESCRIPTION = "t3d"  # the metadata that holds the policy's description
MOST_BYTES = 2**31  # what protobuf allows
OPERATIONS = frozenset(
    "Add Cast Clip Concat Conv Div Elu Flatten Gemm Identity LayerNormalization Max Min Mul Relu Reshape Round Slice Sub "
    "Tanh Transpose".split()
)
ONLY_ERRORS = 3  # of onnxruntime's levels of messages


class OnnxPolicy(LoadedPolicy):
    """A policy in a session of onnxruntime, on one thread."""

    def __init__(self, content: bytes, spec: Spec, about: dict[str, Any]) -> None:
        super().__init__(spec, about, str(about["tensors_sha256"]))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = ONLY_ERRORS
        self._session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def actions(self, flat: NDArray[Any]) -> NDArray[Any]:
        """As the base class says."""
        found: NDArray[Any] = self._session.run(["action"], split_inputs(flat, self.spec))[0]
        if not np.isfinite(found).all():
            raise UserError("the policy's action for this observation is not finite")
        return found


def load(path: Path) -> OnnxPolicy:
    """Loads a file that `t3d export` wrote; refuses one that was changed, or that holds anything else."""
    try:
        content = read(path.resolve(strict=True), MOST_BYTES)
        about = _description(content)
        spec = spec_from(about)
        for name in ("seed", "step", "updates"):
            to_count(about[name])
        policy = OnnxPolicy(content, spec, about)
        policy.actions(np.zeros((1, spec.observation_width), spec.observation_dtype))  # fails on wrong shapes
        return policy
    except FileNotFoundError:
        raise UserError(f"there is no file {path}") from None
    except UserError:
        raise
    except Exception as error:  # onnxruntime and protobuf have exceptions of their own
        if isinstance(error, CORRUPT_ERRORS) or type(error).__module__.startswith(("onnx", "google")):
            raise UserError(f"{path} is not a policy that T3D exported: {str(error).splitlines()[0]:.200}") from None
        raise


def hash_of_graph(model: onnx.ModelProto) -> str:
    """The SHA-256 of a model's nodes and numbers."""
    return hashlib.sha256(model.graph.SerializeToString(deterministic=True)).hexdigest()


def _description(content: bytes) -> dict[str, Any]:
    """Reads the policy's description after checking that the graph was not changed, and reads no other file."""
    model = onnx.load_model_from_string(content)
    found = {one.key: one.value for one in model.metadata_props}
    if DESCRIPTION not in found:
        raise Refused("it has no description of T3D's")
    about = unsealed(DESCRIPTION, found[DESCRIPTION].encode())
    if about["graph_sha256"] != hash_of_graph(model) or [(one.domain, one.version) for one in model.opset_import] != [
        ("", OPSET)
    ]:
        raise Refused(CHANGED)
    if any(one.data_location != onnx.TensorProto.DEFAULT or one.external_data for one in model.graph.initializer):
        raise Refused("its numbers are in another file")
    if model.functions or any(node.op_type not in OPERATIONS or node.domain for node in model.graph.node):
        raise Refused("it has operations that T3D does not write")
    if {one.name for one in model.graph.input} != inputs_of(spec_from(about)).keys():
        raise Refused("its inputs are not those of its observations")
    return about
