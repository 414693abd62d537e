"""The bounds of actions in single precision, in which exported policies compute."""

from __future__ import annotations

import numpy as np

from t3d.types import Floats, Spec


def bounds_inside(spec: Spec) -> tuple[Floats, Floats]:
    """Low and high as float32, never outside of the environment's own."""
    low, high = spec.action_low.astype(np.float32), spec.action_high.astype(np.float32)
    low = np.where(low < spec.action_low, np.nextafter(low, np.float32(np.inf)), low)
    high = np.where(high > spec.action_high, np.nextafter(high, np.float32(-np.inf)), high)
    return low, high
