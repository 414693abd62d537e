"""Environments made in Python: stored as id and arguments where that is possible, named and compared everywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import drones
import helpers
import t3d
from drones import Drone, make_drone
from run_folders import plotted
from t3d.app.cli import main
from t3d.config import EnvConfig, load_config
from t3d.errors import UserError
from t3d.events import End, Note, Start
from t3d.insight.comparison import compare
from t3d.insight.groups import pooled, read_groups
from t3d.store.reader import open_run
from t3d.store.summary import read_summary
from t3d.world.factory import reference
from t3d.world.make import env_factory


def config(root: Path, name: str, **changes: Any) -> Any:
    return helpers.small_config(
        **{"env": {"id": ""}, "threads": 1, "run": {"root": str(root), "name": name}, **changes}
    )


STORED = [
    (Drone, "drones:Drone", {}),
    (make_drone, "drones:make_drone", {}),
    (partial(Drone, wind=1.5), "drones:Drone", {"wind": 1.5}),
    (
        partial(Drone, 1.5, gains=[1, 2.0], goal="door"),
        "drones:Drone",
        {"wind": 1.5, "gains": [1, 2.0], "goal": "door"},
    ),
    (partial(partial(Drone, 1.5), gains={"p": [True]}), "drones:Drone", {"wind": 1.5, "gains": {"p": [True]}}),
    (partial(make_drone, wind=2), "drones:make_drone", {"wind": 2}),
    (partial(gym.make, "Pendulum-v1", g=5.0), "Pendulum-v1", {"g": 5.0}),
    (env_factory(EnvConfig("drones:Drone", {"wind": 1})), "drones:Drone", {"wind": 1}),
]


@pytest.mark.parametrize(("make_env", "env_id", "args"), STORED)
def test_what_another_process_can_make_is_an_id_and_arguments(make_env: Any, env_id: str, args: Any) -> None:
    assert reference(make_env) == (env_id, args)
    mine, theirs = make_env().unwrapped, env_factory(EnvConfig(*reference(make_env)))().unwrapped
    assert type(mine) is type(theirs)
    assert all(getattr(mine, key) == getattr(theirs, key) == value for key, value in args.items())


@pytest.mark.parametrize(("made", "says"), [("MountainCarContinuous-v0", 1), ("Pendulum-v1", 0)])
def test_a_run_says_if_make_env_makes_another_environment_than_env_id_names(
    tmp_path: Path, made: str, says: int
) -> None:
    cfg = config(tmp_path, "a", env={"id": "Pendulum-v1"}, total_steps=200)
    notes = [event.text for event in t3d.train(cfg, make_env=lambda: gym.make(made)) if isinstance(event, Note)]
    assert [text.startswith(f"env.id is Pendulum-v1, and make_env makes {made}: ") for text in notes].count(
        True
    ) == says


class Closed:
    def __call__(self) -> Any:
        return Drone()


NOT_STORED: dict[str, tuple[Any, str]] = {
    "a lambda": (lambda: Drone(), "cannot import make_env=.*<lambda>"),  # noqa: PLW0108
    "an object": (Closed(), "cannot import make_env="),
    "a method": (Drone().observe, "cannot import make_env=Drone.observe"),
    "a partial of a lambda": (partial(lambda wind: Drone(wind), 1.0), "cannot import make_env="),  # noqa: PLW0108
    "a tuple": (
        partial(Drone, gains=(1, 2)),
        r"cannot be given gains=\(1, 2\) of make_env=Drone; use strings, numbers",
    ),
    "an array": (partial(Drone, gains=np.ones(2)), "cannot be given gains=array"),
    "an object inside": (partial(Drone, gains=[{"a": object()}]), "cannot be given gains="),
    "infinity": (partial(Drone, wind=float("inf")), "cannot be given wind=inf"),
    "too many": (
        partial(Drone, 1, 2, "door", None, 5),  # type: ignore[call-arg]
        "cannot be given the arguments .*; give them by name",
    ),
    "of C": (partial(int, "3"), "give them by name|cannot import"),
}


@pytest.mark.parametrize("what", NOT_STORED)
def test_what_no_other_process_can_make_is_a_sentence_for_actors(what: str, tmp_path: Path) -> None:
    make_env, words = NOT_STORED[what]
    with pytest.raises(UserError, match=words) as caught:
        reference(make_env)
    assert "\n" not in str(caught.value) and "train with actors=inline" in str(caught.value)
    with pytest.raises(UserError, match=words):
        next(t3d.train(config(tmp_path, "a", actors="local:1"), make_env=make_env))
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_stored_is_trained_on_all_the_same(tmp_path: Path) -> None:
    events = list(t3d.train(config(tmp_path, "a"), make_env=partial(Drone, gains=(1, 2))))
    assert events[-1].event == "end"
    env = load_config(tmp_path / "a/config.toml").env
    assert (env.id, env.args, env.title) == ("", {}, "drones:Drone")
    with pytest.raises(UserError, match="was started in Python; resume it there"):
        next(t3d.resume(tmp_path / "a", total_steps=400))


def test_a_partial_trains_with_actors_and_is_played_and_resumed_by_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = list(t3d.train(config(tmp_path, "a", actors="local:1"), make_env=partial(Drone, wind=1.5)))
    assert isinstance(events[0], Start) and isinstance(events[-1], End) and events[-1].reason == "finished"
    env = load_config(tmp_path / "a/config.toml").env
    assert (env.id, env.args) == ("drones:Drone", {"wind": 1.5})
    inline = next(t3d.train(config(tmp_path, "b"), make_env=lambda: Drone(wind=1.5)))
    assert isinstance(inline, Start) and inline.environment["episode"] == events[0].environment["episode"]
    assert main(["eval", str(tmp_path / "a"), "--episodes", "2", "--json"]) == 0
    evaluated = json.loads(capsys.readouterr().out)
    assert evaluated["notes"] == [] and evaluated["env"] == "drones:Drone(wind=1.5)"
    assert list(t3d.resume(tmp_path / "a", total_steps=350))[-1].step == 350, "without make_env"
    policy = t3d.load_policy(tmp_path / "a" / "best" / "seed-0")
    assert policy.about["env"] == "drones:Drone" and policy.about["env_args"] == {"wind": 1.5}


def test_an_id_that_is_given_beside_a_lambda_stays(tmp_path: Path) -> None:
    given = config(tmp_path, "a", env={"id": "drones:make_drone", "args": {"wind": 1}})
    next(t3d.train(given, make_env=lambda: Drone(wind=1.0)))
    env = load_config(tmp_path / "a/config.toml").env
    assert (env.id, env.args) == ("drones:make_drone", {"wind": 1})


def test_arguments_in_a_file_reach_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = "--total-steps 60 --random-steps 40 --td3.batch-size 4 --eval.episodes 1 --no-video --threads 1"
    words = [*small.split(), "--td3.actor-hidden", "4", "--td3.critic-hidden", "4", "--run.name"]
    for name, env_id, args in (
        ("own", "drones:Drone", 'wind = 1.5\ngoal = "window"'),
        ("registered", "Pendulum-v1", "g = 2.0"),
    ):
        (tmp_path / "mine.toml").write_text(f'[env]\nid = "{env_id}"\n[env.args]\n{args}\n')
        assert main(["train", "--config", "mine.toml", *words, name]) == 0
    start = json.loads((tmp_path / "runs/own/events.jsonl").read_text().splitlines()[0])
    assert start["config"]["env"]["args"] == start["environment"]["args"] == {"wind": 1.5, "goal": "window"}
    cfg = load_config(tmp_path / "runs/registered/config.toml").env
    assert cfg.args == {"g": 2.0} and env_factory(cfg)().unwrapped.g == 2.0
    assert main(["train", "--config", "runs/own/config.toml", *words, "again"]) == 0, "what a run wrote is read again"
    assert load_config(tmp_path / "runs/again/config.toml").env.args == {"wind": 1.5, "goal": "window"}


@pytest.mark.parametrize("env_id", ["drones:Drone", "Pendulum-v1", "dm:cartpole-swingup"])
def test_an_argument_that_it_does_not_take_is_one_sentence(env_id: str) -> None:
    if env_id.startswith("dm:"):
        pytest.importorskip("dm_control")
    with pytest.raises(UserError, match=f"{env_id} takes .*, and winds is none of them"):
        env_factory(EnvConfig(env_id, {"winds": 3}))()


def test_dm_control_tasks_take_arguments() -> None:
    pytest.importorskip("dm_control")
    env = env_factory(EnvConfig("dm:cartpole-swingup", {"time_limit": 0.5}))()
    assert env.env._step_limit == pytest.approx(0.5 / env.env.control_timestep())


NAMED = "from drones import Drone\nfrom t3d.world.factory import label_of\n\nclass Own(Drone):\n    pass\n\n"
NAMED += "print(label_of(Own()), label_of(Drone()))\n"


def test_a_class_of_a_program_is_named_after_its_file_and_one_of_a_notebook_after_itself(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(NAMED)
    paths = os.pathsep.join([str(Path(drones.__file__).parent), *sys.path])
    for words, name in ((["program.py"], "program:Own"), (["-c", NAMED], "Own")):
        command = [sys.executable, *words]
        environment = {**os.environ, "PYTHONPATH": paths}
        said = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        assert said.stdout.split() == [name, "drones:Drone"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same class started in every way, each with another seed."""
    root = tmp_path_factory.mktemp("runs")
    here = str(Path(drones.__file__))
    ways: dict[str, tuple[Any, Any]] = {
        "class": ({"id": ""}, Drone),
        "lambda": ({"id": ""}, lambda: Drone()),  # noqa: PLW0108
        "wrapped": ({"id": ""}, lambda: gym.wrappers.TimeLimit(Drone(), 50)),
        "module": ({"id": "drones:Drone"}, None),
        "file": ({"id": f"{here}:Drone"}, None),
    }
    for seed, (name, (env, make_env)) in enumerate(ways.items()):
        cfg = config(root, name, env=env, seeds=[seed], total_steps=110, eval={"every_steps": 50})
        list(t3d.train(cfg, make_env=make_env))
    return root


def test_the_same_class_has_one_name_however_it_was_started(runs: Path) -> None:
    assert {read_summary(run).env for run in runs.iterdir()} == {"drones:Drone"}
    assert {open_run(run).cfg.env.title for run in runs.iterdir()} == {"drones:Drone"}


def test_the_same_class_is_compared_and_drawn_as_one_environment(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (group,) = read_groups([str(runs)], tmp_path)
    assert [*group.tasks] == ["drones:Drone"] and len(group.trainings) == 5
    assert len(pooled([open_run(run) for run in runs.iterdir()])) == 1
    command = ["compare", str(runs / "lambda"), str(runs / "module"), "--out", str(tmp_path / "compare.png")]
    assert main(command) == 0
    assert "Return on drones:Drone" in capsys.readouterr().out
    drawn = plotted(monkeypatch)
    assert main(["plot", *map(str, runs.iterdir()), "--out", str(tmp_path / "curves.png")]) == 0
    assert len([label for label, _ in drawn if label and label.startswith("mean of 5 seeds")]) == 1


def test_other_arguments_are_another_setting(tmp_path: Path) -> None:
    for seed, args in enumerate(({}, {"wind": 1.5})):
        cfg = config(tmp_path, f"run-{seed}", env={"id": "drones:Drone", "args": args}, total_steps=110)
        list(t3d.train(cfg))
    groups = read_groups([str(tmp_path)], tmp_path)
    assert [group.name for group in groups] == ["wind=nothing", "wind=1.5"]
    (note,) = [text for text in compare(groups).notes if "Arguments differ" in text]
    assert "drones:Drone, drones:Drone(wind=1.5)" in note


def test_arguments_tell_environments_apart_by_name() -> None:
    calm, windy = (EnvConfig("drone:Drone", {"wind": wind}) for wind in (0.0, 1.5))
    assert (calm.title, windy.title) == ("drone:Drone(wind=0.0)", "drone:Drone(wind=1.5)")
    assert windy.label == "drone:Drone"
    assert reference(partial(Drone, wind=np.float64(1.5)))[1] == {"wind": 1.5}
