"""Derives every random stream from the member's seed, a purpose, and where it applies the environment and the episode.

The member's index is not used: a seed gives the same results alone or with others.
"""

from __future__ import annotations

import zlib

import numpy as np


def derive(seed: int, purpose: str, *path: int) -> int:
    """Derives a seed for a purpose: derive(0, "environment", env, episode); 31 bits, which every simulator accepts."""
    return int(_sequence(seed, purpose, *path).generate_state(1)[0] >> 1)


def derive_wide(seed: int, purpose: str, *path: int) -> int:
    """Like derive, with 63 bits, for torch."""
    return int(_sequence(seed, purpose, *path).generate_state(1, np.uint64)[0] >> np.uint64(1))


def stream(seed: int, purpose: str, *path: int) -> np.random.Generator:
    """Creates a numpy generator for one purpose."""
    return np.random.default_rng(_sequence(seed, purpose, *path))


def _sequence(seed: int, purpose: str, *path: int) -> np.random.SeedSequence:
    """Uses a spawn key, where trailing zeros count, unlike in plain entropy; path values are below 2**32."""
    return np.random.SeedSequence(seed, spawn_key=(zlib.crc32(purpose.encode()), *path))
