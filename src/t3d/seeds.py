"""Where every random stream comes from.

Nothing random in T3D shares a stream. Each stream is derived from the member's seed value, a purpose, and, where it
applies, the environment and the episode. The member's index plays no part: a seed is the same alone or beside others.
"""

from __future__ import annotations

import zlib

import numpy as np


def derive(seed: int, purpose: str, *path: int) -> int:
    """A seed for one purpose, e.g. derive(0, "environment", env, episode); 31 bits, which every simulator accepts."""
    return int(_sequence(seed, purpose, *path).generate_state(1)[0] >> 1)


def derive_wide(seed: int, purpose: str, *path: int) -> int:
    """The same with 63 bits, for torch."""
    return int(_sequence(seed, purpose, *path).generate_state(1, np.uint64)[0] >> np.uint64(1))


def stream(seed: int, purpose: str, *path: int) -> np.random.Generator:
    """A numpy generator of its own for one purpose."""
    return np.random.default_rng(_sequence(seed, purpose, *path))


def _sequence(seed: int, purpose: str, *path: int) -> np.random.SeedSequence:
    """In a spawn key trailing zeros count, which numpy ignores in plain entropy; path numbers are below 2**32."""
    return np.random.SeedSequence(seed, spawn_key=(zlib.crc32(purpose.encode()), *path))
