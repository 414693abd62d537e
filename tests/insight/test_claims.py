"""A claim is a comparison of two runs of TD3, and a verdict that needs more than chance."""

from __future__ import annotations

import dataclasses
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

import helpers
import t3d
from t3d.app import pages
from t3d.app.cli import main
from t3d.config import Config, merge, to_toml
from t3d.events import Diagnosed, Event, to_line
from t3d.insight import claims
from t3d.insight.claims import CLAIMS, claim_configs, findings, plot_claim, verdict
from t3d.insight.statistics import estimate, mean
from t3d.run.reporter import eval_event
from t3d.store.reader import Run, open_run
from t3d.types import EpisodeResult, Evaluation
from t3d.world.make import with_full_paths

SPEC = helpers.make_spec()


def test_a_claim_is_two_runs_that_differ_in_one_setting() -> None:
    for name, claim in CLAIMS.items():
        configs = claim_configs(name, "Pendulum-v1", "runs")
        assert [getattr(cfg.td3, claim.setting) for cfg in configs] == [*claim.values]
        first, second = (replace(cfg, run=Config().run) for cfg in configs)
        assert replace(first, td3=second.td3) == second
        assert replace(first.td3, **{claim.setting: claim.values[1]}) == second.td3  # type: ignore[arg-type]
        assert configs[0].run.name != configs[1].run.name and len(first.seeds) == 8


def told(step: int, member: int, cfg: Config, bias: float) -> Diagnosed:
    """A diagnosis in which only the bias matters."""
    nothing: dict[str, Any] = {
        field.name: [] if "list" in str(field.type) else {} if "dict" in str(field.type) else 0
        for field in dataclasses.fields(Diagnosed)
    }
    seed = cfg.members[member].seed
    about = {"step": step, "member": member, "seed": seed, "q_predicted": bias - 50, "q_return": -50, "q_bias": bias}
    return Diagnosed(**{**nothing, **about})


def write_claim(root: Path, name: str, late: list[list[float]]) -> list[Run]:
    """Writes two runs whose biases at the end are these, by run and seed."""
    runs = []
    for number, (small, biases) in enumerate(zip(claim_configs(name, "Pendulum-v1", "runs"), late, strict=True)):
        cfg = merge(small, {"seeds": [3, 8], "total_steps": 10_000})
        events: list[Event] = [
            told(step, member, cfg, bias if step >= 7_000 else 500.0)
            for step in (2_000, 6_999, 7_000, 10_000)
            for member, bias in enumerate(biases)
        ]
        for step in (0, 7_000):
            for member in range(len(biases)):
                episodes = [EpisodeResult(0, 0, -100.0 * (1 + number), 200, terminated=False)]
                evaluation = Evaluation(step, member, helpers.snapshot_for(SPEC, 4), episodes)
                events.append(eval_event(evaluation, cfg, best=False))
        path = root / str(number)
        path.mkdir()
        (path / "events.jsonl").write_text("".join(to_line(event) + "\n" for event in events), encoding="utf-8")
        (path / "config.toml").write_text(to_toml(cfg), encoding="utf-8")
        runs.append(open_run(path))
    return runs


def test_findings_are_means_over_the_end_of_training(tmp_path: Path) -> None:
    runs = write_claim(tmp_path, "smoothing", [[12.0, 14.0], [-2.0, 1.0]])
    first, without, with_noise, verdict_of_it = findings(runs, "smoothing")
    assert first == "From step 7,000 on:"
    assert "no smoothing: values are 13.0 above the returns" in without and "(+12.0 to +14.0 over 2 seeds)" in without
    assert "smoothing: values are 0.5 below the returns" in with_noise
    assert without.endswith("-100.0") and with_noise.endswith("-200.0")
    assert verdict_of_it == verdict(CLAIMS["smoothing"], "Pendulum-v1", np.array([12.0, 14.0]), np.array([-2.0, 1.0]))
    plot_claim(runs, "smoothing", tmp_path / "claim.png")
    with Image.open(tmp_path / "claim.png") as image:
        assert image.width > 1000


AROUND = np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
AGREE, OPPOSITE, NEITHER = "The claim is seen on X", "The opposite of the claim is seen on X", "is not seen on X"


@pytest.mark.parametrize("name", CLAIMS)
@pytest.mark.parametrize(
    ("first", "second", "of_bias", "of_size"),
    [
        (20, 0, AGREE, AGREE),
        (0, 20, OPPOSITE, OPPOSITE),
        (-20, 0, OPPOSITE, AGREE),
        (0, -20, AGREE, OPPOSITE),
        (20, -20, AGREE, NEITHER),
        (0, 0, NEITHER, NEITHER),
    ],
)
def test_a_verdict_is_about_what_the_claim_says(
    name: str, first: float, second: float, of_bias: str, of_size: str
) -> None:
    """Overestimation and smoothing are about values that are too high, the delay about values that are wrong."""
    expected = of_size if name == "delay" else of_bias
    assert expected in verdict(CLAIMS[name], "X", AROUND + first, AROUND + second)


def test_a_verdict_needs_more_than_chance_and_five_seeds() -> None:
    claim = CLAIMS["overestimation"]
    wide = np.array([-20.0, 0.0, 5.0, 10.0, 30.0])
    assert verdict(claim, "X", wide, AROUND).startswith("The claim is not seen on X: the bias of one critic minus")
    assert verdict(claim, "X", wide, AROUND).endswith("contains 0.")
    assert "decides nothing: 4 seeds of a kind left" in verdict(claim, "X", AROUND + 20, AROUND[:4])
    low, high = estimate(mean, [AROUND + 20]).interval or (0, 0)  # the others do not vary
    said = verdict(claim, "X", AROUND + 20, np.zeros(5))
    assert said.endswith(f"is +20, and its 95 % interval [{low:+.3g}, {high:+.3g}] is above 0.")


def test_the_command_trains_compares_and_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small: dict[str, Any] = {
        **{"total_steps": 420, "random_steps": 100, "seeds": [0, 1], "threads": 1, "td3": {"batch_size": 16}},
        **{"eval": {"every_steps": 105, "episodes": 1}, "log": {"every_steps": 60, "diagnose_every_steps": 60}},
    }
    monkeypatch.setattr(claims, "SETTINGS", small)
    root = ["--root", str(tmp_path)]
    assert main(["explain", "--claim", "delay", *root]) == 0
    said = capsys.readouterr().out
    first, second = sorted(tmp_path.iterdir())
    assert "From step 294 on:" in said and "delay 1: values are" in said and "delay 2: values are" in said
    assert (second / "delay.png").is_file() and str(second / "delay.png") in said
    (second / "delay.png").unlink()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert main(["explain", "--claim", "delay", *root]) == 0, "nothing is trained again"
    assert capsys.readouterr().out.splitlines()[1:] == said[said.index("\nFrom step 294") :].splitlines()
    assert {path: path.stat().st_mtime_ns for path in before} == before and (second / "delay.png").is_file()
    assert main(["explain", str(first), "--claim", "delay"]) == 2
    assert "is a run, and --claim compares two that it trains itself" in capsys.readouterr().err
    monkeypatch.setattr(claims, "SETTINGS", {**small, "seeds": [0, 2]})
    assert main(["explain", "--claim", "delay", *root]) == 2
    assert "was trained with other settings than this claim's" in capsys.readouterr().err
    assert main(["explain", "--claim", "delay", "--seed", "0"]) == 2
    assert main(["explain", "--claim", "twins"]) == 2


@pytest.mark.parametrize(
    ("trained_on", "named", "problem"),
    [
        ("Pendulum-v1", "Pendulum-v1", ""),
        ("ALE/Pong-v5", "Pong-v5", "or on another environment"),
        ("one/my_env.py:Robot", "two/my_env.py:Robot", "or on another environment"),
        ("one/my_env.py:Robot", "one/my_env.py:Robot", ""),
    ],
)
def test_the_runs_of_a_claim_are_those_of_its_environment(
    trained_on: str,
    named: str,
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "my_env.py").write_text("")
    for cfg in claim_configs("delay", trained_on, "runs"):
        path = tmp_path / "runs" / cfg.run.name
        path.mkdir(parents=True)
        (path / "events.jsonl").touch()
        (path / "config.toml").write_text(to_toml(with_full_paths(cfg)))
    monkeypatch.setattr(pages, "read_summary", lambda path: SimpleNamespace(status="finished"))
    monkeypatch.setattr(claims, "findings", lambda runs, name: [])
    monkeypatch.setattr(claims, "plot_claim", lambda runs, name, out: None)
    assert main(["explain", named, "--claim", "delay"]) == (2 if problem else 0)
    assert problem in capsys.readouterr().err


def test_a_claim_that_was_stopped_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small: dict[str, Any] = {
        **{"total_steps": 420, "random_steps": 100, "seeds": [0], "threads": 1, "td3": {"batch_size": 16}},
        **{"eval": {"every_steps": 105, "episodes": 1}, "log": {"every_steps": 60, "diagnose_every_steps": 60}},
    }
    monkeypatch.setattr(claims, "SETTINGS", small)
    cfg, _ = claim_configs("smoothing", "Pendulum-v1", str(tmp_path))
    stop = threading.Event()
    for event in t3d.train(cfg, stop=stop):
        if event.step >= 200:
            stop.set()
    assert main(["explain", "--claim", "smoothing", "--root", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "resuming at step 2" in said and "From step 294 on:" in said
