"""The best of several seeds is chosen on fresh episodes, the same for all of them, and the choice is kept."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest

import helpers
import t3d
from faults import rewrite_policy
from helpers import small_config
from t3d.app.cli import main
from t3d.app.play import best_member
from t3d.app.terminal import PlainConsole
from t3d.config import Member
from t3d.insight.best_member import known_choice, play_choice
from t3d.seeds import derive
from t3d.store.best import read_fresh
from t3d.store.reader import Run, open_run
from t3d.world.evaluate import Stopped

EPISODE, EPISODES = 4, 6  # steps; three times eval.episodes
BIASES = {0: 0.0, 5: 0.5, 7: -0.5}


class Target(gym.Env[Any, Any]):
    """A step's reward is the action and a draw that the episode's seed decides."""

    seeds: ClassVar[list[int | None]] = []
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        Target.seeds.append(seed)
        self.luck, self.t = self.np_random.normal(), 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return np.zeros(2, np.float32), float(action[0]) + self.luck, False, self.t == EPISODE, {}


def actor(bias: float) -> np.ndarray[Any, Any]:
    """A network that always plays tanh(bias)."""
    flat = np.zeros(helpers.mlp(2, 16, 16, 1).size, np.float32)
    flat[-1] = bias
    return flat


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose curve praises seed 0, while seed 5 plays best."""
    root = tmp_path_factory.mktemp("runs")
    cfg = small_config(
        total_steps=120,
        seeds=[*BIASES],
        env={"id": "test_best_member:Target"},
        run={"root": str(root), "name": "three"},
    )
    list(t3d.train(cfg))
    events = [json.loads(line) for line in (root / "three" / "events.jsonl").read_text().splitlines()]
    lucky = [
        {**event, "mean_return": 99.0} if event["seed"] == 0 and event["event"] == "eval" else event for event in events
    ]
    (root / "three" / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in lucky))
    for seed, bias in BIASES.items():
        rewrite_policy(root / "three" / "best" / f"seed-{seed}", {}, {"actor": actor(bias)})
    return root / "three"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Run:
    Target.seeds.clear()
    return open_run(shutil.copytree(trained, tmp_path / "three"))


def evaluated(run: Run, capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    assert main(["eval", str(run.path), "--episodes", "2", *flags]) == 0
    return capsys.readouterr().out


def test_the_seed_that_plays_best_is_chosen_and_not_the_luckiest(run: Run) -> None:
    assert run.best_member() == Member(0)
    choice = play_choice(run)
    assert choice.member.seed == 5 and choice.episodes == EPISODES
    assert list(choice.mean_returns) == [Member(seed) for seed in BIASES]
    by_action = {seed: EPISODE * np.tanh(bias) for seed, bias in BIASES.items()}
    above = {member.seed: mean - choice.mean_returns[Member(0)] for member, mean in choice.mean_returns.items()}
    assert above == pytest.approx(by_action, abs=1e-5), "all played the same episodes"


def test_the_episodes_are_fresh_and_the_same_for_all_seeds(run: Run) -> None:
    play_choice(run)
    starts = [derive(0, "choice", episode) for episode in range(EPISODES)]
    assert Target.seeds[-len(BIASES) * EPISODES :] == starts * len(BIASES)
    of_the_curve = {derive(seed, "evaluation", episode) for seed in BIASES for episode in range(EPISODES)}
    assert not of_the_curve & {*starts}


def test_a_choice_is_kept_until_a_policy_changes(run: Run) -> None:
    assert known_choice(run) is None
    choice = play_choice(run)
    assert known_choice(run) == choice
    rewrite_policy(run.path / "best" / "seed-7", {}, {"actor": actor(2.0)})
    assert known_choice(run) is None
    assert play_choice(run).member.seed == 7


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"fresh": {}, "sha256": ""}', b"[" * 100_000])
def test_a_choice_that_was_damaged_is_made_again(run: Run, content: bytes) -> None:
    play_choice(run)
    file = run.path / "best" / "fresh.json"
    assert known_choice(run) is not None
    file.write_bytes(content or file.read_bytes().replace(b"e", b"f", 1))
    assert known_choice(run) is None


def test_a_choice_is_not_written_through_a_link(run: Run, tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"precious")
    (run.path / "best" / "fresh.json").symlink_to(tmp_path / "precious")
    assert play_choice(run).member.seed == 5 and known_choice(run) is not None
    assert (tmp_path / "precious").read_bytes() == b"precious"


def test_eval_says_what_it_chooses_and_plays_it(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    out = evaluated(run, capsys)
    assert f"choosing the best of 3 seeds on {EPISODES} fresh episodes each" in out
    assert "seed 5 is the best of 3 seeds" in out and "seed 5, best policy" in out
    again = evaluated(run, capsys)
    assert "choosing" not in again and "seed 5 is the best of 3 seeds" in again


def test_eval_plays_the_same_starts_whatever_the_seed(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    starts = []
    for seed in BIASES:
        Target.seeds.clear()
        assert f"seed {seed}, best policy" in evaluated(run, capsys, "--seed", str(seed))
        starts.append(Target.seeds[-2:])
    assert starts == [[derive(0, "test", episode) for episode in range(2)]] * len(BIASES)


def test_one_seed_needs_no_choice(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (run.path / "events.jsonl").read_text().splitlines(keepends=True)
    (run.path / "events.jsonl").write_text("".join(line for line in lines if json.loads(line)["seed"] in (None, 7)))
    out = evaluated(run, capsys)
    assert "choosing" not in out and "seed 7, best policy" in out
    assert not read_fresh(run.path).choice


def test_ctrl_c_skips_the_choice(run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*words: Any) -> Any:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr("t3d.insight.best_member.play_episodes", interrupted)
    out = evaluated(run, capsys)
    assert "skipped; seed 0 has the best evaluation" in out and "seed 0, best policy" in out
    assert known_choice(run) is None


def test_ctrl_c_skips_the_fresh_episodes_of_one_seed(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = run._replace(evals={Member(7): run.evals[Member(7)]})

    def interrupted(*_: Any) -> Any:
        raise Stopped

    with monkeypatch.context() as patched:
        patched.setattr("t3d.insight.best_member.play_episodes", interrupted)
        assert best_member(alone, PlainConsole(), always=True) == Member(7)
    assert (
        "playing 6 fresh episodes (Ctrl-C skips this) ...\n  skipped; seed 7 has the best evaluation\n"
        in capsys.readouterr().out
    )
    assert not (run.path / "best" / "fresh.json").exists()
    assert best_member(alone, PlainConsole(), always=True) == Member(7)
    assert "seed 7: mean return" in capsys.readouterr().out
    assert read_fresh(run.path).by_member["seed-7"].episodes == EPISODES


@pytest.mark.parametrize("env_id", ["nothing_here:make", "test_best_member:broken", ""])
def test_where_the_environment_cannot_be_made_the_curve_decides(
    run: Run, env_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    toml = (run.path / "config.toml").read_text().replace('"test_best_member:Target"', f'"{env_id}"')
    (run.path / "config.toml").write_text(toml)
    out = evaluated(run, capsys, "--env", "test_best_member:Target")
    assert "cannot play fresh episodes: " in out and "seed 0 has the best evaluation" in out
    assert "seed 0, best policy" in out


def broken() -> Any:
    raise RuntimeError("the [bold]left[/bold] wheel fell off")


def test_training_chooses_before_it_names_the_best_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--total-steps", "120", "--random-steps", "100", "--td3.batch-size", "8", "--eval.episodes", "2"]
    flags = [*sizes, "--seeds", "0", "1", "--no-video", "--run.root", str(tmp_path), "--run.name", "two"]
    assert main(["train", "test_best_member:Target", *flags]) == 0
    out = capsys.readouterr().out
    choice = known_choice(open_run(tmp_path / "two"))
    assert choice is not None and f"seed {choice.member.seed} is the best of 2 seeds" in out
    assert f"policy  {tmp_path}/two/best/seed-{choice.member.seed}.safetensors" in out
