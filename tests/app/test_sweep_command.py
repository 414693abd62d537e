"""Sweeps on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from t3d.app.cli import main
from t3d.app.train import parse
from t3d.store.reader import open_run
from t3d.store.summary import read_summary

SIZES = ["--preset", "quick", "--total-steps", "150", "--random-steps", "100", "--eval.every-steps", "100"]
SIZES += ["--eval.episodes", "2", "--eval.max-steps", "20", "--no-video"]


@pytest.mark.parametrize(
    "flags",
    [
        ["Pendulum-v1", "--sweep", "td3.gamma=0.9,0.98", "td3.tau=0.01,0.02", "--seeds", "0", "1"],
        ["--sweep", "td3.gamma=0.9,0.98", "td3.tau=0.01,0.02", "--seeds", "0,1", "--env.id", "Pendulum-v1"],
    ],
)
def test_a_sweep_is_one_flag(flags: list[str]) -> None:
    cfg = parse(flags).cfg
    assert cfg.sweep == ("td3.gamma=0.9,0.98", "td3.tau=0.01,0.02") and cfg.seeds == (0, 1)
    assert cfg.env.id == "Pendulum-v1" and len(cfg.members) == 8


def test_a_sweep_overrides_preset_and_file_and_a_flag_the_sweep_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('preset = "quick"\nsweep = ["td3.gamma=0.98,0.99"]\n[td3]\ngamma = 0.5\n')
    command = ["Pendulum-v1", "--config", str(tmp_path / "mine.toml")]
    assert parse(command).cfg.sweep == ("td3.gamma=0.98,0.99",)
    assert parse([*command, "--sweep", "td3.tau=0.1,0.2"]).cfg.sweep == ("td3.tau=0.1,0.2",)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--sweep"], "--sweep has no value; write FIELD=V1,V2"),
        (["--sweep", "--seeds", "0"], "--sweep has no value; write FIELD=V1,V2"),
        (["--sweep="], "--sweep has no value; write FIELD=V1,V2"),
        (["--sweep", "td3.gamma=0.9,0.98", "--sweep"], "--sweep is given twice"),
        (["--sweep", "td3.gamma=0.9,0.98", "--sweep=td3.tau=0.1,0.2"], "--sweep is given twice"),
        (["--sweep", "td3.gamma=0.9,0.98", "Pendulum-v1"], "sweep='Pendulum-v1' cannot be read; write FIELD=V1,V2"),
        (["--sweep", "td3.gamma:0.98,0.99"], "sweep='td3.gamma:0.98' cannot be read; write FIELD=V1,V2"),
        (["--sweep", "td3.gamma", "0.98", "0.99"], "sweep='td3.gamma' cannot be read; write"),
        (["--sweep", "td3.gamma=0.98,", "0.99"], "sweep='td3.gamma=0.98,' cannot be read; write"),
        (["--sweep", "td3.gamma=0.98,0.99", "0.995"], "sweep='0.995' cannot be read; write"),
        (
            ["--td3.gamma", "0.5", "--sweep", "td3.gamma=0.9,0.98"],
            "--td3.gamma contradicts --sweep td3.gamma=0.9,0.98;",
        ),
        (["--sweep", "td3.actor_lr=0.1,0.2", "--td3.actor-lr=0.3"], "--td3.actor-lr contradicts --sweep td3.actor_lr="),
        (["--sweep", "td3.gamma=0.9"], "needs two or more values"),
        (
            ["--sweep", "td3.target_noise=0.1,0.2", "--engine", "fused"],
            "fused computes with one target_noise for all seeds",
        ),
        (
            ["--sweep", "td3.critics=2,3"],
            "td3.critics cannot be swept; these can: td3.gamma",
        ),
    ],
)
def test_a_mistake_is_a_sentence(
    flags: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "Pendulum-v1", *SIZES, "--run.root", str(tmp_path / "runs"), *flags]) == 2
    assert words in capsys.readouterr().err and not (tmp_path / "runs").exists()


def test_help_does_not_break_the_example(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    assert "td3.gamma=0.98,0.99: trains" in capsys.readouterr().out


def test_training_ends_with_a_table_and_every_command_knows_the_members(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = ["--run.root", str(tmp_path), "--run.name", "a", "--resume-or-start"]
    command = ["train", "Pendulum-v1", *SIZES, "--sweep", "td3.gamma=0.9,0.98", "--seeds", "0", "1", *named]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "seeds 0, 1, sweep td3.gamma=0.9,0.98" in out
    assert "step       100  td3.gamma=0.98, seed 1  return" in out
    assert "Return by td3.gamma: mean over 2 seeds, ± std over seeds\n" in out
    (marked,) = [line.split()[0] for line in out.splitlines() if line.endswith("highest")]
    assert f"is the best of the 2 seeds with td3.gamma={marked}: " in out and f"/best/gamma-{marked}-seed-" in out
    assert out.count("td3.gamma=0.9,0.98") == 1, "the sweep is printed once"
    assert f"{tmp_path}/a/curve.png" in out
    assert main(command) == 0 and "already finished" in capsys.readouterr().out

    assert main(["runs", "--root", str(tmp_path)]) == 0
    listed = capsys.readouterr().out
    assert "4 = 2 values x 2 seeds" in listed and "of a sweep the highest mean of last ones" in listed
    run = open_run(tmp_path / "a")
    last = [run.evals[member][-1].mean_return for member in run.cfg.members]
    assert read_summary(run.path).best_return == pytest.approx(max(sum(last[:2]), sum(last[2:])) / 2)
    assert main(["runs", "--root", str(tmp_path), "--search", "gamma 0.98"]) == 0
    assert "1 run in" in capsys.readouterr().out
    assert main(["runs", "--root", str(tmp_path), "--search", "critic_lr"]) == 0
    assert "None of the 1 runs" in capsys.readouterr().out
    assert main(["runs", "show", str(tmp_path / "a")]) == 0
    shown = capsys.readouterr().out
    assert "highest" in shown and "gamma-0.98-seed-1" in shown and "sweep td3.gamma=0.9,0.98" in shown
    assert shown.count("td3.gamma=0.9,0.98") == 1, "the sweep is printed once"
    assert "td3.gamma  " not in shown.partition("Settings that differ")[2], "the preset's value is not used"

    chosen = ["--seed", "gamma-0.9-seed-1"]
    assert main(["eval", str(tmp_path / "a"), "--episodes", "1", *chosen]) == 0
    assert "td3.gamma=0.9, seed 1, best policy" in " ".join(capsys.readouterr().out.split())
    assert main(["eval", str(tmp_path / "a"), "--seed", "1"]) == 2
    assert "several members have seed 1: gamma-0.9-seed-1, gamma-0.98-seed-1; choose" in capsys.readouterr().err
    for flags, file in (([], tmp_path / "all.png"), (chosen, tmp_path / "one.png")):
        assert main(["plot", str(tmp_path / "a"), *flags, "--out", str(file)]) == 0
        assert file.stat().st_size > 10_000
    assert (tmp_path / "all.png").read_bytes() != (tmp_path / "one.png").read_bytes()
