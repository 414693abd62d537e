"""Environments in the user's own files: every way to name one, and a sentence for every way to get it wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import helpers
import t3d
from t3d.app.cli import main
from t3d.config import EnvConfig, load_toml
from t3d.errors import UserError
from t3d.events import Start
from t3d.world.make import env_factory

ROBOT = """
from helpers import CountingEnv
from parts import LIMIT

class Robot(CountingEnv):
    pass

class NotAnEnvironment:
    pass
"""
FILES = {
    "parts.py": "LIMIT = 3\n",
    "robot.py": ROBOT,
    "maker.py": f"{ROBOT}\nclass Second(CountingEnv):\n    pass\n\ndef make_env():\n    return Robot()\n",
    "two.py": f"{ROBOT}\nclass Second(CountingEnv):\n    pass\n",
    "none.py": "def build():\n    pass\n",
    "empty.py": "",
    "broken.py": "import json\nx = 1\njson.loads('no')\n",
    "syntax.py": "def f(:\n",
    "leaves.py": "import sys\n\nsys.exit(3)\n",
    "needs.py": "import no_such_library\n",
    "lacks.py": "from parts import NOTHING\n",
    "moved.py": "from t3d.architectures import Kind\n",
    "my.robot.py": ROBOT,
    "json.py": ROBOT,
    "sys.py": ROBOT,
    "notes.txt": "",
    "robots/walker.py": "def make():\n    import parts_of_walker\n    return parts_of_walker.Robot()\n",
    "robots/parts_of_walker.py": "from helpers import CountingEnv as Robot\n",
    "package/__init__.py": "from package.inner import Robot\n",
    "package/inner.py": "from helpers import CountingEnv\nfrom . import other\n\nclass Robot(CountingEnv):\n    pass\n",
    "package/other.py": "",
    "void/readme.md": "",
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with many files; sys.path and what was imported are as before when the test is over."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:  # modules of the files above
        if name.partition(".")[0] in {Path(file).parts[0].removesuffix(".py") for file in FILES} | {"walker"}:
            del sys.modules[name]


FOUND = [
    "robot",
    "robot:Robot",
    "robot.py",
    "robot.py:Robot",
    "./robot:Robot",
    "./robot.py:Robot",
    "{here}/robot.py:Robot",
    "{here}/robot",
    "robots/../robot.py",
    "maker",
    "maker.py:make_env",
    "robots/walker:make",
    "robots/walker.py:make",
    "robots.walker:make",
    "package",
    "package:Robot",
    "./package:Robot",
    "package.inner",
    "package/inner.py:Robot",
    "package/__init__.py:Robot",
]


@pytest.mark.parametrize("env_id", FOUND)
def test_an_environment_in_a_file_is_found(env_id: str, here: Path) -> None:
    if env_id == "robots.walker:make":  # as a module it does not have its folder on the path
        (here / "parts_of_walker.py").write_text(FILES["robots/parts_of_walker.py"])
    assert isinstance(env_factory(EnvConfig(env_id.format(here=here)))(), helpers.CountingEnv)


WRONG = {
    "robot:": "write module:callable or FILE.py:callable, with both names",
    ":Robot": "with both names",
    ":": "with both names",
    "robot:Robot:x": "with both names",
    "robot:Robt": "robot has no Robt, did you mean Robot?",
    "two": r"two has 2 gymnasium.Env classes and no function make_env; write one of two:Robot, two:Second",
    "two.py": "write one of two.py:Robot, two.py:Second",
    "none": "none has no gymnasium.Env classes and no function make_env; write one of none:build",
    "empty": "write empty:NAME, and define NAME there",
    "robots": r"robots is a folder; name a Python file in it \(which has parts_of_walker.py, walker.py\)",
    "robots:make": "robots is a folder; name a Python file in it",
    "./robots:make": "robots is a folder; .* e.g. robots/parts_of_walker.py:NAME",
    "./void": r"void is a folder; name a Python file in it \(which has none\)",
    "./nothing": r"there is no file /.*/nothing.py",
    "nothing.py:make": r"there is no file /.*/nothing.py",
    "./notes.txt:make": "notes.txt is not a Python file",
    "../nothing/at/all.py": "there is no file",
    ".:make": "is a folder",
    "nothing:make": "cannot import nothing .* in the folder you started from",
    "robot.inner:make": "cannot import robot.inner",
    "broken:make": r"importing broken:make failed in .*broken.py, line 3: JSONDecodeError: Expecting value",
    "./broken.py": r"failed in .*broken.py, line 3: JSONDecodeError",
    "syntax:make": "syntax.py does not parse: .* in line 1",
    "leaves:make": r"leaves.py, line 3: SystemExit: 3, which ends the program; put .* under if __name__ ==",
    "needs:make": "cannot import no_such_library .* pip install no_such_library",
    "lacks:make": r"lacks.py, line 1: ImportError: cannot import name 'NOTHING'",
    "moved:make": "cannot import t3d.architectures .*; this version of T3D has none: docs/beyond-the-defaults.md",
    "my.robot.py:Robot": "my.robot.py cannot be imported, because its name has a dot in it; rename it",
    "sys.py:Robot": "sys.py cannot be imported, because there is another module sys; rename the file",
    "sys:make": "sys has no make",
    "builtins:int": "builtins:int is not a function or class that makes environments",
    "json.py:Robot": "json.py cannot be imported, because there is another module json; rename the file",
    "ALE/Pong-v9": "unknown environment ALE/Pong-v9",
    "x" * 300: "unknown environment x",
    "./" + "x" * 300: "there is no file",
}


@pytest.mark.parametrize("env_id", WRONG)
def test_a_wrong_spelling_ends_in_one_sentence(env_id: str, here: Path) -> None:
    with pytest.raises(UserError, match=WRONG[env_id]) as caught:
        env_factory(EnvConfig(env_id))()
    assert "\n" not in str(caught.value)


def test_a_run_finds_its_file_again_from_another_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = ["--total-steps", "60", "--random-steps", "40", "--td3.batch-size", "4", "--eval.episodes", "1"]
    small += ["--td3.actor-hidden", "4", "--td3.critic-hidden", "4", "--no-video", "--run.name", "a"]
    assert main(["train", "./robot:Robot", *small]) == 0
    assert load_toml(here / "runs/a/config.toml")["env"]["id"] == f"{here}/robot.py:Robot"
    assert main(["train", "./robot:Robot", *small, "--resume-or-start"]) == 0, "the same command"
    monkeypatch.chdir(here / "void")
    assert main(["eval", "../runs/a", "--episodes", "1"]) == 0
    assert main(["resume", "../runs/a", "--total-steps", "80", "--no-video"]) == 0


@pytest.mark.system
def test_actors_find_a_file_too_and_a_run_is_named_after_it(here: Path) -> None:
    cfg = helpers.small_config(total_steps=120, env={"id": "robots/walker.py:make"}, actors="local:1")
    events = list(t3d.train(cfg))
    assert events[-1].event == "end" and events[-1].reason == "finished"  # type: ignore[attr-defined]
    assert isinstance(events[0], Start) and Path(events[0].folder).name.startswith("walker-make-default-")


SHADOWS = ("tyro", "rich", "numpy", "gymnasium", "psutil")


@pytest.mark.parametrize(
    "command", [["doctor", "robot:Robot"], pytest.param(["train", "Pendulum-v1"], marks=pytest.mark.slow)]
)
def test_no_file_of_the_current_folder_is_run_in_place_of_a_library(command: list[str], here: Path) -> None:
    for name in SHADOWS:
        (here / f"{name}.py").write_text(
            f"open('{name} was run', 'w')\nraise SystemExit('{name} is not the library')\n"
        )
    if command[0] == "train":  # and not by actors
        command = [*command, "--total-steps", "50", "--random-steps", "40", "--actors", "local:1", "--no-video"]
        command += ["--td3.actor-hidden", "4", "--td3.critic-hidden", "4", "--eval.episodes", "1"]
    tests = str(Path(helpers.__file__).parent)
    for program in (["-m", "t3d"], ["-P", "-c", "import sys; from t3d.app.cli import main; sys.exit(main())"]):
        paths = filter(None, [os.environ.get("PYTHONPATH"), tests])  # an empty one would be the current folder
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        finished = subprocess.run(
            [sys.executable, *program, *command], cwd=here, env=environment, capture_output=True, text=True, check=False
        )
        assert [file.name for file in here.glob("* was run")] == []
        assert finished.returncode == 0, finished.stderr
