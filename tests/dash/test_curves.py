"""Curves keep their peaks with few points, and means and intervals are those of the seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dash_client import client_of
from fake_runs import EVERY, update, write_long_run, write_run
from t3d.events import Continued, EpisodeEnd, Event, Paused, to_line
from t3d.insight.curves import thinned
from t3d.insight.statistics import estimate, mean

FINITE = st.floats(-1e6, 1e6)


@given(st.lists(FINITE, min_size=1, max_size=400), st.integers(20, 100))
def test_thinning_keeps_ends_and_extremes(values: list[float], points: int) -> None:
    array = np.array(values)
    kept = thinned(array, points)
    assert len(kept) <= points and (np.diff(kept) > 0).all()
    assert kept[0] == 0 and kept[-1] == len(values) - 1
    assert array[kept].min() == array.min() and array[kept].max() == array.max()
    if len(values) <= points:
        assert len(kept) == len(values)


@given(st.integers(0, 99_999), st.sampled_from([-1.0, 1.0]))
def test_a_spike_of_one_point_in_a_hundred_thousand_stays(where: int, height: float) -> None:
    values = np.zeros(100_000)
    values[where] = height
    assert where in thinned(values, 200)


def curves(root: Path, query: str) -> dict[str, Any]:
    answer = client_of(root).get(f"/api/runs/a/series?{query}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def only_line(found: dict[str, Any]) -> dict[str, Any]:
    (series,) = found["series"]
    (line,) = series["lines"]
    assert isinstance(line, dict)
    return line


def test_there_is_a_curve_for_each_seed_and_their_mean_with_its_interval(tmp_path: Path) -> None:
    returns = {3: [0.0, 10.0, 20.0], 4: [0.0, 30.0, 50.0], 5: [0.0, 20.0, 80.0]}
    write_run(tmp_path / "a", returns)
    line = only_line(curves(tmp_path, "metric=return"))
    assert [one["y"] for one in line["members"]] == [*returns.values()]
    assert [one["member"] for one in line["members"]] == ["seed-3", "seed-4", "seed-5"]
    assert line["mean"]["steps"] == [0, EVERY, 2 * EVERY] and line["mean"]["y"] == [0.0, 20.0, 50.0]
    exact = estimate(mean, [np.array([20.0, 50.0, 80.0])]).interval
    assert exact is not None
    assert line["mean"]["low"][-1] == pytest.approx(exact.low, abs=3) and line["mean"]["low"][0] == 0
    assert line["mean"]["high"][-1] == pytest.approx(exact.high, abs=3)


def test_one_seed_has_the_deviation_of_its_episodes(tmp_path: Path) -> None:
    write_run(tmp_path / "a", {0: [1.0, 5.0]})
    found = only_line(curves(tmp_path, "metric=return"))["mean"]
    assert found["low"] == [0.0, 4.0] and found["high"] == [2.0, 6.0]


def test_a_diverged_seed_has_its_curve_but_no_part_in_the_mean(tmp_path: Path) -> None:
    write_run(tmp_path / "a", {0: [0.0, 10.0, 20.0], 1: [0.0, 1000.0]}, diverged=[1])
    line = only_line(curves(tmp_path, "metric=return"))
    assert [one["diverged"] for one in line["members"]] == [False, True]
    assert line["mean"]["y"] == [0.0, 10.0, 20.0]


def test_a_sweep_has_a_line_for_each_combination(tmp_path: Path) -> None:
    returns = {0: [1.0, 2.0], 1: [3.0, 4.0], 2: [5.0, 6.0], 3: [7.0, 8.0]}
    write_run(tmp_path / "a", returns, seeds=[0, 1], sweep=["td3.gamma=0.9,0.99"])
    (series,) = curves(tmp_path, "metric=return")["series"]
    by_gamma = {line["values"]["td3.gamma"]: line for line in series["lines"]}
    assert by_gamma.keys() == {0.9, 0.99}
    assert all(len(line["members"]) == 2 for line in by_gamma.values())
    assert sorted(line["mean"]["y"][0] for line in by_gamma.values()) == [2.0, 6.0]


def test_a_window_is_drawn_in_detail(tmp_path: Path) -> None:
    events = [update(0, 0, step, float(step % 7)) for step in range(10_000)]
    write_run(tmp_path / "a", {0: [1.0]}, events=events)
    whole = only_line(curves(tmp_path, "metric=q_mean&points=100"))["members"][0]
    assert len(whole["steps"]) <= 100 and (whole["steps"][0], whole["steps"][-1]) == (0, 9_999)
    part = only_line(curves(tmp_path, "metric=q_mean&points=100&from=5000&to=5050"))["members"][0]
    assert part["steps"] == [*range(4_999, 5_052)], "with one report beyond each edge"


def test_a_name_with_entries_gives_all_of_them(tmp_path: Path) -> None:
    write_long_run(tmp_path / "a", 500)
    found = curves(tmp_path, "metric=gradient_norms&metric=td_quantiles.p50&metric=nonsense&metric=length")
    names = [one["metric"] for one in found["series"]]
    assert names == [
        *(f"gradient_norms.{one}" for one in ("actor", "critic-1", "critic-2")),
        "td_quantiles.p50",
        "length",
    ]
    assert found["missing"] == ["nonsense"]


def test_how_episodes_end_is_a_share_of_each_log_window(tmp_path: Path) -> None:
    ends = [(40, 1), (40, 0), (40, 0), (100, 1), (101, 1), (350, 0), (370, 1)]  # step, and whether it terminated
    events = [
        EpisodeEnd(step=step, member=0, seed=0, env=0, episode=0, total_reward=1.0, length=1, terminated=bool(over))
        for step, over in ends
    ]
    write_run(tmp_path / "a", {0: [1.0]}, events=events, log={"every_steps": 100})
    found = only_line(curves(tmp_path, "metric=terminated"))["members"][0]
    assert found["steps"] == [100, 200, 370] and found["y"] == [0.5, 1.0, 0.5]


def test_seconds_are_training_time_without_pauses(tmp_path: Path) -> None:
    events: list[Event] = [
        EpisodeEnd(
            step=step, member=0, seed=0, time=time, env=0, episode=0, total_reward=1.0, length=1, terminated=False
        )
        for step, time in ((1, 1e9 + 10), (2, 1e9 + 120))
    ]
    path = write_long_run(tmp_path / "a", 1, seeds=(0,), ended=False)
    start = (path / "journal.jsonl").read_text()
    (path / "events.jsonl").write_text(start + "".join(f"{to_line(event)}\n" for event in events))
    lines = [Paused(step=1, time=1e9 + 11), Continued(step=1, time=1e9 + 111, paused_seconds=100.0)]
    (path / "journal.jsonl").write_text(start + "".join(f"{to_line(event)}\n" for event in lines))
    assert only_line(curves(tmp_path, "metric=total_reward"))["members"][0]["seconds"] == [10.0, 20.0]


@pytest.mark.parametrize("query", ["", "metric=return&points=5", "metric=return&points=x", "metric=return&from=nan"])
def test_what_cannot_be_drawn_is_refused_with_the_reason(tmp_path: Path, query: str) -> None:
    write_run(tmp_path / "a", {0: [1.0]})
    answer = client_of(tmp_path).get(f"/api/runs/a/series?{query}")
    assert answer.status_code == 400 and len(answer.json()["error"]) > 10
