"""Exports a policy to one file, after comparing on many observations what that file computes with the policy itself."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from t3d.errors import UserError, check_installed
from t3d.files import error_text, followed, replace, sealed
from t3d.policy.acting import SavedPolicy, Scaling
from t3d.policy.architectures import SAVED_KINDS
from t3d.policy.observations import ABSURD
from t3d.policy.spec import Spec, middle, put_previous
from t3d.ship.c_source import c_source
from t3d.version import __version__

OBSERVATIONS = 10_000
CHUNK = 100  # observations with images compared at once, for memory; chosen
TOLERANCE = 1e-5  # of the range of each action
TINIEST = 1e-30  # of the extremes
COMPILERS = ("cc", "gcc", "clang")
COMPILER_FLAGS = ("-std=c99", "-O2", "-pedantic", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")
COMPILE_SECONDS = 300


Actions = Callable[[NDArray[Any], NDArray[Any] | None], NDArray[Any]]  # as LoadedPolicy.actions


class Exported(NamedTuple):
    """A file that was written."""

    path: Path
    bytes: int
    difference: float | None  # from the policy, as a share of the range of actions; None: it was not compared


def refuse_place(out: Path) -> None:
    """Refuses a file that exists or a folder that does not, before anything is computed."""
    if os.path.lexists(out):
        raise UserError(f"{out} exists already; remove it, or name another file with --out")
    if not os.path.isdir(folder := followed(out).parent):  # noqa: PTH112 (Path.is_dir raises where this says no)
        raise UserError(f"cannot write {out}: there is no folder {folder}")


def refuse_own_network(name: str) -> None:
    """Refuses a network that is not one of T3D's kinds."""
    if name not in SAVED_KINDS:
        raise UserError(
            f"the network {name} is your own code, which cannot be exported; T3D exports {', '.join(SAVED_KINDS)}"
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
    check_installed("exporting to ONNX", ["onnx", "onnxruntime"], "export")
    from onnx import helper  # noqa: PLC0415 (an extra)

    from t3d.policy.onnx_graph import model_of  # noqa: PLC0415
    from t3d.policy.onnx_policy import DESCRIPTION, OnnxPolicy, hash_of_model  # noqa: PLC0415

    snapshot = policy.snapshot
    model = model_of(snapshot, policy.spec, facts)
    hashes = {"tensors_sha256": policy.sha256, "model_sha256": hash_of_model(model)}
    about = {**policy.about, "scaled": snapshot.scaling is not None, "training": training, **hashes}
    helper.set_model_props(model, {**facts, DESCRIPTION: sealed(DESCRIPTION, about).decode()})
    content: bytes = model.SerializeToString(deterministic=True)
    return content, largest_difference(policy, OnnxPolicy(content, policy.spec, about).actions)


def _facts(policy: SavedPolicy, training: dict[str, Any]) -> dict[str, str]:
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


def largest_difference(policy: SavedPolicy, other: Actions) -> float:
    """The largest difference of two policies' actions, as a share of their range; actions must be within bounds."""
    spec, rng, largest = policy.spec, np.random.default_rng(0), 0.0
    span = spec.action_high - spec.action_low
    chunk = CHUNK if spec.images else OBSERVATIONS
    for _ in range(0, OBSERVATIONS, chunk):
        flat = observations(spec, policy.snapshot.scaling, chunk, rng)
        previous = put_previous_actions(policy, flat, rng) if spec.max_action_change else None
        wanted, exported = (
            actions(flat, previous).reshape(chunk, -1).astype(np.float64) for actions in (policy.actions, other)
        )
        if not ((exported >= spec.action_low) & (exported <= spec.action_high)).all():
            raise UserError(
                "the exported policy returns actions outside of the environment's bounds; this is a bug of T3D"
            )
        shares = np.abs(exported - wanted) / span
        if spec.has_integer_actions:  # so near a half either neighbour is right
            exact = spec.action_low + (policy.actor(flat).astype(np.float64) + 1) / 2 * span
            shares = np.where(np.abs(exact - np.floor(exact) - 0.5) <= TOLERANCE * span, 0, shares)
        largest = max(largest, float(shares.max()))
    return largest


def observations(spec: Spec, scaling: Scaling | None, count: int, rng: np.random.Generator) -> NDArray[Any]:
    """Flat observations (count, observation_width): ordinary ones of several sizes, and extremes."""
    size = spec.observation_size
    vectors = rng.normal(size=(count, size)) * 10.0 ** rng.uniform(-3, 0.5, (count, 1))
    if scaling is not None:
        vectors = scaling.mean[0] + scaling.std[0] * vectors
    signs = rng.choice([-ABSURD, ABSURD], (count, size))
    vectors[0::8] = signs[0::8]
    vectors[1::8] = np.where(rng.random((len(vectors[1::8]), size)) < 1 / max(size, 1), signs[1::8], vectors[1::8])
    vectors[2::16] = 0
    vectors[10::16] *= TINIEST
    if scaling is not None:  # around where scaled observations are clipped
        vectors[3::8] = scaling.mean[0] + scaling.std[0] * rng.uniform(-20, 20, (len(vectors[3::8]), size))
    floats = np.clip(vectors, -ABSURD, ABSURD).astype(np.float32).reshape(count, size)
    if not spec.images:
        return floats
    pixels = rng.integers(0, 256, (count, spec.stack * spec.frame_size), dtype=np.uint8)
    pixels[0::8], pixels[1::8] = 0, 255  # black and white
    pixels[2::8] = np.where(pixels[2::8] < 128, 0, 255)
    pixels[3::8] = pixels[3::8, :1]  # one grey each
    return np.concatenate([floats.view(np.uint8), pixels], axis=1)


def put_previous_actions(policy: SavedPolicy, flat: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    """Previous actions (count, *action_shape) for flat observations, into which they are written.

    Some are anywhere within the bounds, some at the bounds or in the middle. Half are near what the policy chooses:
    from further away the limit decides alone, and hides what the network says.
    """
    spec, count = policy.spec, len(flat)
    share = rng.random((count, spec.action_size))
    share[0::8], share[2::8] = 0, 1
    share[4::16] = 0.5
    share[12::16] = rng.integers(0, 2, share[12::16].shape)  # some at one bound, some at the other
    beside = spec.max_action_change / 2 * rng.uniform(-1, 1, share.shape)
    put_previous(flat, _action(share, spec), spec)
    share[1::2] = (policy.actor(flat[1::2]) + 1) / 2 + beside[1::2]
    previous = _action(share, spec)
    put_previous(flat, previous, spec)
    return previous


def _action(share: NDArray[Any], spec: Spec) -> NDArray[Any]:
    """Actions (count, *action_shape) at these shares of the range, 0 to 1."""
    inside = np.clip(spec.action_low + share * (spec.action_high - spec.action_low), spec.action_low, spec.action_high)
    return inside.astype(spec.action_dtype).reshape(len(share), *spec.action_shape)


def compiler() -> str | None:
    """The path of a C compiler, if there is one."""
    return next(filter(None, map(shutil.which, COMPILERS)), None)


@contextmanager
def compiled(source: str, spec: Spec) -> Iterator[Actions]:
    """Compiles an exported C file with the system's compiler and calls it."""
    with tempfile.TemporaryDirectory(prefix="t3d-c-") as folder:
        file, library = Path(folder, "policy.c"), Path(folder, "policy.so")
        file.write_text(source, encoding="ascii")
        command = [compiler() or "cc", *COMPILER_FLAGS, "-o", str(library), str(file), "-lm"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False)  # noqa: S603
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UserError(f"the exported C code could not be compiled: {error}") from None
        if done.returncode:
            raise UserError(f"the exported C code does not compile with {command[0]}: {done.stderr.strip():.300}")
        act: Any = ctypes.CDLL(str(library)).t3d_act

        def actions(flat: NDArray[Any], previous: NDArray[Any] | None = None) -> NDArray[Any]:
            outputs = np.empty((len(flat), spec.action_size), np.float32)
            before = [] if previous is None else [previous.reshape(outputs.shape)]
            inputs = (np.ascontiguousarray(array, np.float32) for array in (flat[:, : spec.own_size], *before))
            for row in zip(*inputs, outputs, strict=True):
                if not act(*(ctypes.c_void_p(array.ctypes.data) for array in row)):
                    raise UserError("the exported C code refuses an observation that the policy accepts")
            return outputs

        yield actions
