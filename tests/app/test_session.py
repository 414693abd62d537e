"""What a person is told about runs: verdicts, names and titles, environments that have changed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import matplotlib.axes
import numpy as np
import pytest

import helpers
import t3d
from fake_runs import stored
from t3d.app.cli import main
from t3d.app.session import print_results
from t3d.app.terminal import PlainConsole
from t3d.config import Config, EnvConfig, Member, merge
from t3d.errors import UserError
from t3d.events import End
from t3d.insight.plots import plot_curves
from t3d.store.metrics import StoredEvaluation
from t3d.store.reader import Run, open_run
from t3d.world.make import env_factory


class Reach(gym.Env[Any, Any]):
    """Observes and acts in as many numbers as it is told to."""

    def __init__(self, observed: int = 3, acted: int = 1, reach: float = 1.0) -> None:
        self.observation_space = gym.spaces.Box(-1, 1, (observed,), np.float32)
        self.action_space = gym.spaces.Box(-reach, reach, (acted,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self.observation_space.sample(), 1.0, False, self.t == 20, {}


def evaluation(step: int, mean_return: float) -> StoredEvaluation:
    return StoredEvaluation(step, 1e9, step, mean_return, std_return=1.0, best=False)


@pytest.mark.parametrize(
    ("returns", "noise", "said", "not_said"),
    [
        ([-5.0], "gaussian", "-5.0 before training, not evaluated since", "never better"),
        ([-5.0, -9.0], "gaussian", "--noise.kind pink", "not evaluated"),
        ([-5.0, -9.0], "pink", "seed 0 was never better than before training", "--noise.kind"),
        ([-5.0, -3.0], "gaussian", "best evaluation -3.00 ± 1.00 (step 100, chosen from 2)", "never better"),
    ],
)
def test_the_verdict_is_drawn_from_evaluations_that_happened(
    returns: list[float], noise: str, said: str, not_said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    evals = [evaluation(100 * number, value) for number, value in enumerate(returns)]
    run = Run(Path("nowhere"), merge(Config(), {"noise": {"kind": noise}}), {Member(0): evals})
    print_results(run, End(step=150, reason="stopped", updates=150, seconds=1.0), PlainConsole())
    out = capsys.readouterr().out
    assert said in out and not_said not in out


def test_every_curve_can_be_seen_and_told_from_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[dict[str, Any]] = []
    plot = matplotlib.axes.Axes.plot

    def noted(self: Any, *arguments: Any, **keywords: Any) -> Any:
        drawn.append(keywords)
        return plot(self, *arguments, **keywords)

    monkeypatch.setattr(matplotlib.axes.Axes, "plot", noted)
    run = Run(tmp_path, Config(), {Member(0): [evaluation(0, 1.0), evaluation(100, 2.0)]})
    plot_curves([stored(run, tmp_path / "run")] * 12, tmp_path / "many.png")
    looks = {(one["color"], one.get("linestyle")) for one in drawn}
    assert len(looks) == 12
    assert not any(one["marker"] for one in drawn)
    plot_curves([stored(run._replace(evals={Member(0): [evaluation(0, 1.0)]}), tmp_path / "run")], tmp_path / "one.png")
    assert drawn[-1]["marker"] == "o", "a line of one point cannot be seen"


@pytest.mark.parametrize(
    ("make_env", "name"),
    [
        (Reach, "test_session:Reach"),
        (partial(Reach, 4), "test_session:Reach"),
        (lambda **_: Reach(), "test_session:Reach"),
        (lambda: gym.make("Pendulum-v1"), "Pendulum-v1"),
        (env_factory(EnvConfig("Pendulum-v1")), "Pendulum-v1"),
    ],
)
def test_a_run_made_in_python_has_a_name(
    make_env: Any, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cfg = helpers.small_config(env={"id": ""}, run={"root": str(tmp_path)})
    stepping = t3d.train(cfg, make_env=make_env)
    assert next(stepping).event == "start"
    stepping.close()
    (run,) = tmp_path.iterdir()
    assert run.name.startswith(f"{name.replace(':', '-')}-default-") and open_run(run).cfg.env.label == name
    assert main(["runs", "--root", str(tmp_path)]) == 0
    assert name in capsys.readouterr().out.replace(run.name, "")


def test_a_name_may_be_given(tmp_path: Path) -> None:
    cfg = helpers.small_config(env={"id": "", "name": "my robot"}, run={"root": str(tmp_path)})
    list(t3d.train(cfg, make_env=Reach, stop=stopped()))
    (run,) = tmp_path.iterdir()
    assert run.name.startswith("my-robot-default-") and open_run(run).cfg.env.title == "my robot"
    unnamed = merge(cfg, {"env": {"name": ""}})
    assert next(t3d.resume(run, cfg=unnamed, make_env=Reach)).event == "resumed", "another name is no other run"


def stopped() -> threading.Event:
    """Asks a run to stop as soon as it can."""
    stop = threading.Event()
    stop.set()
    return stop


@pytest.fixture(scope="module")
def reached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run on Reach that was stopped half-way."""
    root = tmp_path_factory.mktemp("reached")
    cfg = helpers.small_config(env={"id": "test_session:Reach"}, run={"root": str(root), "name": "run"})
    for event in t3d.train(cfg):
        if event.step == 200:
            break
    yield root / "run"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (partial(Reach, observed=4), "3 observation values then, 4 now"),
        (partial(Reach, acted=2), "its actions had the shape [1] then, now [2]"),
        (partial(Reach, reach=2.0), "the bounds of action 0 were [-1.0, 1.0] then, now [-2.0, 2.0]"),
    ],
)
def test_an_environment_that_has_changed_is_told_what_about_it(
    changed: Any, words: str, reached: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    copy = shutil.copytree(reached, tmp_path / "copy")
    with pytest.raises(UserError) as caught:
        list(t3d.resume(copy, make_env=changed))
    assert words in str(caught.value) and "torch" not in str(caught.value)
    monkeypatch.setitem(globals(), "Changed", changed)
    assert main(["eval", str(reached), "--env", "test_session:Changed"]) == 2
    assert f"the policy does not fit test_session:Changed: {words}" in capsys.readouterr().err


def test_titles_say_what_was_played(reached: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = "test_session:also_reach"
    assert main(["eval", str(reached), "--episodes", "1", "--env", other]) == 0
    assert other in capsys.readouterr().out
    assert main(["runs", "--root", str(reached.parent)]) == 0
    assert "test_session:Reach" in capsys.readouterr().out


def also_reach() -> Reach:
    return Reach()


def test_a_running_run_is_not_to_be_removed(tmp_path: Path) -> None:
    cfg = helpers.small_config(run={"root": str(tmp_path), "name": "mine"})
    running = t3d.train(cfg)
    next(running)
    with pytest.raises(UserError, match=r"already exists; choose another --run\.name") as caught:
        next(t3d.train(cfg))
    assert "remove" not in str(caught.value)
    running.close()


def test_recording_on_a_read_only_disk_is_a_sentence(tmp_path: Path) -> None:
    if subprocess.run(["unshare", "-rm", "true"], check=False, capture_output=True).returncode:
        pytest.skip("this machine does not let us mount a disk read-only")
    list(t3d.train(helpers.small_config(run={"root": str(tmp_path), "name": "run"})))
    mounted = f"mount --bind {tmp_path} {tmp_path} && mount -o remount,ro,bind {tmp_path}"
    record = f"{sys.executable} -m t3d record {tmp_path / 'run'} --steps 5"
    ended = subprocess.run(
        ["unshare", "-rm", "sh", "-c", f"{mounted} && {record}"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2 and "Read-only file system" in ended.stderr and ended.stderr.startswith("error: ")
