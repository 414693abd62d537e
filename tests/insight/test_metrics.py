"""Any metric of a run can be named and plotted; runs of one setting are one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fake_runs import evaluation, update, write_run
from run_folders import plotted
from t3d.app.cli import main
from t3d.config import Member
from t3d.events import ActingEvent, Diagnosed, EpisodeEnd, Event, to_line
from t3d.insight.groups import pooled
from t3d.insight.plots import plot_curves
from t3d.store.columns import read_columns, read_metric
from t3d.store.metrics import Metric, Series
from t3d.store.reader import open_run


def diagnosed(member: int, step: int, size: float, **changes: Any) -> Diagnosed:
    figures: dict[str, Any] = {
        "q_predicted": size,
        "q_return": 0.0,
        "q_bias": size,
        "q_rows": 10,
        "disagreement": size,
        "saturated": 0.0,
        "stuck_actions": 0.0,
        "largest_reward": 1.0,
        "dead_units": {"actor": 0.0},
        "gradient_norms": {"actor": size, "critic": 2 * size},
        "weight_norms": {"actor": 1.0},
        "td_quantiles": [size * share for share in (-2, -1, 0, 1, 2)],
        "sampled_age": [1.0, 2.0, 3.0],
        "action_counts": [1] * 30,
        "reward_counts": [1, 2],
        "reward_range": [-1.0, 1.0],
        "constant_observations": [],
        "acting_share": 0.5,
        "seconds": 0.1,
    }
    return Diagnosed(step=step, member=member, seed=member, time=1e9 + step, updates=step, **{**figures, **changes})


def episode(member: int, step: int, env: int, total: float) -> EpisodeEnd:
    where = {"step": step, "member": member, "seed": member, "time": 1e9 + step}
    return EpisodeEnd(**where, env=env, episode=0, total_reward=total, length=9, terminated=True)  # type: ignore[arg-type]


def acting(step: int, ratio: float, *, summary: bool = False) -> ActingEvent:
    shares = {"ring_fill": 0.1, "actors_waited": 0.2, "learner_waited": 0.3}
    counts = {"age_median": 1, "age_p99": 2, "actors": 2, "restarts": 0, "since": 0}
    return ActingEvent(step=step, summary=summary, ratio=ratio, **shares, **counts)  # type: ignore[arg-type]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    events: list[Event] = [diagnosed(member, step, 1.0 + member) for step in (500, 1000) for member in range(2)]
    events += [update(member, member, step, float(step)) for step in (100, 200) for member in range(2)]
    events += [episode(0, 300, 0, 1.0), episode(0, 300, 1, 3.0), episode(0, 400, 0, 7.0), episode(1, 350, 0, 5.0)]
    events += [acting(200, 1.0), acting(400, 0.5), acting(400, 0.9, summary=True)]
    return write_run(tmp_path / "run", {0: [1, 2, 3], 1: [3, 4, 5]}, events=events)


def lines(drawn: list[tuple[str | None, list[float]]]) -> dict[str, list[float]]:
    return {label: [float(value) for value in values] for label, values in drawn if label}


def read(path: Path, name: str) -> tuple[list[Metric], dict[Member | None, Series]]:
    metrics, columns = read_metric([path], name)
    return metrics, columns[path].series(metrics[0])


def test_every_metric_is_found_by_its_name(run: Path) -> None:
    reported = read_columns(run).metrics()
    names = [metric.name for metric in reported]
    assert len(names) == len({*names})
    for name in (
        "return",
        "mean_length",
        "q_mean",
        "gradient_norms.actor",
        "td_quantiles.p50",
        "total_reward",
        "ratio",
    ):
        assert name in names
    for metric in reported:
        assert read(run, metric.name)[0] == [metric]
    assert {"updates", "update.updates", "diagnostics.updates"} <= {*names}
    assert not {"step", "time", "member", "env", "episode"} & {*names}


def test_a_metric_is_what_each_member_reported(run: Path) -> None:
    def values(name: str) -> dict[Any, list[list[float]]]:
        (_,), series = read(run, name)
        return {member: [[*one.steps], [*one.values]] for member, one in series.items()}

    assert values("return")[Member(1)] == [[0, 1000, 2000], [3, 4, 5]]
    assert values("gradient_norms.critic") == {Member(0): [[500, 1000], [2, 2]], Member(1): [[500, 1000], [4, 4]]}
    assert values("td_quantiles.p95")[Member(1)] == [[500, 1000], [4, 4]]
    assert values("total_reward")[Member(0)] == [[300, 400], [2, 7]], "two environments' episodes ended together"
    assert values("terminated")[Member(0)] == [[300, 400], [1, 1]]
    assert values("ratio") == {None: [[200, 400], [1, 0.5]]}, "without the summary of the whole run"


def test_values_that_are_not_numbers_are_left_out(tmp_path: Path) -> None:
    events: list[Event] = [diagnosed(0, step, 1.0) for step in (100, 200, 300, 400, 500)]
    rows = [json.loads(to_line(event)) for event in events]
    for row, wrong in zip(rows, [None, "x", 1e400, {"a": "b"}, 3], strict=True):
        row["q_bias"] = wrong
        row["gradient_norms"] = {"actor": wrong}
    rows.append({**rows[-1], "step": "far"})
    path = write_run(tmp_path / "run", {0: [1, 2]})
    with (path / "events.jsonl").open("a") as file:
        file.writelines(f"{json.dumps(row)}\n" for row in rows)
    found = read(path, "q_bias")[1][Member(0)]
    assert [*found.steps] == [500] and [*found.values] == [3]
    assert main(["plot", str(path), "--metric", "q_bias"]) == main(["plot", str(path), "--metric", "help"]) == 0


def test_a_metric_is_plotted_with_a_band_over_seeds(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = plotted(monkeypatch)
    assert main(["plot", str(run), "--metric", "disagreement"]) == 0
    assert (run / "curve-disagreement.png").exists()
    assert lines(drawn) == {"mean of 2 seeds, ± std over seeds; thin: single seeds": [1.5, 1.5]}
    drawn.clear()
    assert main(["plot", str(run), "--metric", "ratio", "--x", "time"]) == 0
    assert lines(drawn) == {"the whole run": [1, 0.5]}
    drawn.clear()
    assert main(["plot", str(run), "--metric", "q_mean", "--seed", "1"]) == 0
    assert lines(drawn) == {"seed 1": [100, 200]}


def test_a_metric_with_several_entries_has_a_line_for_each(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = plotted(monkeypatch)
    assert main(["plot", str(run), "--metric", "gradient_norms"]) == 0
    ending = "mean of 2 seeds, ± std over seeds; thin: single seeds"
    assert lines(drawn) == {f"actor: {ending}": [1.5, 1.5], f"critic: {ending}": [3, 3]}


def test_names_that_a_run_does_not_have_get_a_list_of_those_it_has(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plot", str(run), "--metric", "q_men"]) == 2
    error = capsys.readouterr().err
    assert "has no metric q_men, did you mean q_mean?" in error
    assert "  episode: total_reward, length, terminated" in error and "action_counts.0 to 29" in error
    assert main(["plot", str(run), "--metric", "help"]) == 0
    assert "  acting: ratio, age_median" in capsys.readouterr().out
    assert main(["plot", str(run), "--metric", "action_counts"]) == 2
    assert "would make 30 lines; choose one of its entries: action_counts.0" in capsys.readouterr().err


def test_runs_that_differ_only_in_seeds_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(Path("runs/a"), {0: [1, 2], 1: [3, 4]})
    write_run(Path("runs/b"), {5: [8, 9]}, preset="paper", engine="eager", log={"every_steps": 7})
    write_run(Path("runs/other"), {6: [0, 0]}, td3={"gamma": 0.9})
    drawn = plotted(monkeypatch)
    assert main(["plot", "a", "b"]) == 0
    assert lines(drawn) == {"mean of 3 seeds, ± std over seeds; thin: single seeds": [4, 5]}
    drawn.clear()
    assert main(["plot", "a", "other", "b"]) == 0
    assert [*lines(drawn)] == [
        "a, b: mean of 3 seeds, ± std over seeds; thin: single seeds",
        "other: seed 6, ± std of its episodes",
    ]
    drawn.clear()
    assert main(["plot", "a", "b", "--no-pool"]) == 0
    assert [label.partition(":")[0] for label in lines(drawn)] == ["a", "b"]


def test_a_seed_is_never_counted_twice(tmp_path: Path) -> None:
    runs = [open_run(write_run(tmp_path / name, {seed: [1, 2]})) for name, seed in (("a", 0), ("b", 0), ("c", 1))]
    assert [[run.path.name for run in pool] for pool in pooled(runs)] == [["a", "c"], ["b"]]


def test_sweeps_pool_value_by_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = plotted(monkeypatch)
    sweep: dict[str, Any] = {"sweep": ["td3.gamma=0.9,0.95"]}
    first = write_run(tmp_path / "a", {0: [1, 1], 1: [5, 5]}, seeds=[0], **sweep)
    second = write_run(tmp_path / "b", {0: [3, 3], 1: [7, 7]}, seeds=[1], **sweep)
    plot_curves([open_run(first), open_run(second)], tmp_path / "sweep.png")
    assert lines(drawn) == {"gamma=0.9 (2 seeds)": [2, 2], "gamma=0.95 (2 seeds)": [6, 6]}


def test_seeds_that_are_evaluated_at_other_steps_are_interpolated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = plotted(monkeypatch)
    often = write_run(tmp_path / "a", {0: [0, 10, 20, 30]})
    rarely = write_run(tmp_path / "b", {1: [0]}, events=[evaluation(0, 1, 2500, 100.0)], eval={"every_steps": 2500})
    plot_curves([open_run(often), open_run(rarely)], tmp_path / "both.png")
    np.testing.assert_allclose(drawn[0][1], [0, 62.5])
