"""What a model saves: JSON and safetensors in a zip, in which nothing is code; and reading Stable-Baselines3's zips."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from gymnasium import spaces
from stable_baselines3.common import noise
from torch import Tensor

from t3d.errors import UserError
from t3d.files import CORRUPT_ERRORS, Refused, error_text, fields_in, followed, read, replace, to_fields, to_json
from t3d.sb3.settings import ACTIVATIONS, EXTRACTORS, OPTIMISERS
from t3d.store.contents import joined, split
from t3d.types import State

MODEL, TENSORS, FORMAT = "model.json", "tensors.safetensors", 1
MOST_BYTES, MOST_JSON_BYTES = 2**33, 2**28  # of a file, and of each description in it, before it is unpacked; chosen
NOISES: dict[str, tuple[type, tuple[str, ...]]] = {  # its arguments, which it keeps with an underscore
    "NormalActionNoise": (noise.NormalActionNoise, ("mu", "sigma")),
    "OrnsteinUhlenbeckActionNoise": (noise.OrnsteinUhlenbeckActionNoise, ("mu", "sigma", "theta", "dt")),
}
CLASSES: dict[str, dict[str, Any]] = {  # in policy_kwargs
    "activation_fn": {name: getattr(torch.nn, name) for name in ACTIVATIONS},
    "optimizer_class": OPTIMISERS,
    "features_extractor_class": EXTRACTORS,
}


def write(path: Any, state: State) -> None:
    """Writes a nested state; a file that is there is replaced whole, or stays as it is."""
    plain, arrays = split(state)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr(MODEL, to_json({"format": FORMAT, "state": plain}))
        contiguous = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in arrays.items()}
        archive.writestr(TENSORS, safetensors.numpy.save(contiguous))
    put(path, content.getvalue(), ".zip")


def put(path: Any, content: bytes, suffix: str) -> None:
    """Writes to a file, or into one that is open."""
    if hasattr(path, "write"):
        path.write(content)
        return
    path = with_suffix(path, suffix)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, content)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error_text(error)}") from None


def with_suffix(path: Any, suffix: str) -> Path:
    """The path, with a suffix if it has none, as theirs does."""
    return Path(path) if Path(path).suffix else Path(path).with_suffix(suffix)


def content_of(path: Any, suffix: str) -> bytes:
    """Reads a file, or one that is open."""
    if hasattr(path, "read"):
        given: bytes = path.read()
        return given
    path = Path(path) if Path(path).is_file() else with_suffix(path, suffix)
    try:
        return read(followed(path), MOST_BYTES)
    except CORRUPT_ERRORS as error:
        raise UserError(f"cannot read {path}: {error_text(error)}") from None


def open_model(path: Any) -> State:
    """Reads what `write` has written, or the part of one of their zips that is no code, under "theirs"."""
    content = content_of(path, ".zip")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if MODEL not in archive.namelist():
                return {"theirs": their_model(archive)}
            stored = fields_in(unpacked(archive, MODEL, MOST_JSON_BYTES))
            if stored["format"] != FORMAT:
                raise Refused(f"it has format {stored['format']!r:.60}, and this T3D reads {FORMAT}")
            return joined(to_fields(stored["state"]), safetensors.numpy.load(unpacked(archive, TENSORS, MOST_BYTES)))
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, *CORRUPT_ERRORS) as error:
        raise UserError(f"{path} holds no model of TD3 that can be read ({type(error).__name__}: {error})") from error


def unpacked(archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    """Unpacks a file, unless it says that it is larger; it is not unpacked further than it says."""
    if (size := archive.getinfo(name).file_size) > most:
        raise Refused(f"{name} holds {size:,} bytes, more than the limit of {most:,}")
    return archive.read(name)


def their_model(archive: zipfile.ZipFile) -> State:
    """What a zip of theirs holds: values in plain JSON, and tensors. Whatever is pickled in it is left alone."""

    def tensors(name: str) -> Any:
        return torch.load(io.BytesIO(unpacked(archive, name, MOST_BYTES)), map_location="cpu", weights_only=True)

    fields = fields_in(unpacked(archive, "data", MOST_JSON_BYTES))
    weights: dict[str, Tensor] = tensors("policy.pth")
    if any("features_extractor" in name for name in weights):
        raise Refused("it has a features extractor, which only stable_baselines3.TD3 has")
    if "actor.mu.0.weight" not in weights or "critic.qf0.0.weight" not in weights:
        raise Refused("it is another algorithm's")
    optimisers = {owner: tensors(f"{owner}.optimizer.pth")["state"] for owner in ("actor", "critic")}

    def sizes(of: str) -> list[int]:
        return [tensor.shape[0] for name, tensor in weights.items() if name.startswith(of) and name.endswith("weight")]

    actor, critic = sizes("actor.mu."), sizes("critic.qf0.")
    critics = len({name.split(".")[1] for name in weights if name.startswith("critic.")})
    networks: dict[str, Any] = {"net_arch": {"pi": actor[:-1], "qf": critic[:-1]}, "n_critics": critics}
    pickled = to_fields(fields.get("policy_kwargs") or {}).get("activation_fn", "")
    if known := re.search(rf"\b({'|'.join(ACTIVATIONS)})\b", str(pickled)):
        networks["activation_fn"] = CLASSES["activation_fn"][known[1]]
    size = weights["actor.mu.0.weight"].shape[1]
    plain = {name: value for name, value in fields.items() if isinstance(value, int | float | str | bool | None)}
    found = {"plain": plain, "weights": weights, "optimisers": optimisers, "policy_kwargs": networks}
    return {**found, "spaces": lambda: (spaces.Box(-np.inf, np.inf, (size,)), actions(fields, actor[-1]))}


def actions(fields: dict[str, Any], size: int) -> Any:
    """Reads the bounds of actions from their description, which is text."""
    described = to_fields(fields["action_space"])
    texts = [str(described.get(name, "")).strip("[]").split() for name in ("low", "high")]
    low, high = (np.array([*map(float, words)], np.float32) for words in texts)
    if not low.shape == high.shape == (size,):
        raise UserError("the bounds of its actions are only pickled in it: give the environment, load(path, env=...)")
    return spaces.Box(low, high)


def space_to_state(space: Any) -> State:
    """A space as plain values and arrays."""
    kind = type(space).__name__
    if isinstance(space, spaces.Dict):
        return {"kind": "Dict", "of": {name: space_to_state(each) for name, each in space.spaces.items()}}
    if isinstance(space, spaces.Box):
        return {"kind": "Box", "low": space.low, "high": space.high, "dtype": str(space.dtype)}
    if isinstance(space, spaces.Discrete):
        return {"kind": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"kind": "MultiDiscrete", "nvec": space.nvec, "start": space.start}
    if isinstance(space, spaces.MultiBinary):
        return {"kind": "MultiBinary", "n": space.shape}
    raise UserError(f"a {kind} space cannot be saved; use Box, Dict, Discrete, MultiDiscrete or MultiBinary")


def space_of(state: State) -> Any:
    """The inverse of space_to_state."""
    kinds: dict[str, Callable[[], Any]] = {
        "Dict": lambda: spaces.Dict({name: space_of(each) for name, each in to_fields(state["of"]).items()}),
        "Box": lambda: spaces.Box(state["low"], state["high"], dtype=np.dtype(state["dtype"]).type),
        "Discrete": lambda: spaces.Discrete(state["n"], start=state["start"]),
        "MultiDiscrete": lambda: spaces.MultiDiscrete(state["nvec"], start=state["start"]),
        "MultiBinary": lambda: spaces.MultiBinary(state["n"]),
    }
    return kinds[state["kind"]]()


def noise_to_state(action_noise: Any) -> State:
    """An action noise by its arguments; {} for none, and for a class of the user's own."""
    base = action_noise.base_noise if isinstance(action_noise, noise.VectorizedActionNoise) else action_noise
    kind = type(base).__name__
    if kind not in NOISES or type(base) is not NOISES[kind][0]:
        return {}
    return {"kind": kind, **{name: np.asarray(getattr(base, f"_{name}"), np.float64) for name in NOISES[kind][1]}}


def noise_of(state: State) -> Any:
    """For one environment; training repeats it for several."""
    if not state:
        return None
    kind, names = NOISES[state["kind"]]
    return kind(*(state[name] if state[name].ndim else float(state[name]) for name in names))


def kwargs_to_state(policy_kwargs: dict[str, Any]) -> State:
    """The arguments of a policy, with its classes by their names."""
    return {name: value.__name__ if name in CLASSES else value for name, value in policy_kwargs.items()}


def kwargs_of(state: State) -> dict[str, Any]:
    """The inverse of kwargs_to_state; no class is imported by a name."""
    return {name: CLASSES[name][value] if name in CLASSES else value for name, value in state.items()}
