"""Names that are no text: bytes of a folder's name that are not UTF-8 end no command with a traceback."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import helpers
import t3d
from dash_client import client_of
from t3d.app.cli import main

NAME = os.fsdecode(b"run-\xff")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs, one of them with such a name."""
    root = tmp_path_factory.mktemp("runs")
    list(t3d.train(helpers.small_config(run={"root": str(root), "name": "plain"})))
    shutil.copytree(root / "plain", root / NAME)
    return root


@pytest.mark.parametrize(
    "command",
    [
        "runs --root {root}",
        "runs --root {root} --json",
        "runs show {run}",
        "plot {run}",
        "plot {run} {root}/plain --out {root}/both.png",
        "plot {run} {root}/plain --out {root}/both.svg",
        "compare {run} {root}/plain --out {root}/compared.png",
        "report {run} {root}/plain --out {root}/both.html",
        "report {run}",
        "export {run}",
        "explain {run}",
        "eval {run} --episodes 1",
        "sinks {run} --to tensorboard",
    ],
)
def test_every_command_works(trained: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [word.format(root=trained, run=trained / NAME) for word in command.split()]
    assert main(words) == 0, capsys.readouterr().err
    for name in ("both.png", "both.svg", "compared.png", "both.html"):
        assert f"{{root}}/{name}" not in command or (trained / name).stat().st_size > 1000


def test_the_page_leaves_them_out_without_an_error(trained: Path) -> None:
    answer = client_of(trained).get("/api/runs")
    assert answer.status_code == 200 and [run["name"] for run in answer.json()["runs"]] == ["plain"]


def test_wandb_says_in_a_sentence_that_it_cannot(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sinks", str(trained / NAME), "--to", "wandb"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: wandb gets nothing more: ") and "not UTF-8" in line


def test_a_setting_that_is_no_text_is_refused_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small: Any = ["--total-steps", "300", "--random-steps", "100", "--td3.batch-size", "16", "--no-video"]
    assert main(["train", "Pendulum-v1", "--run.root", str(tmp_path / NAME), *small]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "not UTF-8" in line and "rename" in line
