"""The numbers that updates read, for each member of a sweep its own."""

from __future__ import annotations

from typing import Any

from t3d.algo.coefficients import for_members
from t3d.algo.rules import Rule
from t3d.config import Config
from t3d.config.sweeps import refuse_field, swept


def coefficients_of_members(cfg: Config, rule: Rule) -> Any:
    """Returns the rule's coefficients; those that differ between members are tensors (M,)."""
    plain, fields = rule.coefficients(cfg.td3), swept(cfg.members)
    if not fields:
        return plain
    for field in fields:
        refuse_field(field, [f"td3.{name}" for name in plain._fields if hasattr(cfg.td3, name)])
    return for_members([rule.coefficients(cfg.td3_of(member)) for member in cfg.members], cfg.device)
