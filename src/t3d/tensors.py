"""From arrays to tensors; to a GPU in asynchronous copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def sendable(array: NDArray[Any], device: torch.device) -> Tensor:
    """Wraps an array in a tensor that copy_(..., non_blocking=True) copies to the device asynchronously."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory() if device.type == "cuda" else tensor


def send(target: Tensor, values: NDArray[Any]) -> None:
    """Fills a tensor."""
    if target.device.type == "cpu":
        target.numpy()[...] = values  # NumPy takes a third of torch's time for a few numbers
        return
    target.copy_(sendable(values, target.device), non_blocking=True)


def send_rows(target: Tensor, rows: NDArray[np.int64], values: NDArray[Any]) -> None:
    """Writes values (K, ...) into different rows (K,) of a tensor."""
    device = target.device
    if device.type == "cpu":
        if len(rows) == 1:  # as in each step of one member, in a third of the time
            target.numpy()[rows[0]] = values[0]
        else:
            target.numpy()[rows] = values
        return
    index = sendable(rows, device).to(device, non_blocking=True)
    target.index_copy_(0, index, sendable(values, device).to(device, non_blocking=True))


def put(tensor: Tensor, array: NDArray[np.generic], name: str) -> None:
    """Fills a tensor with an array of the same shape and type; torch alone would silently broadcast and convert."""
    expected = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    if not isinstance(array, np.ndarray) or (str(array.dtype), array.shape) != expected:
        given = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
        raise ValueError(f"{name} is {given} instead of {expected[0]} {expected[1]}")
    tensor.copy_(torch.from_numpy(np.ascontiguousarray(array)).reshape(array.shape))
