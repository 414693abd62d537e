"""What a resume finds in the run's folder: policies of another moment, edited settings, damaged logs."""

from __future__ import annotations

import contextlib
import csv
import errno
import json
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control.pendulum import PendulumEnv
from safetensors.numpy import save

import helpers
import t3d
from t3d.actors.inline import InlineCollector, InlineEvaluator
from t3d.algo.learner import Learner
from t3d.app.cli import main
from t3d.config import Config, Member, load_toml, merge
from t3d.data.memory import Memory
from t3d.data.replay import Replay
from t3d.errors import EnvironmentFailed, UserError
from t3d.events import End, Event, Resumed, SaveFailed
from t3d.files import Refused
from t3d.store.checkpoint import newest
from t3d.store.contents import Segment, write_file
from t3d.store.log import last_event
from t3d.store.reader import open_run
from t3d.store.summary import read_summary
from t3d.types import Requests
from t3d.world.make import env_factory


def small(root: Path, name: str, **changes: Any) -> Config:
    cfg = helpers.small_config(checkpoint={"every_steps": 60}, run={"root": str(root), "name": name})
    return merge(cfg, changes)


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on two seeds that was stopped at step 200 of 300, and one that was not."""
    root = tmp_path_factory.mktemp("runs")
    stopped_at_200(small(root, "stopped", seeds=[4, 7]))
    list(t3d.train(small(root, "straight", seeds=[4, 7])))
    return root


def stopped_at_200(cfg: Config) -> Path:
    stop = threading.Event()
    for event in t3d.train(cfg, stop=stop):
        if event.step >= 200:
            stop.set()
    return Path(cfg.run.root) / cfg.run.name


@pytest.fixture
def stopped(halves: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(halves / "stopped", tmp_path / "stopped"))


def resumed(path: Path, **changes: Any) -> tuple[Resumed, list[Event]]:
    events = list(t3d.resume(path, **changes))
    return next(event for event in events if isinstance(event, Resumed)), events


def learned(path: Path) -> list[Any]:
    checkpoint, _ = newest(path / "checkpoints")
    assert checkpoint is not None
    state = checkpoint.state()
    return [state["learner"][name].tobytes() for name in ("actor", "critic", "critic_target")]


# best/ belongs to the checkpoint's moment


def best_in_log(path: Path) -> dict[int, float]:
    return {member.seed: max(one.mean_return for one in evals) for member, evals in open_run(path).evals.items()}


def test_a_best_policy_of_after_the_checkpoint_is_taken_back(halves: Path, stopped: Path) -> None:
    """With actors a kill may leave one that the resumed log never hears of."""
    for seed in (4, 7):
        for kind in ("json", "safetensors"):
            shutil.copy(halves / "straight" / "last" / f"seed-{seed}.{kind}", stopped / "best")
    run = t3d.resume(stopped)
    first = next(event for event in run if isinstance(event, Resumed))
    noted = {seed: t3d.load_policy(stopped / "best" / f"seed-{seed}").about["mean_return"] for seed in (4, 7)}
    assert noted == best_in_log(stopped) and first.best == [noted[4], noted[7]]
    list(run)
    for seed, value in best_in_log(stopped).items():
        assert t3d.load_policy(stopped / "best" / f"seed-{seed}").about["mean_return"] == value
    assert learned(stopped) == learned(halves / "straight")


@pytest.mark.parametrize("harm", ["missing", "empty", "folder"])
def test_a_damaged_best_policy_is_said_and_restored(stopped: Path, harm: str) -> None:
    file = stopped / "best" / "seed-7.safetensors"
    before = file.read_bytes()
    if harm == "folder":
        shutil.rmtree(stopped / "best")
    else:
        file.unlink() if harm == "missing" else file.write_bytes(b"")
    run = t3d.resume(stopped)
    told = next(event for event in run if isinstance(event, Resumed))
    assert any("seed-7" in note and "restored from the checkpoint" in note for note in told.notes), told.notes
    assert file.read_bytes() == before
    run.close()


def test_a_sound_folder_gives_no_notes(stopped: Path) -> None:
    told, _ = resumed(stopped)
    assert told.notes == []


# config.toml


def edit(path: Path, old: str, new: str) -> None:
    text = (path / "config.toml").read_text()
    assert len(re.findall(f"^{re.escape(old)}$", text, re.MULTILINE)) == 1, (old, text)
    (path / "config.toml").write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("gamma = 0.99", "gamma = 0.95", "td3.gamma=0.95 (it was started with 0.99)"),
        ("seeds = [4, 7]", "seeds = [4, 8]", "seeds=4 8 (it was started with 4 7)"),
        ("num_envs = 0", "num_envs = 2", "env.num_envs=2 (it was started with 1)"),
        ('engine = "auto"', 'engine = "eager"', "engine=eager (it was started with fused)"),
    ],
)
def test_an_edited_setting_is_named_and_refused(stopped: Path, old: str, new: str, words: str) -> None:
    edit(stopped, old, new)
    before = sorted((file, file.read_bytes()) for file in stopped.rglob("*") if file.is_file())
    with pytest.raises(UserError, match=re.escape(words)) as caught:
        list(t3d.resume(stopped))
    assert "--total-steps" in str(caught.value) and "env.bad_values" in str(caught.value)
    assert sorted((file, file.read_bytes()) for file in stopped.rglob("*") if file.is_file()) == before


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("total_steps = 300", "total_steps = 240", "total_steps=240, it was 300"),
        ("total_steps = 300", "total_steps = 330", "total_steps=330, it was 300"),
        ('bad_values = "raise"', 'bad_values = "skip"', "env.bad_values=skip, it was raise"),
        ('id = "Pendulum-v1"', 'id = "gymnasium:Pendulum-v1"', "env.id=gymnasium:Pendulum-v1, it was Pendulum-v1"),
    ],
)
def test_what_may_be_changed_is_obeyed_and_said(stopped: Path, old: str, new: str, words: str) -> None:
    edit(stopped, old, new)
    told, events = resumed(stopped)
    assert any(words in note for note in told.notes)
    assert events[-1].step == merge(Config(), told.config).total_steps
    assert (new in (stopped / "config.toml").read_text()) and new.split(" = ")[1].strip('"') in str(told.config)


@pytest.mark.skipif(torch.cuda.is_available(), reason="auto is the GPU here")
def test_device_engine_and_threads_are_not_pinned_by_config_toml(halves: Path, tmp_path: Path) -> None:
    """So that a GPU's run can be repeated on a CPU: only what was asked for is in the file."""
    stopped = stopped_at_200(small(tmp_path, "stopped", seeds=[4, 7], device="auto"))
    written = load_toml(stopped / "config.toml")
    assert [written[name] for name in ("device", "engine", "threads")] == ["auto", "auto", 0]
    told, _ = resumed(stopped)
    assert [told.config[name] for name in ("device", "engine")] == ["cpu", "fused"] and told.config["threads"] > 0
    assert [load_toml(stopped / "config.toml")[name] for name in ("device", "engine", "threads")] == ["auto", "auto", 0]
    assert learned(stopped) == learned(halves / "straight")


@pytest.mark.parametrize("by", ["flag", "file"])
def test_a_target_that_the_run_has_passed_is_refused(stopped: Path, by: str) -> None:
    """The last evaluation was at 150: between that and where the run is it used to wait for ever."""
    if by == "file":
        edit(stopped, "total_steps = 300", "total_steps = 170")
    with pytest.raises(UserError, match=r"the run is already at step 20\d, and 170 are asked for"):
        list(t3d.resume(stopped, total_steps=170 if by == "flag" else None))


def test_a_command_that_asks_for_less_is_told_so(stopped: Path) -> None:
    run = t3d.resume(stopped, cfg=small(stopped.parent, "stopped", seeds=[4, 7], total_steps=250))
    told = next(event for event in run if isinstance(event, Resumed))
    assert any("says total_steps=250, but the run continues to 300" in note for note in told.notes)


# Logs


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-700])


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x80
    file.write_bytes(bytes(content))


LOG_HARMS: dict[str, Callable[[Path], object]] = {
    "deleted": Path.unlink,
    "cut short": cut_short,
    "empty": lambda file: file.write_bytes(b""),
    "flipped bit": flip_a_bit,
}


@pytest.mark.parametrize("harm", LOG_HARMS)
@pytest.mark.parametrize("name", ["events.jsonl", "metrics.csv"])
def test_a_damaged_log_does_not_make_sound_checkpoints_useless(
    halves: Path, stopped: Path, name: str, harm: str
) -> None:
    LOG_HARMS[harm](stopped / name)
    told, events = resumed(stopped)
    assert events[-1].event == "end" and learned(stopped) == learned(halves / "straight")
    if harm != "flipped bit":  # which nobody sees who does not read all of it
        assert any(name in note and "damaged" in note for note in told.notes), told.notes
    lines = (stopped / "events.jsonl").read_bytes().splitlines()
    damaged = [line for line in lines if not _is_event(line)]
    assert len(damaged) <= (1 if (name, harm) == ("events.jsonl", "flipped bit") else 0)
    evaluated = [one.step for one in open_run(stopped).evals[Member(4)]]
    assert evaluated[-1] == 300 and read_summary(stopped).status == "finished"
    if harm != "flipped bit":
        with (stopped / "metrics.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert rows[-1]["event"] in ("eval", "update", "episode") and int(rows[-1]["step"]) == 300


def _is_event(line: bytes) -> bool:
    try:
        return "event" in json.loads(line)
    except ValueError:
        return False


def test_nothing_is_erased_where_the_checkpoints_are_gone_and_the_log_is_torn(stopped: Path) -> None:
    shutil.rmtree(stopped / "checkpoints")
    with (stopped / "events.jsonl").open("ab") as log:
        log.write(b'{"event": "eval", "st')
    before = (stopped / "events.jsonl").read_bytes()
    with pytest.raises(UserError, match="cannot be resumed"):
        list(t3d.resume(stopped))
    assert (stopped / "events.jsonl").read_bytes() == before
    list(t3d.resume(stopped, cfg=small(stopped.parent, "stopped", seeds=[4, 7])))
    assert (stopped / "before-1" / "events.jsonl").read_bytes() == before


def test_the_command_line_finds_a_run_without_its_log(stopped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (stopped / "events.jsonl").unlink()
    assert main(["resume", str(stopped), "--no-video"]) == 0
    assert "events.jsonl is damaged" in capsys.readouterr().out


def test_policies_alone_are_set_aside_too(stopped: Path) -> None:
    shutil.rmtree(stopped / "checkpoints")
    for name in ("events.jsonl", "metrics.csv"):
        (stopped / name).unlink()
    before = (stopped / "best" / "seed-4.safetensors").read_bytes()
    next(t3d.resume(stopped, cfg=small(stopped.parent, "stopped", seeds=[4, 7])))
    assert (stopped / "before-1" / "best" / "seed-4.safetensors").read_bytes() == before


def test_a_run_that_begins_again_erases_nothing(tmp_path: Path) -> None:
    """As after a kill before the first checkpoint."""
    run = t3d.train(small(tmp_path, "run", checkpoint={"every_steps": 1000}))
    for event in run:
        if event.step > 30:
            shutil.copytree(tmp_path / "run", tmp_path / "killed")
            break
    before = (tmp_path / "killed" / "events.jsonl").read_bytes()
    told, events = resumed(tmp_path / "killed")
    assert told.step == 0 and events[-1].step == 300
    assert (tmp_path / "killed" / "before-1" / "events.jsonl").read_bytes() == before


def test_overlapping_pieces_of_the_replay_are_refused(stopped: Path) -> None:
    """With a gap beside them their number of rows is right, and memory that nobody filled would be learned from."""
    checkpoint, _ = newest(stopped / "checkpoints")
    assert checkpoint is not None
    one = checkpoint.segments[0]
    rows = checkpoint.read_rows(one)
    half = len(rows) // 2
    file = write_file(stopped / "checkpoints" / "replay" / "forged.safetensors", save({"rows": rows[:half]}), [])
    forged = checkpoint._replace(segments=(Segment(one.member, 0, half, file), Segment(one.member, 0, half, file)))
    replay = Replay(helpers.make_spec(3, 1), 300, members=1)
    replay.set_added([2 * half])
    with pytest.raises(Refused, match="have gaps or overlaps"):
        forged.fill(replay, 0, one.member)


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory"), MemoryError("ours"), TypeError("ours"), AttributeError("ours")],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("where", [Learner, Memory, InlineCollector])
def test_a_resume_blames_no_file_for_a_full_memory_or_a_bug(
    stopped: Path, monkeypatch: pytest.MonkeyPatch, where: type, error: Exception
) -> None:
    def fail(self: Any, *_: Any) -> None:
        raise error

    monkeypatch.setattr(where, "restore", fail)
    with pytest.raises(type(error), match=r"CUDA out of memory|ours"):
        list(t3d.resume(stopped))


# A full disk


def disk_has(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    usage = shutil.disk_usage("/")._replace(free=free)
    monkeypatch.setattr("t3d.store.checkpoint.shutil.disk_usage", lambda path: usage)


@pytest.mark.parametrize("ending", ["finished", "stopped", "failed"])
def test_only_the_last_save_may_use_what_must_stay_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    disk_has(monkeypatch, 2**20)
    stop, crash = threading.Event(), threading.Event()
    step: Any = PendulumEnv.step

    def step_or_crash(self: PendulumEnv, action: Any) -> Any:
        if crash.is_set():
            raise RuntimeError("the simulator has crashed")
        return step(self, action)

    monkeypatch.setattr(PendulumEnv, "step", step_or_crash)
    seen: list[Event] = []
    with contextlib.suppress(EnvironmentFailed):
        for event in t3d.train(small(tmp_path, "run"), stop=stop):
            seen.append(event)
            if event.step >= 200:
                {"stopped": stop, "failed": crash}.get(ending, threading.Event()).set()
    failed = [event for event in seen if isinstance(event, SaveFailed)]
    assert failed and all("16.0 MiB must stay free" in event.text and "has 1.0 MiB" in event.text for event in failed)
    end = last_event(tmp_path / "run")
    assert (end["reason"], end["saved"]) == (ending, True)
    checkpoint, notes = newest(tmp_path / "run" / "checkpoints")
    assert checkpoint is not None and (checkpoint.step, notes) == (end["step"], [])


def test_a_last_save_that_does_not_fit_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk_has(monkeypatch, 2**10)
    *_, end = t3d.train(small(tmp_path, "run"))
    assert isinstance(end, End) and not end.saved
    assert re.search(r"it needs 0\.\d MiB, and the disk has 0\.0 MiB", end.text)


def test_a_run_that_could_never_be_saved_does_not_end_as_if_all_were_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*arguments: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("t3d.run.saver.save", full)
    monkeypatch.chdir(tmp_path)
    flags = "--total-steps 60 --random-steps 20 --td3.batch-size 8 --eval.episodes 1 --no-video --run.name run"
    assert main(["train", "Pendulum-v1", *flags.split()]) == 1
    said = capsys.readouterr()
    assert "t3d resume" not in said.out and "could not be saved" in said.out + said.err


# Evaluations


def test_all_seeds_and_runs_are_evaluated_on_the_same_starts(tmp_path: Path) -> None:
    one = _first_observations(small(tmp_path, "one", seeds=[1, 2]))
    other = _first_observations(small(tmp_path, "other", seeds=[3]))
    assert len(one) == 2 and one[0] == one[1] == other[0]
    changed = _first_observations(small(tmp_path, "changed", seeds=[3], eval={"seed": 1}))
    assert changed[0] != one[0]


def _first_observations(cfg: Config) -> list[bytes]:
    evaluator = InlineEvaluator(cfg, env_factory(cfg.env), Requests(threading.Event(), threading.Event()))
    return [
        b"".join(np.asarray(one.env_batches[0].reset(0, seed, 0)).tobytes() for seed in one.seeds[0])
        for one in evaluator.member_evaluators
    ]
