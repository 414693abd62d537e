"""What an episode says about itself in `info`: whether it was a success, and the numbers that are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import add
from typing import Any

from t3d.config.metrics import SUCCESS, parse_metrics
from t3d.errors import did_you_mean
from t3d.policy.observations import ABSURD, InvalidValue, number

REDUCE: dict[str, Callable[[float, float], float]] = {"sum": add, "mean": add, "min": min, "max": max}
KEYS = {SUCCESS: ("is_success", "success")}  # in info; of others their own names
MOST_NAMED = 9  # keys of info in a note


class InfoMetrics:
    """Metrics of the episode in progress; only those that every step contributes to cost anything before its end."""

    def __init__(self, requested: Sequence[str]) -> None:
        self.position: int | None = None  # in a VectorEnv, whose info is about all its environments
        self.requested = parse_metrics(requested)
        self.each_step = {name: reduction for name, reduction in self.requested.items() if reduction != "last"}
        self.begin()

    def begin(self) -> None:
        self._so_far: dict[str, tuple[float, int]] = {}  # and of how many steps
        self._unusable: dict[str, str] = {}

    def add(self, info: Any) -> None:
        """Takes in what a step returned; a step without a number changes nothing."""
        for name, reduction in self.each_step.items():
            value = info.get(name) if type(info) is dict and name != SUCCESS else None
            if type(value) is not float or not abs(value) <= ABSURD:  # a float is the usual case
                value = self._read(info, name)
            if value is not None:
                before, count = self._so_far.get(name, (None, 0))
                self._so_far[name] = value if before is None else REDUCE[reduction](before, value), count + 1

    def of_episode(self, info: Any) -> tuple[dict[str, float], dict[str, str]]:
        """Returns the metrics of the episode that ends with this info, and why it lacks others."""
        metrics: dict[str, float] = {}
        for name, reduction in {SUCCESS: "last", **self.requested}.items():
            value, count = self._so_far.get(name, (None, 0))
            value = self._read(info, name) if reduction == "last" else value
            if value is not None and name not in self._unusable:
                metrics[name] = value / count if reduction == "mean" else value
        known = [str(key)[:60] for key in info if str(key)[:1] != "_"] if isinstance(info, Mapping) else []
        has = f"; it has {', '.join(known[:MOST_NAMED])}" if known else ""
        for name in self.requested.keys() - metrics.keys() - self._unusable.keys():
            self._unusable[name] = f"info has no {name!r}{did_you_mean(name, known) or has}"
        return metrics, self._unusable

    def _read(self, info: Any, name: str) -> float | None:
        key = next((key for key in KEYS.get(name, (name,)) if isinstance(info, Mapping) and key in info), None)
        if key is None:
            return None
        value, has = info[key], info.get(f"_{key}")
        try:
            if self.position is not None:
                if has is not None and not has[self.position]:
                    return None
                value = value[self.position]
            return number(f"info[{key!r}]", value)
        except Exception as error:  # it may be anything, and is never worth a run
            self._unusable[name] = str(error) if isinstance(error, InvalidValue) else f"info[{key!r}] cannot be read"
            return None
