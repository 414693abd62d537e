"""Conversion from arrays to tensors."""

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


def put(tensor: Tensor, array: NDArray[np.generic], name: str) -> None:
    """Fills a tensor with an array of the same shape and type; torch alone would silently broadcast and convert."""
    given = torch.from_numpy(np.ascontiguousarray(array)).reshape(array.shape)
    if (given.shape, given.dtype) != (tensor.shape, tensor.dtype):
        expected = f"{tensor.dtype} {tuple(tensor.shape)}"
        raise ValueError(f"{name} is {given.dtype} {tuple(given.shape)} instead of {expected}")
    tensor.copy_(given)
