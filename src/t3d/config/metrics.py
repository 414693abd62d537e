"""Metrics of episodes: which numbers of `info` are asked for, and by which of them policies are judged."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from t3d.errors import UserError, did_you_mean

RETURN, SUCCESS = "return", "success"  # the first is no metric of info, the second is picked up without being asked for
REDUCTIONS = ("sum", "mean", "min", "max", "last")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]{0,99}")


class Criterion(NamedTuple):
    """By what policies are judged."""

    metric: str = RETURN
    lowest: bool = False

    def rank(self, mean_return: float, metrics: Mapping[str, float]) -> tuple[float, float]:
        """Returns what is compared, the larger the better: the score, without the metric -inf, then the return."""
        value = mean_return if self.metric == RETURN else metrics.get(self.metric, math.nan)
        return (-math.inf if math.isnan(value) else -value if self.lowest else value), mean_return


class Target(NamedTuple):
    """When a run has learned enough."""

    criterion: Criterion
    value: float

    def is_met(self, mean_return: float, metrics: Mapping[str, float]) -> bool:
        score, _ = self.criterion.rank(mean_return, metrics)
        return score >= (-self.value if self.criterion.lowest else self.value)


def parse_metrics(words: Iterable[str]) -> dict[str, str]:
    """Reads env.metrics: the reduction of each number of `info`, by its name."""
    metrics: dict[str, str] = {}
    for word in words:
        name, _, reduction = word.rpartition(":")
        if reduction not in REDUCTIONS:
            form = f"a name in info and how an episode reduces it, e.g. {name or word}:sum (or mean, min, max, last)"
            raise UserError(f"env.metrics={word} is not {form}{did_you_mean(reduction, REDUCTIONS)}")
        if not NAME.fullmatch(name) or name == RETURN:
            why = "is the return itself" if name == RETURN else "is not made of letters, digits and _ . / -"
            raise UserError(f"env.metrics={word}: {name!r:.60} {why}; give it another name in info")
        if name in metrics:
            raise UserError(f"env.metrics names {name} twice; a metric has one reduction")
        metrics[name] = reduction
    return metrics


def parse_criterion(text: str, metrics: Iterable[str]) -> Criterion:
    """Reads eval.best_by: return, success or the name of another metric, of which :min takes the lowest."""
    name, colon, end = text.partition(":")
    if colon and end not in ("min", "max"):
        raise UserError(f"eval.best_by={text} ends in neither :min nor :max; without them the highest is best")
    return Criterion(_known("eval.best_by", text, name, metrics), end == "min")


def parse_target(text: str, metrics: Iterable[str], best_by: Criterion) -> Target | None:
    """Reads stop_when: NAME=NUMBER, which is a lower bound, of what best_by wants low an upper one."""
    if not text:
        return None
    name, _, number = text.partition("=")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"stop_when={text} is not a metric and a number, e.g. success=0.95 or return=900")
    if _known("stop_when", text, name, metrics) == SUCCESS and not 0 < value <= 1:
        raise UserError(f"stop_when={text} cannot be a rate; success is a share of the episodes, e.g. success=0.95")
    return Target(best_by if best_by.metric == name else Criterion(name), value)


def _known(setting: str, text: str, name: str, metrics: Iterable[str]) -> str:
    known = [*dict.fromkeys((RETURN, SUCCESS, *metrics))]
    if name not in known:
        hint = did_you_mean(name, known) or f"; it has {', '.join(known)}, and --env.metrics adds others"
        raise UserError(f"{setting}={text} names no metric of this run{hint}")
    return name
