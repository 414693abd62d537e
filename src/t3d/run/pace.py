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

AT_ONCE = 64  # updates between two looks at what others have collected, and at what the user asks for; chosen


class Steady:
    """A ratio of updates to steps, the same for all members."""

    lets_act = True  # whether somebody acts next, by the newest policy

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


class Budgets(Steady):
    """A budget for each member, for a rule that hears episodes; members share nothing, so each learns as if alone.

    A member with a budget rests from acting until all others have one too, or cannot act any more. Then they learn,
    until the first has used up its own and acts again. Nobody waits for those who act in other processes.
    """

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self.steps = [0] * parts.learner.members  # of each member, whose updates have become due so far
        self.waits = not parts.cfg.async_actors  # for those who act, where they act in this process
        parts.collector.rest(())

    def budget(self, member: int) -> int:
        """Updates that a member may make now, in whole cycles of phases; what is left over waits for the next steps."""
        due = self.steps[member] * self.governor.updates // self.governor.for_steps
        return self._whole(due) - self.parts.learner.made[member]

    def due(self) -> int:
        parts = self.parts
        budgets = {member: self.budget(member) for member in parts.living}
        least = min(filter(None, budgets.values()), default=0)
        acting = [m for m, budget in budgets.items() if not budget and parts.steps[m] < parts.cfg.total_steps]
        return 0 if acting and self.waits else min(least, max(self._whole(AT_ONCE), len(parts.learner.phases)))

    def run(self, n: int) -> Any:
        learner, awake = self.parts.learner, self._resting()
        trace = learner.run(n, [member for member in range(learner.members) if member not in awake])
        self.lets_act = len(self._resting()) < len(awake)
        self.parts.collector.rest(self._resting())
        return trace

    def _whole(self, updates: int) -> int:
        return updates - updates % len(self.parts.learner.phases)

    def hear(self, member: int, episode: EpisodeResult) -> None:
        """Lets the rule hear of an episode, unless it began before learning does."""
        parts = self.parts
        if parts.steps[member] - episode.length * parts.cfg.num_envs >= self.governor.begins:
            self.steps[member] += parts.learner.hear(member, episode)
            parts.collector.rest(self._resting())

    def _resting(self) -> Sequence[int]:
        """Who learns before it acts again."""
        return [member for member in self.parts.living if self.budget(member)]

    def is_possible(self) -> bool:
        made = zip(self.parts.learner.made, self.steps, self.parts.steps, strict=True)
        updates, for_steps = self.governor.updates, self.governor.for_steps
        return all(done <= steps * updates // for_steps and steps <= taken for done, steps, taken in made)

    def state(self) -> State:
        return {"steps": np.array(self.steps)}

    def restore(self, state: State) -> None:
        self.steps = [to_count(int(steps)) for steps in np.broadcast_to(state["steps"], len(self.steps))]
        self.parts.collector.rest(self._resting())
