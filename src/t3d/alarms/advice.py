"""What alarms advise: only what is not set already and can be set in this run."""

from __future__ import annotations

from typing import Literal

from t3d.config import Config, TD3Config
from t3d.events import Diagnosed

HIGH_RATE = 3e-3  # three times the highest learning rate of any preset


def options(*each: tuple[bool, str], between: str = ", or ") -> str:
    """Joins the texts of the options that are of use."""
    return between.join(text for is_of_use, text in each if is_of_use)


def lower_rate(td3: TD3Config, which: Literal["actor", "critic"]) -> str:
    """Names the flag that lowers a learning rate, and what it is now."""
    rate = td3.actor_lr if which == "actor" else td3.critic_lr
    too_high = ", which is far too high" if rate > HIGH_RATE else ""
    return f"a lower learning rate, --td3.{which}-lr {_lower(rate)} (now {rate:g}{too_high})"


def lower_rates(td3: TD3Config) -> str:
    """Names the flags that lower both learning rates, and what they are now."""
    flags = f"--td3.actor-lr {_lower(td3.actor_lr)} --td3.critic-lr {_lower(td3.critic_lr)}"
    return f"lower learning rates, {flags} (now {td3.actor_lr:g} and {td3.critic_lr:g})"


def can_normalise(event: Diagnosed, cfg: Config) -> bool:
    """Whether observations could be normalised and are not; those with images, which have an encoder, cannot."""
    return not cfg.normalise_observations and "encoder" not in event.weight_norms


def _lower(rate: float) -> str:
    """Suggests a learning rate: a third of this one, at most the default."""
    return f"{min(rate / 3, 3e-4) or 3e-4:.0e}".replace("e-0", "e-")
