"""How many updates are due, how far ahead actors may step, and when a schedule is due: in steps, never in seconds."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from t3d.config import Config

MOST_STEPS = 10**6  # of a ratio such as 2/3; what is finer is taken as it is written; chosen


class Governor:
    """Keeps updates at a fixed ratio to the steps of a member, however many environments or members there are."""

    def __init__(self, cfg: Config) -> None:
        self.begins, self.total_steps, self.max_ahead = cfg.steps_before_learning, cfg.total_steps, cfg.most_ahead
        self.updates, self.for_steps = exact(cfg.updates_per_step)

    def due(self, transitions: Sequence[int], updates: int) -> int:
        """Returns how many updates are due, given each member's transitions so far. The first call for none."""
        learned_from = max(0, min(transitions) - self.begins)
        return max(0, learned_from * self.updates // self.for_steps - updates)

    def limit(self, updates: int, ahead: int | None = None) -> int:
        """Returns the most transitions a member may have: ahead - 1 more than the next update needs, or max_ahead - 1.

        With max_ahead 1 actors and learner take turns, as they do in one process.
        """
        if not self.updates:
            return self.total_steps
        next_due = self.begins - (-(updates + 1) * self.for_steps // self.updates)  # rounded up
        return min(self.total_steps, next_due + (ahead or self.max_ahead) - 1)


def exact(ratio: float) -> tuple[int, int]:
    """Returns the ratio in whole numbers, with which a step takes a microsecond less: 0.1 is a tenth, 1/3 a third."""
    simple = Fraction(ratio).limit_denominator(MOST_STEPS)
    return (simple if float(simple) == ratio else Fraction(str(ratio))).as_integer_ratio()


def passed(every: int, before: int, after: int) -> bool:
    """Whether a multiple of `every` lies between the two steps, `after` included; of 0 none does."""
    return every > 0 and after // every > before // every
