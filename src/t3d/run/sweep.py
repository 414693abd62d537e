"""The numbers that updates read, for each member of a sweep its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from t3d.algo.coefficients import for_members
from t3d.algo.rules import Rule
from t3d.config import Config
from t3d.errors import UserError, did_you_mean
from t3d.types import Coefficient


def coefficients_of_members(cfg: Config, rule: Rule) -> Any:
    """Returns the rule's coefficients; those that differ between members are tensors (M,)."""
    plain = rule.coefficients(cfg.td3)
    if not cfg.sweep:
        return plain
    known = [f"td3.{name}" for name in plain._fields if hasattr(cfg.td3, name)]
    for field, _ in cfg.members[0].values:
        if field not in known:
            raise UserError(
                f"{field} cannot differ between the members of a run; "
                f"these can: {', '.join(known)}{did_you_mean(field, known)}"
            )
    return for_members([rule.coefficients(cfg.td3_of(member)) for member in cfg.members], cfg.device)


def for_batches(gamma: Coefficient, device: str) -> Coefficient:
    """Returns gamma as batches carry it."""
    return gamma.to(device, torch.float32) if isinstance(gamma, Tensor) else gamma
