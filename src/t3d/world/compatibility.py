"""Checks that an environment still has the spaces it had when a policy was trained on it."""

from __future__ import annotations

from typing import Any

from t3d.errors import UserError
from t3d.types import Spec
from t3d.world.policy import SavedPolicy


def check_fits(policy: SavedPolicy, spec: Spec, env_id: str) -> None:
    """Raises UserError if a policy was trained on an environment with other spaces."""
    if changed := difference(outline(policy.spec), outline(spec)):
        raise UserError(f"the policy does not fit {env_id}: {changed}")


def outline(spec: Spec) -> dict[str, Any]:
    """Describes an environment's spaces in plain values that a checkpoint can hold."""
    return {
        "observed": spec.observation_size,
        "observation": [[part.name, list(part.shape), part.first_choice] for part in spec.observation],
        "action_shape": list(spec.action_shape),
        "bounds": [list(pair) for pair in zip(spec.action_low.tolist(), spec.action_high.tolist(), strict=True)],
    }


def difference(then: dict[str, Any], now: dict[str, Any]) -> str:
    """Describes the first difference between two outlines; empty if there is none."""
    if then["observed"] != now["observed"]:
        return f"{then['observed']} observation values then, {now['observed']} now"
    if then["observation"] != now["observation"]:
        return f"its observation was {_parts(then)}, now {_parts(now)}"
    if then["action_shape"] != now["action_shape"]:
        return f"its actions had the shape {then['action_shape']}, now {now['action_shape']}"
    for index, (before, after) in enumerate(zip(then["bounds"], now["bounds"], strict=True)):
        if before != after:
            return f"the bounds of action {index} were {before}, now {after}"
    return ""


def _parts(seen: dict[str, Any]) -> str:
    return ", ".join(f"{name} {shape}" for name, shape, _ in seen["observation"])
