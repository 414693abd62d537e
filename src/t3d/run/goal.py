"""Ends a run that has learned enough: when the mean over its living members reaches stop_when often enough in a row."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import groupby
from statistics import fmean

from t3d.config import Config
from t3d.config.sweeps import noun
from t3d.files import to_count
from t3d.types import Evaluation, State

IN_A_ROW = 3  # evaluations, because one may be lucky; chosen


class Goal:
    """Counts the evaluations in a row that have met the target."""

    def __init__(self, cfg: Config) -> None:
        self.cfg, self.met = cfg, 0

    @property
    def is_reached(self) -> bool:
        return self.met >= IN_A_ROW

    def note_on(self, evaluations: Iterable[Evaluation]) -> list[str]:
        """Counts evaluations, all members of a step together; says so when the goal is reached."""
        if self.cfg.target is None or self.is_reached:
            return []
        name = self.cfg.target.criterion.metric
        for _, of_step in groupby(evaluations, key=lambda evaluation: evaluation.step):
            both = [(float(each.returns.mean()), each.metrics.get(name, math.nan)) for each in of_step]
            mean_return, metric = map(fmean, zip(*both, strict=True))
            self.met = self.met + 1 if self.cfg.target.is_met(mean_return, {name: metric}) else 0
            if self.is_reached:
                over = f", on average over the {noun(self.cfg.members)}s" if len(self.cfg.members) > 1 else ""
                reached = f"{self.cfg.stop_when} in {IN_A_ROW} evaluations in a row{over}"
                return [f"the run ends because it has reached stop_when: {reached}"]
        return []

    def state(self) -> State:
        return {"stop_when": self.cfg.stop_when, "met": self.met}

    def restore(self, state: State) -> None:
        """Goes on counting, unless another goal was set."""
        self.met = to_count(state["met"]) if state.get("stop_when") == self.cfg.stop_when else 0
