"""Statistics of seeds equal closed forms, enumerations and scipy's."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from t3d.insight.statistics import (
    Array,
    Estimate,
    Interval,
    at_least_newcombe,
    at_least_wilson,
    band,
    difference,
    estimate,
    first_reaching,
    interquartile_mean,
    interval,
    mean,
    on_common_steps,
    performance_profile,
    probability_of_improvement,
    rate_interval,
    reached,
    relative_to,
    resample,
)
from t3d.store.metrics import Series

NUMBERS = st.floats(-1e6, 1e6).map(lambda value: round(value, 1))  # rounded, so that there are ties
SEEDS = st.lists(NUMBERS, min_size=1, max_size=12).map(np.array)


Curve = list[tuple[float, float]]  # steps and values


def on_common(*curves: Curve) -> tuple[Array, Array]:
    columns = [np.array(curve, np.float64).T for curve in curves]
    return on_common_steps([Series(steps, values, steps) for steps, values in columns])


@given(st.lists(SEEDS, min_size=1, max_size=3))
def test_the_interquartile_mean_is_scipys_trimmed_mean_of_all_scores(scores: list[Any]) -> None:
    theirs = scipy.stats.trim_mean(np.concatenate(scores), 0.25)
    assert interquartile_mean(scores) == pytest.approx(theirs, abs=1e-6)


def test_the_mean_gives_each_task_the_same_weight() -> None:
    assert mean([np.array([1.0, 3.0]), np.array([10.0])]) == 6


@given(st.lists(st.tuples(SEEDS, SEEDS), min_size=1, max_size=3))
def test_the_probability_of_improvement_is_mann_and_whitneys(pairs: list[Any]) -> None:
    theirs = [scipy.stats.mannwhitneyu(x, y).statistic / (len(x) * len(y)) for x, y in pairs]
    x, y = zip(*pairs, strict=True)
    assert probability_of_improvement(x, y) == pytest.approx(np.mean(theirs))
    assert probability_of_improvement(y, x) == pytest.approx(1 - np.mean(theirs))


def test_every_statistic_of_resamples_is_that_of_each_resample() -> None:
    rng = np.random.default_rng(1)
    x, y = ([rng.normal(size=(7, seeds)).round(1) for seeds in (3, 5)] for _ in range(2))
    for statistic in (difference, probability_of_improvement):
        one_by_one = [statistic([one[row] for one in x], [one[row] for one in y]) for row in range(7)]
        np.testing.assert_allclose(statistic(x, y), one_by_one)
    for alone in (mean, interquartile_mean):
        np.testing.assert_allclose(alone(x), [alone([one[row] for one in x]) for row in range(7)])


@pytest.mark.parametrize("statistic", [mean, interquartile_mean])
def test_an_interval_is_that_of_all_resamples_there_are(statistic: Any) -> None:
    values = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    everything = np.array([values[list(draw)] for draw in product(range(5), repeat=5)])
    found = estimate(statistic, [values], resamples=50_000)
    assert found.value == statistic([values])
    assert found.interval == pytest.approx(interval(statistic([everything])), abs=0.25)


def test_an_interval_is_scipys() -> None:
    values = np.random.default_rng(0).normal(size=20)
    theirs = scipy.stats.bootstrap((values,), np.mean, method="percentile", rng=1).confidence_interval
    assert estimate(mean, [values]).interval == pytest.approx(tuple(theirs), abs=0.02)


def test_strata_are_resampled_each_on_their_own() -> None:
    """Far apart tasks do not widen the interval: the variance of the mean is only that within tasks."""
    rng = np.random.default_rng(2)
    scores = [rng.normal(task * 1000, 1 + task, size=40) for task in range(3)]
    low, high = estimate(mean, scores).interval or (0, 0)
    deviation = np.sqrt(sum(one.var() / 40 for one in scores)) / 3
    assert high - low == pytest.approx(2 * 1.96 * deviation, rel=0.05)


def test_groups_are_resampled_independently() -> None:
    """A group minus a copy of itself has twice the variance of its mean, not none."""
    values = np.random.default_rng(3).normal(size=50)
    low, high = estimate(lambda x, y: mean(x) - mean(y), [values], [values]).interval or (0, 0)
    assert high - low == pytest.approx(2 * 1.96 * np.sqrt(2 * values.var() / 50), rel=0.05)
    assert low < 0 < high


def test_the_same_seed_gives_the_same_interval() -> None:
    values = np.random.default_rng(4).normal(size=9)
    assert estimate(mean, [values]) == estimate(mean, [values]) != estimate(mean, [values], seed=1)


def test_one_seed_has_no_interval() -> None:
    assert estimate(mean, [np.array([1.0, 2.0]), np.array([5.0])]) == (3.25, None)


def test_a_rates_interval_is_wilsons_where_all_seeds_agree_and_the_bootstraps_where_they_do_not() -> None:
    ends = scipy.stats.binomtest(50, 50).proportion_ci(method="wilson")
    alike = at_least_wilson(estimate(mean, [np.ones(5)]), 50)
    assert alike.interval == pytest.approx((ends.low, ends.high), abs=1e-4)
    apart = estimate(mean, [np.array([0.0, 1.0, 0.0, 1.0, 1.0])])
    assert at_least_wilson(apart, 5000) == apart
    assert at_least_wilson(estimate(mean, [np.ones(1)]), 10).interval is None


def test_the_difference_of_rates_is_newcombes() -> None:
    """56 of 70 against 48 of 80: method 10 of Newcombe (1998), table II."""
    groups = [Estimate(count / of, rate_interval(count, of)) for count, of in ((56, 70), (48, 80))]
    apart = at_least_newcombe(Estimate(0.2, Interval(0.2, 0.2)), *groups)
    assert apart.interval == pytest.approx((0.0524, 0.3339), abs=1e-4)


def test_an_interval_of_a_rate_holds_it_where_that_of_seeds_alone_does_not() -> None:
    rng, rate, episodes = np.random.default_rng(0), 0.98, 10
    held = np.zeros(2)
    for _ in range(300):
        alone = estimate(mean, [rng.binomial(episodes, rate, 5) / episodes], resamples=300)
        both = alone, at_least_wilson(alone, 5 * episodes)
        held += [each.interval is not None and each.interval.low <= rate <= each.interval.high for each in both]
    assert held[0] < 0.75 * 300 < 0.95 * 300 <= held[1]


def test_a_profile_counts_the_seeds_at_or_above_each_threshold() -> None:
    scores = [np.array([1.0, 2.0, 3.0, 4.0]), np.array([2.0])]
    shares = performance_profile(scores, np.array([0.0, 2.0, 2.5, 5.0]))
    np.testing.assert_array_equal(shares, [1, 0.875, 0.25, 0])


def test_curves_are_compared_only_where_all_have_data() -> None:
    often: Curve = [(0, 0), (10, 1), (20, 2), (30, 3), (40, 4)]
    rarely: Curve = [(0, 0), (15, 30), (35, 70)]
    late: Curve = [(5, 5), (6, 6), (7, 7), (36, 36)]
    steps, values = on_common(often, rarely)
    np.testing.assert_array_equal(steps, [0, 15, 35])
    np.testing.assert_array_equal(values, [[0, 1.5, 3.5], [0, 30, 70]])
    steps, values = on_common(often, rarely, late)
    np.testing.assert_array_equal(steps, [5, 15, 35])
    np.testing.assert_allclose(values, np.array([[0.5, 1.5, 3.5], [10, 30, 70], [5, 15, 35]]))


def test_curves_without_a_common_step_have_no_common_values() -> None:
    steps, values = on_common([(0, 1), (10, 2)], [(20, 1), (30, 2)])
    assert steps.shape == (0,) and values.shape == (2, 0)


@given(st.lists(st.lists(NUMBERS, min_size=4, max_size=4), min_size=1, max_size=5).map(np.array))
def test_a_band_is_the_interval_of_each_step(values: Any) -> None:
    middle, low, high = band(interquartile_mean, values, resamples=50)
    for place in range(4):
        at_step = values[:, place]
        assert middle[place] == interquartile_mean([at_step])
        drawn = interquartile_mean([resample(at_step, np.random.default_rng(0), 50)])
        assert (low[place], high[place]) == interval(drawn)


def test_the_first_value_at_a_threshold_counts() -> None:
    x, values = np.array([0.0, 10, 20, 30]), np.array([1.0, 5, 2, 9])
    assert [first_reaching(x, values, threshold) for threshold in (0, 5, 5.1, 9.1)] == [0, 10, 30, np.inf]


def test_seeds_that_never_reach_a_threshold_count_as_latest() -> None:
    assert reached([10, np.inf, 30]) == (30, 2, 3)
    assert reached([10, 20, 30, np.inf]) == (25, 3, 4)
    assert reached([10, 20, np.inf, np.inf]) == (np.inf, 2, 4)


def test_scores_relative_to_a_mean_keep_their_order_whatever_its_sign() -> None:
    base = [np.array([50.0, 150.0]), np.array([-100.0, -300.0])]
    scores = [np.array([100.0, 250.0]), np.array([-200.0, -100.0, -600.0])]
    ratios, negative = relative_to(scores, base)
    np.testing.assert_allclose(ratios, [1, 2.5])
    np.testing.assert_allclose(negative, [1, 1.5, -1])
    assert mean(relative_to(base, base)) == 1
    with pytest.raises(ZeroDivisionError):
        relative_to(scores, [np.array([-1.0, 1.0]), base[1]])
