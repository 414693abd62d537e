"""Observations of any Gymnasium space as one flat vector of float32, with the layout written down.

Only plain, finite, sane numbers get through: everything else is refused in words that name the part it was found in.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from t3d.errors import UserError
from t3d.types import Floats, Part, Spec

ABSURD = 1e15  # beyond this, squared TD errors overflow float32: (1e15 / (1 - gamma))^2 is 1e34 at gamma 0.99


class Unfit(ValueError):
    """A value that must not reach the replay; the message says what is wrong with it."""


def layout_of(space: spaces.Space[Any], path: tuple[str | int, ...] = (), start: int = 0) -> tuple[Part, ...]:
    """Where each part of an observation lies in the flat vector: arrays as they are, Discrete as a one-hot vector."""
    children: list[tuple[str | int, spaces.Space[Any]]]
    if isinstance(space, spaces.Dict):
        children = list(space.spaces.items())
    elif isinstance(space, spaces.Tuple):
        children = list(enumerate(space.spaces))
    elif isinstance(space, spaces.Discrete):
        return (Part(path, (), start, start + int(space.n), first_choice=int(space.start)),)
    elif isinstance(space, spaces.Box | spaces.MultiBinary):
        return (Part(path, space.shape, start, start + int(np.prod(space.shape))),)
    else:
        raise UserError(
            f"the observation space holds {space}, which T3D cannot flatten; "
            "use Box, Discrete, MultiBinary, or Dict and Tuple of these"
        )
    parts: list[Part] = []
    for key, child in children:
        parts += layout_of(child, (*path, key), parts[-1].stop if parts else start)
    return tuple(parts)


def flatten(observation: Any, spec: Spec) -> Floats:
    """The observation as a vector of its own (environments may reuse their buffers); Unfit says why it is none."""
    if len(spec.observation) == 1:
        return _part(observation, spec.observation[0]).astype(np.float32)
    flat = np.empty(spec.observation_size, np.float32)
    for part in spec.observation:
        flat[part.start : part.stop] = _part(observation, part)
    return flat


def number(name: str, value: Any) -> float:
    """The value as one finite, sane number."""
    return float(_sane(name, numbers(name, value, ()).reshape(1))[0])


def numbers(name: str, value: Any, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """The value as float64 numbers of the given shape."""
    try:
        array = np.asarray(value)
    except ValueError:  # ragged lists
        raise Unfit(f"{name} is {type(value).__name__} {value!r:.60}, not numbers of one shape") from None
    if array.dtype.kind not in "fiub":
        raise Unfit(f"{name} is {type(value).__name__} {value!r:.60}, not numbers")
    if array.shape != shape:
        raise Unfit(f"{name} has shape {array.shape} instead of {shape}")
    return array.astype(np.float64)


def _part(observation: Any, part: Part) -> NDArray[np.float64]:
    value = observation
    for key in part.path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            raise Unfit(f"{part.name} is missing from {observation!r:.60}") from None
    plain = numbers(part.name, value, part.shape)
    if part.first_choice is None:
        return _sane(part.name, plain.reshape(-1))
    choice = int(plain) - part.first_choice
    if not 0 <= choice < part.stop - part.start:
        raise Unfit(f"{part.name} is {value}, outside its {part.stop - part.start} choices")
    one_hot = np.zeros(part.stop - part.start)
    one_hot[choice] = 1
    return one_hot


def _sane(name: str, flat: NDArray[np.float64]) -> NDArray[np.float64]:
    sound = np.abs(flat) <= ABSURD  # False for NaN too
    if not sound.all():
        worst = int(np.argmin(sound))
        place = f"{name}[{worst}]" if len(flat) > 1 else name
        raise Unfit(f"{place} is {flat[worst]}; every number must be finite and sane")
    return flat
