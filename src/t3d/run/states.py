"""A nested state as two files can hold it: plain values, and arrays by path."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3d.types import PolicySnapshot, Scaling, State, parameter_count, whole


def split(state: State) -> tuple[State, dict[str, NDArray[Any]]]:
    """A nested state as its plain part and its arrays by path, e.g. learner/actor."""
    plain: State = {}
    arrays: dict[str, NDArray[Any]] = {}
    for key, value in state.items():
        if isinstance(value, dict):
            plain[key], inner = split(value)
            arrays |= {f"{key}/{name}": array for name, array in inner.items()}
        elif isinstance(value, np.ndarray):
            arrays[key] = value
        else:
            plain[key] = value
    return plain, arrays


def packed(snapshot: PolicySnapshot) -> State:
    """A policy snapshot as part of a state."""
    scaling = {} if snapshot.scaling is None else snapshot.scaling._asdict()
    return {"updates": snapshot.updates, "flat": snapshot.flat, **scaling}


def unpacked(state: State, members: int, sizes: tuple[int, ...]) -> PolicySnapshot:
    """The inverse of packed, for so many members; refuses numbers that are not finite or of another shape."""
    shapes = {"flat": (members, parameter_count(sizes)), "mean": (members, sizes[0]), "std": (members, sizes[0])}
    arrays = {name: state[name] for name in shapes if name in state}
    for name, array in arrays.items():
        if array.shape != shapes[name] or array.dtype != np.float32 or not np.isfinite(array).all():
            raise ValueError(
                f"{name} of a policy is {array.dtype} {array.shape} instead of float32 {shapes[name]}, or not finite"
            )
    scaling = Scaling(arrays["mean"], arrays["std"]) if "mean" in arrays else None
    return PolicySnapshot(whole(state["updates"]), sizes, arrays["flat"], scaling)


def joined(plain: State, arrays: dict[str, NDArray[Any]]) -> State:
    """The inverse of split; plain is changed."""
    for name, array in arrays.items():
        *path, last = name.split("/")
        node = plain
        for key in path:
            node = node[key]
        node[last] = array
    return plain
