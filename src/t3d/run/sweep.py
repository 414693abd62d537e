"""The numbers that updates read, for each member of a sweep its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from t3d.algo.rules import Rule
from t3d.config import Config
from t3d.errors import UserError, did_you_mean
from t3d.types import Coefficient


def coefficients_of_members(cfg: Config, rule: Rule) -> Any:
    """Returns the rule's coefficients; those that differ between members are tensors (M,).

    They are float64, and rounded where they are used (algo/coefficients.py).
    """
    plain = rule.coefficients(cfg.td3)
    if not cfg.sweep:
        return plain
    _refuse_others(cfg, plain)
    each = [
        rule.coefficients(replace(cfg.td3, **{field.removeprefix("td3."): value for field, value in member.values}))
        for member in cfg.members
    ]
    columns = dict(zip(plain._fields, zip(*each, strict=True), strict=True))
    different = {name: values for name, values in columns.items() if len(set(values)) > 1}
    return each[0]._replace(
        **{name: torch.tensor(values, dtype=torch.float64, device=cfg.device) for name, values in different.items()}
    )


def for_batches(gamma: Coefficient, device: str) -> Coefficient:
    """Returns gamma as batches carry it."""
    return gamma.to(device, torch.float32) if isinstance(gamma, Tensor) else gamma


def _refuse_others(cfg: Config, coefficients: Any) -> None:
    """Refuses a field that updates do not read as a coefficient: it is the same for all members."""
    known = [f"td3.{name}" for name in coefficients._fields if hasattr(cfg.td3, name)]
    for field, _ in cfg.members[0].values:
        if field not in known:
            raise UserError(
                f"{field} cannot differ between the members of a run{did_you_mean(field, known)}; "
                f"these can: {', '.join(known)}"
            )
