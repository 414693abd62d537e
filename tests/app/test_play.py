"""`t3d play RUN`: a window of the environment's own, or one with its pictures; a sentence where there is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import helpers
import t3d
from drones import Drone
from t3d.app.cli import main

DRAWN: list[str | None] = []


class Shown(Drone):
    """Draws itself in a window, as environments of Gymnasium do: whenever it is reset or stepped."""

    metadata = {"render_modes": ["human", "rgb_array"], "render_fps": 20}  # noqa: RUF012

    def observe(self) -> Any:
        DRAWN.append(self.render_mode)
        return super().observe()


class Hidden(Drone):
    metadata = {"render_modes": [], "render_fps": 20}  # noqa: RUF012
    render = gym.Env.render


class Closed(Shown):
    def __init__(self, **keywords: Any) -> None:
        super().__init__(**keywords)
        if self.render_mode == "human":
            raise OSError("the window system is gone")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    cfg = helpers.small_config(seeds=[3], env={"id": "test_play:Shown"}, run={"root": str(root), "name": "demo"})
    list(t3d.train(cfg))
    return root / "demo"


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is not looked at: SDL draws into memory."""
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")


@pytest.mark.usefixtures("screen")
def test_the_window_shows_the_episodes_that_eval_plays(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(run), "--episodes", "2", "--json"]) == 0
    returns = json.loads(capsys.readouterr().out)["returns"]
    DRAWN.clear()
    assert main(["play", str(run), "--episodes", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["episode 0", "episode 1"]
    shown = [float(line.split()[3].replace(",", "").replace("−", "-")) for line in lines]
    assert shown == pytest.approx(returns, rel=1e-2) and all("in 20 steps" in line for line in lines)
    assert DRAWN.count("human") >= 2 * 21, "each reset and step"


@pytest.mark.usefixtures("screen")
def test_pictures_are_shown_where_there_is_no_window(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames: list[Any] = []
    monkeypatch.setattr(gym.wrappers.HumanRendering, "_render_frame", lambda self: frames.append(self.env.render()))
    assert main(["play", str(run), "--env", "drones:Drone", "--episodes", "1"]) == 0
    assert len(frames) >= 21 and frames[0].shape == (40, 40, 3)


@pytest.mark.usefixtures("screen")
@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--env", "test_play:Hidden"], "test_play:Hidden cannot be recorded: it has no render()"),
        (["--env", "test_play:Closed"], "the window system is gone; record a video instead: t3d record RUN"),
        (["--env", "Pendulum-v1"], "the policy does not fit Pendulum-v1"),
        (["--episodes", "0"], "episodes=0 is too few; play at least 1"),
        (["--seed", "4"], "4"),
    ],
)
def test_what_cannot_be_shown_is_a_sentence(
    words: list[str], problem: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["play", str(run), *words]) == 2
    said = capsys.readouterr().err
    assert problem.replace("RUN", str(run)) in said and "Traceback" not in said


def test_without_a_screen_it_says_what_to_use(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert main(["play", str(run)]) == 2
    said = capsys.readouterr().err
    assert "there is no screen here" in said and f"record a video instead: t3d record {run}" in said
