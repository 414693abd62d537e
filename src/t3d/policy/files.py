"""Policies in files: written by runs, found wherever they are, and checked in every respect before one is used."""

from __future__ import annotations

import hashlib
import importlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from t3d.errors import UserError
from t3d.files import (
    CHANGED,
    CORRUPT_ERRORS,
    Refused,
    fields_in,
    followed,
    read,
    refuse_link,
    replace,
    sealed,
    to_count,
    to_fields,
    unsealed,
)
from t3d.policy.acting import LoadedPolicy, PolicySnapshot, SavedPolicy, Scaling
from t3d.policy.architectures import SAVED_KINDS, Architecture, Kind
from t3d.policy.spec import Spec, to_bounds

FORMAT = 3  # formats 1 and 2 had no architecture
INDENT = 2  # of the json, which is for people
MOST_JSON_BYTES, MOST_BYTES = 2**24, 2**32  # larger files are refused unread; chosen


class UnknownNetwork(UserError):
    """The network of a policy file is not one of T3D's, and was not given."""


def load_policy(path: str | Path, network: Kind | None = None, seed: int | str | None = None) -> LoadedPolicy:
    """Loads a policy, e.g. load_policy("runs/demo"), and refuses one that was changed.

    A policy file (runs/demo/best/seed-0) or an exported .onnx file holds one policy. Of a run folder the best policy is
    taken, of several seeds the one with the highest evaluation; of a checkpoint (runs/demo/checkpoints/...) the policy
    at that step. There `seed` chooses another, in a sweep by its name. If the network of a policy file is your own, it
    must be given: a file never says what code to run.
    """
    path = Path(path)
    is_onnx, is_checkpoint = path.suffix == ".onnx", (path / "manifest.json").is_file()
    if network is not None and (is_onnx or is_checkpoint):
        raise UserError(f"{path} is {'an ONNX file' if is_onnx else 'a checkpoint'}: it takes no network")
    if is_checkpoint:
        return _loader("t3d.ship.from_checkpoint", "a checkpoint, the state of training,", "t3d")(path, seed)
    if path.is_dir():
        return _best_of_run(path, network, seed)
    onnx = "t3d.policy.onnx_policy", "an ONNX file", "onnx onnxruntime"
    policy = _loader(*onnx)(path) if is_onnx else read_policy(path, network)
    if seed is not None:
        raise UserError(f"{path} holds one policy: it takes no seed")
    return policy


def _loader(module: str, subject: str, packages: str) -> Callable[..., LoadedPolicy]:
    try:
        load: Callable[..., LoadedPolicy] = importlib.import_module(module).load
    except ImportError as error:
        raise UserError(f"{subject} needs {error.name}; install it with: pip install {packages}") from None
    return load


def _best_of_run(folder: Path, network: Kind | None, seed: int | str | None) -> LoadedPolicy:
    stems = sorted(file.with_suffix("") for file in (folder / "best").glob("*.safetensors"))
    if not stems:
        raise UserError(f"{folder} has no policy: it is not a run, or was never evaluated")
    chosen = [stem for stem in stems if seed is None or stem.name in (str(seed), f"seed-{seed}")]
    if not chosen:
        known = ", ".join(stem.name for stem in stems[:5])
        raise UserError(f"{folder} has no policy of seed {seed}; it has {known}{' ...' if len(stems) > 5 else ''}")
    return max((read_policy(stem, network) for stem in chosen), key=_score)


def _score(policy: LoadedPolicy) -> tuple[float, float]:
    """What eval.best_by names, the larger the better, then the return."""
    mean_return = policy.about.get("mean_return")
    both = policy.about.get("score", mean_return), mean_return
    score, mean = (x if isinstance(x, float) and not math.isnan(x) else -math.inf for x in both)
    return score, mean


def save_policy(stem: Path, snapshot: PolicySnapshot, member: int, spec: Spec, about: dict[str, Any]) -> None:
    """Writes stem.safetensors, which is the complete policy, and stem.json, a copy of its description.

    The old copy is removed first: a kill at any moment leaves one complete policy, with its own copy or none.
    """
    content, text = contents(_description(snapshot, spec, about), _tensors(snapshot, member))
    refuse_link(stem.parent)
    stem.parent.mkdir(exist_ok=True)
    file, copy = _files(stem)
    copy.unlink(missing_ok=True)
    replace(file, content)
    replace(copy, text)


def policy_of(snapshot: PolicySnapshot, spec: Spec, about: dict[str, Any]) -> SavedPolicy:
    """The policy of a snapshot of one member, as reading it from a file would return it."""
    return SavedPolicy(snapshot, spec, _description(snapshot, spec, about), _hash(_tensors(snapshot, 0)))


def _tensors(snapshot: PolicySnapshot, member: int) -> dict[str, NDArray[Any]]:
    tensors, scaling = {"actor": snapshot.flat[member]}, snapshot.scaling
    return tensors if scaling is None else {**tensors, "mean": scaling.mean[member], "std": scaling.std[member]}


def _description(snapshot: PolicySnapshot, spec: Spec, about: dict[str, Any]) -> dict[str, Any]:
    network = snapshot.architecture.to_dict()
    return {"format": FORMAT, "network": network, **spec.to_dict(), "updates": snapshot.updates, **about}


def _files(stem: Path) -> tuple[Path, Path]:
    """The policy and the copy of its description; a dot in the name, as in gamma-0.98-seed-0, is no suffix."""
    return stem.with_name(f"{stem.name}.safetensors"), stem.with_name(f"{stem.name}.json")


def contents(description: dict[str, Any], tensors: dict[str, NDArray[Any]]) -> tuple[bytes, bytes]:
    """Returns the contents of the .safetensors file and of the .json file, which is in the former's header too."""
    text = sealed("policy", {**description, "tensors_sha256": _hash(tensors)}, INDENT)
    return safetensors.numpy.save(tensors, {"policy": text.decode()}), text


def read_policy(path: str | Path, network: Kind | None = None) -> SavedPolicy:
    """Reads a policy file written by a run, e.g. runs/demo/best/seed-0; refuses one that was changed."""
    stem = Path(path)
    stem = stem.with_suffix("") if stem.suffix in (".json", ".safetensors") else stem
    try:
        content = read(followed(_files(stem)[0]), MOST_BYTES)
        tensors = safetensors.numpy.load(content)
        about = _checked_description(stem, content, tensors)
        spec = Spec.from_dict(about)
        policy = SavedPolicy(_snapshot(about, tensors, spec, network, stem), spec, about, _hash(tensors))
        nothing = np.zeros((1, spec.observation_width), spec.observation_dtype)
        to_bounds(policy.actor(nothing)[0], spec)  # fails on wrong shapes
        return policy
    except FileNotFoundError as error:
        raise UserError(f"no policy at {stem}: {error.filename or stem} is missing") from None
    except CORRUPT_ERRORS as error:
        raise UserError(f"{stem} is not a policy that T3D wrote: {error}") from None


def read_description(text: bytes) -> dict[str, Any]:
    """Reads the json beside a policy, of any format; raises Refused if it was changed, which format 1 cannot show."""
    fields = fields_in(text)
    return unsealed("policy", text, INDENT) if "policy" in fields else fields


def _checked_description(stem: Path, content: bytes, tensors: dict[str, NDArray[Any]]) -> dict[str, Any]:
    file, copy = _files(stem)
    length = int.from_bytes(content[:8], "little")  # of the header, which safetensors has already accepted
    text = to_fields(fields_in(content[8 : 8 + length]).get("__metadata__", {})).get("policy")
    if text is None:
        raise Refused(f"{file.name} does not describe its tensors; if an early version wrote it, train again")
    try:
        about = unsealed("policy", text.encode(), INDENT)
    except Refused as error:
        raise Refused(f"{file.name}: {error}") from None
    if (version := about["format"]) != FORMAT:
        instead = "use the version that wrote it, or train again"
        raise UserError(f"{stem} has policy format {version!r:.20}, and this T3D reads {FORMAT}; {instead}")
    if about["tensors_sha256"] != _hash(tensors):
        raise Refused(f"{file.name}: {CHANGED}")
    try:
        is_copy = read(followed(copy), MOST_JSON_BYTES) == text.encode()
    except FileNotFoundError:
        return about  # the copy was removed by a kill or a person; it is not needed
    if not is_copy:
        raise Refused(
            f"{copy.name} was changed, or belongs to another policy than {file.name}; "
            f"remove {copy.name} to use {file.name} alone, or try again if a run is writing them just now"
        )
    return about


def _hash(tensors: dict[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for name, array in sorted(tensors.items()):
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _snapshot(
    about: dict[str, Any], tensors: dict[str, NDArray[Any]], spec: Spec, own: Kind | None, stem: Path
) -> PolicySnapshot:
    fields = to_fields(about["network"])
    if str(fields["name"]) not in SAVED_KINDS and own is None:
        raise UnknownNetwork(
            f"the network of {stem} is {fields['name']!r:.200}, which is not one of T3D's; import it from a file that "
            "you trust and use load_policy(..., network=IT)"
        )
    network = Architecture.from_dict(fields, own)
    for name in ("seed", "step"):
        to_count(about[name])
    sizes, encoder = network.sizes, network.encoder
    if (sizes[0], sizes[-1]) != (spec.observation_size, spec.action_size):
        raise Refused(f"its network of sizes {sizes} does not fit its observations and actions")
    images = ((), 1) if encoder is None else (encoder.images, encoder.stack)
    if images != (tuple(image.shape for image in spec.images), spec.stack):
        raise Refused("its network does not fit the images of its observations")
    if tensors.keys() not in ({"actor"}, {"actor", "mean", "std"}):
        names = ", ".join(f"{name!r:.60}" for name in sorted(tensors)[:5])
        raise Refused(f"its tensors are {names}; a policy has 'actor', and with scaled observations 'mean' and 'std'")
    shapes = {"actor": network.size, "mean": sizes[0], "std": sizes[0]}
    for name, array in tensors.items():
        if array.shape != (shapes[name],) or array.dtype != np.float32 or not np.isfinite(array).all():
            raise Refused(f"{name!r} does not hold {shapes[name]:,} finite float32 values")
    scaling = Scaling(tensors["mean"][None], tensors["std"][None]) if "mean" in tensors else None
    if scaling is not None and (spec.images or not (scaling.std > 0).all()):
        raise Refused("it scales observations that hold images, or by a standard deviation of 0 or less")
    return PolicySnapshot(to_count(about["updates"]), network, tensors["actor"][None], scaling)
