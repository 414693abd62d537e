"""Sinks: other tools' own readers find what events.jsonl holds, each step once, whatever happened to the run."""

from __future__ import annotations

import errno
import fcntl
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import faults
import helpers
import t3d
from run_folders import end_of, run, weights
from t3d.app.cli import main
from t3d.app.sinks import SHOWN_BY
from t3d.config.settings import SINKS
from t3d.events import Eval, Note, Saved, to_line
from t3d.files import open_log
from t3d.run import background
from t3d.run.background import Child
from t3d.sinks.process import LOCK, follow
from t3d.sinks.tensorboard import TensorBoard
from wandb_files import records, rows

pytestmark = pytest.mark.system

SECONDS = 60.0  # until the processes beside a run have done what they should
Curve = list[tuple[int, float]]
SMALL: dict[str, Any] = {
    "seeds": [3, 0],
    "log": {"every_steps": 20, "diagnose_every_steps": 100},
    "sinks": ["tensorboard", "wandb"],
}


def of_log(path: Path, member: int) -> dict[str, Curve]:
    """Curves under the names that they should have, from the log alone."""
    lines = [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]
    mine = [one for one in lines if one["member"] == member]
    told: dict[str, Curve] = {}
    for name, event, field in [
        ("eval/mean_reward", "eval", "mean_return"),
        ("eval/mean_ep_length", "eval", "mean_length"),
        ("train/critic_loss", "update", "critic_loss"),
        ("train/actor_loss", "update", "actor_loss"),
        ("train/n_updates", "update", "updates"),
        ("time/fps", "update", "steps_per_second"),
        ("time/total_timesteps", "update", "step"),
        ("train/q_mean", "update", "q_mean"),
        ("diagnostics/saturated", "diagnostics", "saturated"),
    ]:
        told[name] = [(one["step"], one[field]) for one in mine if one["event"] == event]
    ended = [one for one in mine if one["event"] == "episode"]
    for name, field in [("rollout/ep_rew_mean", "total_reward"), ("rollout/ep_len_mean", "length")]:
        means = {
            one["step"]: np.mean([two[field] for two in ended[: place + 1][-100:]]) for place, one in enumerate(ended)
        }
        told[name] = [(step, float(mean)) for step, mean in means.items()]
    return told


def of_tensorboard(folder: Path) -> dict[str, Curve]:
    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    reader.Reload()
    return {tag: [(one.step, one.value) for one in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def of_wandb(path: Path, seed: int) -> dict[str, Curve]:
    (mine,) = [found for name, found in rows(path / "wandb").items() if name.endswith(f"-seed-{seed}")]
    names = {name for row in mine for name in row}
    return {name: [(row["global_step"], row[name]) for row in mine if name in row] for name in names}


def same(told: dict[str, Curve], wanted: dict[str, Curve]) -> bool:
    """Whether the curves are those that are wanted, each step once, in single precision."""
    return all(
        [step for step, _ in told.get(name, [])] == [step for step, _ in curve]
        and np.allclose([value for _, value in told[name]], [value for _, value in curve], rtol=1e-6)
        for name, curve in wanted.items()
        if curve
    )


def until(is_true: Callable[[], bool]) -> bool:
    end = time.monotonic() + SECONDS
    while not (found := is_true()) and time.monotonic() < end:
        time.sleep(0.1)
    return found


def all_told(path: Path) -> bool:
    """Whether both tools' readers find what the log holds."""
    wait_for_writer(path)
    for member, seed in enumerate(SMALL["seeds"]):
        wanted = of_log(path, member)
        assert all(len(curve) > 1 for curve in wanted.values()), wanted
        if not same(of_tensorboard(path / "tensorboard" / f"seed-{seed}"), wanted):
            return False
    return wandb_told(path)


def wandb_told(path: Path) -> bool:
    """Whether W&B's files hold what the log holds; its own process may still be writing when a run is finished."""
    return until(
        lambda: all(same(of_wandb(path, seed), of_log(path, member)) for member, seed in enumerate(SMALL["seeds"]))
    )


def wait_for_writer(path: Path) -> None:
    with open_log(path / LOCK) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


def test_their_own_readers_find_what_the_log_holds(tmp_path: Path) -> None:
    events = run(helpers.small_config(total_steps=800, run={"name": "a"}, **SMALL), tmp_path)
    assert end_of(events).reason == "finished"
    assert all_told(tmp_path / "a")


def test_a_run_is_the_same_with_and_without_sinks_to_the_last_bit(tmp_path: Path) -> None:
    cfg = helpers.small_config()
    without, with_them = run(cfg, tmp_path), run(helpers.small_config(sinks=["tensorboard"]), tmp_path)
    assert np.array_equal(weights(without), weights(with_them))


@pytest.mark.parametrize("whom", [pytest.param("the training", marks=pytest.mark.slow), "everything"])
def test_a_killed_and_resumed_run_has_each_step_once(tmp_path: Path, whom: str) -> None:
    path = tmp_path / "a"
    flags = ["--seeds", "3", "0", "--total-steps", "1000000", "--random-steps", "100", "--threads", "1", "--no-video"]
    flags += ["--td3.actor-hidden", "16", "16", "--td3.critic-hidden", "16", "16", "--td3.batch-size", "16"]
    flags += ["--log.every-steps", "20", "--log.diagnose-every-steps", "100", "--eval.every-steps", "200"]
    flags += ["--eval.episodes", "1", "--checkpoint.every-steps", "700", "--sinks", "tensorboard", "wandb"]
    command = [
        sys.executable,
        "-m",
        "t3d",
        "train",
        "Pendulum-v1",
        *flags,
        "--run.root",
        str(tmp_path),
        "--run.name",
        "a",
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        assert until(lambda: last_step(path) > 1000 and (path / "wandb").exists())
        ids = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
        process.wait()
        for child in ids if whom == "everything" else []:
            child.kill()
    before = last_step(path)
    stop = threading.Event()
    for event in t3d.resume(path, stop=stop):
        if event.step > before + 300:
            stop.set()
        if isinstance(event, Saved):
            assert event.step > 700
    wait_for_writer(path)
    assert until(lambda: all_told(path))
    assert len(rows(path / "wandb")) == 2, "one for each seed"
    assert [file.name for file in (path / "tensorboard").rglob("*") if "unfinished" in file.name] == []


def last_step(path: Path) -> int:
    try:
        return int(json.loads((path / "events.jsonl").read_text().splitlines()[-1])["step"])
    except (OSError, ValueError, IndexError):
        return 0


def test_ids_of_wandb_stay_when_a_run_is_resumed(tmp_path: Path) -> None:
    run(helpers.small_config(run={"name": "a"}, sinks=["wandb"]), tmp_path)
    path = tmp_path / "a"
    assert until(lambda: len(rows(path / "wandb")) == 1)
    before = [*rows(path / "wandb")]
    list(t3d.resume(path, total_steps=500))
    wait_for_writer(path)
    assert [*rows(path / "wandb")] == before


def test_a_run_that_starts_over_has_its_files_once_under_the_same_ids(tmp_path: Path) -> None:
    """As after a kill before the first checkpoint: its log has a new first event."""
    cfg, path = helpers.small_config(total_steps=800, run={"root": str(tmp_path), "name": "a"}, **SMALL), tmp_path / "a"
    list(t3d.train(cfg))
    assert all_told(path)
    ids = {*rows(path / "wandb")}
    shutil.rmtree(path / "checkpoints")
    (path / "videos").mkdir()
    (path / "videos" / "seed-0-step-0.mp4").touch()
    assert end_of(list(t3d.resume(path, cfg=cfg))).reason == "finished"
    assert all_told(path)
    assert {*rows(path / "wandb")} == ids and len(ids) == 2
    assert not (path / "videos").exists()
    moved = {one.name for one in (path / "before-1").iterdir()}
    assert {"events.jsonl", "wandb", "tensorboard", "videos"} <= moved


def test_every_sink_has_a_command_that_shows_it_and_a_class() -> None:
    assert {*SHOWN_BY} == {*SINKS}
    assert all(hasattr(importlib.import_module(f"t3d.sinks.{name}"), "SINK") for name in SINKS)


def test_a_run_is_named_after_its_folder_also_from_inside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(helpers.small_config(run={"name": "a"}), tmp_path)
    monkeypatch.chdir(tmp_path / "a")
    assert main(["sinks", ".", "--to", "wandb"]) == 0
    (file,) = Path("wandb").glob("offline-run-*/*.wandb")
    assert until(lambda: any(one.WhichOneof("record_type") == "run" for one in records(file)))
    (about,) = [one.run for one in records(file) if one.WhichOneof("record_type") == "run"]
    assert (about.run_group, about.display_name) == ("a", "a seed-0")


def test_a_sink_that_cannot_write_is_told_once_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "LOOK_SECONDS", 0.0)
    stop, notes, folder = threading.Event(), list[str](), tmp_path / "a"
    cfg = helpers.small_config(total_steps=10**6, run={"root": str(tmp_path), "name": "a"}, sinks=["tensorboard"])
    until_told = time.monotonic() + SECONDS
    for event in t3d.train(cfg, stop=stop):
        if event.step == 0:
            (folder / "tensorboard").touch()  # where the folder should be
        if isinstance(event, Note):
            notes.append(event.text)
        if notes or time.monotonic() > until_told:
            stop.set()
    assert end_of([event]).reason == "stopped"
    assert len(notes) == 1 and notes[0].startswith("tensorboard gets nothing more: "), notes


def test_a_full_disk_ends_one_sink_and_not_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(helpers.small_config(total_steps=800, run={"name": "a"}, **{**SMALL, "sinks": []}), tmp_path)
    path, over, told = tmp_path / "a", threading.Event(), list[str]()
    over.set()

    def full(self: TensorBoard, points: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(TensorBoard, "write", full)
        follow(path, ["tensorboard", "wandb"], over, told.append)
    assert told == [
        "tensorboard gets nothing more: No space left on device; t3d sinks RUN --to tensorboard writes all of it again"
    ]
    assert until(lambda: same(of_wandb(path, 3), of_log(path, 0)))
    follow(path, ["tensorboard"], over, told.append)
    assert all_told(path) and len(told) == 1


def test_the_files_of_wandb_stay_until_others_can_take_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(helpers.small_config(total_steps=800, run={"name": "a"}, **{**SMALL, "sinks": []}), tmp_path)
    path, over, told = tmp_path / "a", threading.Event(), list[str]()
    over.set()
    follow(path, ["wandb"], over, told.append)
    before = {file: file.read_bytes() for file in (path / "wandb").glob("offline-run-*/*.wandb")}
    assert len(before) == 2 and not told

    def fails(**_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr("wandb.init", fails)
        follow(path, ["wandb"], over, told.append)
    assert len(told) == 1 and told[0].startswith("wandb gets nothing more: No space left on device")
    assert before == {file: file.read_bytes() for file in before}
    follow(path, ["wandb"], over, told.append)
    assert not any(file.exists() for file in before) and len(told) == 1
    assert wandb_told(path)


def test_sinks_that_are_added_when_a_run_is_resumed_have_all_of_it(tmp_path: Path) -> None:
    stop, path = threading.Event(), tmp_path / "a"
    cfg = helpers.small_config(total_steps=800, run={"root": str(tmp_path), "name": "a"}, **{**SMALL, "sinks": []})
    for event in t3d.train(cfg, stop=stop):
        if event.step > 450:
            stop.set()
    text = (path / "config.toml").read_text()
    (path / "config.toml").write_text(text.replace("sinks = []", 'sinks = ["tensorboard", "wandb"]'))
    assert end_of(list(t3d.resume(path))).reason == "finished"
    assert all_told(path)


def test_a_sink_that_is_not_installed_is_told_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    events = run(helpers.small_config(sinks=["wandb"]), tmp_path)
    notes = [event.text for event in events if isinstance(event, Note)]
    assert 'wandb is not installed and gets nothing: pip install "t3d[wandb]", then t3d sinks RUN --to wandb' in notes
    assert end_of(events).reason == "finished"


def test_a_writer_that_is_killed_is_told_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "LOOK_SECONDS", 0.0)
    stop, notes, until_told = threading.Event(), list[str](), time.monotonic() + SECONDS
    cfg = helpers.small_config(total_steps=10**6, run={"root": str(tmp_path)}, sinks=["tensorboard"])
    for event in t3d.train(cfg, stop=stop):
        for child in psutil.Process().children():
            if child.status() != psutil.STATUS_ZOMBIE and "t3d.sinks.process" in child.cmdline():
                os.kill(child.pid, signal.SIGKILL)
        notes += [event.text] if isinstance(event, Note) else []
        if notes or time.monotonic() > until_told:
            stop.set()
    assert notes == ["the process that writes for other tools has failed: it ended with code -9"]


SINKS_OF = {"alive": True, "killed": False, "missing": False}


@pytest.mark.parametrize("fate", SINKS_OF)
def test_only_what_was_written_is_advertised_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fate: str
) -> None:
    if fate == "missing":
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    def begin(*arguments: Any, **keywords: Any) -> Child:
        child = Child(*arguments, **keywords)
        if fate == "killed":
            child.kill()
        return child

    monkeypatch.setattr(background, "Child", begin)
    small = "--td3.actor-hidden 16 --td3.critic-hidden 16 --td3.batch-size 16 --random-steps 100 --eval.episodes 1"
    flags = f"--total-steps 300 {small} --no-video --sinks tensorboard --run.name a --run.root {tmp_path}"
    assert main(["train", "Pendulum-v1", *flags.split()]) == 0
    output = capsys.readouterr().out
    assert "Next, try:" in output and ("tensorboard --logdir" in output) == SINKS_OF[fate], output


WANDB_ON_A_FULL_DISK = """
import contextlib, json, os, subprocess, sys
from pathlib import Path
disk = Path({disk!r})
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "none", str(disk)], check=True)
subprocess.run(["cp", "-r", {run!r}, str(disk / "run")], check=True)
with contextlib.suppress(OSError), (disk / "ballast").open("wb", buffering=0) as file:
    while file.write(bytes(4096)) == 4096: pass
os.truncate(disk / "ballast", (disk / "ballast").stat().st_size - {free})
from t3d.app.cli import main
sys.exit(main(["sinks", str(disk / "run"), "--to", "wandb"]))
"""


@faults.in_a_mount
@pytest.mark.parametrize("free", [0, 100_000], ids=["full from the start", "full in the middle"])
def test_a_full_disk_is_one_sentence_about_wandb(tmp_path: Path, free: int) -> None:
    events = run(helpers.small_config(run={"name": "a"}), tmp_path)
    evaluation = next(to_line(event) for event in events if isinstance(event, Eval))
    with (tmp_path / "a" / "events.jsonl").open("a") as log:
        log.writelines(f"{evaluation}\n" for _ in range(3000))
    (tmp_path / "disk").mkdir()
    script = WANDB_ON_A_FULL_DISK.format(disk=str(tmp_path / "disk"), run=str(tmp_path / "a"), free=free)
    alone = {name: value for name, value in os.environ.items() if "WANDB" not in name}  # W&B's process sees no mount
    command = ["unshare", "-rm", sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=alone)
    told = "wandb gets nothing more: No space left on device; t3d sinks RUN --to wandb writes all of it again"
    assert (done.returncode, done.stderr.strip(), done.stdout) == (2, f"error: {told}", "")


def test_a_finished_run_is_written_by_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = {**SMALL, "sinks": []}
    run(helpers.small_config(total_steps=800, run={"name": "a"}, **plain), tmp_path)
    path = tmp_path / "a"
    for _ in range(2):  # the second time it is written again, not added to
        assert main(["sinks", str(path), "--to", "tensorboard", "wandb"]) == 0
        assert all_told(path)
    assert "tensorboard --logdir" in capsys.readouterr().out


def test_the_command_refuses_a_run_that_is_being_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(helpers.small_config(run={"name": "a"}), tmp_path)
    with open_log(tmp_path / "a" / LOCK) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(["sinks", str(tmp_path / "a")]) == 2
    assert "is being written by its own training" in capsys.readouterr().err


def test_links_are_not_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(helpers.small_config(run={"name": "a"}), tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "precious").touch()
    for tool in ("tensorboard", "wandb"):
        (tmp_path / "a" / tool).symlink_to(tmp_path / "elsewhere")
        assert main(["sinks", str(tmp_path / "a"), "--to", tool]) == 2
        assert "is a link" in capsys.readouterr().err
    assert [one.name for one in (tmp_path / "elsewhere").iterdir()] == ["precious"]
