"""Splits a nested state into what two files hold: plain values, and arrays by path."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3d.files import to_fields
from t3d.types import State


def split(state: State) -> tuple[State, dict[str, NDArray[Any]]]:
    """Splits a nested state into its plain part and its arrays by path, e.g. learner/actor."""
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


def joined(plain: State, arrays: dict[str, NDArray[Any]]) -> State:
    """The inverse of split; changes plain."""
    for name, array in arrays.items():
        *path, last = name.split("/")
        node = plain
        for key in path:
            node = to_fields(node[key])
        to_fields(node)[last] = array
    return plain


def refuse_unlike(found: Any, like: Any, name: str = "the state") -> None:
    """Raises ValueError where a state from a file has another kind of value than the same state of this run."""
    if isinstance(like, dict):
        for key in like.keys() & to_fields(found).keys():
            refuse_unlike(found[key], like[key], key)
    elif isinstance(like, np.ndarray):
        wrong = not isinstance(found, np.ndarray) or (found.ndim, found.dtype) != (like.ndim, like.dtype)
        if wrong:
            raise ValueError(f"{name} is not an array of {like.ndim} axes of {like.dtype}")
    elif like is not None:
        kinds = (int, float) if isinstance(like, float) else (list, tuple) if isinstance(like, tuple) else type(like)
        if not isinstance(found, kinds):
            raise ValueError(f"{name} is a {type(found).__name__} instead of a {type(like).__name__}")
