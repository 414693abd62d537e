"""Each member's best policy so far: part of every checkpoint, so that best/ can be restored with it."""

from __future__ import annotations

import math

import numpy as np

from t3d.files import to_count, to_fields
from t3d.policy.architectures import Architecture
from t3d.policy.snapshots import PolicySnapshot
from t3d.store.folder import RunFolder
from t3d.types import Evaluation, State


class BestPolicies:
    """The highest evaluations, with the policies that reached them."""

    def __init__(self, members: int) -> None:
        self.returns = [-math.inf] * members
        self._kept: dict[int, tuple[int, PolicySnapshot]] = {}  # by member: step, and a snapshot of that member alone

    def offer(self, evaluation: Evaluation) -> bool:
        """Keeps a policy that is better than all before it; returns whether it is."""
        member, mean_return = evaluation.member, float(evaluation.returns.mean())
        if not mean_return > self.returns[member]:
            return False
        self.returns[member] = mean_return
        self._kept[member] = (evaluation.step, evaluation.snapshot.of_member(member))
        return True

    def write(self, member: int, folder: RunFolder) -> None:
        """Writes one member's best policy into best/, if there is one."""
        if member in self._kept:
            step, snapshot = self._kept[member]
            folder.save_best(member, snapshot, step, self.returns[member])

    def rewrite(self, folder: RunFolder) -> list[str]:
        """Writes best/ again, whatever a kill or an accident has left there; says what was damaged."""
        notes = []
        for member in self._kept:
            problem = folder.best_problem(member)
            notes += [f"{problem}; it is restored from the checkpoint"] if problem else []
            self.write(member, folder)
        return notes

    def state(self) -> State:
        """Returns the best returns, and the policies of members that have one."""
        kept = self._kept.items()
        policies = {f"member-{member}": {"step": step, **snapshot.to_dict()} for member, (step, snapshot) in kept}
        return {"returns": np.array(self.returns), **policies}

    def restore(self, state: State, architecture: Architecture) -> None:
        """Restores what state() returned; every value is checked, because a file may hold anything."""
        if state["returns"].shape != (len(self.returns),):
            raise ValueError(f"best.returns has shape {state['returns'].shape}")
        self.returns = [float(value) for value in state["returns"]]
        for member in range(len(self.returns)):
            if f"member-{member}" in state:
                saved = to_fields(state[f"member-{member}"])
                snapshot = PolicySnapshot.from_dict(saved, 1, architecture).checked()
                self._kept[member] = (to_count(saved["step"]), snapshot)
