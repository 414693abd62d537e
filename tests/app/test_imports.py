"""What a run folder's config names is code: only the commands that train or play with it import it (R25)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import helpers
import t3d
from dash_client import client_of
from t3d.app.cli import COMMANDS, main
from t3d.config import flat, load_config

CANARY = """
from pathlib import Path

Path(__file__).with_suffix(".imported").touch()
"""
CONTENTS = {
    "canary_env": "import gymnasium\n\n\ndef make(**keywords):\n    return gymnasium.make('Pendulum-v1', **keywords)\n",
    "canary_rule": "from t3d.algo.rules import TD3 as RULE\n",
    "canary_actor": "from t3d.policy.architectures import KINDS\n\nNETWORK = KINDS['mlp']\n",
    "canary_critic": "from t3d.policy.architectures import KINDS\n\nNETWORK = KINDS['mlp']\n",
}
NAMED = {  # by the commands' own name: what is typed about a run
    "train": ["--config", "runs/RUN/config.toml", "--run.name", "again", "--no-video"],
    "tune": ["--config", "runs/RUN/config.toml", "--space", "td3.tau=0.1,0.2", "--trials", "1", "--fresh-seeds", "2"],
    "resume": ["RUN", "--total-steps", "150", "--no-video"],
    "eval": ["RUN", "--episodes", "1"],
    "record": ["RUN", "--steps", "2"],
    "play": ["RUN", "--episodes", "1"],
    "plot": ["RUN"],
    "compare": ["RUN", "other"],
    "export": ["RUN", "--format", "c"],
    "serve": ["runs/RUN", "--port", "0"],
    "explain": ["RUN"],
    "report": ["RUN"],
    "doctor": [],
    "runs": ["show", "RUN"],
    "dash": ["runs", "--port", "0"],
    "sinks": ["RUN"],
    "bench": ["update", "--seconds", "0", "--threads", "1", "--engines", "eager"],
    "presets": [],
}
IMPORTING = {"train", "tune", "resume", "eval", "record", "play"}


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs of two seeds: one names an environment, one also a rule and networks, one of each in a file of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    forget(tmp_path)
    for name, content in CONTENTS.items():
        (tmp_path / f"{name}.py").write_text(CANARY + content)
    small: dict[str, Any] = {"total_steps": 120, "seeds": [0, 1], "env": {"id": "canary_env.py:make"}}
    own: dict[str, Any] = {
        "algo": "canary_rule.py:RULE",
        "td3": {"actor_network": "canary_actor.py:NETWORK", "critic_network": "canary_critic.py:NETWORK"},
    }
    for name, changes in {"RUN": {}, "own": own, "other": {}}.items():
        list(t3d.train(helpers.small_config(**{**small, **changes}, run={"root": "runs", "name": name})))
    assert imported(tmp_path) == {*CONTENTS}
    forget(tmp_path)
    return tmp_path / "runs"


def forget(folder: Path) -> None:
    """Nothing was imported."""
    for name in CONTENTS:
        sys.modules.pop(name, None)
        (folder / f"{name}.imported").unlink(missing_ok=True)


def imported(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.imported")}


def test_every_command_is_classified() -> None:
    assert NAMED.keys() == COMMANDS.keys(), "add what is typed about a run to NAMED"
    assert {name for name, command in COMMANDS.items() if command.imports == "config"} == IMPORTING
    assert {command.imports for command in COMMANDS.values()} == {"config", "typed", ""}


def test_only_some_commands_import_what_a_config_names(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in ("t3d.ship.serve", "t3d.dash.process"):  # else they serve until Ctrl-C
        monkeypatch.setattr(f"{place}.serve", lambda opened, *_: opened.close())
    monkeypatch.setattr("os.nice", lambda _: None)
    monkeypatch.setenv("DISPLAY", ":0")  # a screen for t3d play, where SDL draws nothing
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    found: dict[tuple[str, str], set[str]] = {}
    for run in ("RUN", "own"):
        for name, words in NAMED.items():
            code = main([name, *(word.replace("RUN", run) for word in words)])
            refused = capsys.readouterr().err
            assert code in (0, 2) and "Traceback" not in refused, (name, refused)
            assert code == 0 or run == "own", (name, refused)
            found[name, run] = imported(runs.parent)
            forget(runs.parent)
    assert {key for key, names in found.items() if names} == {
        (name, run) for name in IMPORTING for run in ("RUN", "own")
    }


def test_the_dashboard_imports_nothing(runs: Path) -> None:
    client = client_of(runs)
    for run in ("RUN", "own"):
        for end in ("", "/config", "/steps", "/series?metric=return"):
            assert client.get(f"/api/runs/{run}{end}").status_code == 200
    assert client.get("/api/runs").status_code == 200 and imported(runs.parent) == set()


def test_a_report_has_what_was_recorded_before(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "RUN", "--episodes", "7"]) == 0 and imported(runs.parent) == {"canary_env"}
    forget(runs.parent)
    assert main(["report", "RUN"]) == 0 and imported(runs.parent) == set()
    assert "7 fresh episodes" in (runs / "RUN" / "report.html").read_text()


def test_own_code_is_explained_once_it_is_typed(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "own"]) == 2
    said = capsys.readouterr().err
    settings = flat(load_config(runs / "own" / "config.toml"))
    assert "only t3d train, tune, resume, eval, record and play import what a config names" in said
    assert f"t3d explain own --own {settings['algo']}" in said or settings["td3.actor_network"] in said
    own = [settings[key] for key in ("algo", "td3.actor_network", "td3.critic_network")]
    for number in range(3):
        assert main(["explain", "own", "--own", *own[: number + 1]]) == (0 if number == 2 else 2)
    assert imported(runs.parent) == {*CONTENTS} - {"canary_env"}


def test_what_is_typed_is_imported(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["doctor", "canary_env.py:make"]) == 0 and imported(runs.parent) == {"canary_env"}
    forget(runs.parent)
    monkeypatch.setattr("t3d.app.pages.STEPS", 1100)
    assert main(["explain", "canary_env.py:make"]) == 0 and imported(runs.parent) == {"canary_env"}
