"""Compares an exported policy with the policy itself before it is written, on many observations including extremes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3d.errors import UserError
from t3d.snapshots import Scaling
from t3d.types import Floats, Spec
from t3d.world.policy import SavedPolicy
from t3d.world.spaces import ABSURD

OBSERVATIONS = 10_000
CHUNK = 100  # observations with images compared at once, for memory; chosen
TOLERANCE = 1e-5  # of the range of each action
TINIEST = 1e-30  # of the extremes


def largest_difference(policy: SavedPolicy, other: Callable[[NDArray[Any]], NDArray[Any]]) -> float:
    """The largest difference of two policies' actions, as a share of their range; actions must be within bounds."""
    spec, rng = policy.spec, np.random.default_rng(0)
    largest = 0.0
    chunk = CHUNK if spec.images else OBSERVATIONS
    for _ in range(0, OBSERVATIONS, chunk):
        flat = observations(spec, policy.snapshot.scaling, chunk, rng)
        wanted, found = (
            actions.reshape(chunk, -1).astype(np.float64) for actions in (policy.actions(flat), other(flat))
        )
        if not ((found >= spec.action_low) & (found <= spec.action_high)).all():
            raise UserError(
                "the exported policy returns actions outside of the environment's bounds; this is a bug of T3D"
            )
        shares = np.abs(found - wanted) / (spec.action_high - spec.action_low)
        if np.dtype(spec.action_dtype).kind in "iu":
            shares = np.where(_is_near_half(policy, flat), 0, shares)
        largest = max(largest, float(shares.max()))
    return largest


def refuse_difference(difference: float) -> None:
    """Raises if a policy must not be written."""
    if not difference <= TOLERANCE:
        raise UserError(
            f"the exported policy differs from the policy by {difference:.1e} of the range of actions, and at most "
            f"{TOLERANCE:g} is allowed; nothing was written"
        )


def observations(spec: Spec, scaling: Scaling | None, count: int, rng: np.random.Generator) -> NDArray[Any]:
    """Flat observations (count, observation_width): ordinary ones of several sizes, and extremes."""
    vectors = _vectors(spec.observation_size, scaling, count, rng)
    if not spec.images:
        return vectors
    pixels = rng.integers(0, 256, (count, spec.stack * spec.frame_size), dtype=np.uint8)
    pixels[0::8], pixels[1::8] = 0, 255  # black and white
    pixels[2::8] = np.where(pixels[2::8] < 128, 0, 255)
    pixels[3::8] = pixels[3::8, :1]  # one grey each
    return np.concatenate([vectors.view(np.uint8), pixels], axis=1)


def _vectors(size: int, scaling: Scaling | None, count: int, rng: np.random.Generator) -> Floats:
    found = rng.normal(size=(count, size)) * 10.0 ** rng.uniform(-3, 0.5, (count, 1))
    if scaling is not None:
        found = scaling.mean[0] + scaling.std[0] * found
    signs = rng.choice([-ABSURD, ABSURD], (count, size))
    found[0::8] = signs[0::8]
    found[1::8] = np.where(rng.random((len(found[1::8]), size)) < 1 / max(size, 1), signs[1::8], found[1::8])
    found[2::16] = 0
    found[10::16] *= TINIEST
    if scaling is not None:  # around where scaled observations are clipped
        found[3::8] = scaling.mean[0] + scaling.std[0] * rng.uniform(-20, 20, (len(found[3::8]), size))
    return np.clip(found, -ABSURD, ABSURD).astype(np.float32).reshape(count, size)


def _is_near_half(policy: SavedPolicy, flat: NDArray[Any]) -> NDArray[np.bool_]:
    """Where an action that is rounded to whole numbers lies so near a half that either neighbour is right."""
    spec = policy.spec
    span = spec.action_high - spec.action_low
    exact = spec.action_low + (policy.actor(flat).astype(np.float64) + 1) / 2 * span
    return np.abs(exact - np.floor(exact) - 0.5) <= TOLERANCE * span
