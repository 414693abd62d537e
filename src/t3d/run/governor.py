"""How many updates are due, and when something is due again. Whole numbers of steps, never seconds."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import floor

from t3d.config import TD3Config


class Governor:
    """Keeps updates at a fixed ratio to the steps of a member, however many environments or members there are."""

    def __init__(self, cfg: TD3Config) -> None:
        self.random_steps = cfg.random_steps
        self.ratio = Fraction(str(cfg.updates_per_step))  # exact: 0.1 means a tenth

    def due(self, transitions: Sequence[int], updates: int) -> int:
        """Updates to make now, given each member's transitions so far. Random steps are not paid back."""
        learned_from = max(0, min(transitions) - self.random_steps)
        return max(0, floor(self.ratio * learned_from) - updates)


def passed(every: int, before: int, after: int) -> bool:
    """Whether a multiple of `every` steps has been passed on the way from one step to another."""
    return after // every > before // every
