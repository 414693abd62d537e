"""The acting policy: one forward pass in numpy, used for collecting, for evaluating and by load_policy.

A torch call for one observation costs several times as much, and actor processes need no torch this way.
"""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from t3d.errors import UserError
from t3d.files import UNSOUND, read, replace
from t3d.types import SCALED_LIMIT, Floats, Part, PolicySnapshot, Scaling, Spec, layers_of, whole
from t3d.world.numbers import Unfit, flatten, to_bounds

FORMAT = 1
MOST_JSON_BYTES, MOST_BYTES = 2**24, 2**32  # larger files are refused unread; chosen


class MemberPolicy:
    """One member's actor: observations (N, observation_size) -> actions (N, action_size) in [-1, 1]."""

    def __init__(self, snapshot: PolicySnapshot, member: int) -> None:
        flat = snapshot.flat[member : member + 1]
        self.layers = [(weight[0], bias[0]) for weight, bias in layers_of(flat, snapshot.sizes)]
        scaling = snapshot.scaling
        self.scaling = None if scaling is None else (scaling.mean[member], scaling.std[member])

    def __call__(self, observations: Floats) -> Floats:
        x = observations
        if self.scaling is not None:
            mean, std = self.scaling
            x = np.clip((x - mean) / std, -SCALED_LIMIT, SCALED_LIMIT)
        *hidden, (weight, bias) = self.layers
        for hidden_weight, hidden_bias in hidden:
            x = x @ hidden_weight
            x += hidden_bias
            np.maximum(x, 0, out=x)
        action: Floats = np.tanh(x @ weight + bias)
        return action


class SavedPolicy:
    """A policy from a file: an observation of the environment in, an action within the environment's bounds out."""

    def __init__(self, snapshot: PolicySnapshot, spec: Spec, about: dict[str, Any]) -> None:
        self.actor = MemberPolicy(snapshot, 0)
        self.spec = spec
        self.about = about  # environment, seed, step, mean_return, ...

    def __call__(self, observation: Any) -> NDArray[Any]:
        try:
            flat = flatten(observation, self.spec)
        except Unfit as error:
            raise UserError(str(error)) from None
        return to_bounds(self.actor(flat[None])[0], self.spec)


def save_policy(stem: Path, snapshot: PolicySnapshot, member: int, spec: Spec, about: dict[str, Any]) -> None:
    """Writes stem.safetensors (numbers only) and stem.json (what they mean); each appears whole or not at all."""
    tensors = {"actor": snapshot.flat[member]}
    if snapshot.scaling is not None:
        tensors |= {"mean": snapshot.scaling.mean[member], "std": snapshot.scaling.std[member]}
    meaning = {
        "format": FORMAT,
        "sizes": snapshot.sizes,
        "observation": [part._asdict() for part in spec.observation],
        "action_shape": spec.action_shape,
        "action_low": spec.action_low.tolist(),
        "action_high": spec.action_high.tolist(),
        "action_dtype": spec.action_dtype,
        "updates": snapshot.updates,
        **about,
    }
    stem.parent.mkdir(exist_ok=True)
    replace(stem.with_suffix(".safetensors"), safetensors.numpy.save(tensors))
    replace(stem.with_suffix(".json"), json.dumps(meaning, indent=2).encode())


def load_policy(path: str | Path) -> SavedPolicy:
    """Reads a policy written by a run, e.g. load_policy("runs/demo/best/seed-0")."""
    stem = Path(path)
    stem = stem.with_suffix("") if stem.suffix in (".json", ".safetensors") else stem
    try:
        about = json.loads(_content(stem.with_suffix(".json"), MOST_JSON_BYTES))
        if about["format"] != FORMAT:
            raise UserError(f"{stem} has policy format {about['format']}, this T3D reads {FORMAT}; update T3D")
        tensors = safetensors.numpy.load(_content(stem.with_suffix(".safetensors"), MOST_BYTES))
        spec = Spec(
            tuple(_part(fields) for fields in about["observation"]),
            tuple(whole(size) for size in about["action_shape"]),
            np.asarray(about["action_low"], np.float64),
            np.asarray(about["action_high"], np.float64),
            about["action_dtype"],
        )
        scaling = Scaling(tensors["mean"][None], tensors["std"][None]) if "mean" in tensors else None
        snapshot = PolicySnapshot(about["updates"], tuple(about["sizes"]), tensors["actor"][None], scaling)
        policy = SavedPolicy(snapshot, spec, about)
        to_bounds(policy.actor(np.zeros((1, spec.observation_size), np.float32))[0], spec)  # odd shapes show here
        return policy
    except FileNotFoundError as error:
        raise UserError(f"no policy at {stem}: {error.filename or stem} is missing") from None
    except UNSOUND as error:
        raise UserError(f"{stem} is not a policy that T3D wrote: {error}") from None


def _content(path: Path, most: int) -> bytes:
    return read(path.resolve(strict=True), most)  # a link that the user names is followed


def _part(fields: dict[str, Any]) -> Part:
    path, shape = tuple(fields["path"]), tuple(whole(size) for size in fields["shape"])
    choice = None if fields["first_choice"] is None else whole(fields["first_choice"], least=-(2**62))
    part = Part(path, shape, whole(fields["start"]), whole(fields["stop"]), choice)
    if not all(isinstance(key, str | int) for key in path) or (
        choice is None and prod(shape) != part.stop - part.start
    ):
        raise ValueError(f"a part of its observations is {fields}")
    return part
