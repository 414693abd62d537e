"""Exports a policy to one file, after comparing what that file computes with the policy itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from t3d.errors import UserError
from t3d.files import error_text, followed, replace, sealed
from t3d.policy.acting import SavedPolicy
from t3d.policy.architectures import KINDS
from t3d.policy.spec import middle
from t3d.ship.c_source import c_source
from t3d.ship.parity import TOLERANCE, compiled, compiler, largest_difference
from t3d.version import __version__


class Exported(NamedTuple):
    """A file that was written."""

    path: Path
    bytes: int
    difference: float | None  # from the policy, as a share of the range of actions; None: it was not compared


def refuse_place(out: Path) -> None:
    """Refuses a file that exists or could not be written, before anything is computed."""
    folder = followed(out).parent
    if os.path.lexists(out):
        raise UserError(f"{out} exists already; remove it, or name another file with --out")
    if not os.path.isdir(folder):  # noqa: PTH112 (Path.is_dir raises where this says no)
        raise UserError(f"cannot write {out}: there is no folder {folder}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"cannot write {out}: the folder {folder} is not writable; name another file with --out")


def refuse_own_network(name: str) -> None:
    """Refuses a network that is not one of T3D's kinds."""
    if name not in KINDS:
        raise UserError(
            f"the network {name} is your own code, which cannot be exported; T3D exports {', '.join(KINDS)}"
        )


def export_policy(policy: SavedPolicy, out: Path, kind: str, training: dict[str, Any]) -> Exported:
    """Writes a policy as `onnx` or `c`; `training` is what the file says about its run."""
    refuse_own_network(policy.snapshot.architecture.name)
    refuse_place(out)
    content, difference = {"onnx": _onnx, "c": _c}[kind](policy, training, _facts(policy, training))
    if difference is not None and not difference <= TOLERANCE:
        raise UserError(
            f"the exported policy differs from the policy by {difference:.1e} of the range of actions, and at most "
            f"{TOLERANCE:g} is allowed; nothing was written"
        )
    try:
        replace(followed(out), content)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error_text(error)}") from None
    return Exported(out, len(content), difference)


def _c(policy: SavedPolicy, training: dict[str, Any], facts: dict[str, str]) -> tuple[bytes, float | None]:
    source = c_source(policy.snapshot, policy.spec, [f"{name}: {value}" for name, value in facts.items()] + [""])
    if compiler() is None:
        return source.encode(), None
    with compiled(source, policy.spec) as actions:
        return source.encode(), largest_difference(policy, actions)


def _onnx(policy: SavedPolicy, training: dict[str, Any], facts: dict[str, str]) -> tuple[bytes, float | None]:
    try:
        from t3d.policy.onnx_graph import model_of  # noqa: PLC0415 (an extra)
        from t3d.policy.onnx_policy import DESCRIPTION, OnnxPolicy, hash_of_model  # noqa: PLC0415
    except ImportError as error:
        raise UserError(f'exporting to ONNX needs {error.name}; install it with: pip install "t3d[export]"') from None
    from onnx import helper  # noqa: PLC0415

    snapshot = policy.snapshot
    model = model_of(snapshot, policy.spec, facts)
    hashes = {"tensors_sha256": policy.sha256, "model_sha256": hash_of_model(model)}
    about = {**policy.about, "scaled": snapshot.scaling is not None, "training": training, **hashes}
    helper.set_model_props(model, {**facts, DESCRIPTION: sealed(DESCRIPTION, about).decode()})
    content: bytes = model.SerializeToString(deterministic=True)
    return content, largest_difference(policy, OnnxPolicy(content, policy.spec, about).actions)


def _facts(policy: SavedPolicy, training: dict[str, Any]) -> dict[str, str]:
    """What people read about a policy in an exported file."""
    about, spec = policy.about, policy.spec
    mean_return = about.get("mean_return")
    inputs = [f"{part.name} of shape {part.shape} in [{part.start}, {part.stop})" for part in spec.observation]
    inputs += [f"image {image.name} of (channels, height, width) {image.shape}" for image in spec.images]
    inputs += [f"{spec.stack} frames, oldest first"] if spec.stack > 1 else []
    limit = f"{spec.max_action_change:g} of the range per step; at first the previous action is the middle"
    limit += f", {middle(spec).tolist()}"
    return {
        "policy": f"the {about.get('kind', '')} policy of seed {about['seed']} at step {about['step']:,}",
        "environment": about.get("env") or "made in Python",
        **({"mean_return": f"{mean_return:.6g}"} if isinstance(mean_return, float) else {}),
        "observation_space": "; ".join(inputs),
        "action_space": f"{spec.action_dtype} of shape {spec.action_shape}, "
        f"from {spec.action_low.tolist()} to {spec.action_high.tolist()}",
        **({"max_action_change": limit} if spec.max_action_change else {}),
        "network": f"{policy.snapshot.architecture.name} {list(policy.snapshot.architecture.sizes)}",
        "policy_sha256": policy.sha256,
        "exported_by": f"t3d {__version__}",
        **{name: str(value) for name, value in training.items()},
    }
