"""`t3d eval` and `t3d record` of a policy file, in its run's folder and out of it."""

from __future__ import annotations

import json
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import helpers
import t3d
from drones import Drone
from t3d.app.cli import main


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    env = {"id": "", "action_repeat": 2, "max_action_change": 0.5}
    cfg = helpers.small_config(seeds=[0, 7], env=env, run={"root": str(root), "name": "demo"}, eval={"max_steps": 30})
    list(t3d.train(cfg, make_env=partial(Drone, wind=0.5)))
    return root / "demo"


def evaluated(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["eval", *words, "--episodes", "3", "--json"]) == 0
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    return said


@pytest.mark.parametrize("kind", ["best", "last"])
def test_a_policy_file_is_evaluated_as_its_run_is(kind: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = evaluated(capsys, str(run), "--seed", "7", "--policy", kind)
    assert asked["policy"] == kind and asked["seed"] == 7
    for name in ("seed-7.safetensors", "seed-7", "seed-7.json"):
        assert evaluated(capsys, str(run / kind / name)) == asked
    assert evaluated(capsys, f"demo/{kind}/seed-7.safetensors", "--root", str(run.parent)) == asked


def test_a_file_on_its_own_is_played_in_the_environment_that_it_names(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(run / "best" / "seed-0.safetensors", tmp_path / "mine.safetensors")
    alone, asked = evaluated(capsys, str(tmp_path / "mine.safetensors")), evaluated(capsys, str(run), "--seed", "0")
    assert alone["returns"] == asked["returns"] and alone["lengths"] == asked["lengths"], "arguments, repeats and limit"
    assert (alone["env"], alone["notes"]) == ("drones:Drone", [])
    assert main(["eval", str(tmp_path / "mine"), "--episodes", "1"]) == 0
    assert "drones:Drone, seed 0, best policy" in capsys.readouterr().out
    film = tmp_path / "film.mp4"
    assert main(["record", str(tmp_path / "mine.safetensors"), "--steps", "5", "--out", str(film)]) == 0
    assert film.is_file()


def test_a_file_that_was_sent_does_not_choose_code_beside_it(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(run / "best" / "seed-0.safetensors", tmp_path / "sent.safetensors")
    (tmp_path / "drones.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "drones")
    assert main(["eval", "sent.safetensors"]) == 2
    assert "no file inside a run's folder is ever imported" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()
    assert main(["eval", "sent.safetensors", "--env", "drones:Drone"]) == 2
    assert (tmp_path / "ran").exists(), "the user has named it"


def test_the_current_folder_may_be_the_run(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(run)
    assert evaluated(capsys, ".", "--seed", "0")["seed"] == 0
    assert main(["eval", "x" * 300]) == 2 and "there is no run" in capsys.readouterr().err


def test_what_does_not_belong_to_a_policy_file_is_a_sentence(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(run / "best" / "seed-0.safetensors")
    assert main(["eval", file, "--seed", "0"]) == 2
    assert "is a policy file, which holds one policy: it takes no --seed" in capsys.readouterr().err
    assert main(["eval", str(run / "best" / "seed-9.safetensors")]) == 2
    assert "there is no run" in capsys.readouterr().err
    (tmp_path / "broken.safetensors").write_bytes(Path(file).read_bytes()[:100])
    assert main(["eval", str(tmp_path / "broken.safetensors")]) == 2
    assert "is not a policy that T3D wrote" in capsys.readouterr().err
    cfg = helpers.small_config(env={"id": ""}, run={"root": str(tmp_path), "name": "made"}, total_steps=110)
    list(t3d.train(cfg, make_env=lambda: Drone()))  # noqa: PLW0108
    shutil.copy(tmp_path / "made/best/seed-0.safetensors", tmp_path / "alone.safetensors")
    assert main(["eval", str(tmp_path / "alone.safetensors")]) == 2
    assert "trained on an environment made in Python; name one with --env" in capsys.readouterr().err
    assert main(["eval", str(tmp_path / "alone.safetensors"), "--env", "drones:Drone", "--episodes", "1"]) == 0
