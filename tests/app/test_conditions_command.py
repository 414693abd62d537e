"""Arguments, wrappers and evaluation sets on the command line, and what typical mistakes are answered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from t3d.app.cli import main
from t3d.app.train import parse
from t3d.config import load_config, plain

TESTS = Path(__file__).parents[1]
DRONE = "drones:Drone takes wind, gains, goal, and"
SAME = "all environments of a run need the same observations and actions: 2 observation values in training, "


@pytest.mark.parametrize(
    ("words", "args"),
    [
        (["wind=1.5", "goal=door", "gains=[1, 2]"], {"wind": 1.5, "goal": "door", "gains": [1, 2]}),
        (["on=true", "n=3", "rate=1e-3", "name='a b'"], {"on": True, "n": 3, "rate": 1e-3, "name": "a b"}),
        (["p={a = 1}", "file=maps/a.xml", "day=2026-01-01", "far=inf"],
         {"p": {"a": 1}, "file": "maps/a.xml", "day": "2026-01-01", "far": "inf"}),
        (["speed=-1", "sum=1+1", "text=a=b"], {"speed": -1, "sum": "1+1", "text": "a=b"}),
    ],
)  # fmt: skip
def test_values_are_those_of_toml_and_a_bare_word_is_a_string(words: list[str], args: dict[str, Any]) -> None:
    assert parse(["drones:Drone", "--env.args", *words]).cfg.env.args == args
    assert parse(["drones:Drone", "--eval.args", *words, "--env.num-envs", "2"]).cfg.eval.args == args


def test_sets_have_arguments_of_their_own_and_the_first_one_given_is_the_first() -> None:
    cfg = parse(["a:B", "--eval.sets", "windy:wind=2,gains=[1,2],goal=door", "calm"]).cfg
    assert [*cfg.eval.sets] == ["windy", "calm"]
    assert cfg.eval.sets == {"windy": {"wind": 2, "gains": [1, 2], "goal": "door"}, "calm": {}}
    assert plain(cfg.eval.sets["windy"]) == "wind=2,gains=[1, 2],goal=door"


def test_flags_go_on_top_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("[env.args]\nwind = 1\ngoal = 'door'\n[eval.sets.calm]\nwind = 0\n")
    cfg = parse(["a:B", "--config", str(file), "--env.args", "wind=2", "--eval.sets", "windy:wind=3"]).cfg
    assert cfg.env.args == {"wind": 2, "goal": "door"}
    assert cfg.eval.sets == {"calm": {"wind": 0}, "windy": {"wind": 3}}


MISTAKES = [
    ("--env.args wnd=1", f"{DRONE} wnd is none of them, did you mean wind?"),
    ("--eval.args wnd=1", f"{DRONE} wnd is none of them, did you mean wind?"),
    ("--eval.sets calm:wnd=1", f"{DRONE} wnd is none of them, did you mean wind?"),
    ("--sweep env.args.wnd=0,1", f"{DRONE} wnd is none of them, did you mean wind?"),
    ("--env.args wind", "--env.args takes NAME=VALUE, not 'wind'; ENV comes before the flags"),
    ("--env.args", "--env.args has no value; give one or several NAME=VALUE, separated by spaces"),
    ("--env.args gains=[1", "--env.args says gains=[1, whose value TOML cannot read; quote it, e.g. 'gains=[1, 2]'"),
    ("--env.args goal=True", "--env.args says goal=True; write goal=true"),
    ("--env.args wind=1 wind=2", "--env.args names wind twice; give it once"),
    (
        "--env.args wind=1 --env.args goal=door",
        "--env.args is given twice; name all after one, e.g. --env.args NAME=VALUE NAME=VALUE",
    ),
    ("--eval.sets wind=1", "--eval.sets takes SET:NAME=VALUE,NAME=VALUE, e.g. windy:wind=2, not 'wind=1'"),
    ("--eval.sets a.b:wind=1", "eval.sets: 'a.b' cannot be the name of a set; use letters, digits, - and _"),
    ("--eval.env drones:Short", f"{SAME}1 in evaluation"),
    ("--eval.env drones:Nope", "unknown environment drones:Nope; drones has no Nope"),
    (
        "--sweep env.args.wind=0,1 --env.args wind=1",
        "--env.args.wind contradicts --sweep env.args.wind=0,1; give only one of them",
    ),
    ("--sweep env.args.goal=a,b", "sweep='env.args.goal=a,b' cannot be read; write FIELD=V1,V2 with numbers, commas"),
    ("--env.wrappers drones", "env.wrappers=drones is not a wrapper; write module:Wrapper or FILE.py:Wrapper"),
    (
        "--env.wrappers drones:Halve",
        "drones:Halve does not exist; a wrapper must be a function or class, did you mean Halved?",
    ),
    ("--env.wrappers drones:Sized", "env.wrappers: Sized is called with the environment alone: missing a required"),
    ("--env.wrappers drones:no_wrapper", "env.wrappers: no_wrapper returned NoneType, not an environment"),
    ("--env.wrappers drones:OfVectors", "env.wrappers: OfVectors does not fit Drone: it wraps a VectorEnv"),
    ("--env.wrappers no_module:W", "cannot import no_module for the wrapper no_module:W"),
]


def test_mistakes_are_one_sentence_each_before_there_is_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for typed, answer in MISTAKES:
        flags = ["--total-steps", "100", "--random-steps", "10", *typed.split()]
        assert main(["train", "drones:Drone", *flags]) == 2, typed
        told = capsys.readouterr().err.splitlines()[-1]
        assert told.startswith(f"error: {answer}"), (typed, told)
        assert not [*tmp_path.iterdir()], typed


@pytest.mark.parametrize(
    ("env_id", "given", "answer"),
    [
        ("Pendulum-v1", "gg", "Pendulum-v1 takes g, and gg is none of them, did you mean g?"),
        ("HalfCheetah-v5", "frame_skips", "HalfCheetah-v5 takes xml_file, frame_skip, default_camera_config, "),
        ("dm:cartpole-swingup", "timelimit", "dm:cartpole-swingup takes time_limit, random, environment_kwargs, and "),
        ("HalfCheetahBulletEnv-v0", "foo", "HalfCheetahBulletEnv-v0 takes no arguments, and foo is none of them"),
        ("drones:make_drone", "winds", "drones:make_drone takes wind, and winds is none of them, did you mean wind?"),
        ("drones:Gusty", "gust", "drones:Gusty takes wind, and gust is none of them"),
        (
            "drones:pass_on",
            "winds",
            "drones:pass_on cannot be made with winds: Drone.__init__() got",
        ),
        (
            "drones:TestedDrone-v0",
            "winds",
            "TestedDrone-v0 takes wind, gains, goal, and winds is none of them, did you",
        ),
    ],
)
def test_whatever_makes_an_environment_is_asked_for_its_parameters(
    env_id: str, given: str, answer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if env_id.startswith("dm:"):
        pytest.importorskip("dm_control")
    if "Bullet" in env_id:
        pytest.importorskip("pybullet_envs_gymnasium")
    assert main(["train", env_id, "--run.root", str(tmp_path), "--env.args", f"{given}=1"]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith(f"error: {answer}"), told


def test_a_policy_is_evaluated_under_other_conditions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = "--preset quick --total-steps 60 --random-steps 20 --eval.every-steps 60 --eval.episodes 1 --no-video"
    made = ["--env.args", "wind=0.5", "--env.wrappers", "drones:Halved", "--eval.sets", "calm:wind=0", "windy:wind=2"]
    run = ["--run.root", str(tmp_path), "--run.name", "a", "--threads", "1"]
    assert main(["train", "drones:Drone", *small.split(), *run, *made]) == 0
    lines = capsys.readouterr().out
    assert "seed 0, windy  return" in lines and "  windy: mean return " in lines
    for path in (tmp_path / "a", tmp_path / "a" / "best" / "seed-0.safetensors"):
        assert main(["eval", str(path), "--args", "wind=3", "--episodes", "2"]) == 0
        told = capsys.readouterr().out
        assert "drones:Drone(wind=3), seed 0" in told and "argument wind 0.5 -> 3" in told
    assert main(["eval", str(tmp_path / "a"), "--episodes", "2"]) == 0
    told = capsys.readouterr().out
    assert "drones:Drone(wind=0), seed 0" in told and "note:" not in told
    assert main(["runs", "show", "a", "--root", str(tmp_path)]) == 0
    assert "drones:Drone(wind=0.5)" in (told := capsys.readouterr().out) and "eval.sets.windy" in told
    assert main(["eval", str(tmp_path / "a"), "--args", "wnd=3"]) == 2
    assert f"{DRONE} wnd is none of them, did you mean wind?" in capsys.readouterr().err
    assert load_config(tmp_path / "a" / "config.toml").env.wrappers == ("drones:Halved",)
