"""Checks that an environment still has the spaces it had when a policy was trained on it."""

from __future__ import annotations

from typing import Any

from t3d.errors import UserError
from t3d.files import to_fields, to_list, to_number
from t3d.policy.acting import SavedPolicy
from t3d.policy.spec import Spec
from t3d.world.spec import size_of


def check_fits(policy: SavedPolicy, spec: Spec, env_id: str) -> None:
    """Raises UserError if a policy was trained on an environment with other spaces."""
    if changed := difference(outline(policy.spec), outline(spec)):
        raise UserError(f"the policy does not fit {env_id}: {changed}")


def outline(spec: Spec) -> dict[str, Any]:
    """Describes an environment's spaces in plain values that a checkpoint can hold."""
    images = {"images": [[image.name, size_of(image)] for image in spec.images], "stack": spec.stack}
    return {
        "observed": spec.observation_size,
        "observation": [[part.name, list(part.shape), part.first_choice] for part in spec.observation],
        "action_shape": list(spec.action_shape),
        "bounds": [list(pair) for pair in zip(spec.action_low.tolist(), spec.action_high.tolist(), strict=True)],
        **(images if spec.images else {}),
        **({"max_action_change": spec.max_action_change} if spec.max_action_change else {}),
    }


def difference(then: dict[str, Any], now: dict[str, Any]) -> str:
    """Describes the first difference between two outlines, the first from a file; empty if there is none."""
    images = [to_list(seen.get("images", [])) for seen in (to_fields(then), now)]
    frames = [seen.get("stack", 1) for seen in (then, now)]
    if images[0] != images[1]:
        return f"it observed {_images(images[0])} then, {_images(images[1])} now"
    if frames[0] != frames[1]:
        return f"its observations had {frames[0]} frames then, {frames[1]} now (env.frame_stack)"
    limits = [to_number(seen.get("max_action_change", 0.0)) for seen in (then, now)]
    if limits[0] != limits[1]:
        most = [f"by at most {limit:g} of their range per step" if limit else "freely" for limit in limits]
        return f"its actions changed {most[0]} then, {most[1]} now (env.max_action_change)"
    return _difference_in_vectors(then, now)


def _difference_in_vectors(then: dict[str, Any], now: dict[str, Any]) -> str:
    if then["observed"] != now["observed"]:
        return f"{then['observed']} observation values then, {now['observed']} now"
    if then["observation"] != now["observation"]:
        return f"its observation was {_parts(then)}, now {_parts(now)}"
    if then["action_shape"] != now["action_shape"]:
        return f"its actions had the shape {then['action_shape']}, now {now['action_shape']}"
    for index, (before, after) in enumerate(zip(to_list(then["bounds"]), now["bounds"], strict=True)):
        if before != after:
            return f"the bounds of action {index} were {before}, now {after}"
    return ""


def _parts(seen: dict[str, Any]) -> str:
    return ", ".join(f"{name} {shape}" for name, shape, _ in map(to_list, to_list(seen["observation"])))


def _images(images: list[Any]) -> str:
    return " and ".join(f"the image {name} of {size}" for name, size in map(to_list, images)) or "no image"
