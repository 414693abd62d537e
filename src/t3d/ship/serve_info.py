"""What a server says about its policy."""

from __future__ import annotations

from typing import Any

from t3d.events import finite
from t3d.policy.acting import LoadedPolicy
from t3d.ship.serve_messages import Messages
from t3d.version import __version__

TRAINING = ("kind", "seed", "step", "updates", "mean_return", "std_return", "episodes", "values", "t3d")
MAKING = ("pixels", "camera", "action_repeat")  # of the environment


def about_policy(policy: LoadedPolicy, messages: Messages, limits: dict[str, Any]) -> dict[str, Any]:
    """Everything that a client may want to know, as plain values."""
    about = policy.about
    exported = about.get("training")
    hashes = {name: about[name] for name in ("tensors_sha256", "model_sha256") if name in about}
    found: dict[str, Any] = finite(
        {
            "policy": repr(policy),
            "environment": {"id": about.get("env"), **{name: about[name] for name in MAKING if name in about}},
            **messages.described(),
            "network": about["network"],
            "training": {
                **{name: about[name] for name in TRAINING if name in about},
                **(exported if isinstance(exported, dict) else {}),
            },
            "hashes": {"tensors_sha256": policy.sha256, **hashes},
            "limits": limits,
            "served_by": f"t3d {__version__}",
        }
    )
    return found


def facts(policy: LoadedPolicy) -> dict[str, str]:
    """What tells policies apart in figures."""
    about = policy.about
    names = {"environment": about.get("env") or "", "seed": about["seed"], "step": about["step"]}
    return {**{name: str(value) for name, value in names.items()}, "sha256": policy.sha256}
