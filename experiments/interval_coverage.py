"""How far bootstrap intervals of a few seeds can be trusted: the table of docs/many-seeds.md.

Scores are drawn from a known distribution, so that the true interquartile mean is known too.

    python experiments/interval_coverage.py
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from t3d.insight.statistics import Array, difference, estimate, interquartile_mean

TRIALS, RESAMPLES = 4000, 1000
SEEDS = (3, 4, 5, 10, 20)


def alike(rng: np.random.Generator, count: int) -> Array:
    """Seeds that all learn about the same."""
    return rng.normal(1.0, 0.1, count)


def some_fail(rng: np.random.Generator, count: int) -> Array:
    """One seed in five hardly learns."""
    return np.where(rng.random(count) < 0.2, rng.normal(0.2, 0.1, count), rng.normal(1.0, 0.1, count))


def coverage(draw: Callable[[np.random.Generator, int], Array], count: int) -> float:
    """Returns how often the interval contains the true value."""
    rng = np.random.default_rng(count)
    true = float(interquartile_mean([draw(rng, 2_000_000)]))
    hits = 0
    for trial in range(TRIALS):
        interval = estimate(interquartile_mean, [draw(rng, count)], resamples=RESAMPLES, seed=trial).interval
        hits += interval is not None and interval.low <= true <= interval.high
    return hits / TRIALS


def false_alarms(draw: Callable[[np.random.Generator, int], Array], count: int) -> float:
    """Returns how often two groups that are the same are called different."""
    rng = np.random.default_rng(count)
    alarms = 0
    for trial in range(TRIALS):
        groups = [draw(rng, count)], [draw(rng, count)]
        interval = estimate(difference, *groups, resamples=RESAMPLES, seed=trial).interval
        alarms += interval is not None and not interval.low <= 0 <= interval.high
    return alarms / TRIALS


def main() -> None:
    print("| seeds | contains the true IQM | with failing seeds | same groups called different | with failing seeds |")
    print("|---|---|---|---|---|")
    for count in SEEDS:
        shares = [measured(draw, count) for measured in (coverage, false_alarms) for draw in (alike, some_fail)]
        print(f"| {count} | {' | '.join(f'{share:.0%}' for share in shares)} |", flush=True)


if __name__ == "__main__":
    main()
