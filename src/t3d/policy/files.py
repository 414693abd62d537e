"""Policies in files: written by runs, found wherever they are, and checked in every respect before one is used."""

from __future__ import annotations

import hashlib
import importlib
import math
import os
from collections.abc import Callable, Sequence
from math import prod
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
    read,
    refuse_link,
    replace,
    sealed,
    to_count,
    to_fields,
    to_list,
    to_number,
    unsealed,
)
from t3d.policy.acting import LoadedPolicy, SavedPolicy
from t3d.policy.actions import to_bounds
from t3d.policy.architectures import ACTIVATIONS, KINDS, Architecture, Kind
from t3d.policy.encoders import encoder_from
from t3d.policy.snapshots import PolicySnapshot, Scaling
from t3d.policy.spec import Image, Part, Spec

FORMAT = 3  # formats 1 and 2 had no architecture
INDENT = 2  # of the json, which is for people
MOST_JSON_BYTES, MOST_BYTES = 2**24, 2**32  # larger files are refused unread; chosen
MOST_OBSERVATION_BYTES = 2**26  # with images; chosen
NEEDS = {  # module -> what needs more than NumPy and safetensors, and what to install for it
    "t3d.ship.from_checkpoint": ("a checkpoint holds the state of training, so loading it", "t3d"),
    "t3d.ship.onnx_policy": ("an ONNX file", "onnx onnxruntime"),
}


class UnknownNetwork(UserError):
    """The network of a policy file is not one of T3D's, and was not given."""


def load_policy(path: str | Path, network: Kind | None = None, seed: int | str | None = None) -> LoadedPolicy:
    """Loads a policy, e.g. load_policy("runs/demo"), and refuses one that was changed.

    A policy file (runs/demo/best/seed-0) or an exported .onnx file holds one policy. Of a run folder the best policy is
    taken, of several seeds the one with the highest evaluation; of a checkpoint (runs/demo/checkpoints/...) the policy
    at that step. There `seed` chooses another, in a sweep by its name. If the network of a policy file is your own, it
    must be given: a file never says what code to run.
    """
    place = Path(path)
    if place.suffix == ".onnx":
        _refuse(place, "an ONNX file", network=network, seed=seed)
        return _loader("t3d.ship.onnx_policy")(place)
    if (place / "manifest.json").is_file():
        _refuse(place, "a checkpoint", network=network)
        return _loader("t3d.ship.from_checkpoint")(place, seed)
    if place.is_dir():
        return _of_run(place, network, seed)
    policy = read_policy(place, network)
    _refuse(place, "a policy file, which holds one policy", seed=seed)
    return policy


def _refuse(path: Path, what: str, **options: object) -> None:
    """Refuses options that this kind of file has no use for."""
    for name, value in options.items():
        if value is not None:
            raise UserError(f"{path} is {what}: it takes no {name}")


def _of_run(folder: Path, network: Kind | None, seed: int | str | None) -> LoadedPolicy:
    stems = sorted(file.with_suffix("") for file in (folder / "best").glob("*.safetensors"))
    if not stems:
        raise UserError(f"{folder} has no policy: it is not a run, or was never evaluated")
    if seed is not None:
        names = (str(seed), f"seed-{seed}")
        found = [stem for stem in stems if stem.name in names]
        if not found:
            known = ", ".join(stem.name for stem in stems[:5])
            raise UserError(f"{folder} has no policy of seed {seed}; it has {known}{' ...' if len(stems) > 5 else ''}")
        return read_policy(found[0], network)
    return max((read_policy(stem, network) for stem in stems), key=_evaluated)


def _evaluated(policy: LoadedPolicy) -> float:
    mean_return = policy.about.get("mean_return")
    return mean_return if isinstance(mean_return, float) and not math.isnan(mean_return) else -math.inf


def _loader(module: str) -> Callable[..., LoadedPolicy]:
    """Imports what only some policies need; a sentence says how to install it."""
    what, packages = NEEDS[module]
    try:
        load: Callable[..., LoadedPolicy] = importlib.import_module(module).load
    except ImportError as error:
        raise UserError(f"{what} needs {error.name}; install it with: pip install {packages}") from None
    return load


def save_policy(stem: Path, snapshot: PolicySnapshot, member: int, spec: Spec, about: dict[str, Any]) -> None:
    """Writes stem.safetensors, which is the complete policy, and stem.json, a copy of its description.

    The old copy is removed first: a kill at any moment leaves one complete policy, with its own copy or none.
    """
    content, text = packed(description_of(snapshot, spec, about), tensors_of(snapshot, member))
    refuse_link(stem.parent)
    stem.parent.mkdir(exist_ok=True)
    file, copy = _files(stem)
    copy.unlink(missing_ok=True)
    replace(file, content)
    replace(copy, text)


def tensors_of(snapshot: PolicySnapshot, member: int) -> dict[str, NDArray[Any]]:
    """The numbers of one member's policy, by the names that they have in a file."""
    tensors, scaling = {"actor": snapshot.flat[member]}, snapshot.scaling
    return tensors if scaling is None else {**tensors, "mean": scaling.mean[member], "std": scaling.std[member]}


def description_of(snapshot: PolicySnapshot, spec: Spec, about: dict[str, Any]) -> dict[str, Any]:
    """Everything about a policy but its numbers, as plain values."""
    return {
        "format": FORMAT,
        "network": snapshot.architecture.to_dict(),
        "observation": [part._asdict() for part in spec.observation],
        **({"images": [image._asdict() for image in spec.images], "stack": spec.stack} if spec.images else {}),
        "action_shape": spec.action_shape,
        "action_low": spec.action_low.tolist(),
        "action_high": spec.action_high.tolist(),
        "action_dtype": spec.action_dtype,
        **({"max_action_change": spec.max_action_change} if spec.max_action_change else {}),
        "updates": snapshot.updates,
        **about,
    }


def _files(stem: Path) -> tuple[Path, Path]:
    """The policy and the copy of its description; a dot in the name, as in gamma-0.98-seed-0, is no suffix."""
    return stem.with_name(f"{stem.name}.safetensors"), stem.with_name(f"{stem.name}.json")


def packed(description: dict[str, Any], tensors: dict[str, NDArray[Any]]) -> tuple[bytes, bytes]:
    """Returns the contents of the .safetensors file and of the .json file, which is in the former's header too."""
    text = sealed("policy", {**description, "tensors_sha256": hash_of(tensors)}, INDENT)
    return safetensors.numpy.save(tensors, {"policy": text.decode()}), text


def read_policy(path: str | Path, network: Kind | None = None) -> SavedPolicy:
    """Loads a policy written by a run, e.g. read_policy("runs/demo/best/seed-0"); refuses one that was changed.

    If its network is the user's own, it must be given: a file never says what code to run.
    """
    stem = Path(path)
    stem = stem.with_suffix("") if stem.suffix in (".json", ".safetensors") else stem
    try:
        content = _content(_files(stem)[0], MOST_BYTES)
        tensors = safetensors.numpy.load(content)
        about = _description(stem, content, tensors)
        spec = spec_from(about)
        snapshot = _snapshot(about, tensors, spec, _architecture(about["network"], network, stem))
        policy = SavedPolicy(snapshot, spec, about, hash_of(tensors))
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


def _refuse_format(found: Any, stem: Path) -> None:
    if found != FORMAT:
        older = isinstance(found, int) and found < FORMAT
        instead = "use the version that wrote it, or train again" if older else "update T3D"
        raise UserError(f"{stem} has policy format {found!r:.20}, and this T3D reads {FORMAT}; {instead}")


def _description(stem: Path, content: bytes, tensors: dict[str, NDArray[Any]]) -> dict[str, Any]:
    """Reads a policy's description after checking that neither the tensors nor the copy in the json were changed."""
    file, copy = _files(stem)
    text = _metadata(content).get("policy")
    if text is None:
        _refuse_format(fields_in(_content(copy, MOST_JSON_BYTES))["format"], stem)
        raise Refused(f"{file.name} holds no description of its tensors")
    try:
        about = unsealed("policy", text.encode(), INDENT)
    except Refused as error:
        raise Refused(f"{file.name}: {error}") from None
    _refuse_format(about["format"], stem)
    if about["tensors_sha256"] != hash_of(tensors):
        raise Refused(f"{file.name}: {CHANGED}")
    try:
        is_copy = _content(copy, MOST_JSON_BYTES) == text.encode()
    except FileNotFoundError:
        return about  # the copy was removed by a kill or a person; it is not needed
    if not is_copy:
        raise Refused(
            f"{copy.name} was changed, or belongs to another policy than {file.name}; "
            f"remove {copy.name} to use {file.name} alone, or try again if a run is writing them just now"
        )
    return about


def _metadata(content: bytes) -> dict[str, Any]:
    """Returns the metadata in the header of a safetensors file that safetensors has already accepted."""
    length = int.from_bytes(content[:8], "little")
    return to_fields(fields_in(content[8 : 8 + length]).get("__metadata__", {}))


def hash_of(tensors: dict[str, NDArray[Any]]) -> str:
    """The SHA-256 of tensors, with their names, types and shapes."""
    digest = hashlib.sha256()
    for name, array in sorted(tensors.items()):
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _architecture(fields: dict[str, Any], own: Kind | None, stem: Path) -> Architecture:
    if str(to_fields(fields)["name"]) not in KINDS and own is None:
        raise UnknownNetwork(
            f"the network of {stem} is {fields['name']!r:.200}, which is not one of T3D's; import it from a file that "
            "you trust and use load_policy(..., network=IT)"
        )
    return architecture_from(fields, own)


def architecture_from(fields: dict[str, Any], own: Kind | None = None) -> Architecture:
    """Reverses Architecture.to_dict; raises an error for values that describe none."""
    name, activation = (str(to_fields(fields)[key]) for key in ("name", "activation"))
    if (kind := KINDS.get(name, own)) is None or activation not in ACTIVATIONS:
        raise Refused(f"its network is {name!r:.60} with activation {activation!r:.60}")
    encoder = encoder_from(to_fields(fields["encoder"])) if "encoder" in fields else None
    first, *others = to_list(fields["sizes"])
    sizes = (to_count(first, least=1 if encoder is None else 0), *(to_count(size, least=1) for size in others))
    return Architecture(name, kind, sizes, activation, encoder)


def _snapshot(
    about: dict[str, Any], tensors: dict[str, NDArray[Any]], spec: Spec, architecture: Architecture
) -> PolicySnapshot:
    for name in ("seed", "step"):
        to_count(about[name])
    sizes = architecture.sizes
    shapes = {"actor": (architecture.size,), "mean": (sizes[0],), "std": (sizes[0],)}
    if (sizes[0], sizes[-1]) != (spec.observation_size, spec.action_size):
        raise Refused(f"its network of sizes {sizes} does not fit its observations and actions")
    encoder = architecture.encoder
    seen = ((), 1) if encoder is None else (encoder.images, encoder.stack)
    if seen != (tuple(image.shape for image in spec.images), spec.stack):
        raise Refused("its network does not fit the images of its observations")
    for name, array in tensors.items():
        if array.shape != shapes[name] or array.dtype != np.float32 or not np.isfinite(array).all():
            raise Refused(f"{name!r:.60} does not hold finite float32 values of shape {shapes[name]}")
    scaling = Scaling(tensors["mean"][None], tensors["std"][None]) if "mean" in tensors else None
    if scaling is not None and spec.images:
        raise Refused("it scales observations that hold images, which no run of T3D does")
    if scaling is not None and not (scaling.std > 0).all():
        raise Refused("it scales observations by a standard deviation of 0 or less")
    return PolicySnapshot(to_count(about["updates"]), architecture, tensors["actor"][None], scaling)


def spec_from(about: dict[str, Any]) -> Spec:
    """Reads the spaces in a description; raises an error for values that describe none."""
    spec = Spec(
        tuple(_part(to_fields(fields)) for fields in to_list(about["observation"])),
        tuple(to_count(size) for size in to_list(about["action_shape"])),
        np.array([to_number(bound) for bound in to_list(about["action_low"])], np.float64),
        np.array([to_number(bound) for bound in to_list(about["action_high"])], np.float64),
        str(about["action_dtype"]),
        tuple(_image(to_fields(fields)) for fields in to_list(about.get("images", []))),
        to_count(about.get("stack", 1), least=1),
        about.get("max_action_change", 0.0),
    )
    if not _is_contiguous(spec.observation) or not _is_contiguous(spec.images):
        raise Refused("the parts of its observations are not contiguous")
    if not (spec.observation or spec.images) or (spec.images and spec.observation_width > MOST_OBSERVATION_BYTES):
        raise Refused("its observations are empty, or larger than any that T3D takes")
    low, high = spec.action_low, spec.action_high
    if not low.shape == high.shape == (spec.action_size,) or not np.isfinite([low, high]).all() or (low >= high).any():
        raise Refused("its action bounds are not finite numbers, low below high")
    try:
        kind: str = np.dtype(spec.action_dtype).kind
    except TypeError:  # there is no such type
        kind = ""
    if kind not in ("f", "i", "u"):
        raise Refused(f"its actions are of type {spec.action_dtype!r:.60}, which are not numbers")
    limit = spec.max_action_change
    if not isinstance(limit, float) or not 0 <= limit <= 1 or (limit and kind != "f"):
        raise Refused(f"its max_action_change is {limit!r:.60}, with actions of type {spec.action_dtype}")
    return spec


def _is_contiguous(parts: Sequence[Part | Image]) -> bool:
    return [part.start for part in parts] == [0, *(part.stop for part in parts)][: len(parts)]


def _image(fields: dict[str, Any]) -> Image:
    path = tuple(to_list(fields["path"]))
    channels, height, width = (to_count(size, least=1) for size in to_list(fields["shape"]))
    flags = fields["channels_last"], fields["is_float"]
    shape = (channels, height, width)
    image = Image(path, shape, to_count(fields["start"]), to_count(fields["stop"]), *flags)
    is_sound = all(isinstance(key, str | int) for key in path) and all(isinstance(flag, bool) for flag in flags)
    if not is_sound or prod(shape) != image.stop - image.start:
        raise ValueError(f"an image of its observations is {fields}")
    return image


def _content(path: Path, most: int) -> bytes:
    return read(Path(os.path.realpath(path, strict=True)), most)  # a link that the user names is followed


def _part(fields: dict[str, Any]) -> Part:
    path, shape = tuple(to_list(fields["path"])), tuple(to_count(size) for size in to_list(fields["shape"]))
    choice = None if fields["first_choice"] is None else to_count(fields["first_choice"], least=-(2**62))
    part = Part(path, shape, to_count(fields["start"]), to_count(fields["stop"]), choice)
    if not all(isinstance(key, str | int) for key in path) or (
        choice is None and prod(shape) != part.stop - part.start
    ):
        raise ValueError(f"a part of its observations is {fields}")
    return part
