"""Runs that resume, and policies that play, in another environment than the one trained on are told so first (R28)."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import drones
import helpers
import t3d
from drones import Drone
from run_folders import events_of
from t3d.app.cli import main
from t3d.config import Member, load_config
from t3d.errors import UserError
from t3d.events import Eval, Event, Note, Resumed, Start
from t3d.store.folder import versions
from t3d.store.metrics import best_of
from t3d.store.reader import open_run
from t3d.world.fingerprint import differences

SAID = "the environment differs from the one trained on"
KINDS: dict[str, tuple[Any, str]] = {  # what the id makes now, and what is said of it
    "another argument": (drones.Gusty, "observations of a seeded episode differ from step 1 by up to 0."),
    "other dynamics": (drones.Heavy, "observations of a seeded episode differ from step 1 by up to 0."),
    "other rewards": (drones.Underpaid, "rewards of a seeded episode differ from step 1 by up to 0."),
    "another goal": (partial(Drone, goal="window"), "rewards of a seeded episode differ from step 1"),
    "other starts": (drones.Wide, "observations of a seeded episode differ from step 0"),
    "other units": (drones.InCentimetres, "observations of a seeded episode differ from step 0"),
    "another order": (drones.Swapped, "observations of a seeded episode differ from step 0"),
    "no seed": (drones.Random, "class drones:Drone -> drones:Random"),
}
REFUSED: dict[str, tuple[Any, str]] = {
    "other bounds": (drones.Strong, "the bounds of action 0 were [-1.0, 1.0] then, now [-2.0, 2.0]"),
    "fewer observations": (drones.Short, "2 observation values then, 1 now"),
}


@pytest.fixture(scope="module")
def half_way(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run that was stopped half-way, after evaluations at steps 0 and 150."""
    root = tmp_path_factory.mktemp("runs")
    for event in t3d.train(config(root)):
        if event.step == 200:
            break
    yield root / "run"


def config(root: Path, **changes: Any) -> Any:
    settings = {"env": {"id": "drones:Drone"}, "threads": 1, "run": {"root": str(root), "name": "run"}, **changes}
    return helpers.small_config(**settings)


@pytest.fixture
def run(half_way: Path, tmp_path: Path) -> Path:
    return shutil.copytree(half_way, tmp_path / "run")


def notes_of(events: list[Event]) -> list[str]:
    return [one.text for one in events if isinstance(one, Note) and one.text.startswith(SAID)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_resume_says_first_that_the_environment_is_another(
    kind: str, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed, words = KINDS[kind]
    monkeypatch.setattr(drones, "Drone", changed)
    events = list(t3d.resume(run))
    assert [type(one) for one in events[:2]] == [Resumed, Note], "before anything else"
    (text,) = notes_of(events)
    assert words in text and "cannot be compared, so the best policies are chosen anew; what the folder held" in text
    assert notes_of(events_of(run)) == [text], "and in the log"
    assert events[-1].event == "end" and events[-1].step == 300


@pytest.mark.parametrize("kind", KINDS)
def test_eval_and_record_say_it_first_too(
    kind: str, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    changed, words = KINDS[kind]
    monkeypatch.setattr(drones, "Drone", changed)
    assert main(["eval", str(run), "--episodes", "1"]) == 0
    first, *rest = "".join(capsys.readouterr().out.splitlines()).partition("episodes")
    assert f"note: {SAID}" in first and words in first, rest
    assert main(["eval", str(run), "--episodes", "1", "--json"]) == 0
    (note,) = json.loads(capsys.readouterr().out)["notes"]
    assert note.startswith(SAID) and words in note
    if kind == "other rewards" and find_spec("imageio_ffmpeg"):
        assert main(["record", str(run), "--steps", "5", "--out", str(tmp_path / "film.mp4")]) == 0
        assert words in capsys.readouterr().out


@pytest.mark.parametrize("kind", REFUSED)
def test_other_spaces_are_refused(
    kind: str, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changed, words = REFUSED[kind]
    monkeypatch.setattr(drones, "Drone", changed)
    with pytest.raises(UserError) as caught:
        list(t3d.resume(run))
    assert words in str(caught.value)
    assert main(["eval", str(run), "--episodes", "1"]) == 2
    assert words in capsys.readouterr().err


def test_nothing_is_said_of_the_same_environment(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(run), "--episodes", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == []
    events = list(t3d.resume(run))
    (resumed,) = [one for one in events if isinstance(one, Resumed)]
    assert notes_of(events) == [] and resumed.notes == []
    assert not (run / "before-1").exists()


def test_images_that_look_different_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    images = {"env": {"id": "drones:Drone", "pixels": 32, "frame_stack": 2}, "replay": {"capacity": 300}}
    small: dict[str, Any] = {"batch_size": 4, "encoder_channels": 2, "encoder_features": 3}
    small |= {"actor_hidden": [4], "critic_hidden": [4]}
    for event in t3d.train(config(tmp_path, td3=small, total_steps=140, random_steps=100, **images)):
        if event.step >= 110:
            break
    monkeypatch.setattr(drones, "Drone", drones.Dark)
    assert main(["eval", str(tmp_path / "run"), "--episodes", "1", "--json"]) == 0
    assert "images of a seeded episode differ from step 0" in json.loads(capsys.readouterr().out)["notes"][0]
    assert "images of a seeded episode differ from step 0" in notes_of(list(t3d.resume(tmp_path / "run")))[0]


def test_arguments_given_in_python_are_named_and_stored(run: Path) -> None:
    (text,) = notes_of(list(t3d.resume(run, make_env=partial(Drone, wind=1.5))))
    assert text.startswith(f"{SAID} so far: argument wind nothing -> 1.5; observations of a seeded episode differ")
    assert load_config(run / "config.toml").env.args == {"wind": 1.5}, "what it is trained on from now on"
    assert notes_of(list(t3d.resume(run, total_steps=350))) == []


def test_arguments_may_be_edited_and_a_kill_changes_nothing(run: Path, tmp_path: Path) -> None:
    for edit, text in (({"wind": 1.5}, "{wind = 1.5}"), ({}, "{}")):
        toml = (run / "config.toml").read_text()
        (run / "config.toml").write_text(re.sub("^args = .*$", f"args = {text}", toml, count=1, flags=re.MULTILINE))
        kept = shutil.copytree(run / "checkpoints", tmp_path / f"kept-{len(edit)}")
        for _ in range(2):
            resuming = t3d.resume(run, total_steps=600)
            events = [next(resuming) for _ in range(2)]
            resuming.close()
            assert len(notes_of(events)) == 1 and load_config(run / "config.toml").env.args == edit
            shutil.rmtree(run / "checkpoints")  # as if it had been killed before it saved
            shutil.copytree(kept, run / "checkpoints")
        list(t3d.resume(run, total_steps=350 if edit else 400))
        assert notes_of(list(t3d.resume(run, total_steps=351 if edit else 401))) == []


def test_a_version_alone_is_only_mentioned(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = {**versions(), "gymnasium": "9.9", "t3d": "9.9"}
    for module in ("t3d.run.parts", "t3d.api.policies"):
        monkeypatch.setattr(f"{module}.versions", lambda: now)
    assert main(["eval", str(run), "--episodes", "1", "--json"]) == 0
    (note,) = json.loads(capsys.readouterr().out)["notes"]
    assert note.startswith("the simulators are not those it was trained in: gymnasium ") and note.endswith(" -> 9.9")
    events = list(t3d.resume(run))
    assert notes_of(events) == [] and not (run / "before-1").exists()


def test_the_best_of_another_task_is_set_aside(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {file.name: file.read_bytes() for file in (run / "best").iterdir()}
    best_then = best_of(open_run(run).evals[Member(0)])
    monkeypatch.setattr(drones, "Drone", type("Costly", (Drone,), {"pay": 50.0}))  # no return is as high as before
    events = list(t3d.resume(run))
    assert notes_of(events)[0].endswith(f"; what the folder held of an earlier task is in {run / 'before-1'}")
    assert {file.name: file.read_bytes() for file in (run / "before-1" / "best").iterdir()} == before
    evals = [one for one in events if isinstance(one, Eval)]
    assert evals[0].step == 200 and evals[0].best, "the policies are evaluated in the new task at once"
    assert all(one.mean_return < best_then.mean_return for one in evals), "otherwise this shows nothing"
    assert open_run(run).compared_evals(Member(0)) == len(evals), "and the best is chosen from these alone"
    best_now = max(evals, key=lambda one: one.mean_return)
    assert t3d.load_policy(run / "best" / "seed-0").about["mean_return"] == best_now.mean_return
    assert best_of(open_run(run).evals[Member(0)]).mean_return == best_now.mean_return


def test_a_kill_before_the_next_checkpoint_does_not_bring_the_old_best_back(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = shutil.copytree(run / "checkpoints", run.parent / "kept")
    monkeypatch.setattr(drones, "Drone", drones.Underpaid)
    next(resuming := t3d.resume(run))
    resuming.close()
    shutil.rmtree(run / "checkpoints")  # as if it had been killed before it saved
    checkpoints.rename(run / "checkpoints")
    assert len(notes_of(list(t3d.resume(run)))) == 1
    evals = open_run(run).evals[Member(0)]
    assert t3d.load_policy(run / "best" / "seed-0").about["mean_return"] == best_of(evals).mean_return


def test_actors_in_other_processes_are_looked_at_too(tmp_path: Path) -> None:
    for event in t3d.train(config(tmp_path, actors="local:1")):
        if event.step >= 200:
            break
    start = events_of(tmp_path / "run")[0]
    assert isinstance(start, Start) and len(start.environment["episode"]["observations"]) > 1
    events = list(t3d.resume(tmp_path / "run", make_env=partial(Drone, wind=1.5)))
    (text,) = notes_of(events)
    assert "argument wind nothing -> 1.5; observations of a seeded episode differ from step 1" in text
    assert events[-1].event == "end" and events[-1].step == 300


def test_a_run_without_a_fingerprint_is_resumed_and_played_in_silence(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As runs from before 0.5 are (tests/store/test_formats.py has real ones)."""
    for name in ("events.jsonl", "journal.jsonl"):
        lines = [json.loads(line) for line in (run / name).read_text().splitlines()]
        for line in lines:
            line.pop("environment", None), line.pop("files", None)
            line.get("config", {"env": {}})["env"].pop("args", None)
        (run / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setattr("t3d.run.parts.differences", lambda then, now: differences(None, now))
    monkeypatch.setattr(drones, "Drone", drones.Heavy)
    assert main(["eval", str(run), "--episodes", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == []
    assert notes_of(list(t3d.resume(run))) == []
