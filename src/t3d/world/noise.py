"""Exploration noise. Every environment has its own process, begun anew with each episode from a stream of its own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from t3d.config import NoiseConfig
from t3d.types import Floats


class Gaussian:
    """Independent normal noise at every step."""

    def __init__(self, cfg: NoiseConfig, size: int, rng: np.random.Generator) -> None:
        self.scale = cfg.exploration_noise
        self.size = size
        self.rng = rng

    def __call__(self) -> Floats:
        return (self.scale * self.rng.standard_normal(self.size)).astype(np.float32)


NOISES: dict[str, Callable[[NoiseConfig, int, np.random.Generator], Callable[[], Floats]]] = {"gaussian": Gaussian}
