"""`t3d bench`: what it measures is there, named and sane; how fast it is, is for people to read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from t3d.app.cli import main
from t3d.bench.updates import HALF_CHEETAH, Case, Floor, growth_cases
from t3d.config import TD3Config

FIELDS = {"what", "engine", "device", "threads", "batch", "hidden", "seeds", "critics", "preset"}


def measured(tmp_path: Path, *command: str) -> dict[str, Any]:
    file = tmp_path / "bench.json"
    assert main(["bench", *command, "--threads", "1", "--device", "cpu", "--json", str(file)]) == 0
    found: dict[str, Any] = json.loads(file.read_text())
    return found


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    yield
    torch.set_num_threads(1)


def test_updates_are_measured_for_every_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--batch", "16", "--hidden", "16", "16", "--seeds", "2", "--critics", "3", "--seconds", "0.05"]
    found = measured(tmp_path, "update", *sizes)
    assert set(found) == {"machine", "versions", "rows"} and found["versions"]["torch"] and found["versions"]["cpu"]
    assert [row["engine"] for row in found["rows"]] == ["oracle", "eager", "fused", "floor"]
    for row in found["rows"]:
        assert row.keys() == FIELDS | {"ms_best", "ms_median"} and 0 < row["ms_best"] <= row["ms_median"]
        assert (row["what"], row["batch"], row["hidden"], row["seeds"], row["critics"]) == (
            "update",
            16,
            [16, 16],
            2,
            3,
        )
    assert "fused" in capsys.readouterr().out


def test_trainings_are_measured_with_their_environment(tmp_path: Path) -> None:
    engines = ["eager", "fused"]
    command = ["train", "--env", "Pendulum-v1", "--batch", "16", "--hidden", "16", "--turns", "1", "--engines"]
    rows = measured(tmp_path, *command, *engines)["rows"]
    assert [row["engine"] for row in rows] == engines
    assert all(row.keys() == FIELDS | {"steps_per_second", "env"} and row["steps_per_second"] > 10 for row in rows)


def test_a_preset_is_measured_with_the_engines_that_compute_it(tmp_path: Path) -> None:
    small = ["--preset", "plus", "--batch", "16", "--hidden", "16"]
    rows = measured(tmp_path, "update", *small, "--seconds", "0.05")["rows"]
    assert {"eager", "fused"} <= {row["engine"] for row in rows}
    assert all((row["preset"], row["critics"], row["batch"]) == ("plus", 5, 16) for row in rows)
    case = Case("cpu", 1, 16, (16,), 1, 5, "plus")
    assert (case.cfg.actor_network, case.cfg.actor_objective, case.normalised) == ("layer_norm", "mean", True)
    rows = measured(tmp_path, "train", *small, "--env", "Pendulum-v1", "--turns", "1")["rows"]
    assert {row["preset"] for row in rows} == {"plus"}
    assert "sb3" not in {row["engine"] for row in rows}  # Stable-Baselines3 has no such networks


def test_the_sizes_are_those_of_the_preset_unless_given(tmp_path: Path) -> None:
    (row,) = measured(tmp_path, "update", "--preset", "quick", "--engines", "fused", "--seconds", "0.05")["rows"]
    assert (row["batch"], row["hidden"], row["critics"]) == (128, [64, 64], 2)


def test_the_floor_makes_the_products_of_the_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, ...]] = []
    bmm = torch.bmm

    def counted(left: torch.Tensor, right: torch.Tensor, **keywords: Any) -> torch.Tensor:
        made.append((*left.shape, right.shape[2]))
        return bmm(left, right, **keywords)

    floor = Floor(HALF_CHEETAH, TD3Config(), 1, "cpu")
    monkeypatch.setattr(torch, "bmm", counted)
    floor()
    assert len(made) == 3 + 3 + 3 + 3 + 2 and made[:3] == [(1, 256, 17, 256), (1, 256, 256, 256), (1, 256, 256, 6)]
    made.clear()
    floor()
    assert len(made) == 14 + 3 + 2 + 2 + 3 + 2, "every second update has the delayed ones too"


def test_growth_changes_one_size_at_a_time() -> None:
    base = Case("cpu", 1, 256, (256, 256), 1, 2)
    for case in growth_cases(base):
        assert sum(vars(case)[name] != vars(base)[name] for name in vars(base)) <= 1


def test_an_engine_that_cannot_be_measured_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "update", "--device", "cpu", "--engines", "capture"]) == 2
    assert "only oracle, eager, fused, floor can be measured here" in capsys.readouterr().err
