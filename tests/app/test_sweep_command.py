"""Sweeps on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from t3d.app.cli import main
from t3d.app.train import parse

SIZES = ["--preset", "quick", "--total-steps", "150", "--random-steps", "100", "--eval.every-steps", "100"]
SIZES += ["--eval.episodes", "2", "--eval.max-steps", "20", "--no-video"]


@pytest.mark.parametrize(
    "flags",
    [
        ["Pendulum-v1", "--sweep", "td3.gamma=0.9,0.98", "td3.tau=0.01,0.02", "--seeds", "0", "1"],
        ["--sweep", "td3.gamma=0.9,0.98", "td3.tau=0.01,0.02", "Pendulum-v1", "--seeds", "0,1"],
        ["--sweep", "td3.gamma=0.9,0.98", "Pendulum-v1", "--seeds", "0", "1", "--sweep", "td3.tau=0.01,0.02"],
        ["--sweep=td3.gamma=0.9,0.98", "--seeds", "0", "1", "--sweep=td3.tau=0.01,0.02", "--env.id", "Pendulum-v1"],
    ],
)
def test_a_sweep_is_one_flag_or_several(flags: list[str]) -> None:
    cfg = parse(flags).cfg
    assert cfg.sweep == ("td3.gamma=0.9,0.98", "td3.tau=0.01,0.02") and cfg.seeds == (0, 1)
    assert cfg.env.id == "Pendulum-v1" and len(cfg.members) == 8


def test_a_flag_wins_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('sweep = ["td3.gamma=0.98,0.99"]\n')
    command = ["Pendulum-v1", "--config", str(tmp_path / "mine.toml")]
    assert parse(command).cfg.sweep == ("td3.gamma=0.98,0.99",)
    assert parse([*command, "--sweep", "td3.tau=0.1,0.2"]).cfg.sweep == ("td3.tau=0.1,0.2",)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--sweep"], "--sweep has no value; give FIELD=VALUE,VALUE,..., e.g. td3.gamma=0.98,0.99"),
        (["--sweep", "td3.gamma=0.9"], "has one value"),
        (["--sweep", "td3.gamma=0.9,0.98", "--engine", "fused"], "engine fused computes with one gamma for all seeds"),
        (
            ["--sweep", "td3.critics=2,3"],
            "td3.critics cannot differ between the members of a run; these can: td3.gamma",
        ),
    ],
)
def test_a_mistake_is_a_sentence(
    flags: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "Pendulum-v1", *SIZES, "--run.root", str(tmp_path / "runs"), *flags]) == 2
    assert words in capsys.readouterr().err and not (tmp_path / "runs").exists()


def test_training_ends_with_a_table_and_every_command_knows_the_members(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = ["--run.root", str(tmp_path), "--run.name", "a", "--resume-or-start"]
    command = ["train", "Pendulum-v1", *SIZES, "--sweep", "td3.gamma=0.9,0.98", "--seeds", "0", "1", *named]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "seeds 0, 1, sweep td3.gamma=0.9,0.98" in out and "fused computes with one gamma for all seeds" in out
    assert "step       100  td3.gamma=0.98, seed 1  return" in out
    rows = [line.split() for line in out.splitlines()]
    assert [row[0] for row in rows if row[1:2] == ["2"]] == ["0.9", "0.98"] and sum(
        "highest" in row for row in rows
    ) == 1
    assert "is the best of 4 members" in out and f"{tmp_path}/a/curve.png" in out
    assert main(command) == 0 and "already finished" in capsys.readouterr().out

    assert main(["runs", "--root", str(tmp_path)]) == 0
    assert "2 values x 0, 1" in capsys.readouterr().out
    assert main(["runs", "show", str(tmp_path / "a")]) == 0
    shown = capsys.readouterr().out
    assert "highest" in shown and "gamma-0.98-seed-1" in shown and "sweep td3.gamma=0.9,0.98" in shown
    assert "td3.gamma  " not in shown.partition("Settings that differ")[2], "the preset's value is not used"

    chosen = ["--seed", "gamma-0.9-seed-1"]
    assert main(["eval", str(tmp_path / "a"), "--episodes", "1", *chosen]) == 0
    assert "td3.gamma=0.9, seed 1, best policy" in " ".join(capsys.readouterr().out.split())
    assert main(["eval", str(tmp_path / "a"), "--seed", "1"]) == 2
    assert "several members: gamma-0.9-seed-1, gamma-0.98-seed-1" in capsys.readouterr().err
    for flags in ([], chosen):
        assert main(["plot", str(tmp_path / "a"), *flags, "--out", str(tmp_path / "plot.png")]) == 0
        assert (tmp_path / "plot.png").stat().st_size > 10_000
