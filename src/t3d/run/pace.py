"""When updates are due, and of whom: step by step for all, or after episodes for each member by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from t3d.actors.governor import Governor
from t3d.files import to_count
from t3d.types import EpisodeResult, State

if TYPE_CHECKING:
    from t3d.run.parts import Parts


class Steady:
    """A ratio of updates to steps, the same for all members."""

    left = 0  # updates until a round of them ends, during which nobody acts; without rounds none

    def __init__(self, parts: Parts) -> None:
        self.parts, self.governor = parts, Governor(parts.cfg)

    def due(self) -> int:
        """How many updates are due."""
        return self.governor.due(self.parts.added, self.parts.learner.updates)

    def run(self, n: int) -> Any:
        """Makes n of the updates that are due, and returns the trace of the last one."""
        return self.parts.learner.run(n)

    def hear(self, member: int, episode: EpisodeResult) -> None: ...  # once its steps are counted

    def is_possible(self) -> bool:
        """Whether what was restored can have come about."""
        return self.parts.learner.updates <= self.governor.due(self.parts.added, 0)

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None: ...


class Rounds(Steady):
    """A budget for each member, for a rule that hears episodes.

    A member with a budget rests from acting until all others have one too, or cannot act any more. Then they learn at
    once, in a round, and who has used up its budget rests. As members share nothing, each learns what it would alone.
    """

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self.steps = [0] * parts.learner.members  # of each member, whose updates have become due so far
        parts.collector.rest(())

    def budget(self, member: int) -> int:
        """Updates that a member may make now, in whole cycles of phases; what is left over stays for the next round."""
        learner = self.parts.learner
        due = self.steps[member] * self.governor.updates // self.governor.for_steps
        return due - due % len(learner.phases) - learner.made[member]

    def due(self) -> int:
        parts = self.parts
        budgets = {member: self.budget(member) for member in parts.living}
        most = max(budgets.values(), default=0)
        if self.left:
            self.left = min(self.left, most)  # whoever had more may have diverged
        elif all(budget or parts.steps[member] == parts.cfg.total_steps for member, budget in budgets.items()):
            self.left = most
        return self.left

    def run(self, n: int) -> Any:
        learner, parts = self.parts.learner, self.parts
        while n:
            awake = {member: budget for member in parts.living if (budget := self.budget(member))}
            count = min(n, *awake.values())
            trace = learner.run(count, [member for member in range(learner.members) if member not in awake])
            n, self.left = n - count, self.left - count
        if not self.left:
            parts.collector.rest(self._resting())
        return trace

    def hear(self, member: int, episode: EpisodeResult) -> None:
        """Lets the rule hear of an episode, unless it began before learning does."""
        parts = self.parts
        if parts.steps[member] - episode.length * parts.cfg.num_envs >= self.governor.begins:
            self.steps[member] += parts.learner.hear(member, episode)
            parts.collector.rest(self._resting())

    def _resting(self) -> Sequence[int]:
        return [member for member in self.parts.living if self.budget(member)]

    def is_possible(self) -> bool:
        made = zip(self.parts.learner.made, self.steps, self.parts.steps, strict=True)
        updates, for_steps = self.governor.updates, self.governor.for_steps
        fits = all(done <= steps * updates // for_steps and steps <= taken for done, steps, taken in made)
        return fits and self.left <= max(map(self.budget, self.parts.living))

    def state(self) -> State:
        return {"steps": np.array(self.steps), "left": self.left}

    def restore(self, state: State) -> None:
        self.steps = [to_count(int(steps)) for steps in np.broadcast_to(state["steps"], len(self.steps))]
        self.left = to_count(state["left"])
        self.parts.collector.rest(self._resting())
