"""R23: runs of earlier versions are refused in a sentence, and listed all the same.

tests/fixtures holds one run folder for each earlier checkpoint format.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import t3d
from faults import contents_of
from t3d.app.cli import main
from t3d.errors import UserError
from t3d.store.catalogue import catalogue
from t3d.store.checkpoint import newest
from t3d.store.manifest import FORMAT

FIXTURES = Path(__file__).parents[1] / "fixtures"
NAMES = [f"checkpoint-format-{number}" for number in range(1, FORMAT)]
REFUSAL = (
    r"{run} was written by an early version of T3D \(checkpoint format {number}\), which this one does not read; "
    "resume it with the version that wrote it, or train again"
)


@pytest.fixture(params=NAMES)
def early_run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    shutil.copytree(FIXTURES / request.param, tmp_path / request.param)
    return tmp_path / request.param


def refusal_of(run: Path) -> str:
    return REFUSAL.format(run=re.escape(str(run)), number=run.name.rpartition("-")[2])


def test_there_is_a_fixture_of_every_earlier_format() -> None:
    assert [path.name for path in sorted(FIXTURES.iterdir())] == NAMES


def test_an_early_checkpoint_is_refused_in_a_sentence_and_left_as_it_was(early_run: Path) -> None:
    before = contents_of(early_run)
    for read in (lambda: newest(early_run / "checkpoints"), lambda: list(t3d.resume(early_run))):
        with pytest.raises(UserError, match=f"^{refusal_of(early_run)}$"):
            read()
    assert contents_of(early_run) == {**before, "lock": b""}


@pytest.mark.parametrize(
    "command", ["resume {run}", "train Pendulum-v1 --resume-or-start --run.root {root} --run.name {name}"]
)
def test_the_command_line_says_only_that(early_run: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = command.format(run=early_run, root=early_run.parent, name=early_run.name).split()
    assert main(words) == 2
    assert re.fullmatch(f"error: {refusal_of(early_run)}\n", capsys.readouterr().err)


def test_an_early_run_is_listed_and_shown(early_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (entry,), skipped = catalogue(early_run.parent)
    assert (entry.env, entry.seeds, entry.total_steps, skipped) == ("Pendulum-v1", (3, 1), 60, [])
    assert main(["runs", "--root", str(early_run.parent)]) == main(["runs", "show", str(early_run)]) == 0
    assert "td3.random_steps" in capsys.readouterr().out, "the setting that it had"


@pytest.mark.parametrize("command", ["plot", "eval", "record"])
def test_settings_under_their_early_names_are_a_sentence(
    early_run: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(early_run)]) == 2
    assert capsys.readouterr().err == f"error: {early_run}/config.toml: td3.random_steps is called random_steps now\n"
