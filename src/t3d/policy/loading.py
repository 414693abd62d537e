"""Loads a policy from wherever it is; policy files and run folders need no more than NumPy and safetensors."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from pathlib import Path

from t3d.errors import UserError
from t3d.policy import files as policy_files
from t3d.policy.acting import LoadedPolicy
from t3d.policy.architectures import Kind

NEEDS = {  # module -> what needs more than NumPy and safetensors, and what to install for it
    "t3d.ship.from_checkpoint": ("a checkpoint holds the state of training, so loading it", "t3d"),
    "t3d.ship.onnx_policy": ("an ONNX file", "onnx onnxruntime"),
}


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
    policy = policy_files.load_policy(place, network)
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
        return policy_files.load_policy(found[0], network)
    return max((policy_files.load_policy(stem, network) for stem in stems), key=_evaluated)


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
