"""The doctor in a process of its own: an environment that crashes or hangs takes no run with it."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import actor_worlds
from actor_helpers import actor_config, of_kind
from t3d.errors import StoppedEarly, UserError
from t3d.events import End, Note
from t3d.policy.spec import Spec
from t3d.run.live import resume, train
from t3d.world.doctor import examine
from t3d.world.spec import layout_of


@pytest.mark.parametrize(
    ("place", "fault", "words"),
    [
        ("make", "segfault", r"at making the environment, ended by SIGSEGV; nothing was started$"),
        ("reset", "sleep", r"at reset of episode 0, no sign of life for 1\.\d s; .*; nothing was started$"),
        ("step", "hard exit", r"at step 3 of episode 0, ended with exit code 3; nothing was started$"),
        ("step", "exception", r"the simulator has lost its mind"),
    ],
)
def test_what_an_environment_did_before_training_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, fault: str, words: str
) -> None:
    monkeypatch.setenv("FAULT_PLACE", place)
    monkeypatch.setenv("FAULT", fault)
    with pytest.raises(UserError, match=words):
        list(train(actor_config(tmp_path, "FailsItsCheck", env={"hang_seconds": 1.0})))
    assert list(tmp_path.iterdir()) == []


def test_a_stop_is_heard_while_an_environment_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT_PLACE", "reset")
    monkeypatch.setenv("FAULT", "sleep")
    stop, begun = threading.Event(), time.monotonic()
    threading.Timer(1.5, stop.set).start()
    with pytest.raises(StoppedEarly, match="nothing was started"):
        list(train(actor_config(tmp_path, "FailsItsCheck"), stop=stop))
    assert time.monotonic() - begun < 20 and list(tmp_path.iterdir()) == []


def test_no_environment_is_made_in_the_learner_s_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither at the start nor when a run goes on; the doctor's warnings come all the same, once."""
    seen, stop = tmp_path / "seen", threading.Event()
    monkeypatch.setenv("SEEN_FILE", str(seen))
    cfg = actor_config(tmp_path, "SaysWhere", seeds=[0], actors="local:1", log={"every_steps": 20})
    begun = []
    for event in train(cfg, stop=stop):
        begun.append(event)
        if event.step >= 150:
            stop.set()
    ended = list(resume(tmp_path / "a"))
    assert of_kind(begun, End)[0].reason == "stopped" and of_kind(ended, End)[0].reason == "finished"
    assert len(seen.read_text().split()) >= 5 and str(os.getpid()) not in seen.read_text().split()
    warnings = [text.replace("Told", "SaysWhere") for text in examine(actor_worlds.Told)]
    notes = [[event.text for event in of_kind(events, Note)] for events in (begun, ended)]
    assert warnings and all(notes[0].count(text) == 1 and text not in notes[1] for text in warnings)


def test_an_environment_that_td3_cannot_learn_is_refused_as_in_one_process(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"CartPole-v1 has a Discrete.* action space; TD3 needs a continuous"):
        list(train(actor_config(tmp_path, env={"id": "CartPole-v1"})))


def test_a_spec_survives_its_way_through_json() -> None:
    box, discrete = gym.spaces.Box(-1, 1, (2, 3), np.float32), gym.spaces.Discrete(4, start=-1)
    space = gym.spaces.Dict({"arm": box, "rest": gym.spaces.Tuple([discrete, gym.spaces.MultiBinary(2)])})
    space["eye"] = gym.spaces.Box(0, 255, (3, 40, 50), np.uint8)
    parts, images = layout_of(space)
    spec = Spec(parts, (2, 1), np.array([-0.1, -1e9]), np.array([1 / 3, 2.0]), "float64", images, 3, 0.25)
    back = Spec.from_dict(json.loads(json.dumps(spec.to_dict())))
    assert (back.observation, back.action_shape, back.action_dtype) == (spec.observation, (2, 1), "float64")
    assert len(back.images) == 1 and (back.images, back.stack, back.max_action_change) == (images, 3, 0.25)
    assert np.array_equal(back.action_low, spec.action_low) and np.array_equal(back.action_high, spec.action_high)
