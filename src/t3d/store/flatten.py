"""Splits a nested state into what two files hold: plain values, and arrays by path."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

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
            node = node[key]
        node[last] = array
    return plain
