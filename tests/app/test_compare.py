"""`t3d compare` says what seeds show, and no more."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from PIL import Image

from fake_runs import update, write_run
from run_folders import plotted
from t3d.app.cli import main
from t3d.insight.groups import read_groups
from t3d.insight.statistics import estimate, interquartile_mean

LOW = {seed: [0, 0, seed, seed + 1, seed + 2] for seed in range(6)}  # scores 1 to 6
HIGH = {seed: [0, 0, 100 + seed, 100 + seed, 100 + seed] for seed in range(6)}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def as_json(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["compare", *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["compare", *words]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["compare", *words]) == 2
    return capsys.readouterr().err


def test_a_score_is_the_mean_of_the_last_three_evaluations(capsys: pytest.CaptureFixture[str]) -> None:
    write_run(Path("runs/low"), LOW)
    write_run(Path("runs/high"), HIGH)
    first, second = as_json(capsys, "low", "high")["groups"]
    scores = [1.0, 2, 3, 4, 5, 6]
    assert [*first["scores"]["Pendulum-v1"].values()] == scores
    assert first["iqm"]["value"] == scipy.stats.trim_mean(scores, 0.25) == 3.5
    assert first["mean"]["value"] == 3.5 and second["mean"]["value"] == 102.5
    ends = estimate(interquartile_mean, [np.array(scores)]).interval
    assert (first["iqm"]["low"], first["iqm"]["high"]) == ends
    assert second["difference"]["value"] == 99 and second["probability_of_improvement"]["value"] == 1
    assert first["difference"] is first["probability_of_improvement"] is None
    assert not Path("compare.png").exists()


def test_it_prints_a_table_draws_a_picture_and_says_what_they_mean(capsys: pytest.CaptureFixture[str]) -> None:
    write_run(Path("runs/low"), LOW)
    write_run(Path("runs/high"), HIGH)
    write_run(Path("runs/same"), {seed + 10: values for seed, values in LOW.items()})
    out = said(capsys, "low", "high", "same", "--names", "A", "B", "C")
    assert "Return on Pendulum-v1, with 95 % intervals" in out
    assert "102.5 [" in out and "+99.0 [" in out and "1.00 [1.00, 1.00]" in out
    assert "B is better than A: the whole interval of the difference lies above 0." in out
    assert "These seeds cannot tell C and A apart: the interval of the difference contains 0." in out
    assert "Score of a seed: mean of its last 3 evaluations (mean return)." in out
    assert "plotted: compare.png" in out and Image.open("compare.png").size[0] > 1500
    assert "A is worse than B" in said(capsys, "high", "low", "--names", "B", "A")


@pytest.mark.parametrize(("count", "words"), [(2, "its last evaluation ("), (3, "mean of its last 2 evaluations (")])
def test_fewer_evaluations_are_said_to_be_fewer(count: int, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The first is from before training."""
    for name, values in (("low", LOW), ("high", HIGH)):
        write_run(Path("runs") / name, {seed: curve[:count] for seed, curve in values.items()})
    assert f"Score of a seed: {words}mean return)." in said(capsys, "low", "high")


def test_a_narrow_terminal_gets_the_table_in_two_parts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("t3d.app.compare.PIPED_WIDTH", 70)
    write_run(Path("runs/low"), LOW)
    write_run(Path("runs/high"), HIGH)
    lines = [line.split() for line in said(capsys, "low", "high").splitlines()]
    assert ["group", "seeds", "mean", "IQM"] in lines and ["group", "difference", "better"] in lines


@pytest.mark.parametrize("group", ["a,b", "part-*", "folder", "runs/a,runs/b", "*/part-?"])
def test_seeds_of_the_same_settings_are_pooled_however_they_are_named(
    group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for names in (("runs/a", "runs/b"), ("runs/part-1", "runs/part-2"), ("runs/folder/x", "runs/folder/y")):
        for place, name in enumerate(names):
            mine = {seed: LOW[seed] for seed in range(3 * place, 3 * place + 3)}
            write_run(Path(name), mine, preset="paper" if place else "default", device="cpu" if place else "auto")
    write_run(Path("runs/whole"), LOW)
    (pooled,), (whole,) = as_json(capsys, group)["groups"], as_json(capsys, "whole")["groups"]
    assert len(pooled["runs"]) == 2
    assert (pooled["mean"], pooled["iqm"]) == (whole["mean"], whole["iqm"])


def test_runs_of_different_settings_are_groups_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    write_run(Path("all/a"), {0: [1, 2], 1: [1, 2]}, td3={"gamma": 0.9})
    write_run(Path("all/b"), {0: [1, 3], 1: [1, 3]})
    write_run(Path("all/c"), {2: [1, 2], 3: [1, 2]}, td3={"gamma": 0.9})
    found = as_json(capsys, "all")["groups"]
    assert {one["name"]: len(one["scores"]["Pendulum-v1"]) for one in found} == {"gamma=0.9": 4, "gamma=0.99": 2}


def test_the_combinations_of_a_sweep_are_groups_and_pool_with_runs_that_have_their_values() -> None:
    write_run(Path("x/sweep"), {member: [1, 2] for member in range(4)}, seeds=[0, 1], sweep=["td3.gamma=0.9,0.95"])
    write_run(Path("x/more"), {2: [1, 2], 3: [1, 2], 4: [1, 2]}, td3={"gamma": 0.95})
    groups = {group.name: [one.member.seed for one in group.trainings] for group in read_groups(["x"], Path("runs"))}
    assert groups == {"gamma=0.95": [2, 3, 4, 0, 1], "gamma=0.9": [0, 1]}
    names = [group.name for group in read_groups(["x/sweep", "x/more"], Path("runs"))]
    assert names == ["sweep: gamma=0.9", "sweep: gamma=0.95", "more"]


def test_several_tasks_are_compared_relative_to_the_first_group(capsys: pytest.CaptureFixture[str]) -> None:
    """A positive and a negative task: half as far from 0 is worse on one and better on the other."""
    for name, factor in (("a", 1.0), ("b", 0.5)):
        write_run(Path(f"{name}/one"), {seed: [0, factor * 100] for seed in range(5)}, env="Hopper-v5", random_steps=9)
        write_run(Path(f"{name}/two"), {seed: [0, factor * -10] for seed in range(5)})
    found = as_json(capsys, "a", "b")
    first, second = found["groups"]
    assert first["iqm"]["value"] == first["mean"]["value"] == 1
    assert {task: {*scores.values()} for task, scores in second["scores"].items()} == {
        "Hopper-v5": {0.5},
        "Pendulum-v1": {1.5},
    }
    assert second["probability_of_improvement"]["value"] == 0.5
    assert "on each of 2 tasks relative to the mean of a there" in found["score"]
    assert found["relative"] and not as_json(capsys, "a/one")["relative"]
    assert "2 tasks (Hopper-v5, Pendulum-v1)" in said(capsys, "a", "b")


def test_a_diverged_seed_counts_with_its_last_value_and_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    write_run(Path("runs/a"), {0: [0, 9, 9, 9, 9], 1: [0, 5, 1]}, diverged=[1])
    (group,) = as_json(capsys, "a")["groups"]
    assert group["scores"]["Pendulum-v1"] == {"seed 0 of a": 9, "seed 1 of a": 1}
    assert group["diverged"] == ["seed 1 of a"]
    assert "a: seed 1 of a diverged and counts with its last value." in said(capsys, "a")
    (before,) = as_json(capsys, "a", "--at", "1000")["groups"]
    assert before["scores"]["Pendulum-v1"]["seed 1 of a"] == 5 and not before["diverged"]


def test_a_diverged_seed_stays_in_the_curve_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(Path("runs/a"), {0: [0, 10, 10, 10], 1: [0, 4]}, diverged=[1])
    drawn = plotted(monkeypatch)
    assert main(["compare", "a"]) == 0
    assert drawn[0] == (None, [0, 7, 7, 7])


def test_at_a_step_only_what_came_before_it_counts(capsys: pytest.CaptureFixture[str]) -> None:
    write_run(Path("runs/a"), {seed: [7, 1, 2, 3, 100] for seed in range(5)})
    found = as_json(capsys, "a", "--at", "3500")
    assert found["groups"][0]["iqm"]["value"] == 2 and "up to step 3,500" in found["score"]
    assert "from step 0 to 4,000" in refused(capsys, "a", "--at", "4001")


def test_scores_of_different_steps_are_said_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    write_run(Path("runs/long"), {seed: [0, 1, 2, 3] for seed in range(5)})
    write_run(Path("runs/short"), {seed: [0, 1, 2] for seed in range(5)})
    assert "different steps, 2,000 to 3,000; t3d compare --at 2000 compares" in said(capsys, "long", "short")
    assert "different steps" not in said(capsys, "long", "short", "--at", "2000")


def test_when_a_threshold_was_reached(capsys: pytest.CaptureFixture[str]) -> None:
    write_run(Path("runs/all"), {0: [0, 5, 5, 5], 1: [0, 0, 5, 0], 2: [0, 0, 0, 5]})
    write_run(Path("runs/few"), {0: [0, 5, 5, 5], 1: [0, 0, 0, 0], 2: [0, 0, 0, 0]})
    first, second = as_json(capsys, "all", "few", "--threshold", "5")["groups"]
    assert first["first_reached"]["steps"] == {"median": 2000, "seeds": 3, "of": 3}
    assert first["first_reached"]["minutes"]["median"] == 2
    assert second["first_reached"]["steps"] == {"median": None, "seeds": 1, "of": 3}
    out = said(capsys, "all", "few", "--threshold", "5")
    assert "First at 5.00 or above" in out and "1 of 3 seeds" in out and "never did" in out


def test_one_seed_is_shown_without_an_interval(capsys: pytest.CaptureFixture[str]) -> None:
    write_run(Path("runs/one"), {0: [0, 5]})
    write_run(Path("runs/low"), LOW)
    out = said(capsys, "low", "one")
    assert "5.00 [no interval]" in out and "one has 1 seed: no interval is possible; train at least 5." in out
    assert "one and low cannot be told apart: a single seed says nothing about others" in out


def test_few_seeds_are_said_to_be_few(capsys: pytest.CaptureFixture[str]) -> None:
    write_run(Path("runs/low"), {seed: LOW[seed] for seed in range(4)})
    assert "low has 4 seeds: its intervals are too narrow; train at least 5." in said(capsys, "low")


def test_any_figure_can_be_compared(capsys: pytest.CaptureFixture[str]) -> None:
    for name, size in (("a", 1.0), ("b", 5.0)):
        reports = [update(member, member, 100 * place, size * place) for member in range(5) for place in range(4)]
        write_run(Path(f"runs/{name}"), {seed: [0, 1] for seed in range(5)}, events=reports)
    found = as_json(capsys, "a", "b", "--metric", "q_mean")
    assert [one["iqm"]["value"] for one in found["groups"]] == [2, 10]
    assert found["groups"][1]["verdict"].startswith("b is higher than a")
    assert "q_mean" in said(capsys, "a", "--metric", "help")


def test_names_are_not_read_as_formulas() -> None:
    write_run(Path("runs/a$x_{$b"), LOW)
    assert main(["compare", "a$x_{$b"]) == main(["plot", "a$x_{$b", "a$x_{$b"]) == 0


def test_what_cannot_be_compared_is_refused_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    write_run(Path("runs/low"), LOW)
    write_run(Path("runs/hopper"), LOW, env="Hopper-v5")
    write_run(Path("runs/again"), {0: [1, 2]})
    write_run(Path("runs/seventh"), {7: [1, 2]})
    write_run(Path("runs/around"), {seed: [0, seed - 2.01] for seed in range(5)}, env="Hopper-v5")
    write_run(Path("runs/nothing"), {}, seeds=[0])
    write_run(Path("runs/zero"), {seed: [0, 0] for seed in range(5)}, env="Hopper-v5")
    for words, sentence in {
        (",",): "',' names no run",
        ("low", "--threshold", "nan"): "--threshold nan is no number",
        ("low", "--threshold", "inf", "--json"): "--threshold inf is no number",
        (): "name the groups to compare",
        ("low", "hopper"): "low was trained on Pendulum-v1, but hopper on Hopper-v5",
        ("low,hopper", "low"): "low,hopper was trained on Pendulum-v1 and Hopper-v5, but low on Pendulum-v1",
        ("low,again",): "runs/low and runs/again both have seed 0 on Pendulum-v1 with the same settings",
        ("low", "low"): "seed 0 of runs/low is in both low and low",
        ("nothing",): "runs/nothing has no evaluation",
        ("lwo",): "did you mean low?",
        ("x-*",): "no run matches x-*",
        ("low", "--names", "a", "b"): "--names gives 2 names to 1 groups: low",
        ("low", "--metric", "retrun"): "has no metric retrun, did you mean return?",
        ("low", "--metric", "returns"): "compare one of them: returns.0, returns.1",
        ("low,seventh", "seventh"): "seed 7 of runs/seventh is in both low,seventh and seventh",
        ("low,hopper", "--threshold", "3"): "--threshold is for one task, and these are 2: Pendulum-v1, Hopper-v5",
        ("low,around",): "has a mean of -0.01 on Hopper-v5 with a deviation of 1.58 over seeds, too close to 0",
        ("low,zero",): "has a mean of 0 on Hopper-v5",
        ("low", "--out", "nowhere/compare.png"): "cannot write the image nowhere/compare.png",
        ("low", "--out", "compare.nothing"): "cannot write the image compare.nothing",
        ("low", "--thresold", "3"): "did you mean --threshold?",
    }.items():
        assert sentence in refused(capsys, *words), words


def test_without_matplotlib_the_table_comes_with_a_note(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(Path("runs/low"), LOW)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    out = said(capsys, "low")
    assert "Return on Pendulum-v1" in out and "note: no picture without matplotlib" in out and "plotted" not in out
    assert main(["plot", "low"]) == 2
    assert "no picture without matplotlib" in capsys.readouterr().out


def test_a_score_does_not_depend_on_how_often_a_run_was_evaluated(capsys: pytest.CaptureFixture[str]) -> None:
    """The same learning curves, evaluated every 1,000 and every 4,000 steps."""
    write_run(Path("runs/often"), {seed: [10 * place + seed for place in range(21)] for seed in range(5)})
    write_run(Path("runs/rare"), {seed: [40 * place + seed for place in range(6)] for seed in range(5)}, every=4_000)
    found = as_json(capsys, "often", "rare")
    first, second = found["groups"]
    assert [*first["scores"]["Pendulum-v1"].values()] == [160.0 + seed for seed in range(5)]
    assert [*second["scores"]["Pendulum-v1"].values()] == [160.0 + seed for seed in range(5)]
    assert second["difference"]["value"] == 0
    assert any("Evaluations are 1,000 to 4,000 steps apart" in note for note in found["notes"])
    assert not any("steps apart" in note for note in as_json(capsys, "often")["notes"])
    assert [one["mean"]["value"] for one in as_json(capsys, "often", "rare", "--at", "9000")["groups"]] == [72, 62]


def test_at_a_step_between_a_last_evaluation_and_divergence(capsys: pytest.CaptureFixture[str]) -> None:
    write_run(Path("runs/a"), {0: [0, 1, 2, 3, 4], 1: [0, 5, 7]}, diverged=[1], after=600)
    (before,) = as_json(capsys, "a", "--at", "2500")["groups"]
    assert before["scores"]["Pendulum-v1"] == {"seed 0 of a": 1.5, "seed 1 of a": 6} and not before["diverged"]
    (after,) = as_json(capsys, "a", "--at", "2600")["groups"]
    assert after["scores"]["Pendulum-v1"]["seed 1 of a"] == 7 and after["diverged"] == ["seed 1 of a"]


def test_minutes_do_not_count_the_time_between_a_stop_and_a_resume(capsys: pytest.CaptureFixture[str]) -> None:
    """Evaluated every minute; stopped for a day at minute 1.5 and for an hour at minute 2.5."""
    path = write_run(Path("runs/a"), {0: [0, 1, 2, 3]})
    events = [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]
    for event, paused in zip(events, (0, 0, 0, 86_400, 90_000), strict=True):
        event["time"] += paused
    (path / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    ends = (("start", 0), ("saved", 80), ("end", 90), ("resumed", 86_490), ("saved", 86_550), ("resumed", 90_150))
    lines = [json.dumps({"event": event, "step": 1, "time": 1e9 + time}) for event, time in ends]
    (path / "journal.jsonl").write_text("\n".join([*lines, "torn", ""]))
    for threshold, minutes in ((1, 1), (2, 2), (3, 3)):
        (group,) = as_json(capsys, "a", "--threshold", str(threshold))["groups"]
        assert group["first_reached"]["minutes"]["median"] == pytest.approx(minutes)


def test_a_pooled_line_says_where_a_short_seed_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(Path("runs/long"), {0: [0, 1, 2, 3], 1: [0, 3, 4, 5]})
    write_run(Path("runs/short"), {2: [0, 2]})
    drawn = plotted(monkeypatch)
    assert main(["plot", "runs/long", "runs/short"]) == 0
    (mean,) = [one for one in drawn if one[0] and one[0].startswith("mean of 3 seeds")]
    assert mean[0] is not None and mean[0].endswith("; to step 1,000, where seed 2 ends") and mean[1] == [0, 2]
    assert [values for _, values in drawn if values != mean[1]] == [[0, 1, 2, 3], [0, 3, 4, 5]]
