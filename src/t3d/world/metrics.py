"""What an episode says about itself in `info`: whether it was a success, and the numbers that are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import add
from typing import Any

from t3d.config.metrics import SUCCESS, parse_metrics
from t3d.errors import did_you_mean
from t3d.policy.observations import InvalidValue, number

REDUCE: dict[str, Callable[[float, float], float]] = {"sum": add, "mean": add, "min": min, "max": max}
KEYS = {SUCCESS: ("is_success", "success")}  # in info; of others their own names
ABSENT = object()


class InfoMetrics:
    """Metrics of the episode in progress in one environment; of a VectorEnv's, whose info is about all, at a position.

    Most cost nothing until the episode ends: only those that every step contributes to are read at each.
    """

    def __init__(self, asked: Sequence[str], position: int | None = None) -> None:
        reductions = parse_metrics(asked)
        self.position, self.asked = position, set(reductions)
        self.at_the_end = [name for name in {SUCCESS: "", **reductions} if reductions.get(name, "last") == "last"]
        self.each_step = {name: reduction for name, reduction in reductions.items() if reduction != "last"}
        self.begin()

    def begin(self) -> None:
        self._values: dict[str, tuple[float, int]] = {}  # so far, and of how many steps
        self._unusable: dict[str, str] = {}

    def add(self, info: Any) -> None:
        """Takes in what a step returned; a step without a number changes nothing."""
        for name, reduction in self.each_step.items():
            value = self._read(info, name)
            if value is not None:
                before, count = self._values.get(name, (value, 0))
                self._values[name] = (REDUCE[reduction](before, value) if count else value), count + 1

    def of_episode(self, info: Any) -> tuple[dict[str, float], dict[str, str]]:
        """Returns the metrics of the episode that ends with this info, and why it lacks others."""
        metrics = {}
        for name, (value, count) in self._values.items():
            metrics[name] = value / count if self.each_step[name] == "mean" else value
        for name in self.at_the_end if info or self.asked else ():
            if (value := self._read(info, name)) is not None:
                metrics[name] = value
        for name in self.asked - metrics.keys() - self._unusable.keys():
            known = [str(key)[:60] for key in info if str(key)[:1] != "_"] if isinstance(info, Mapping) else []
            has = f"; it has {', '.join(known[:9])}" if known else ""
            self._unusable[name] = f"info has no {name!r}{did_you_mean(name, known) or has}"
        return {name: metrics[name] for name in metrics if name not in self._unusable}, self._unusable

    def _read(self, info: Any, name: str) -> float | None:
        key, value = self._lookup(info, name)
        if value is ABSENT:
            return None
        try:
            return number(f"info[{key!r}]", value)
        except Exception as error:  # it may be anything, and is never worth a run
            self._unusable[name] = str(error) if isinstance(error, InvalidValue) else f"info[{key!r}] cannot be read"
            return None

    def _lookup(self, info: Any, name: str) -> tuple[str, Any]:
        for key in KEYS.get(name, (name,)) if isinstance(info, Mapping) else ():
            if key in info:
                value, has = info[key], info.get(f"_{key}")
                if self.position is None:
                    return key, value
                try:
                    return key, value[self.position] if has is None or has[self.position] else ABSENT
                except (IndexError, KeyError, TypeError):  # it is not an array with a value for each environment
                    return key, value
        return name, ABSENT
