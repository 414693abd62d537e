"""Where every random stream comes from.

Nothing random in T3D shares a stream. Each stream is derived from the member's seed value, a purpose, and, where it
applies, the environment and the episode. The member's index plays no part: a seed is the same alone or beside others.
"""

from __future__ import annotations

import zlib

import numpy as np


def derive(seed: int, purpose: str, *path: int) -> int:
    """A seed for one purpose, e.g. derive(0, "environment", env, episode); 31 bits, which every simulator accepts."""
    entropy = [seed, zlib.crc32(purpose.encode()), *path]
    return int(np.random.SeedSequence(entropy).generate_state(1)[0] >> 1)


def stream(seed: int, purpose: str, *path: int) -> np.random.Generator:
    """A numpy generator of its own for one purpose."""
    return np.random.default_rng(derive(seed, purpose, *path))
