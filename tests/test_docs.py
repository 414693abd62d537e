"""The documents say what the code says."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import psutil
import pytest
import tyro

import config_page
import t3d
from t3d.alarms.symptoms import SYMPTOMS
from t3d.app.cli import COMMANDS, main
from t3d.app.flags import read_flags
from t3d.app.serve import ServeArgs
from t3d.app.train import TrainArgs, parse_settings
from t3d.app.tune import TuneArgs
from t3d.config import Config, RuleConfig, flat
from t3d.config.other_names import THEIR_NAMES, WITHOUT_OURS
from t3d.events import KINDS
from t3d.store.summary import read_summary
from t3d.types import UpdateTrace

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/lab/*.md")])
TUTORIALS = [
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("first-steps", "own-environment", "python", "shipping")),
]
SMALL = shlex.split(
    "--total-steps 250 --random-steps 100 --eval.episodes 1 --eval.every-steps 250 --log.diagnose-every-steps 125 "
    "--td3.batch-size 16 --td3.actor-hidden 16 16 --td3.critic-hidden 16 16 --no-video"
)
MY_ROBOT = "import gymnasium as gym\n\n\ndef make_env():\n    return gym.make('Pendulum-v1')\n"


@pytest.mark.slow
def test_following_a_page_leaves_nothing_running_when_a_step_fails(tmp_path: Path) -> None:
    page, seconds = tmp_path / "page.md", f"60.{os.getpid()}"  # found by its number
    page.write_text(f'```sh\ntrue\necho "Ctrl-C ends it"; sleep {seconds}\nfalse\n```\n', encoding="utf-8")
    command = [sys.executable, str(ROOT / "experiments" / "follow_page.py"), str(page)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1 and "it ended with code" in ended.stderr  # there is no .venv in its folder
    assert ["sleep", seconds] not in [process.info["cmdline"] for process in psutil.process_iter(["cmdline"])]


class Block(NamedTuple):
    """A piece of code in a page."""

    language: str
    text: str
    line: int  # of its first line in the page

    @property
    def file(self) -> str | None:
        """The file it is the content of, if its first line says so: # cart.py."""
        named = re.match(r"# (\w+\.\w+)\n", self.text)
        return named[1] if named else None

    @property
    def commands(self) -> list[list[str]]:
        """The t3d commands that it shows, as lists of words."""
        return [line[1:] for line in self.lines if line[0] == "t3d"]

    @property
    def programs(self) -> list[list[str]]:
        """The Python programs that it starts."""
        return [line[1:] for line in self.lines if line[0] == "python" and not line[1].startswith(("-", "exp", "scr"))]

    @property
    def lines(self) -> list[list[str]]:
        """The lines that start a program, as lists of words."""
        is_shell = self.language in ("sh", "shell", "text")
        whole_lines = self.text.replace("\\\n", " ").splitlines() if is_shell else []
        return [shlex.split(line, comments=True) for line in whole_lines if line.startswith(("t3d ", "python "))]


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(match[1], match[2], text.count("\n", 0, match.start(2))) for match in found]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def shows_code(page: Path) -> bool:
    return any(block.language == "python" or block.commands for block in blocks_of(page))


def is_heavy(env_id: str) -> bool:
    """Simulators that take too long here, or may not be installed."""
    entry = str(gym.registry[env_id].entry_point) if env_id in gym.registry else ""
    return ".mujoco" in entry or "Bullet" in env_id or env_id.startswith("dm:")


def test_the_algorithm_page_points_at_the_right_lines() -> None:
    page = (ROOT / "docs" / "algorithm.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \|.*\[(\w+\.py):(\d+)\]\(\.\./(src/\S+)#L(\d+)\) \|$", page, re.MULTILINE)
    assert [int(step) for step, *_ in rows] == list(range(1, 16))
    for step, name, shown, path, line in rows:
        source = (ROOT / path).read_text(encoding="utf-8").splitlines()
        assert f"Step {step}:" in source[int(line) - 1], f"step {step} is not at {path}:{line}"
        assert shown == line and path.endswith(name)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target, _, heading in [link.partition("#") for link in re.findall(r'(?:\]\(|src=")([^)\s"]+)', text)]:
        if target.startswith(("http:", "https:")):
            continue
        file = page.parent / target if target else page
        assert file.exists(), target
        assert not heading or file.suffix != ".md" or heading in anchors(file), f"{target}#{heading}"


def anchors(page: Path) -> set[str]:
    """The addresses of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return {
        re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    }


@pytest.fixture(scope="module")
def any_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What tutorials call runs/NAME and runs/OTHER: any run, here of three seeds."""
    root = tmp_path_factory.mktemp("runs")
    command = ["train", "Pendulum-v1", "--preset", "quick", *SMALL, "--seeds", "0", "1", "2"]
    assert main([*command, "--run.root", str(root), "--run.name", "NAME"]) == 0
    return root / "NAME"


@pytest.mark.parametrize("page", [page for page in PAGES if shows_code(page) and page not in TUTORIALS], ids=name_of)
def test_what_a_page_shows_exists(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks_of(page):
        if block.file is not None:
            Path(block.file).write_text(block.text, encoding="utf-8")
        if block.language in ("python", "py"):
            check_names(block.text)
        for command in block.commands:
            parse_only(command)


def check_names(code: str) -> None:
    """Fails if T3D has not what the code takes from it."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "t3d":
            module = importlib.import_module(node.module or "")
            missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
            assert not missing, f"{node.module} has no {missing}"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "t3d":
            assert hasattr(t3d, node.attr), f"t3d has no {node.attr}"


def parse_only(command: list[str]) -> None:
    """Fails if the command has no such options."""
    name, *rest = command
    if name in ("train", "tune"):
        parse_settings(rest, TrainArgs if name == "train" else TuneArgs, f"t3d {name}")
        return
    kind = f"{name.capitalize()}Args"
    if command[:2] == ["runs", "show"]:
        kind, rest = "ShowArgs", rest[1:]
    module = COMMANDS[name].function.partition(":")[0] or f"t3d.app.{name}"
    read_flags(getattr(importlib.import_module(module), kind), rest, f"t3d {name}")


@pytest.mark.parametrize("page", TUTORIALS, ids=name_of)
def test_what_a_tutorial_shows_works(
    page: Path, any_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    shutil.copytree(any_run, "runs/NAME")
    shutil.copytree(any_run, "runs/OTHER")
    shutil.copytree(ROOT / "examples", "examples")
    Path("my_robot.py").write_text(MY_ROBOT, encoding="utf-8")
    names: dict[str, Any] = {}
    servers = Servers()
    try:
        for block in blocks_of(page):
            if block.file is not None:
                Path(block.file).write_text(servers.at_their_ports(block.text), encoding="utf-8")
            elif block.language == "python":
                exec(compile("\n" * block.line + block.text, page, "exec"), names)
            if block.language != "sh":
                continue
            for command in block.commands:
                servers.start(command) if command[0] == "serve" else run_small(command, capfd)
            for program in block.programs:
                subprocess.run([sys.executable, *map(servers.at_their_ports, program)], check=True, timeout=120)
    finally:
        servers.stop()
        for module in tmp_path.glob("*.py"):
            sys.modules.pop(module.stem, None)


class Servers:
    """The servers that a page starts, on free ports instead of those that it names."""

    def __init__(self) -> None:
        self.ports: dict[str, str] = {}
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, command: list[str]) -> None:
        """Starts one and waits until it listens."""
        args = tyro.cli(ServeArgs, args=command[1:])
        line = [sys.executable, "-m", "t3d", *command, "--port", "0"]
        server = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
        self.processes.append(server)
        assert server.stdout is not None
        said = server.stdout.readline() + server.stdout.readline()
        self.ports[str(args.port)] = said.partition("/act")[0].rpartition(":")[2]

    def at_their_ports(self, text: str) -> str:
        for named, real in self.ports.items():
            text = text.replace(f"127.0.0.1:{named}", f"127.0.0.1:{real}")
        return text

    def stop(self) -> None:
        for server in self.processes:
            server.terminate()
            server.communicate(timeout=60)
            assert server.returncode == 0


def run_small(command: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    is_long = command[0] in ("bench", "dash", "tune") or {"--claim", "--env.pixels"} & {*command}
    if is_long or (command[0] == "train" and is_heavy(command[1])):  # they have tests of their own
        parse_only(command)
        return
    if command[0] == "train":
        command = [re.sub(r"^local:\d+$", "local:1", word) for word in [*command, *SMALL]]
    if "--episodes" in command:
        command[command.index("--episodes") + 1] = "2"
    if command[0] == "resume":  # a little further than it is
        command = [*command, "--total-steps", str(read_summary(Path(command[1])).step + 50), "--no-video"]
    code = main(command)
    said = capfd.readouterr()
    assert code == 0, f"t3d {shlex.join(command)}: {said.err}"


def test_the_settings_page_is_made_from_the_settings() -> None:
    committed = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert committed == config_page.page(), "run: python scripts/config_page.py > docs/settings.md"
    shared = {f"td7.{field.name}" for field in dataclasses.fields(RuleConfig)}  # described once, under td3
    for key in flat(Config()).keys() - shared:
        assert f"| `--{key.replace('_', '-')}` |" in committed


def test_field_docstrings_belong_to_the_field_before_them() -> None:
    source = (
        'class A:\n    """Of A."""\n    x: int = 1\n    """Of x."""\n    y: int = 2\n    z: int = 3\n    """Of z."""\n'
    )
    assert config_page.field_docstrings(source) == {("A", "x"): "Of x.", ("A", "z"): "Of z."}


def test_every_figure_of_every_event_is_explained() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in text.splitlines() if line.startswith("|")]
    explained = {name for row in rows for name in re.findall(r"`([\w-]+)`", row[1] + row[2])}
    figures = {field.name for kind in KINDS.values() for field in dataclasses.fields(kind)}
    assert {*KINDS, *figures, *UpdateTrace._fields} - explained == set()


def test_every_setting_is_compared_with_the_paper() -> None:
    text = (ROOT / "docs" / "algorithm.md").read_text(encoding="utf-8")
    assert [key for key in flat(Config()) if f"`{key}`" not in text and not key.startswith("td7.")] == []


def test_every_alarm_is_in_the_table() -> None:
    text = (ROOT / "docs" / "watching.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([\w-]+)` \|.*?\| (\d+) .*?\|.*\|$", text, re.MULTILINE))
    assert rows == {symptom.kind: str(symptom.looks) for symptom in SYMPTOMS}


def test_the_page_on_migrating_says_what_wrong_flags_are_told() -> None:
    page = (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8")
    tables = {block.split("|")[1].strip(): block.splitlines()[2:] for block in re.findall(r"(?:^\|.*\n)+", page, re.M)}
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in tables["T3D"]]
    ours = {row[0].strip("`"): {*re.findall(r"`(\w+)`", " ".join(row[1:]))} for row in rows}
    assert ours == {name: {*theirs.split()} for name, theirs in THEIR_NAMES.items()}
    instead = [[cell.strip() for cell in line.strip("|").split("|")] for line in tables["theirs"]]
    assert {name.strip("`"): reason for name, reason in instead} == WITHOUT_OURS
