"""R23: runs of earlier formats are refused in a sentence, and listed all the same; early ones of this format resume.

tests/fixtures holds one run folder for each checkpoint format, that of the newest one from when it was young.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import t3d
from faults import contents_of
from t3d.app.cli import main
from t3d.errors import UserError
from t3d.events import End, Eval
from t3d.store.checkpoint import newest
from t3d.store.contents import FORMAT
from t3d.store.summary import read_summaries

FIXTURES = Path(__file__).parents[1] / "fixtures"
NAMES = [f"checkpoint-format-{number}" for number in range(1, FORMAT)]
REFUSAL = (
    r"{run} has checkpoint format {number}, and this T3D reads [0-9]+; "
    "resume it with the version of T3D that wrote it, or train again"
)


@pytest.fixture(params=NAMES)
def early_run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return shutil.copytree(FIXTURES / request.param, tmp_path / str(request.param))


def refusal_of(run: Path) -> str:
    return REFUSAL.format(run=re.escape(str(run)), number=run.name.rpartition("-")[2])


def test_there_is_a_fixture_of_every_format() -> None:
    assert [path.name for path in sorted(FIXTURES.glob("checkpoint-*"))] == [*NAMES, f"checkpoint-format-{FORMAT}"]


def test_a_checkpoint_that_names_members_by_their_seeds_alone_is_resumed(tmp_path: Path) -> None:
    """It has three seeds and was saved at step 40, after seed 2 had diverged."""
    run = shutil.copytree(FIXTURES / f"checkpoint-format-{FORMAT}", tmp_path / "run")
    before, _ = newest(run / "checkpoints")
    assert before is not None and before.state()["seeds"] == [3, 1, 2] and [*before.state()["stopped"]] == ["2"]
    assert [segment.member for segment in before.segments] == ["seed-3", "seed-1", "seed-2"]
    events = list(t3d.resume(run))
    assert {event.seed for event in events if isinstance(event, Eval)} == {3, 1}
    end = events[-1]
    assert isinstance(end, End) and (end.reason, end.step, end.diverged) == ("finished", 60, ["seed-2"])
    after, _ = newest(run / "checkpoints")
    assert after is not None and after.state()["members"] == ["seed-3", "seed-1", "seed-2"]
    for segment in after.segments:
        old = next(one for one in before.segments if one.member == segment.member)
        rows = before.read_rows(old)
        assert np.array_equal(after.read_rows(segment)[: len(rows)], rows)


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
    (entry,), skipped = read_summaries(early_run.parent)
    assert (entry.env, entry.seeds, entry.total_steps, skipped) == ("Pendulum-v1", (3, 1), 60, [])
    assert main(["runs", "--root", str(early_run.parent)]) == main(["runs", "show", str(early_run)]) == 0
    assert "td3.random_steps" in capsys.readouterr().out, "the setting that it had"


@pytest.mark.parametrize("command", ["plot", "eval", "record"])
def test_settings_under_their_early_names_are_a_sentence(
    early_run: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(early_run)]) == 2
    assert capsys.readouterr().err == f"error: {early_run}/config.toml: td3.random_steps is called random_steps now\n"
