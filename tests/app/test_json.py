"""Output for programs: events and results as JSON with nothing else between, and runs that say only how they ended."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shutil
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from fake_runs import write_run
from t3d.app.cli import main
from t3d.app.runs import shown_fields
from t3d.events import ActorEvent, Alarm, Note, Resumed, SeedStopped, Start, from_line, to_line
from t3d.insight.statistics import estimate, mean
from t3d.insight.wording import number_text
from t3d.store.metrics import best_of
from t3d.store.reader import open_run
from t3d.store.summary import read_summary
from terminals import COMMAND, SMALL, TRAIN, in_terminal

PAGE = Path(__file__).parents[2] / "docs" / "output.md"
HOSTILE = 'a\x1b[31m"\n\x7f[bold]γ\ud800'


LOUD = """
import os
import gymnasium as gym

class Loud(gym.Wrapper):
    steps = 0

    def step(self, action):
        self.steps += 1
        print("stepping", flush=True)
        os.write(1, b"from C\\n")
        if self.steps > 700:  # not in the doctor's trial
            raise RuntimeError("it fell\x1b[31m over")
        return super().step(action)

def make_env():
    return Loud(gym.make("Pendulum-v1"))
"""
Told = tuple[Path, subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """A run of two seeds with --json, and what it printed."""
    folder = tmp_path_factory.mktemp("told")
    command = [*COMMAND, "--json", "--run.name", "told", "--seeds", "0", "1"]
    return folder / "runs" / "told", subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)


def lines_in(run: Path, name: str) -> list[str]:
    return (run / name).read_text().splitlines()


def printed(capsys: pytest.CaptureFixture[str], *command: str) -> Any:
    assert main([*command]) == 0
    return json.loads(capsys.readouterr().out)


def test_json_has_every_event_as_it_is_in_the_logs(told: Told) -> None:
    run, ended = told
    out = ended.stdout.splitlines()
    journal = [line for line in lines_in(run, "journal.jsonl") if line not in lines_in(run, "events.jsonl")]
    assert [line for line in out if line not in journal] == lines_in(run, "events.jsonl")
    assert [line for line in out if line in journal] == journal and journal, "saved"
    assert "Trained 200 steps per seed" in ended.stderr and "step       200  seed 1  return" in ended.stderr


@pytest.mark.system
def test_json_comes_line_by_line_while_the_run_trains(tmp_path: Path) -> None:
    command = [*COMMAND, "--json", "--quiet", "--run.name", "live", "--total-steps", "1000000"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        events = [json.loads(process.stdout.readline())["event"] for _ in range(2)]
        process.stdout.close()
        errors = process.stderr.read()
    assert events == ["start", "eval"] and process.returncode == 0
    assert errors.endswith("runs/live\nstopped: nobody reads the output; t3d resume runs/live continues\n")
    assert json.loads(lines_in(tmp_path / "runs" / "live", "events.jsonl")[-1])["reason"] == "stopped"


def test_nothing_but_events_is_on_standard_output_even_if_the_environment_prints_and_fails(tmp_path: Path) -> None:
    flags = f"{SMALL} --total-steps 1000 --random-steps 900 --eval.every-steps 1000 --json --run.name loud"
    (tmp_path / "loud.py").write_text(LOUD)
    command = [sys.executable, "-m", "t3d", "train", "loud:make_env", *flags.split()]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    events = [json.loads(line) for line in ended.stdout.splitlines()]
    assert ended.returncode == 1 and [one["event"] for one in events[-2:]] == ["saved", "end"]
    assert events[-1]["reason"] == "failed" and "it fell\x1b[31m over" in events[-1]["text"]
    assert "stepping\n" in ended.stderr and "from C\n" in ended.stderr and "error: environment 0" in ended.stderr


def test_a_refused_command_writes_no_event(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "Pendulum-v2", "--json", "--run.root", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("error: ")


def test_json_of_a_run_that_has_nothing_left(told: Told, capsys: pytest.CaptureFixture[str]) -> None:
    run, _ = told
    again = [*TRAIN, "--seeds", "0", "1", "--run.root", str(run.parent), "--run.name", "told", "--resume-or-start"]
    assert main([*again, "--json"]) == 0
    said = capsys.readouterr()
    assert said.out == "" and "has already finished" in said.err


@pytest.mark.parametrize("terminal", [pytest.param(True, marks=pytest.mark.system), False])
def test_quiet_prints_the_result_and_the_folder(terminal: bool, tmp_path: Path) -> None:
    command = [*COMMAND, "--quiet", "--run.name", "quiet", "--seeds", "0", "1"]
    if terminal:
        code, lines = in_terminal(command, tmp_path, width=250)
        lines = [line for line in lines if line]
    else:
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        code, lines = ended.returncode, ended.stdout.splitlines()
        assert ended.stderr == ""
    run = open_run(tmp_path / "runs" / "quiet")
    best = {number_text(best_of(evals).mean_return) for evals in run.evals.values()}
    result = re.fullmatch(
        r"Trained 200 steps per seed in \d+ s, 100 updates; seed [01]: mean return \S+ ± \S+ over 3 fresh episodes, "
        r"best evaluation (\S+) ± 0.00 \(step \d+, chosen from 3\)",
        lines[0],
    )
    assert code == 0 and len(lines) == 2 and lines[1] == "runs/quiet"
    assert result is not None and result[1] in best
    assert (run.path / "curve.png").exists(), "it does all the same"


def test_quiet_tells_errors_and_what_the_doctor_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def events(*_: Any, **__: Any) -> Any:
        about: dict[str, Any] = {"versions": {"torch": "2"}, "pid": 1, "parameters": 1, "replay_bytes": 1}
        config = {**dataclasses.asdict(open_run(tmp_path / "run").cfg), "seeds": [0]}
        yield Start(step=0, folder=str(tmp_path / "run"), config=config, **about)
        yield Note(step=0, text="one step takes 2 s")
        yield Resumed(
            step=0, folder="", host="", config=config, checkpoint="", best=[], notes=["it never ends"], **about
        )
        yield Note(step=3, text="a note")
        yield SeedStopped(step=5, member=0, seed=0, text="its loss is nan")
        raise RuntimeError("over")

    assert main([*TRAIN, "--run.root", str(tmp_path), "--run.name", "run", "--quiet"]) == 0
    capsys.readouterr()
    monkeypatch.setattr("t3d.run.live.train", events)
    with pytest.raises(RuntimeError, match="over"):
        main([*TRAIN, "--quiet"])
    said = capsys.readouterr()
    doctor, error = "note: one step takes 2 s\nnote: it never ends\n", "seed 0 has diverged at step 5: its loss is nan"
    assert said.out == "" and said.err == f"{doctor}{error}; it stops\n"


def test_eval_as_json(told: Told, capsys: pytest.CaptureFixture[str]) -> None:
    run, _ = told
    result = printed(capsys, "eval", str(run), "--seed", "1", "--episodes", "4", "--json")
    assert main(["eval", str(run), "--seed", "1", "--episodes", "4"]) == 0
    assert f"{result['mean']:,.2f}" in capsys.readouterr().out
    about = {"run": str(run), "member": "seed-1", "seed": 1, "policy": "best", "env": "Pendulum-v1"}
    assert {key: result[key] for key in about} == about
    figures = [np.mean(result["returns"]), np.std(result["returns"], ddof=1)]
    assert [result["mean"], result["std"]] == pytest.approx(figures)
    assert len(result["returns"]) == result["episodes"] == 4 and result["lengths"] == [200] * 4
    low, high = result["interval"]
    assert min(result["returns"]) <= low < result["mean"] < high <= max(result["returns"])
    one = printed(capsys, "eval", str(run), "--seed", "1", "--episodes", "1", "--json")
    assert one["interval"] is None and one["returns"] == result["returns"][:1]
    assert set(result) <= explained() and "torch" in result["versions"]


def test_eval_as_json_tells_its_choice_elsewhere(told: Told, capsys: pytest.CaptureFixture[str]) -> None:
    run, _ = told
    assert main(["eval", str(run), "--episodes", "1", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["member"] in ("seed-0", "seed-1") and "is the best of 2 seeds" in said.err


def test_the_interval_is_as_wide_as_that_of_a_normal_mean() -> None:
    returns = np.random.default_rng(3).normal(50, 10, size=400)
    low, high = estimate(mean, [returns]).interval or (0.0, 0.0)
    assert (high - low) / 2 == pytest.approx(1.96 * returns.std() / math.sqrt(400), rel=0.1)
    assert (low + high) / 2 == pytest.approx(returns.mean(), abs=0.1)


def test_runs_as_json(told: Told, capsys: pytest.CaptureFixture[str]) -> None:
    path, ended = told
    (listed,) = printed(capsys, "runs", "--root", str(path.parent), "--json")
    run, start = open_run(path), json.loads(ended.stdout.splitlines()[0])
    assert listed["best_return"] == pytest.approx(fmean(best_of(one).mean_return for one in run.evals.values()))
    assert listed["last_return"] == pytest.approx(fmean(one[-1].mean_return for one in run.evals.values()))
    about: dict[str, Any] = {
        "path": str(path),
        "name": "told",
        "status": "finished",
        "env": "Pendulum-v1",
        "preset": "default",
    }
    about |= {"seeds": [0, 1], "sweep": [], "members": ["seed-0", "seed-1"], "diverged": [], "steps": 200}
    about |= {"total_steps": 200, "checkpoint": "000001-step-200", "failure": None}
    assert {key: listed[key] for key in about} == about
    started = datetime.fromisoformat(listed["started"])
    assert started.tzinfo is not None and started.timestamp() == pytest.approx(start["time"], abs=1)
    assert listed["took_seconds"] == pytest.approx(json.loads(ended.stdout.splitlines()[-1])["seconds"], abs=0.001)
    assert set(listed) <= explained()
    assert printed(capsys, "runs", "--root", str(path.parent), "--search", "no such run", "--json") == []


def test_a_run_in_detail_as_json(told: Told, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = shutil.copytree(told[0], tmp_path / "copy")
    news = [
        Note(step=3, text=HOSTILE),
        ActorEvent(step=4, actor=1, what="lost", text="signal 9", restarts=0),
        Alarm(step=5, member=1, seed=1, kind="saturated", text=HOSTILE, advice="lower the rates"),
        SeedStopped(step=6, member=0, seed=0, text="its loss is nan"),
    ]
    with (run / "events.jsonl").open("a") as log:
        log.write("".join(f"{to_line(event)}\n" for event in news) + "not an event\n")
    shown = printed(capsys, "runs", "show", str(run), "--json")
    assert shown["settings"]["td3.batch_size"] == {"default": 256, "value": 16}
    first, second = shown["results"]
    evals = open_run(run).evals[open_run(run).cfg.members[1]]
    assert second["member"] == "seed-1" and second["evaluations"] == 3 and second["diverged"] is None
    assert second["last"] == {"step": 200, "updates": 100, "mean": evals[-1].mean_return, "std": 0.0, "metrics": {}}
    assert second["best"]["mean"] == max(one.mean_return for one in evals) and second["first"]["step"] == 0
    assert first["diverged"] == {"step": 6, "text": "its loss is nan"} and shown["diverged"] == ["seed-0"]
    assert shown["last_return"] == evals[-1].mean_return, "of the seed that is left"
    assert shown["notes"] == [
        {"step": 3, "member": None, "kind": "note", "text": HOSTILE},
        {"step": 4, "member": None, "kind": "actor", "text": "signal 9"},
    ]
    assert shown["alarms"] == [
        {"step": 5, "member": "seed-1", "kind": "saturated", "text": HOSTILE, "advice": "lower the rates"}
    ]
    assert shown["damaged_lines"] == 1 and shown["files"]["config.toml"] == (run / "config.toml").stat().st_size
    assert {*shown, *first, *first["best"], *shown["notes"][0], *shown["alarms"][0]} <= explained()


@pytest.mark.parametrize("name", ["x[bold]:cat:γ\n\x7f", "\udcff\x1b[31m", '"]}'])
def test_hostile_names_come_back_as_they_are(
    name: str,
    told: Told,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = shutil.copytree(told[0], tmp_path / name)
    (tmp_path / "not a run\x1b[31m").mkdir()
    assert main(["runs", "--root", str(tmp_path), "--json"]) == 0
    said = capsys.readouterr()
    assert [one["name"] for one in json.loads(said.out)] == [name]
    assert all(one.isprintable() or one == "\n" for one in said.out + said.err) and said.out.isascii()
    assert "skipped not a run?[31m" in said.err
    assert printed(capsys, "runs", "show", str(run), "--json")["path"] == str(run)
    assert printed(capsys, "eval", str(run), "--seed", "0", "--episodes", "1", "--json")["run"] == str(run)


def test_what_is_not_finite_is_null(told: Told, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = shutil.copytree(told[0], tmp_path / "odd")
    start, *rest = lines_in(run, "events.jsonl")
    event = from_line(start)
    assert isinstance(event, Start)
    config = {**event.config, "odd": float("inf"), "deep": {"er": [1e400]}}
    text = json.dumps({"event": "start", **dataclasses.asdict(event), "config": config})
    (run / "events.jsonl").write_text("\n".join([text, *rest]) + "\n")
    (run / "journal.jsonl").unlink()
    settings = printed(capsys, "runs", "show", str(run), "--json")["settings"]
    assert settings["odd"] == {"default": None, "value": None} and settings["deep.er"]["value"] == [None]
    assert shown_fields(read_summary(run))["settings"]["odd"]["value"] == float("inf"), "it was there"


def explained() -> set[str]:
    """The fields that the page explains."""
    return explained_in(PAGE.read_text(encoding="utf-8"))


def explained_in(text: str) -> set[str]:
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    return set(re.findall(r"`(\w+)`", "\n".join(rows)))


def test_a_comparison_as_json_has_the_fields_that_the_page_explains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = PAGE.read_text(encoding="utf-8").partition("## `t3d compare --json`")[2].partition("\n## ")[0]
    first, second = (
        str(write_run(tmp_path / name, {seed: [0, value, value + seed] for seed in range(5)}))
        for name, value in (("low", 10), ("high", 50))
    )
    found = printed(capsys, "compare", first, second, "--threshold", "20", "--json")
    group = found["groups"][1]
    others = {*group["mean"], *group["first_reached"], *group["first_reached"]["steps"]}
    assert {*found, *group, *others} | {"return", "null"} == explained_in(page), "no more and no less"
