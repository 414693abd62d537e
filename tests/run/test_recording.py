"""--record-every: videos of evaluations, which never hold up or end a training."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import helpers
import t3d
from run_folders import end_of, run, weights
from t3d.config import Config
from t3d.events import End, Note
from t3d.insight.video import record_all
from t3d.run import background
from t3d.run.background import BackgroundJobs, Recorder
from t3d.store.details import videos_of

imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg", reason="videos need imageio-ffmpeg")
SECONDS = 120.0
WORLD = """
import gymnasium as gym, numpy as np, os, signal, time

class World(gym.Env):
    observation_space = action_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    metadata = {{"render_modes": ["rgb_array"], "render_fps": 30}}
    def __init__(self, render_mode=None):
        self.render_mode = render_mode
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._seen(), {{}}
    def step(self, action):
        self.t += 1
        return self._seen(), float(-abs(action).sum()), False, self.t == 20, {{}}
    def _seen(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)
    def render(self):
        {render}
        return np.full((64, 64, 3), self.t, np.uint8)

class Blind(World):
    def __init__(self):
        self.render_mode = None
"""


def world(tmp_path: Path, render: str = "pass", name: str = "World") -> str:
    file = tmp_path / f"world_{abs(hash(tmp_path))}.py"  # a module of its own for each test
    file.write_text(WORLD.format(render=render))
    return f"{file}:{name}"


def config(tmp_path: Path, env: str, **changes: Any) -> Config:
    about = {
        "env": {"id": env},
        "eval": {"every_steps": 100, "episodes": 1},
        "run": {"root": str(tmp_path), "name": "a"},
    }
    return helpers.small_config(**{"record_every": 1, **about, **changes})


def train_until(cfg: Config, is_enough: Callable[[list[str]], bool]) -> tuple[list[str], End]:
    """Trains until its notes, or what is there by then, are enough; returns them and how it ended."""
    stop, notes, end = threading.Event(), list[str](), time.monotonic() + SECONDS
    for event in t3d.train(cfg, stop=stop):
        time.sleep(0.01)  # leaves the processor to the recording, which gives way to everybody
        notes += [event.text] if isinstance(event, Note) else []
        if is_enough(notes) or time.monotonic() > end:
            stop.set()
    return notes, end_of([event])


@pytest.mark.system
def test_evaluations_are_recorded_while_it_trains(tmp_path: Path) -> None:
    cfg = config(tmp_path, world(tmp_path), seeds=[4, 7], total_steps=10**6)
    _, end = train_until(cfg, lambda _: len(videos_of(tmp_path / "a")) >= 4)
    assert end.reason == "stopped"
    found = videos_of(tmp_path / "a")
    assert [(one["file"], one["step"]) for one in found[:2]] == [
        ("videos/seed-4-step-0.mp4", 0),
        ("videos/seed-7-step-0.mp4", 0),
    ]
    assert found[2]["step"] > 0 and found[2]["step"] % 100 == 0
    frames, _ = imageio_ffmpeg.count_frames_and_secs(str(tmp_path / "a" / found[2]["file"]))
    assert frames == 300 + 15, "300 steps in episodes of 20, each with the frame before its first step"
    assert not [one for one in (tmp_path / "a" / "videos").iterdir() if one.name.startswith(".policies")]


@pytest.mark.system
def test_the_last_recording_is_finished_when_the_run_is(tmp_path: Path) -> None:
    events = run(config(tmp_path, world(tmp_path), record_every=1000), tmp_path)
    assert end_of(events).reason == "finished"
    assert [one["step"] for one in videos_of(tmp_path / "a")] == [0]


def test_a_run_is_the_same_with_and_without_videos_to_the_last_bit(tmp_path: Path) -> None:
    env = world(tmp_path)
    first = run(config(tmp_path, env, run={"name": "with"}), tmp_path)
    second = run(config(tmp_path, env, run={"name": "without"}, record_every=0), tmp_path)
    assert np.array_equal(weights(first), weights(second))
    assert not (tmp_path / "without" / "videos").exists()


@pytest.mark.system
@pytest.mark.parametrize(
    ("render", "name", "words"),
    [
        ("pass", "Blind", "cannot be recorded"),
        ("raise OSError('no screen')", "World", "the environment cannot be rendered here: no screen"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "World", "it ended with code -11"),
    ],
)
def test_what_cannot_be_recorded_is_said_once_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, render: str, name: str, words: str
) -> None:
    monkeypatch.setattr(background, "LOOK_SECONDS", 0.0)
    cfg = config(tmp_path, world(tmp_path, render, name), total_steps=10**6)
    notes, end = train_until(cfg, lambda notes: any(words in text for text in notes) and len(notes) > 1)
    told = [text for text in notes if text.startswith("no video of step 0: ") and words in text]
    assert len(told) == 1 and end.reason == "stopped", notes


def test_a_stop_does_not_wait_for_a_recording(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cfg = config(tmp_path, world(tmp_path, "self.t > 3 and time.sleep(100)"), total_steps=10**6)
    here, stop = psutil.Process(), threading.Event()
    started = time.monotonic()
    for _ in t3d.train(cfg, stop=stop):
        if [*(tmp_path / "a").glob("videos/.unfinished-*")] and not stop.is_set():
            (recorder,) = [one for one in here.children() if "t3d.insight.video" in one.cmdline()]
            stop.set()
            started = time.monotonic()
    assert time.monotonic() - started < 30
    assert not recorder.is_running()
    assert [*(tmp_path / "a" / "videos").iterdir()] == []
    assert caplog.messages[-1] == "no video of step 0: the run was over before it was recorded"


def test_processes_that_do_not_end_are_waited_for_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R7: after a request to stop, HURRY for all of them; also if it comes while a finished run waits for them."""
    monkeypatch.setattr(background, "HURRY", 2.0)
    stubborn = tmp_path / "python"
    stubborn.write_text("#!/bin/sh\ntrap '' TERM\nsleep 30\n")
    stubborn.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stubborn))
    cfg, here = helpers.small_config(sinks=["tensorboard"], record_every=1, env={"id": "Pendulum-v1"}), psutil.Process()
    (tmp_path / "last").mkdir()
    for before in (True, False):
        stop = threading.Event()
        started = time.monotonic()
        with BackgroundJobs(cfg, tmp_path, stop) as processes:
            processes.recorder.begin(0)
            sink, recorder = here.children()
            threading.Timer(0 if before else 0.5, stop.set).start()
            assert stop.wait(0.2) == before
        assert time.monotonic() - started < 15
        assert not recorder.is_running() and sink.is_running(), "the sinks' process writes what is left, and then ends"
        os.killpg(sink.pid, signal.SIGKILL)
        sink.wait()


def test_leaving_early_does_not_wait_for_a_recording(tmp_path: Path) -> None:
    cfg = config(tmp_path, world(tmp_path, "self.t > 3 and time.sleep(100)"), total_steps=10**6)
    training = t3d.train(cfg)
    while next(training).step < 300:
        pass
    started = time.monotonic()
    training.close()
    assert time.monotonic() - started < 30


def test_a_policy_of_another_step_is_not_recorded_under_this_one(tmp_path: Path) -> None:
    run(config(tmp_path, world(tmp_path), record_every=0), tmp_path)
    videos = tmp_path / "a" / "videos"
    (videos / ".policies").mkdir(parents=True)
    shutil.copy(tmp_path / "a" / "last" / "seed-0.safetensors", videos / ".policies")
    record_all(tmp_path / "a", 200)  # as when a seed has diverged since its policy was written
    assert videos_of(tmp_path / "a") == []
    record_all(tmp_path / "a", 300)
    assert [one["file"] for one in videos_of(tmp_path / "a")] == ["videos/seed-0-step-300.mp4"]


class Fake:
    """Stands for a recording."""

    made: list[Fake]

    def __init__(self, _: str, task: dict[str, Any]) -> None:
        self.step: int = task["step"]
        self.code: int | None = None
        Fake.made.append(self)

    @staticmethod
    def steps() -> list[int]:
        return [one.step for one in Fake.made]

    def lines(self) -> list[str]:
        return []

    def close(self) -> None: ...


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    Fake.made = []
    monkeypatch.setattr(background, "Child", Fake)
    return Recorder(config(tmp_path, "Pendulum-v1", record_every=3), tmp_path)


def test_every_third_evaluation_is_recorded_also_after_a_resume(recorder: Recorder) -> None:
    for step in (0, 100, 203, 301, 404, 500, 600, 900):  # several environments overshoot a little
        recorder.begin(step)
        Fake.made[-1].code = 0
    assert Fake.steps() == [0, 301, 600, 900]
    assert recorder.news() == []


def test_one_that_is_due_too_early_is_skipped_and_said(recorder: Recorder) -> None:
    for step in (0, 300, 600):
        recorder.begin(step)
    assert Fake.steps() == [0]
    (text,) = recorder.news()
    assert text.startswith("no video of step 300: an earlier one is still being recorded")
    Fake.made[-1].code = 0
    recorder.begin(900)
    assert Fake.steps() == [0, 900]


def test_two_reasons_without_a_colon_are_both_said(recorder: Recorder) -> None:
    for text in ("no videos", "no room", "no room"):
        recorder.say(text)
    assert recorder.news() == ["no videos", "no room"]


def test_an_environment_made_in_python_is_said_to_have_no_videos(tmp_path: Path) -> None:
    cfg = helpers.small_config(record_every=1, env={"id": "", "name": "mine"})
    events = run(cfg, tmp_path, make_env=lambda **keywords: _pendulum(**keywords))  # noqa: PLW0108 (another program cannot make it)
    notes = [event.text for event in events if isinstance(event, Note)]
    assert [text for text in notes if text.startswith("no videos are recorded: ")], notes


def _pendulum(**keywords: Any) -> Any:
    import gymnasium as gym  # noqa: PLC0415

    return gym.make("Pendulum-v1", **keywords)
